// Panels of 4-bit weights for linear_w4.cpp: `lanes` rows of w, the lanes of a word, times up to four rows of x.
//
// The codes of a panel, a line (64 bytes on AVX-512, 128 k) at a time, are transposed as 32-bit words: a word then
// holds eight codes of each of its rows, and eight k follow from it. Scales likewise, four blocks a word. An output's
// products are added one after the other, ascending in k: the order of `linear`.
#pragma once
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/quantize_words.h"
#include "numerics/decoded.h"

namespace nibble::NIBBLE_TARGET {

/// An NVFP4 matrix w [rows, k]; tile: rows under one scale, 1 or 16.
struct W4Operand {
  explicit W4Operand(const QuantizedView& v)
      : codes(v.codes(0)),
        scales(v.scales(0)),
        code_pitch(v.layout.code_pitch),
        scale_pitch(v.layout.scale_pitch),
        tile(v.format.rows),
        rows(v.layout.rows),
        k(v.layout.columns),
        blocks(v.layout.blocks),
        header(v.header()) {}
  const uint8_t *codes, *scales;
  int64_t code_pitch, scale_pitch, tile, rows, k, blocks;
  QuantizedHeader header;
  const uint8_t* scales_of(int64_t row) const { return scales + row / tile * scale_pitch; }
};

constexpr int64_t line_words = lanes;           // 32-bit words of a line
constexpr int64_t line_k = 8 * line_words;      // k of a line of codes
constexpr int64_t scale_line = 4 * line_words;  // blocks of a line of scales

/// decoded_scale of every lane's byte, 0x7E at most. A poisoned tensor has NaN for its amax and its decode.
inline Word decoded_scales(IntWord byte, const QuantizedHeader& h) {
  const Word s = e4m3_values(byte);
  return h.by_amax != 0 ? mul(mul(s, all(h.amax)), all(rcp_2688)) : mul(s, all(h.decode));
}

/// `bytes` bytes of each of `lanes` rows, up to a line, transposed as words: word q of row r is lane r of to[q * lanes].
inline void transpose_bytes(const uint8_t* const* row, int64_t bytes, int32_t* to) {
  Word v[lanes];
  if (bytes >= int64_t{lanes} * 4) {
#pragma GCC unroll 16
    for (int r = 0; r < lanes; ++r) v[r] = load(reinterpret_cast<const float*>(row[r]));
  } else {
    for (int r = 0; r < lanes; ++r) {
#ifdef __AVX512F__
      v[r] = of_bits(_mm512_maskz_loadu_epi8((uint64_t{1} << bytes) - 1, row[r]));
#else
      alignas(32) uint8_t some[32] = {};
      std::memcpy(some, row[r], static_cast<size_t>(bytes));
      v[r] = load(reinterpret_cast<const float*>(some));
#endif
    }
  }
  transpose(v);
  const int64_t words = ceil_div(bytes, 4);
#pragma GCC unroll 16
  for (int q = 0; q < lanes; ++q)
    if (q < words) store_int(to + q * lanes, bits_of(v[q]));
}

#ifdef __AVX512F__
/// e2m1_decode by code.
inline Word code_table() {
  return _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
}
/// The entries of `table` that the lowest four bits of every lane name.
inline Word look_up(Word table, IntWord code) { return _mm512_permutexvar_ps(code, table); }
#endif

struct ScaleBytes {
  float value[256];
};
constexpr ScaleBytes scale_bytes = [] {
  ScaleBytes t{};
  for (int i = 0; i < 256; ++i) t.value[i] = e4m3_decode(i);
  return t;
}();
/// decoded_scale of any byte.
inline float one_scale(int byte, const QuantizedHeader& h) {
  return h.by_amax != 0 ? (scale_bytes.value[byte] * h.amax) * rcp_2688 : scale_bytes.value[byte] * h.decode;
}

#ifdef __AVX512F__
/// Eight k (or `count`, fewer, at the end of k) of some panels onto their sums. words: eight codes of each lane's row;
/// factor: of each panel, the table of its tile's numbers, or the scales of the lanes' rows. x: of each row, from here.
template <int rows, int panels, bool tiles, bool whole>
inline void add_eight(const int32_t* words, int64_t words_step, const Word* factor, const float* const* x,
                      int64_t count, Word (*acc)[rows]) {
  IntWord code[panels];
#pragma GCC unroll 4
  for (int p = 0; p < panels; ++p) code[p] = load_int(words + p * words_step);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    if (!whole && i >= count) return;
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) {
      const IntWord c = i == 0 ? code[p] : _mm512_srli_epi32(code[p], static_cast<unsigned>(4 * i));
      const Word w = tiles ? look_up(factor[p], c) : mul(look_up(code_table(), c), factor[p]);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) acc[p][r] = fma(all(x[r][i]), w, acc[p][r]);
    }
  }
}
#else
template <int rows, int panels, bool tiles, bool whole>
inline void add_eight(const int32_t* words, int64_t words_step, const Word* factor, const float* const* x,
                      int64_t count, Word (*acc)[rows]) {
  // A number's upper half in BF16, byte by byte: of a code 0 to 15 the high byte, and the low one.
  const __m256i high =
      _mm256_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64, 0, 0x3f,
                       0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64);
  const __m256i low = _mm256_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128,
                                       -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64);
  // Bytes 0 and 1 of the four lanes of a half, then bytes 2 and 3: unpacking puts each lane's own back.
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13,
                                         2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i nibbles = _mm256_set1_epi8(15), upper = all_int(static_cast<int32_t>(0xffff0000u));
