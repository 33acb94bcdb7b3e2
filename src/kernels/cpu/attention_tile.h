// Attention by tiles of 64 x 64 (query rows x keys): the masks of spec/training.md 2.6 as bits, and the two kinds of
// products, which leave excluded keys out instead of multiplying them by zero (2.11).
//
// Layouts: "transposed" tiles are [D][64], "plain" ones [64][width] with D rounded up to whole words; scores and
// probabilities [rows][64].
#pragma once
#include "kernels/cpu/parallel.h"

namespace nibble::NIBBLE_TARGET {

constexpr int64_t tile = 64;
#ifdef __AVX512F__
constexpr int64_t group_rows = 14;  // rows of a register block: 28 of 32 registers accumulate
#else
constexpr int64_t group_rows = 6;  // 12 of 16
#endif

inline int64_t whole_words(int64_t d) { return ceil_div(d, lanes) * lanes; }
/// Floats of `rows` rows of a plain tile, with room for the widest words: a workspace has one size on all targets.
inline int64_t plain_floats(int64_t rows, int64_t d) { return rows * ceil_div(d, 16) * 16; }

/// Rows of 64 keys at a time of one batch row, with the rule of who may see whom.
struct MaskRule {
  int64_t keys;             // of the row or cache
  int64_t window;           // 0: all earlier keys
  const int32_t* segments;  // [keys]; nullptr: one segment
  int64_t first_key(int64_t position) const { return window == 0 ? 0 : larger(0, position - window + 1); }
};

/// Bit j: the query at `position` sees key 64 t + j. One object a tile; it remembers the last segment's bits.
class TileMask {
 public:
  TileMask(const MaskRule& rule, int64_t t) : rule_(rule), first_(t * tile) {}
  uint64_t of(int64_t position) {
    const int64_t low = larger(0, rule_.first_key(position) - first_), high = smaller(tile - 1, position - first_);
    if (low > high) return 0;
    uint64_t bits = (~uint64_t{0} >> (63 - high)) & (~uint64_t{0} << low);
    if (rule_.segments == nullptr) return bits;
    const int32_t segment = rule_.segments[position];
    if (segment == 0) return 0;
    if (segment != segment_) {
      segment_ = segment;
      same_ = equal_bits(rule_.segments + first_, smaller(tile, rule_.keys - first_), segment);
    }
    return bits & same_;
  }

 private:
  const MaskRule& rule_;
  int64_t first_;
  int32_t segment_ = 0;  // no row asks for segment 0
  uint64_t same_ = 0;
};

/// The lanes of word i of 64.
inline Mask word_of(uint64_t bits, int64_t i) {
#ifdef __AVX512F__
  return static_cast<Mask>(bits >> (16 * i));
#else
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i some = _mm256_set1_epi32(static_cast<int>(bits >> (8 * i) & 0xff));
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(some, bit), bit));
#endif
}

/// Bit i of out[j] = bit j of in[i]. in, out [64].
void transpose_bits(const uint64_t* in, uint64_t* out);

/// `rows` rows of src to a transposed tile: dst[k * 64 + r], rows <= 64, k < d. Columns past the rows are not set.
void pack_transposed(const float* src, int64_t stride, int64_t rows, int64_t d, float* dst);
/// To a plain tile [rows][whole_words(d)], padded with +0.
void pack_plain(const float* src, int64_t stride, int64_t rows, int64_t d, float* dst);

/// s[i][j] = sum over ascending k of a[k * 64 + i] b[k * 64 + j], i < rows <= 64: a dot of d terms each. Words of s
/// without a bit in masks[rows] may be left as they are.
void scores(const float* a, const float* b, int64_t d, const uint64_t* masks, int64_t rows, float* s);

/// c[i][0 .. width) += the sum over ascending k with bit k of masks[i] of A(i, k) b[k][0 .. width), i < rows <= 64,
/// with A(i, k) = a[k * 64 + i] if transposed, else a[i * 64 + k]. b and c have rows of `width` floats: whole words.
void masked_product(bool transposed, const float* a, const uint64_t* masks, int64_t rows, const float* b, float* c,
                    int64_t width);

}  // namespace nibble::NIBBLE_TARGET
