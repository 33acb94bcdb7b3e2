// Operands of gemm_4bit.cpp as bytes. A byte is a doubled code, in [-12, 12], or an offset one, 12 more; of each
// product one side is offset, for the instructions want one side without signs, and what that adds is taken off as an
// integer:
//   VNNI     d = -12 sum(a)  +  sum of  a (b + 12)       A broadcast, B a register of 16 columns
//   maddubs  d = -12 sum(b)  +  sum of  (a + 12) b       (16-bit sums: 32 products are at most 9216)
// The four bytes of a 32-bit word are elements 0 2 4 6 or 1 3 5 7 of eight: the halves of four bytes of codes. Integers
// add up the same in any order.
//
//   A, a panel of rows; for each block   [rows][words] codes, VNNI: [rows] -12 sum(a), [rows] scales
//   B, a panel of columns; for each block, and each register of columns
//                                        [words] codes, maddubs: -12 sum(b) of both halves of a word, scales
#pragma once
#include "kernels/cpu/gemm_4bit.h"
#include "kernels/cpu/gemm_pack.h"
#include "numerics/fp8.h"

namespace nibble::NIBBLE_TARGET {

#ifdef __AVX512VNNI__
constexpr bool vnni = true;
constexpr int column_words = 2;  // registers of a panel's columns
#else
constexpr bool vnni = false;
constexpr int column_words = 2;
#endif
constexpr int64_t columns = column_words * lanes;
constexpr int64_t word_bytes = lanes * 4;

/// Bytes of one block in a panel. words: 32-bit words of a block's codes in one row, 4 (NVFP4) or 8.
constexpr int64_t a_block_bytes(int words, int64_t rows) { return rows * (4 * words + (vnni ? 8 : 4)); }
constexpr int64_t b_word_bytes(int words) { return (words + (vnni ? 1 : 2)) * word_bytes; }
constexpr int64_t b_block_bytes(int words) { return column_words * b_word_bytes(words); }

// ------------------------------------------------------------------------------------------------------------ integers

#ifdef __AVX512F__
inline IntWord zero_int() { return _mm512_setzero_si512(); }
inline IntWord all_bytes(char x) { return _mm512_set1_epi8(x); }
inline IntWord add16(IntWord a, IntWord b) { return _mm512_add_epi16(a, b); }
inline IntWord sub16(IntWord a, IntWord b) { return _mm512_sub_epi16(a, b); }
inline IntWord dot_pairs(IntWord offset, IntWord signs) { return _mm512_maddubs_epi16(offset, signs); }
inline IntWord dot_ones(IntWord a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
inline IntWord table16(__m128i table, IntWord i) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), i); }
/// 32 bytes, the dwords of 64-bit lanes.
inline IntWord load_dwords(const void* p) {
  return _mm512_cvtepu32_epi64(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline IntWord shift_left4_of_high(IntWord a) { return _mm512_slli_epi64(a, 28); }
inline IntWord swap64(IntWord a) { return _mm512_shuffle_epi32(a, _MM_PERM_BADC); }
inline IntWord swap32(IntWord a) { return _mm512_shuffle_epi32(a, _MM_PERM_CDAB); }
#else
inline IntWord zero_int() { return _mm256_setzero_si256(); }
inline IntWord all_bytes(char x) { return _mm256_set1_epi8(x); }
inline IntWord add16(IntWord a, IntWord b) { return _mm256_add_epi16(a, b); }
inline IntWord sub16(IntWord a, IntWord b) { return _mm256_sub_epi16(a, b); }
inline IntWord dot_pairs(IntWord offset, IntWord signs) { return _mm256_maddubs_epi16(offset, signs); }
inline IntWord dot_ones(IntWord a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
inline IntWord table16(__m128i table, IntWord i) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), i); }
inline IntWord load_dwords(const void* p) {
  return _mm256_cvtepu32_epi64(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline IntWord shift_left4_of_high(IntWord a) { return _mm256_slli_epi64(a, 28); }
#endif

// ----------------------------------------------------------------------------------------------------------- codes

inline __m128i doubled_codes() { return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12); }
inline __m128i offset_codes() { return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0); }
inline __m128i a_codes() { return vnni ? doubled_codes() : offset_codes(); }
inline __m128i b_codes() { return vnni ? offset_codes() : doubled_codes(); }
inline IntWord low_halves(IntWord a) { return bit_and(a, all_bytes(15)); }

