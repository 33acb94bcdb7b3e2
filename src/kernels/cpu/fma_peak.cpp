// The machine's own limit: a loop of independent FMAs in registers. Benchmarks print their speed as a share of it.
#include <immintrin.h>

#include "kernels/cpu/probes.h"

namespace nibble::NIBBLE_TARGET {

int64_t fma_loop(int64_t rounds, float* sink) {
#ifdef __AVX512F__
  using Word = __m512;
  const auto all = [](float x) { return _mm512_set1_ps(x); };
  const auto fma = [](Word a, Word b, Word c) { return _mm512_fmadd_ps(a, b, c); };
#else
  using Word = __m256;
  const auto all = [](float x) { return _mm256_set1_ps(x); };
  const auto fma = [](Word a, Word b, Word c) { return _mm256_fmadd_ps(a, b, c); };
#endif
  constexpr int chains = 12;
  Word acc[chains];
  for (int i = 0; i < chains; ++i) acc[i] = all(static_cast<float>(i));
  const Word a = all(0.9999f), b = all(1e-3f);
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) acc[i] = fma(acc[i], a, b);
  Word sum = acc[0];
  for (int i = 1; i < chains; ++i) sum = fma(sum, a, acc[i]);
  *sink = reinterpret_cast<const float*>(&sum)[0];
  return rounds * chains * static_cast<int64_t>(sizeof(Word) / sizeof(float)) * 2;
}

}  // namespace nibble::NIBBLE_TARGET
