// The tile products of attention_tile.h through vdpbf16ps: operands are words of two bf16, a pair along the axis that
// is summed. Layouts: "transposed" tiles are [words of D][64] with pairs along D, "paired" ones [32][width] with pairs
// of rows (2 i, 2 i + 1), width = D rounded up to whole words; sums are f32.
#pragma once
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/gemm_bf16_pack.h"

namespace nibble::NIBBLE_TARGET {

constexpr int64_t tile_words = tile / 2;
inline int64_t transposed_words(int64_t d) { return ceil_div(d, 2) * tile; }
inline int64_t paired_words(int64_t d) { return tile_words * whole_words(d) + lanes; }  // a last store runs over

/// `rows` <= 64 rows of src to a transposed tile. Columns past the rows are not set, or repeat the last one.
void pack_transposed(const BFloat16* src, int64_t stride, int64_t rows, int64_t d, float* dst);
/// To a paired tile; a missing last row is +0.
void pack_pairs(const BFloat16* src, int64_t stride, int64_t rows, int64_t d, float* dst);

/// As attention_tile.h's, of transposed tiles.
void pair_scores(const float* a, const float* b, int64_t d, const uint64_t* masks, int64_t rows, float* s);

/// c[i][0 .. width) += the sum over ascending k with bit k of masks[i] of A(i, k) b[k][0 .. width), b a paired tile.
/// A(i, k) is half k % 2 of word a[k / 2 * 64 + i] if transposed, else of a[i * 32 + k / 2]. Of a pair with one bit the
/// other half takes no part, whatever it holds.
void masked_pair_product(bool transposed, const float* a, const uint64_t* masks, int64_t rows, const float* b, float* c,
                         int64_t width);

/// 32 operands (16 low, then 16 high) as bf16 to p; subnormals become zeros, as in vdpbf16ps.
inline void store_operands(BFloat16* p, Word low, Word high) {
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}
/// Operands of two rows as pairs.
inline Word pair_rows(Word low, Word high) {
  const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return of_bits(_mm512_permutexvar_epi16(order, both));
}

}  // namespace nibble::NIBBLE_TARGET