struct ScaleTable {
  float value[256];
};
template <class F>
constexpr ScaleTable scale_table(const F& f) {
  ScaleTable t{};
  for (int i = 0; i < 256; ++i) t.value[i] = f(i);
  return t;
}
// d / 4 of NVFP4 is folded into A's scale: that is exact. The product of two E8M0 scales may overflow, so there it is
// not.
constexpr ScaleTable e4m3_scales = scale_table([](int i) { return e4m3_decode(i); });
constexpr ScaleTable e4m3_quarters = scale_table([](int i) { return e4m3_decode(i) * 0.25f; });
constexpr ScaleTable e8m0_scales = scale_table([](int i) { return e8m0_decode(i); });
template <int words>
constexpr const float* a_scales = words == 4 ? e4m3_quarters.value : e8m0_scales.value;
template <int words>
constexpr const float* b_scales = words == 4 ? e4m3_scales.value : e8m0_scales.value;

inline const uint8_t* scales_of(const FourBitOperand& o, int64_t row) {
  return o.scales + row / o.tile * o.scale_pitch;
}

// ------------------------------------------------------------------------------------------- reading what was packed

inline IntWord all_of(const std::byte* p) {
  int32_t x;
  std::memcpy(&x, p, sizeof x);
  return all_int(x);
}
inline Word all_floats(const std::byte* p) { return of_bits(all_of(p)); }
inline Word load_floats(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }

/// The D of all terms goes to its place; io: of a whole word or a part of one.
template <class Io>
void put(const FourBitProduct& p, int64_t at, const Io& io, Word d) {
  if (p.rounded != nullptr) return io.put(p.rounded + at, d);
  float* to = p.sums + at;
  if (p.onto != Onto::nothing) d = add(p.onto == Onto::zero ? zero() : io.get(to), d);
  io.put(to, d);
}

// ---------------------------------------------------------------------------------------------------------- packing

constexpr int quads = lanes / 4;  // 16 codes each, that a register of bytes holds

/// `quads` quarter words: the first `count` of them to dst[i * step].
inline void store_quads(IntWord a, int64_t count, std::byte* dst, int64_t step) {
  const auto put = [&](int64_t i, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i * step), x); };
#ifdef __AVX512F__
  put(0, _mm512_castsi512_si128(a));
  if (count > 1) put(1, _mm512_extracti32x4_epi32(a, 1));
  if (count > 2) put(2, _mm512_extracti32x4_epi32(a, 2));
  if (count > 3) put(3, _mm512_extracti32x4_epi32(a, 3));
#else
  put(0, _mm256_castsi256_si128(a));
  if (count > 1) put(1, _mm256_extracti128_si256(a, 1));
#endif
}

/// Row `row` of A, blocks [begin, begin + blocks), to place `r` of a panel of `rows`.
template <int words>
void pack_a_row(const FourBitOperand& a, int64_t row, int64_t begin, int64_t blocks, int64_t r, int64_t rows,
                std::byte* panel) {
  constexpr int64_t of_block = words / 4;  // quads
  const int64_t step = a_block_bytes(words, rows), count = blocks * of_block;
  const uint8_t* codes = a.codes + row * a.code_pitch + begin * of_block * 8;
  std::byte* dst = panel + r * words * 4;
  const auto put = [&](const uint8_t* from, int64_t q, int64_t some) {
    const IntWord x = load_dwords(from);  // low halves below, high ones above
    const IntWord c = table16(a_codes(), low_halves(bit_or(x, shift_left4_of_high(x))));
    if constexpr (words == 4) {
      store_quads(c, some, dst + q * step, step);
    } else {
      for (int64_t i = 0; i < quads; i += 2)
        if (i < some) {
#ifdef __AVX512F__
          const __m256i two = i == 0 ? _mm512_castsi512_si256(c) : _mm512_extracti64x4_epi64(c, 1);
#else
          const __m256i two = c;
#endif
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + (q + i) / 2 * step), two);
        }
    }