#pragma GCC unroll 4
  for (int p = 0; p < panels; ++p) {
    const __m256i codes = _mm256_shuffle_epi8(load_int(words + p * words_step), order);
    const __m256i even = _mm256_and_si256(codes, nibbles);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibbles);
    const __m256i eh = _mm256_shuffle_epi8(high, even), el = _mm256_shuffle_epi8(low, even);
    const __m256i oh = _mm256_shuffle_epi8(high, odd), ol = _mm256_shuffle_epi8(low, odd);
    const __m256i e0 = _mm256_unpacklo_epi8(el, eh), e1 = _mm256_unpackhi_epi8(el, eh);  // k 0 2, 4 6
    const __m256i o0 = _mm256_unpacklo_epi8(ol, oh), o1 = _mm256_unpackhi_epi8(ol, oh);  // k 1 3, 5 7
    const auto step = [&](int i, __m256i bits) {
      if (!whole && i >= count) return;
      const Word w = mul(of_bits(bits), factor[p]);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) acc[p][r] = fma(all(x[r][i]), w, acc[p][r]);
    };
    step(0, _mm256_slli_epi32(e0, 16));
    step(1, _mm256_slli_epi32(o0, 16));
    step(2, _mm256_and_si256(e0, upper));
    step(3, _mm256_and_si256(o0, upper));
    step(4, _mm256_slli_epi32(e1, 16));
    step(5, _mm256_slli_epi32(o1, 16));
    step(6, _mm256_and_si256(e1, upper));
    step(7, _mm256_and_si256(o1, upper));
  }
}
#endif

