// Packing for gemm.cpp: up to `lanes` rows of an operand become dst[k * width + row], the order in which the register
// block reads them.
//
// Every k is stored as a whole word. Where width < lanes it runs over into the place of the next k, which the next
// store overwrites; so k must ascend, and after the last k of a panel `lanes` floats must be free.
#pragma once
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/words.h"

namespace nibble::NIBBLE_TARGET {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// v[i] lane j <-> v[j] lane i.
inline void transpose(Word (&v)[lanes]) {
#ifdef __AVX512F__
  Word t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
  }
  const auto low = [](Word a, Word b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto high = [](Word a, Word b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // v[i + c], quarter q: column 4 q + c of rows i .. i + 3
    v[i] = low(t[i], t[i + 2]);
    v[i + 1] = high(t[i], t[i + 2]);
    v[i + 2] = low(t[i + 1], t[i + 3]);
    v[i + 3] = high(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const Word even0 = _mm512_shuffle_f32x4(v[c], v[4 + c], 0x88), odd0 = _mm512_shuffle_f32x4(v[c], v[4 + c], 0xdd);
    const Word even1 = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0x88);
    const Word odd1 = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0xdd);
    v[c] = _mm512_shuffle_f32x4(even0, even1, 0x88);
    v[4 + c] = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
    v[8 + c] = _mm512_shuffle_f32x4(even0, even1, 0xdd);
    v[12 + c] = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
  }
#else
  Word t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {  // v[i + c], half h: column 4 h + c of rows i .. i + 3
    v[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    v[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    v[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    v[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const Word low = _mm256_permute2f128_ps(v[c], v[4 + c], 0x20);
    v[4 + c] = _mm256_permute2f128_ps(v[c], v[4 + c], 0x31);
    v[c] = low;
  }
#endif
}

/// k contiguous: src[row * row_stride + k]. Words are transposed on the way. Rows past the last repeat it; nobody reads
/// what comes of them.
inline void pack_across(const float* src, int64_t row_stride, int64_t rows, int64_t kc, float* dst, int64_t width) {
  const float* row[lanes];
  for (int r = 0; r < lanes; ++r) row[r] = src + smaller(r, rows - 1) * row_stride;
  Word v[lanes];
  int64_t k = 0;
  for (; k + lanes <= kc; k += lanes) {
#pragma GCC unroll 16
    for (int r = 0; r < lanes; ++r) v[r] = load(row[r] + k);
    transpose(v);
#pragma GCC unroll 16
    for (int q = 0; q < lanes; ++q) store(dst + (k + q) * width, v[q]);
  }
  if (k == kc) return;
  for (int r = 0; r < lanes; ++r) v[r] = load_first(row[r] + k, kc - k);
  transpose(v);
  for (int q = 0; q < kc - k; ++q) store(dst + (k + q) * width, v[q]);
}

/// Rows contiguous: src[row + k * k_stride]; plain copies. Lanes past the last row hold +0.
inline void pack_along(const float* src, int64_t k_stride, int64_t rows, int64_t kc, float* dst, int64_t width) {
  if (rows >= lanes)
    for (int64_t k = 0; k < kc; ++k) store(dst + k * width, load(src + k * k_stride));
  else
    for (int64_t k = 0; k < kc; ++k) store(dst + k * width, load_first(src + k * k_stride, rows));
}

/// Rows [i, i + rows) and k [k0, k0 + kc) of an operand, rows <= lanes.
inline void pack_rows(const GemmOperand& o, int64_t i, int64_t rows, int64_t k0, int64_t kc, float* dst,
                      int64_t width) {
  const float* src = o.data + i * o.row_stride + k0 * o.k_stride;
  if (o.k_stride == 1) {
    pack_across(src, o.row_stride, rows, kc, dst, width);
  } else {
    pack_along(src, o.k_stride, rows, kc, dst, width);
  }
}

}  // namespace nibble::NIBBLE_TARGET
