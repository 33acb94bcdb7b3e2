// Peaks of the short formats, as fma_peak.cpp is of float32. The instruction sets of AVX-512 that only some CPUs have
// are asked for function by function; who calls one has asked the CPU first.
#include <immintrin.h>

#include "kernels/cpu/probes.h"

namespace nibble::NIBBLE_TARGET {

#ifdef __AVX512F__

constexpr int chains = 12;

__attribute__((target("avx512bf16"))) int64_t bf16_loop(int64_t rounds, float* sink) {
  __m512 acc[chains];
  for (int i = 0; i < chains; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  // 0x3b03 is 0.002 in bf16: sums stay normal numbers.
  __m512i bits = _mm512_set1_epi16(0x3b03);
  asm("" : "+v"(bits));  // nothing is known of it at compile time
  const auto a = (__m512bh)bits;
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, a);
  __m512 sum = acc[0];
  for (int i = 1; i < chains; ++i) sum = _mm512_add_ps(sum, acc[i]);
  *sink = _mm512_cvtss_f32(sum);
  return rounds * chains * 16 * 2 * 2;
}

__attribute__((target("avx512vnni"))) int64_t int8_loop(int64_t rounds, float* sink) {
  __m512i acc[chains];
  for (int i = 0; i < chains; ++i) acc[i] = _mm512_set1_epi32(i);
  __m512i a = _mm512_set1_epi8(3);
  asm("" : "+v"(a));
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], a, a);
  __m512i sum = acc[0];
  for (int i = 1; i < chains; ++i) sum = _mm512_add_epi32(sum, acc[i]);
  *sink = static_cast<float>(_mm512_cvtsi512_si32(sum));
  return rounds * chains * 64 * 2;
}

#else

int64_t int8_loop(int64_t rounds, float* sink) {
  constexpr int chains = 8;
  __m256i acc[chains];
  for (int i = 0; i < chains; ++i) acc[i] = _mm256_set1_epi32(i);
  __m256i a = _mm256_set1_epi8(3);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < chains; ++i) {
      asm("" : "+x"(a));  // a is constant: the compiler must not lift the product out of the loop
      acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), ones));
    }
  }
  __m256i sum = acc[0];
  for (int i = 1; i < chains; ++i) sum = _mm256_add_epi32(sum, acc[i]);
  *sink = static_cast<float>(_mm256_cvtsi256_si32(sum));
  return rounds * chains * 32 * 2;
}

#endif

}  // namespace nibble::NIBBLE_TARGET