/// `panels` panels from row j of w on times `rows` rows of x, x_pitch apart. y: y_pitch apart; what lies past the last
/// row of w is not written. A panel's sums are a chain: several at a time keep the units busy.
template <int rows, int panels, bool tiles>
void multiply_panels(const W4Operand& w, const float* x_first, int64_t x_pitch, int64_t j, float* y, int64_t y_pitch) {
  constexpr int64_t step = line_words * lanes;  // of a panel's words
  Word acc[panels][rows];
#pragma GCC unroll 4
  for (int p = 0; p < panels; ++p)
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) acc[p][r] = zero();
  alignas(64) int32_t codes[panels * step], scales[tiles ? 1 : panels * step + lanes];
  const uint8_t *code_rows[panels][lanes], *scale_rows[panels][lanes];
  for (int p = 0; p < panels; ++p)
    for (int r = 0; r < lanes; ++r) {
      const int64_t row = smaller(j + p * lanes + r, w.rows - 1);
      code_rows[p][r] = w.codes + row * w.code_pitch;
      scale_rows[p][r] = tiles ? w.scales + row / 16 * w.scale_pitch : w.scales + row * w.scale_pitch;
    }
  const int64_t ahead = panels * lanes * w.code_pitch;  // to the next call's codes: 64 streams are too many to guess
  const float* x[rows];
  for (int r = 0; r < rows; ++r) x[r] = x_first + r * x_pitch;
  const QuantizedHeader h = w.header;
  for (int64_t k0 = 0; k0 < w.k; k0 += line_k) {
    const int64_t some = smaller(line_k, w.k - k0), block0 = k0 / 16;
    for (int p = 0; p < panels; ++p) {
      transpose_bytes(code_rows[p], smaller(line_k / 2, w.code_pitch - k0 / 2), codes + p * step);
      for (int r = 0; r < lanes; ++r) {
        __builtin_prefetch(code_rows[p][r] + ahead, 0, 2);
        code_rows[p][r] += line_k / 2;
      }
      if (!tiles && block0 % scale_line == 0) {
        transpose_bytes(scale_rows[p], smaller(scale_line, w.blocks - block0), scales + p * step);
        for (int r = 0; r < lanes; ++r) scale_rows[p][r] += scale_line;
      }
    }
    for (int64_t k = 0; k < some; k += 16) {
      const int64_t block = block0 + k / 16, b = block % scale_line;
      Word factor[panels];
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) {
        if constexpr (tiles) {
          factor[p] = all(one_scale(scale_rows[p][0][block], h));
#ifdef __AVX512F__
          factor[p] = mul(code_table(), factor[p]);
#endif
        } else {
          const auto* at = reinterpret_cast<const uint8_t*>(scales + p * step + b / 4 * lanes) + b % 4;
          factor[p] = decoded_scales(bit_and(load_int(at), all_int(0xff)), h);
        }
      }
      const int32_t* words = codes + k / 8 * lanes;
      const int64_t n = some - k;
      if (n >= 16) {
        add_eight<rows, panels, tiles, true>(words, step, factor, x, 8, acc);
        for (int r = 0; r < rows; ++r) x[r] += 8;
        add_eight<rows, panels, tiles, true>(words + lanes, step, factor, x, 8, acc);
        for (int r = 0; r < rows; ++r) x[r] += 8;
      } else {
        add_eight<rows, panels, tiles, false>(words, step, factor, x, n, acc);
        for (int r = 0; r < rows; ++r) x[r] += 8;
        if (n > 8) add_eight<rows, panels, tiles, false>(words + lanes, step, factor, x, n - 8, acc);
      }
    }
  }
  for (int p = 0; p < panels; ++p)
    for (int r = 0; r < rows; ++r) {
      const int64_t at = j + p * lanes, n = w.rows - at;
      if (n >= lanes)
        store(y + r * y_pitch + at, acc[p][r]);
      else if (n > 0)
        store_first(y + r * y_pitch + at, acc[p][r], n);
    }
}

/// Row `row` of w as numbers.
inline void decode_row(const W4Operand& w, int64_t row, float* to) {
  const uint8_t *codes = w.codes + row * w.code_pitch, *scales = w.scales_of(row);
  for (int64_t b = 0; b < w.blocks; ++b) {
    const float scale = one_scale(scales[b], w.header);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + b * 8));
    const __m128i nibbles = _mm_set1_epi8(15), low = _mm_and_si128(bytes, nibbles);
    const __m128i both = _mm_unpacklo_epi8(low, _mm_and_si128(_mm_srli_epi16(bytes, 4), nibbles));
    const int64_t n = smaller(16, w.k - b * 16);
    float* const at = to + b * 16;
#ifdef __AVX512F__
    const Word v = mul(look_up(code_table(), _mm512_cvtepu8_epi32(both)), all(scale));
    n == 16 ? store(at, v) : store_first(at, v, n);
#else
    const __m256 magnitudes8 = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    for (int h = 0; h < 2; ++h) {
      const __m256i code = _mm256_cvtepu8_epi32(h == 0 ? both : _mm_srli_si128(both, 8));
      const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, all_int(8)), 28);
      const Word q = of_bits(_mm256_or_si256(bits_of(_mm256_permutevar8x32_ps(magnitudes8, code)), sign));
      const int64_t here = n - 8 * h;
      if (here >= 8)
        store(at + 8 * h, mul(q, all(scale)));
      else if (here > 0)
        store_first(at + 8 * h, mul(q, all(scale)), here);
    }
#endif
  }
}

}  // namespace nibble::NIBBLE_TARGET
