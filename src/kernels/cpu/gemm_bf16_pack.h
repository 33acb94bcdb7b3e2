// Packing for gemm_bf16.cpp: BF16 operands to words of 32 bits. A word is one k, widened to f32, or on avx512_bf16 two
// of them, (k, k + 1) from the low half up, where a missing last k is +0.
//
// As in gemm_pack.h every word of k is stored as whole registers, which may run over into the place of the next word;
// so words ascend, and after the last one of a panel `lanes` words must be free.
#pragma once
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_pack.h"

namespace nibble::NIBBLE_TARGET {

#ifdef __AVX512BF16__
constexpr int64_t k_of_word = 2;
inline Word multiply_add(Word a, Word b, Word c) {  // c + a.low b.low + a.high b.high, in f32
  return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
/// `lanes` words of ascending k, and those of the first n k.
inline Word load_k(const BFloat16* p) { return _mm512_loadu_ps(p); }
inline Word load_k_first(const BFloat16* p, int64_t n) {
  return of_bits(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << n) - 1), p));
}
/// Rows contiguous: one word of `lanes` rows, of k and k + 1.
inline Word load_rows(const BFloat16* p, int64_t k_stride) {
  const auto halves = [](const BFloat16* at) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  };
  return of_bits(bit_or(halves(p), shift_left<16>(halves(p + k_stride))));
}
#else
constexpr int64_t k_of_word = 1;
inline Word multiply_add(Word a, Word b, Word c) { return fma(a, b, c); }
inline Word load_k(const BFloat16* p) { return load(p); }
inline Word load_k_first(const BFloat16* p, int64_t n) { return load_first(p, n); }
inline Word load_rows(const BFloat16* p, int64_t) { return load(p); }
#endif

/// k contiguous: up to `lanes` rows, src[row * row_stride + k], to dst[word * width + row]. Words are transposed on the
/// way. Rows past the last repeat it; nobody reads what comes of them. The rows that follow are fetched.
inline void pack_across(const BFloat16* src, int64_t row_stride, int64_t rows, int64_t k, float* dst, int64_t width) {
  constexpr int64_t step = lanes * k_of_word;
  const BFloat16* row[lanes];
  for (int r = 0; r < lanes; ++r) row[r] = src + smaller(r, rows - 1) * row_stride;
  const int64_t ahead = rows * row_stride;
  Word v[lanes];
  int64_t i = 0;
  for (; i + step <= k; i += step) {
#pragma GCC unroll 16
    for (int r = 0; r < lanes; ++r) {
      v[r] = load_k(row[r] + i);
      __builtin_prefetch(row[r] + i + ahead);
    }
    transpose(v);
#pragma GCC unroll 16
    for (int q = 0; q < lanes; ++q) store(dst + (i / k_of_word + q) * width, v[q]);
  }
  if (i == k) return;
  for (int r = 0; r < lanes; ++r) v[r] = load_k_first(row[r] + i, k - i);
  transpose(v);
  for (int q = 0; q < ceil_div(k - i, k_of_word); ++q) store(dst + (i / k_of_word + q) * width, v[q]);
}

/// Rows contiguous: one word of `rows` rows, to dst[row]; past the last row, up to a multiple of 2 lanes, +0. src: row
/// 0 of the word's first k, of which `k` are there (others are +0).
inline void pack_word(const BFloat16* src, int64_t k_stride, int64_t rows, int64_t k, float* dst) {
#ifdef __AVX512BF16__
  const auto both = [](__m512i low, __m512i high, float* to) {
    const __m512i low_half = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                                              6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high_half = _mm512_add_epi16(low_half, _mm512_set1_epi16(16));
    store(to, of_bits(_mm512_permutex2var_epi16(low, low_half, high)));
    store(to + lanes, of_bits(_mm512_permutex2var_epi16(low, high_half, high)));
  };
  int64_t r = 0;
  if (k > 1)
    for (; r + 32 <= rows; r += 32) both(_mm512_loadu_si512(src + r), _mm512_loadu_si512(src + r + k_stride), dst + r);
  if (r == rows) return;
  for (; r < rows; r += 32) {
    const auto some = static_cast<__mmask32>(rows - r >= 32 ? ~0u : (1u << (rows - r)) - 1);
    const __mmask32 second = k > 1 ? some : 0;
    both(_mm512_maskz_loadu_epi16(some, src + r), _mm512_maskz_loadu_epi16(second, src + r + (k > 1 ? k_stride : 0)),
         dst + r);
  }
#else
  (void)k_stride, (void)k;
  int64_t r = 0;
  for (; r + lanes <= rows; r += lanes) store(dst + r, load(src + r));
  for (; r < ceil_div(rows, 2 * lanes) * 2 * lanes; r += lanes)
    store(dst + r, load_first(src + r, larger(0, rows - r)));
#endif
}

}  // namespace nibble::NIBBLE_TARGET
