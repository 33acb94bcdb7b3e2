#include "kernels/cpu/attention_tile_dpbf16.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// ---------------------------------------------------------------------------------------------------- register block

// c[rows][words] = (from_zero ? +0 : c) + the products of kc words of k; A(r, k) = a[r * a_row + k * a_k].
template <int rows, int words, int a_row>
void block(int64_t kc, const float* a, int64_t a_k, const float* b, int64_t b_stride, float* c, int64_t c_stride,
           bool from_zero) {
  Word acc[rows][words];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int w = 0; w < words; ++w) acc[r][w] = from_zero ? zero() : load(c + r * c_stride + w * lanes);
  for (int64_t k = 0; k < kc; ++k) {
    Word y[words];
#pragma GCC unroll 4
    for (int w = 0; w < words; ++w) y[w] = load(b + w * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const Word x = all(a[r * a_row]);
#pragma GCC unroll 4
      for (int w = 0; w < words; ++w) acc[r][w] = multiply_add(x, y[w], acc[r][w]);
    }
    a += a_k, b += b_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int w = 0; w < words; ++w) store(c + r * c_stride + w * lanes, acc[r][w]);
}

using Block = void (*)(int64_t kc, const float* a, int64_t a_k, const float* b, int64_t b_stride, float* c,
                       int64_t c_stride, bool from_zero);

// By rows.
template <int words, int a_row>
constexpr Block blocks[group_rows + 1] = {nullptr,
                                          block<1, words, a_row>,
                                          block<2, words, a_row>,
                                          block<3, words, a_row>,
                                          block<4, words, a_row>,
                                          block<5, words, a_row>,
                                          block<6, words, a_row>,
                                          block<7, words, a_row>,
                                          block<8, words, a_row>,
                                          block<9, words, a_row>,
                                          block<10, words, a_row>,
                                          block<11, words, a_row>,
                                          block<12, words, a_row>,
                                          block<13, words, a_row>,
                                          block<14, words, a_row>};

// ------------------------------------------------------------------------------------------------------------ masking

constexpr uint64_t first_of_pairs = 0x5555555555555555;

// One masked product, k counted in words; a_row is 1 (transposed) or 32.
template <int a_row>
struct PairProduct {
  static constexpr int64_t a_k = a_row == 1 ? tile : 1;
  const float *a, *b;
  float* c;
  int64_t width;

  // Words [k0, k1) of rows [i, i + rows).
  void part(int64_t i, int64_t rows, int64_t k0, int64_t k1) const {
    if (k0 == k1) return;
    const float *ai = a + i * a_row + k0 * a_k, *bk = b + k0 * width;
    float* ci = c + i * width;
    int64_t w = 0;
    if (rows == 1)  // one row: more words, for independent chains
      for (; w + 4 * lanes <= width; w += 4 * lanes)
        block<1, 4, a_row>(k1 - k0, ai, a_k, bk + w, width, ci + w, width, false);
    for (; w + 2 * lanes <= width; w += 2 * lanes)
      blocks<2, a_row>[rows](k1 - k0, ai, a_k, bk + w, width, ci + w, width, false);
    if (w < width) blocks<1, a_row>[rows](k1 - k0, ai, a_k, bk + w, width, ci + w, width, false);
  }

  // One half of word k: bits 1 or 2.
  void half(int64_t i, int64_t k, uint64_t bits) const {
    const IntWord keep = all_int(static_cast<int32_t>(bits == 1 ? 0x0000ffff : 0xffff0000));
    const Word x = of_bits(bit_and(bits_of(all(a[i * a_row + k * a_k])), keep));
    for (int64_t w = 0; w < width; w += lanes) {
      float* at = c + i * width + w;
      store(at, multiply_add(x, of_bits(bit_and(bits_of(load(b + k * width + w)), keep)), load(at)));
    }
  }

  // Words [k, end) of row i with these bits.
  void row(int64_t i, uint64_t mask, int64_t k, int64_t end) const {
    while (k < end) {
      const uint64_t bits = mask >> (2 * k) & 3;
      if (bits != 3) {
        if (bits != 0) half(i, k, bits);
        ++k;
        continue;
      }
      const int64_t begin = k;
      while (k < end && (mask >> (2 * k) & 3) == 3) ++k;
      part(i, 1, begin, k);
    }
  }

  // The pairs that all rows of a group see go through a register block; those before and after, row by row.
  void group(int64_t i, int64_t rows, const uint64_t* masks) const {
    uint64_t common = first_of_pairs, any_row = 0;
    for (int64_t r = 0; r < rows; ++r) common &= masks[r] & masks[r] >> 1, any_row |= masks[r];
    if (any_row == 0) return;
    int64_t begin = tile_words, end = tile_words;
    if (common != 0) begin = lowest_bit(common) / 2, end = (bit_length(common) + 1) / 2;
    if (__builtin_popcountll(common) != end - begin) begin = end = tile_words;  // not one run
    const int64_t first = lowest_bit(any_row) / 2, last = (bit_length(any_row) + 1) / 2;
    for (int64_t r = 0; r < rows; ++r) row(i + r, masks[r], first, smaller(begin, last));
    part(i, rows, begin, end);
    for (int64_t r = 0; r < rows; ++r) row(i + r, masks[r], end, last);
  }
};

int64_t group_begin(int64_t g, int64_t groups, int64_t rows) { return rows * g / groups; }

}  // namespace

void pack_transposed(const BFloat16* src, int64_t stride, int64_t rows, int64_t d, float* dst) {
  for (int64_t r = 0; r < rows; r += lanes)
    pack_across(src + r * stride, stride, smaller(lanes, rows - r), d, dst + r, tile);
}

void pack_pairs(const BFloat16* src, int64_t stride, int64_t rows, int64_t d, float* dst) {
  const int64_t width = whole_words(d);
  for (int64_t r = 0; r < rows; r += 2)
    pack_word(src + r * stride, stride, d, smaller(2, rows - r), dst + r / 2 * width);
}

void pair_scores(const float* a, const float* b, int64_t d, const uint64_t* masks, int64_t rows, float* s) {
  const int64_t groups = ceil_div(rows, group_rows);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t i = group_begin(g, groups, rows), n = group_begin(g + 1, groups, rows) - i;
    uint64_t any_row = 0;
    for (int64_t r = i; r < i + n; ++r) any_row |= masks[r];
    constexpr int64_t columns = 2 * lanes;
    for (int64_t j = 0; j < tile; j += columns)
      if ((any_row >> j & (~uint64_t{0} >> (64 - columns))) != 0)
        blocks<2, 1>[n](ceil_div(d, 2), a + i, tile, b + j, tile, s + i * tile + j, tile, true);
  }
}

void masked_pair_product(bool transposed, const float* a, const uint64_t* masks, int64_t rows, const float* b, float* c,
                         int64_t width) {
  const int64_t groups = ceil_div(rows, group_rows);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t i = group_begin(g, groups, rows), n = group_begin(g + 1, groups, rows) - i;
    if (transposed) {
      PairProduct<1>{a, b, c, width}.group(i, n, masks + i);
    } else {
      PairProduct<tile_words>{a, b, c, width}.group(i, n, masks + i);
    }
  }
}

}  // namespace nibble::NIBBLE_TARGET
