// How fast this machine reads, copies and writes: whole registers, eight at a time, so that loads and stores alone are
// the limit.
#include <immintrin.h>

#include "kernels/cpu/probes.h"

namespace nibble::NIBBLE_TARGET {
namespace {

#ifdef __AVX512F__
using Bits = __m512i;
inline Bits load(const float* p) { return _mm512_load_si512(p); }
inline Bits merge(Bits a, Bits b) { return _mm512_or_si512(a, b); }
inline void store(float* p, Bits x) { _mm512_store_si512(p, x); }
inline void stream(float* p, Bits x) { _mm512_stream_si512(reinterpret_cast<__m512i*>(p), x); }
inline Bits all(float x) { return _mm512_castps_si512(_mm512_set1_ps(x)); }
inline float first(Bits x) { return static_cast<float>(_mm512_cvtsi512_si32(x)); }
#else
using Bits = __m256i;
inline Bits load(const float* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
inline Bits merge(Bits a, Bits b) { return _mm256_or_si256(a, b); }
inline void store(float* p, Bits x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }
inline void stream(float* p, Bits x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), x); }
inline Bits all(float x) { return _mm256_castps_si256(_mm256_set1_ps(x)); }
inline float first(Bits x) { return static_cast<float>(_mm256_cvtsi256_si32(x)); }
#endif
constexpr int64_t width = sizeof(Bits) / sizeof(float), group = 8 * width;

}  // namespace

void read_loop(const float* from, float*, int64_t n, int64_t times, float* sink) {
  Bits sum[8];
  for (Bits& s : sum) s = all(0);
  for (int64_t t = 0; t < times; ++t) {
    asm volatile("" ::: "memory");  // each pass reads again
    for (int64_t i = 0; i < n; i += group)
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) sum[k] = merge(sum[k], load(from + i + k * width));
  }
  for (int k = 1; k < 8; ++k) sum[0] = merge(sum[0], sum[k]);
  *sink = first(sum[0]);
}

void copy_loop(const float* from, float* to, int64_t n, int64_t times, float* sink) {
  for (int64_t t = 0; t < times; ++t)
    for (int64_t i = 0; i < n; i += group)
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) store(to + i + k * width, load(from + i + k * width));
  *sink = to[n - 1];
}

void stream_copy_loop(const float* from, float* to, int64_t n, int64_t times, float* sink) {
  for (int64_t t = 0; t < times; ++t)
    for (int64_t i = 0; i < n; i += group)
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) stream(to + i + k * width, load(from + i + k * width));
  _mm_sfence();
  *sink = to[n - 1];
}

void stream_fill_loop(const float*, float* to, int64_t n, int64_t times, float* sink) {
  const Bits x = all(1);  // not zeros: Zen 4 writes lines of zeros three times as fast
  for (int64_t t = 0; t < times; ++t)
    for (int64_t i = 0; i < n; i += group)
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) stream(to + i + k * width, x);
  _mm_sfence();
  *sink = to[n - 1];
}

}  // namespace nibble::NIBBLE_TARGET
