#include "kernels/cpu/attention_tile.h"

#include <cstring>

namespace nibble::NIBBLE_TARGET {
namespace {

// ---------------------------------------------------------------------------------------------------- register block

// c[rows][words] = (from_zero ? +0 : c) + sum over k of A(r, k) b[k]; A(r, k) = a[r * a_row + k * a_k].
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
      for (int w = 0; w < words; ++w) acc[r][w] = fma(x, y[w], acc[r][w]);
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

// By rows, for one and two words.
template <int a_row>
constexpr Block blocks[2][group_rows + 1] = {
    {nullptr, block<1, 1, a_row>, block<2, 1, a_row>, block<3, 1, a_row>, block<4, 1, a_row>, block<5, 1, a_row>,
     block<6, 1, a_row>,
#ifdef __AVX512F__
     block<7, 1, a_row>, block<8, 1, a_row>, block<9, 1, a_row>, block<10, 1, a_row>, block<11, 1, a_row>,
     block<12, 1, a_row>, block<13, 1, a_row>, block<14, 1, a_row>
#endif
    },
    {nullptr, block<1, 2, a_row>, block<2, 2, a_row>, block<3, 2, a_row>, block<4, 2, a_row>, block<5, 2, a_row>,
     block<6, 2, a_row>,
#ifdef __AVX512F__
     block<7, 2, a_row>, block<8, 2, a_row>, block<9, 2, a_row>, block<10, 2, a_row>, block<11, 2, a_row>,
     block<12, 2, a_row>, block<13, 2, a_row>, block<14, 2, a_row>
#endif
    }};

// ------------------------------------------------------------------------------------------------------------ masking

bool is_run(uint64_t bits) { return (bits & (bits + (bits & -bits))) == 0; }  // of ones; bits != 0

// One masked product; a_row is 1 (transposed) or 64.
template <int a_row>
struct Product {
  static constexpr int64_t a_k = a_row == 1 ? tile : 1;
  const float *a, *b;
  float* c;
  int64_t width;

  // Keys [k0, k1) of rows [i, i + rows).
  void part(int64_t i, int64_t rows, int64_t k0, int64_t k1) const {
    const float *ai = a + i * a_row + k0 * a_k, *bk = b + k0 * width;
    float* ci = c + i * width;
    int64_t w = 0;
    if (rows == 1)  // one row: more words, for independent chains
      for (; w + 4 * lanes <= width; w += 4 * lanes)
        block<1, 4, a_row>(k1 - k0, ai, a_k, bk + w, width, ci + w, width, false);
    for (; w + 2 * lanes <= width; w += 2 * lanes)
      blocks<a_row>[1][rows](k1 - k0, ai, a_k, bk + w, width, ci + w, width, false);
    if (w < width) blocks<a_row>[0][rows](k1 - k0, ai, a_k, bk + w, width, ci + w, width, false);
  }

  // Bits of one row in runs, ascending.
  void row(int64_t i, uint64_t bits) const {
    while (bits != 0) {
      const uint64_t rest = bits & (bits + (bits & -bits));  // a carry runs through the first run and clears it
      part(i, 1, lowest_bit(bits), bit_length(bits ^ rest));
      bits = rest;
    }
  }

  // The keys that all rows of a group see go through a register block; those before and after, row by row.
  void group(int64_t i, int64_t rows, const uint64_t* masks) const {
    uint64_t common = ~uint64_t{0}, any_row = 0;
    bool runs = true;
    for (int64_t r = 0; r < rows; ++r) {
      common &= masks[r], any_row |= masks[r];
      runs = runs && is_run(masks[r]);
    }
    if (any_row == 0) return;
    if (common == 0 || !runs) {
      for (int64_t r = 0; r < rows; ++r) row(i + r, masks[r]);
      return;
    }
    const int64_t begin = lowest_bit(common), end = bit_length(common);
    for (int64_t r = 0; r < rows; ++r)
      if (const int64_t k = lowest_bit(masks[r]); k < begin) part(i + r, 1, k, begin);
    part(i, rows, begin, end);
    for (int64_t r = 0; r < rows; ++r)
      if (const int64_t k = bit_length(masks[r]); k > end) part(i + r, 1, end, k);
  }
};

int64_t group_begin(int64_t g, int64_t groups, int64_t rows) { return rows * g / groups; }

}  // namespace

void transpose_bits(const uint64_t* in, uint64_t* out) {
  for (int i = 0; i < 64; ++i) out[i] = in[i];
  // Swaps the off-diagonal halves of blocks of 64, 32, ... (Warren, "Hacker's Delight", 7-3).
  uint64_t low = 0x00000000ffffffff;
  for (int h = 32; h != 0; h >>= 1, low ^= low << h)
    for (int i = 0; i < 64; i = (i + h + 1) & ~h) {
      const uint64_t t = ((out[i] >> h) ^ out[i + h]) & low;
      out[i] ^= t << h, out[i + h] ^= t;
    }
}

void pack_transposed(const float* src, int64_t stride, int64_t rows, int64_t d, float* dst) {
  for (int64_t r = 0; r < rows; r += lanes)
    pack_across(src + r * stride, stride, smaller(lanes, rows - r), d, dst + r, tile);
}

void pack_plain(const float* src, int64_t stride, int64_t rows, int64_t d, float* dst) {
  const int64_t width = whole_words(d);
  for (int64_t r = 0; r < rows; ++r, src += stride, dst += width)
    words_of(0, d, [=](int64_t j, auto io) { store(dst + j, io.get(src + j)); });
}

void scores(const float* a, const float* b, int64_t d, const uint64_t* masks, int64_t rows, float* s) {
  const int64_t groups = ceil_div(rows, group_rows);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t i = group_begin(g, groups, rows), n = group_begin(g + 1, groups, rows) - i;
    uint64_t any_row = 0;
    for (int64_t r = i; r < i + n; ++r) any_row |= masks[r];
    constexpr int64_t columns = 2 * lanes;
    for (int64_t j = 0; j < tile; j += columns)
      if ((any_row >> j & (~uint64_t{0} >> (64 - columns))) != 0)
        blocks<1>[1][n](d, a + i, tile, b + j, tile, s + i * tile + j, tile, true);
  }
}

void masked_product(bool transposed, const float* a, const uint64_t* masks, int64_t rows, const float* b, float* c,
                    int64_t width) {
  const int64_t groups = ceil_div(rows, group_rows);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t i = group_begin(g, groups, rows), n = group_begin(g + 1, groups, rows) - i;
    if (transposed) {
      Product<1>{a, b, c, width}.group(i, n, masks + i);
    } else {
      Product<64>{a, b, c, width}.group(i, n, masks + i);
    }
  }
}

}  // namespace nibble::NIBBLE_TARGET
