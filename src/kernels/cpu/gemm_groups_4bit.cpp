// Products of NVFP4 operands whose sums are rounded as a Blackwell GPU's (spec/precision.md 5.2): four blocks added
// exactly, rounded to f32, then added towards zero. A term of a block has at most 20 significant bits and four of them
// span at most 49, so f32 holds the one and f64 the sum.
// A task is a panel of B's columns times some rows of A. It packs its panel with all k of all terms, then few rows of A
// at a time: plainer than gemm_4bit.cpp, for this is a way to compare, not to be fast.
#include "kernels/cpu/gemm_4bit.h"
#include "kernels/cpu/gemm_4bit_pack.h"
#include "kernels/cpu/parallel.h"
#include "numerics/quantized_product.h"

namespace nibble::NIBBLE_TARGET {
namespace {

constexpr int words = 4;         // of a block's codes
constexpr int row_group = 4;     // rows of A at a time
constexpr int64_t height = 256;  // rows of a task
constexpr int group_blocks = 4;

#ifdef __AVX512F__
struct ExactSum {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  void add(Word x) {
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
  }
  Word rounded() const {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
  }
};
inline Word added_towards_zero(Word acc, Word t) {
  return _mm512_add_round_ps(acc, t, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
#else
struct ExactSum {
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  void add(Word x) {
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  }
  Word rounded() const { return _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low)); }
};
inline Word added_towards_zero(Word acc, Word t) {
  alignas(32) float a[lanes], b[lanes];
  store(a, acc), store(b, t);
  for (int i = 0; i < lanes; ++i) a[i] = add_towards_zero(a[i], b[i]);
  return load(a);
}
#endif

// The integer dots of one block of a row of a panel of `rows` with one register of columns.
inline IntWord dots(const std::byte* a, [[maybe_unused]] int64_t rows, int64_t r, const std::byte* b) {
#ifdef __AVX512VNNI__
  IntWord d = all_of(a + rows * words * 4 + r * 4);
  for (int w = 0; w < words; ++w)
    d = _mm512_dpbusd_epi32(d, load_int(b + w * word_bytes), all_of(a + (r * words + w) * 4));
  return d;
#else
  IntWord d = load_int(b + words * word_bytes);
  for (int w = 0; w < words; ++w)
    d = add16(d, dot_pairs(all_of(a + (r * words + w) * 4), load_int(b + w * word_bytes)));
  return dot_ones(d);
#endif
}

// sums[rows][columns] over all blocks of a term.
template <int rows>
void compute(int64_t blocks, const std::byte* a, const std::byte* b, float* sums) {
  constexpr int64_t a_scales_at = rows * (words * 4 + (vnni ? 4 : 0));
  constexpr int64_t b_scales_at = (words + (vnni ? 0 : 1)) * word_bytes;
  Word acc[rows][column_words];
  for (auto& row : acc)
    for (Word& w : row) w = zero();
  for (int64_t k = 0; k < blocks; k += group_blocks) {
    const int64_t end = smaller(blocks, k + group_blocks);
    for (int r = 0; r < rows; ++r)
      for (int g = 0; g < column_words; ++g) {
        ExactSum group;
        for (int64_t n = k; n < end; ++n) {
          const std::byte *x = a + n * a_block_bytes(words, rows),
                          *y = b + n * b_block_bytes(words) + g * b_word_bytes(words);
          const Word p = mul(all_floats(x + a_scales_at + r * 4), load_floats(y + b_scales_at));
          group.add(mul(p, to_float(dots(x, rows, r, y))));
        }
        acc[r][g] = added_towards_zero(acc[r][g], group.rounded());
      }
  }
  for (int r = 0; r < rows; ++r)
    for (int g = 0; g < column_words; ++g) store(sums + r * columns + g * lanes, acc[r][g]);
}
constexpr void (*computes[row_group + 1])(int64_t, const std::byte*, const std::byte*, float*) = {
    nullptr, compute<1>, compute<2>, compute<3>, compute<4>};

// A thread's panel of B, then its rows of A.
int64_t panel_bytes(int64_t blocks) { return blocks * b_block_bytes(words); }
int64_t own_bytes(int64_t blocks) {
  return ceil_div(panel_bytes(blocks) + blocks * a_block_bytes(words, row_group), 64) * 64;
}

void run_task(const FourBitProduct& p, int64_t i0, int64_t i1, int64_t j, std::byte* own, int64_t blocks) {
  const int64_t width = smaller(columns, p.n - j);
  std::byte* panel = own;
  for (const FourBitTerm& t : p.terms) {
    pack_b_panel<words>(t.b, j, width, 0, t.blocks, panel);
    panel += panel_bytes(t.blocks);
  }
  std::byte* const rows_of_a = own + panel_bytes(blocks);
  for (int64_t i = i0; i < i1; i += row_group) {
    const int64_t rows = smaller(row_group, i1 - i);
    alignas(64) float total[row_group * columns], sums[row_group * columns];
    panel = own;
    for (size_t t = 0; t < p.terms.size(); ++t) {
      const FourBitTerm& term = p.terms[t];
      for (int64_t r = 0; r < rows; ++r) pack_a_row<words>(term.a, i + r, 0, term.blocks, r, rows, rows_of_a);
      computes[rows](term.blocks, rows_of_a, panel, sums);
      panel += panel_bytes(term.blocks);
      for (int64_t e = 0; e < rows * columns; e += lanes) {
        const Word d = mul(all(term.alpha), load(sums + e));
        store(total + e, t == 0 ? d : add(load(total + e), d));
      }
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t g = 0; g < width; g += lanes) {
        const Word d = load(total + r * columns + g);
        if (g + lanes <= width)
          put(p, (i + r) * p.n + j + g, WholeWord{}, d);
        else
          put(p, (i + r) * p.n + j + g, PartWord{width - g}, d);
      }
  }
}

}  // namespace

int64_t gemm_groups_4bit_workspace_bytes(int64_t m, int64_t n, int64_t blocks, int64_t, bool, int threads) {
  return m <= 0 || n <= 0 ? 0 : threads * own_bytes(blocks);
}

void gemm_groups_4bit(const FourBitProduct& p, ThreadPool& pool, std::byte* workspace) {
  if (p.m <= 0 || p.n <= 0) return;
  int64_t blocks = 0;
  for (const FourBitTerm& t : p.terms) blocks += t.blocks;
  const int64_t panels = ceil_div(p.n, columns), parts = ceil_div(p.m, height);
  pool.run(panels * parts, [&](int64_t task, int thread) {
    const int64_t part = task / panels;
    run_task(p, p.m * part / parts, p.m * (part + 1) / parts, task % panels * columns,
             workspace + thread * own_bytes(blocks), blocks);
  });
}

}  // namespace nibble::NIBBLE_TARGET