#ifdef __AVX512VNNI__
    alignas(64) int32_t sums[16];
    IntWord s = _mm512_dpbusd_epi32(zero_int(), all_bytes(12), c);
    s = add(s, swap64(s)), s = add(s, swap32(s));
    if constexpr (words == 8) s = add(s, _mm512_shuffle_i32x4(s, s, 0xB1));
    store_int(sums, sub(zero_int(), s));
    for (int64_t i = 0; i < some; i += of_block)
      std::memcpy(panel + (q + i) / of_block * step + rows * words * 4 + r * 4, &sums[i * 4], 4);
#endif
  };
  int64_t q = 0;
  for (; q + quads <= count; q += quads) put(codes + q * 8, q, quads);
  if (q < count) {
    uint8_t rest[quads * 8] = {};
    std::memcpy(rest, codes + q * 8, static_cast<size_t>(count - q) * 8);
    put(rest, q, count - q);
  }
  const uint8_t* scales = scales_of(a, row) + begin;
  std::byte* at = panel + rows * (words * 4 + (vnni ? 4 : 0)) + r * 4;
  for (int64_t k = 0; k < blocks; ++k) std::memcpy(at + k * step, &a_scales<words>[scales[k]], 4);
}

/// Columns [j, j + width) of B, width <= columns, and blocks [begin, begin + blocks). Columns past the last repeat it.
template <int words>
void pack_b_panel(const FourBitOperand& b, int64_t j, int64_t width, int64_t begin, int64_t blocks, std::byte* panel) {
  constexpr int64_t of_block = words / 2;  // 32-bit words of codes, two of bytes each
  constexpr int64_t step = b_block_bytes(words);
  const int64_t count = blocks * of_block;
  for (int64_t g = 0; g < column_words; ++g) {
    std::byte* dst = panel + g * b_word_bytes(words);
    const float* row[lanes];
    const uint8_t* scales[lanes];
    for (int r = 0; r < lanes; ++r) {
      const int64_t column = j + smaller(g * lanes + r, width - 1);
      row[r] = reinterpret_cast<const float*>(b.codes + column * b.code_pitch + begin * of_block * 4);
      scales[r] = scales_of(b, column) + begin;
    }
    for (int64_t i = 0; i < count; i += lanes) {
      Word v[lanes];
      if (i + lanes <= count) {
#pragma GCC unroll 16
        for (int r = 0; r < lanes; ++r) {
          v[r] = load(row[r] + i);
          __builtin_prefetch(row[r] + i + 4 * lanes);
        }
      } else {
        for (int r = 0; r < lanes; ++r) v[r] = load_first(row[r] + i, count - i);
      }
      transpose(v);
      [[maybe_unused]] IntWord correction = zero_int();
#pragma GCC unroll 16
      for (int q = 0; q < lanes; ++q) {
        if (i + q >= count) break;
        std::byte* block = dst + (i + q) / of_block * step;
        const IntWord x = bits_of(v[q]);
        const IntWord low = table16(b_codes(), low_halves(x)), high = table16(b_codes(), low_halves(shift_right<4>(x)));
        store_int(block + q % of_block * 2 * word_bytes, low);
        store_int(block + (q % of_block * 2 + 1) * word_bytes, high);
        if constexpr (!vnni) {
          if (q % of_block == 0) correction = zero_int();
          correction = sub16(correction, add16(dot_pairs(all_bytes(12), low), dot_pairs(all_bytes(12), high)));
          if (q % of_block == of_block - 1) store_int(block + words * word_bytes, correction);
        }
      }
    }
    std::byte* at = dst + (words + (vnni ? 0 : 1)) * word_bytes;
    if (b.tile >= lanes) {
      for (int64_t k = 0; k < blocks; ++k)
        store(reinterpret_cast<float*>(at + k * step), all(b_scales<words>[scales[0][k]]));
    } else {
      for (int64_t k = 0; k < blocks; ++k) {
        auto* to = reinterpret_cast<float*>(at + k * step);
        for (int r = 0; r < lanes; ++r) to[r] = b_scales<words>[scales[r][k]];
      }
    }
  }
}

}  // namespace nibble::NIBBLE_TARGET
