// Products of 8-bit operands (gemm_8bit.h).
#include "kernels/cpu/gemm_8bit.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/parallel.h"
#include "numerics/fp8.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// A tile of the product, widened: 3 MiB in f32, and 1 or 2 of sums. Widening A again for every tile of columns is some
// hundredths of the product. Whole blocks of every format.
constexpr int64_t side = 512, depth = 512;

#ifdef __AVX512BF16__
using Wide = BFloat16;
void multiply(const BFloat16* a, const BFloat16* b, float* c, int64_t m, int64_t n, int64_t k, bool accumulate,
              ThreadPool& pool, std::byte* workspace) {
  const Bf16Term term{{a, k, 1}, {b, k, 1}, k};
  gemm_bf16({{&term, 1}, m, n, c, nullptr, n, accumulate}, pool, workspace);
}
#else
using Wide = float;
void multiply(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, bool accumulate,
              ThreadPool& pool, std::byte* workspace) {
  gemm({{a, k, 1}, {b, k, 1}, c, n, m, n, k, accumulate}, pool, workspace);
}
#endif

// ----------------------------------------------------------------------------------------------------------- widening

// `lanes` codes as numbers, by way of f16: E5M2 is its upper byte, and E4M3 has a bit of exponent less and no Inf.
inline Word e5m2_numbers(const uint8_t* p) {
#ifdef __AVX512F__
  const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtph_ps(_mm256_slli_epi16(x, 8));
#else
  const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtph_ps(_mm_slli_epi16(x, 8));
#endif
}
inline Word e4m3_numbers(const uint8_t* p) {
#ifdef __AVX512F__
  const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i bits = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(static_cast<short>(0xBF80)));
  const Word v = mul(_mm512_cvtph_ps(bits), all(256));
#else
  const __m128i x = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i bits = _mm_and_si128(_mm_slli_epi16(x, 7), _mm_set1_epi16(static_cast<short>(0xBF80)));
  const Word v = mul(_mm256_cvtph_ps(bits), all(256));
#endif
  return select(equal(absolute(v), all(480)), all(__builtin_nanf("")), v);
}

// k [k0, k0 + k) of a row; k0 is on a block.
void widen_row(const EightBitOperand& o, const BlockFormat& f, int64_t row, int64_t k0, int64_t k, Wide* to) {
  const uint8_t* codes = o.codes + row * o.code_pitch + k0;
  const int64_t width = f.scales ? f.columns : k;
  for (int64_t begin = 0; begin < k; begin += width) {
    const float scale = f.scales ? e8m0_decode((o.scales + row / f.rows * o.scale_pitch)[(k0 + begin) / width]) : 1.0f;
    const int64_t end = smaller(k, begin + width);
    const auto numbers = [&](const uint8_t* p) {
      return mul(o.format == DType::e5m2 ? e5m2_numbers(p) : e4m3_numbers(p), all(scale));
    };
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) store(to + i, numbers(codes + i));
    if (i < end) {
      uint8_t some[lanes] = {};
      std::memcpy(some, codes + i, static_cast<size_t>(end - i));
      store_first(to + i, numbers(some), end - i);
    }
  }
}
void widen_rows(const EightBitOperand& o, int64_t row, int64_t rows, int64_t k0, int64_t k, ThreadPool& pool,
                Wide* to) {
  const BlockFormat f = block_format(o.format);
  for_ranges(pool, rows, k, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) widen_row(o, f, row + r, k0, k, to + r * k);
  });
}

// -------------------------------------------------------------------------------------------------------- the product

template <class Io>
void put(const EightBitProduct& p, int64_t at, const Io& io, Word d) {
  if (p.rounded != nullptr) return io.put(p.rounded + at, d);
  float* to = p.sums + at;
  if (p.onto != Onto::nothing) d = add(p.onto == Onto::zero ? zero() : io.get(to), d);
  io.put(to, d);
}

// D of term t's sums in a tile [m][n] at (i0, j0), added to those of the terms before it; after the last one, stored.
void finish(const EightBitProduct& p, size_t t, int64_t i0, int64_t j0, int64_t m, int64_t n, ThreadPool& pool,
            const float* sums, float* terms) {
  const EightBitTerm& term = p.terms[t];
  const bool first = t == 0, last = t + 1 == p.terms.size();
  for_ranges(pool, m, n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const Word alpha = all(term.row_alphas != nullptr ? term.row_alphas[i0 + r] : term.alpha);
      words_of(0, n, [&](int64_t j, const auto& io) {
        const int64_t at = r * n + j;
        Word d = mul(alpha, io.get(sums + at));
        if (!first) d = add(io.get(terms + at), d);
        if (last)
          put(p, (i0 + r) * p.n + j0 + j, io, d);
        else
          io.put(terms + at, d);
      });
    }
  });
}

// What a call needs, in bytes: both operands of a tile, its sums, those of the terms before, and the product's own.
struct Buffers {
  int64_t a, b, sums, terms, product;
};
Buffers buffers(int64_t m, int64_t n, int64_t k, int64_t terms, int threads) {
  const auto in_lines = [](int64_t floats) { return ceil_div(floats, 16) * 64; };
  const int64_t tm = smaller(m, side), tn = smaller(n, side), tk = smaller(k, depth);
  Buffers b{in_lines(tm * tk), in_lines(tn * tk), in_lines(tm * tn), terms > 1 ? in_lines(tm * tn) : 0, 0};
  // Of whole tiles and of the last ones. Those two functions are the same on every target.
  for (const int64_t im : {tm, m % side})
    for (const int64_t in : {tn, n % side})
      b.product = larger(b.product, larger(avx2::gemm_workspace_bytes(im, in, tk, threads),
                                           avx2::gemm_bf16_workspace_bytes(im, in, tk + 1, 1, false, threads)));
  return b;
}

}  // namespace

int64_t gemm_8bit_workspace_bytes(int64_t m, int64_t n, int64_t k, int64_t terms, int threads) {
  const Buffers b = buffers(m, n, k, terms, threads);
  return b.a + b.b + b.sums + b.terms + b.product;
}

void gemm_8bit(const EightBitProduct& p, ThreadPool& pool, std::byte* workspace) {
  int64_t most = 0;
  for (const EightBitTerm& t : p.terms) most = larger(most, t.k);
  const Buffers bytes = buffers(p.m, p.n, most, static_cast<int64_t>(p.terms.size()), pool.size());
  auto* a = reinterpret_cast<Wide*>(workspace);
  auto* b = reinterpret_cast<Wide*>(workspace + bytes.a);
  auto* sums = reinterpret_cast<float*>(workspace + bytes.a + bytes.b);
  auto* terms = reinterpret_cast<float*>(workspace + bytes.a + bytes.b + bytes.sums);
  std::byte* own = workspace + bytes.a + bytes.b + bytes.sums + bytes.terms;
  for (int64_t i = 0; i < p.m; i += side)
    for (int64_t j = 0; j < p.n; j += side) {
      const int64_t m = smaller(side, p.m - i), n = smaller(side, p.n - j);
      for (size_t t = 0; t < p.terms.size(); ++t) {
        const EightBitTerm& term = p.terms[t];
        for (int64_t k0 = 0; k0 < term.k; k0 += depth) {
          const int64_t k = smaller(depth, term.k - k0);
          widen_rows(term.a, i, m, k0, k, pool, a);
          widen_rows(term.b, j, n, k0, k, pool, b);
          multiply(a, b, sums, m, n, k, k0 > 0, pool, own);
        }
        finish(p, t, i, j, m, n, pool, sums, terms);
      }
    }
}

}  // namespace nibble::NIBBLE_TARGET
