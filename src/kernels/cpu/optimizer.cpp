// adamw, sgd, sum_squares, norm (kernels/ref/optimizer.h): each operation rounded, nothing contracted.
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// Sum of the gradient's parts in order, read by io at element i.
template <class Io>
inline auto gradient(std::span<const Tensor> parts, int64_t i, const Io& io) {
  auto g = io.get(parts[0].as<float>() + i);
  for (size_t k = 1; k < parts.size(); ++k) g = add(g, io.get(parts[k].as<float>() + i));
  return g;
}

// 16 lanes of f64.
#ifdef __AVX512F__
struct Doubles16 {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  void add_squares(const Lanes16& x) {
    const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x.w[0]));
    const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.w[0], 1));
    low = _mm512_fmadd_pd(a, a, low), high = _mm512_fmadd_pd(b, b, high);
  }
  __m256d four() const {  // strides 8 and 4 of the lane tree
    const __m512d v8 = _mm512_add_pd(low, high);
    return _mm256_add_pd(_mm512_castpd512_pd256(v8), _mm512_extractf64x4_pd(v8, 1));
  }
};
#else
struct Doubles16 {
  __m256d w[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
  void add_squares(const Lanes16& x) {
    for (int i = 0; i < 2; ++i) {
      const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.w[i]));
      const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.w[i], 1));
      w[2 * i] = _mm256_fmadd_pd(a, a, w[2 * i]), w[2 * i + 1] = _mm256_fmadd_pd(b, b, w[2 * i + 1]);
    }
  }
  __m256d four() const { return _mm256_add_pd(_mm256_add_pd(w[0], w[2]), _mm256_add_pd(w[1], w[3])); }
};
#endif
double lane_sum(const Doubles16& v) {
  const __m256d v4 = v.four();
  const __m128d v2 = _mm_add_pd(_mm256_castpd256_pd128(v4), _mm256_extractf128_pd(v4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(v2, _mm_unpackhi_pd(v2, v2)));
}

// One update at element i; positions of UpdateScalar in ops/ops.h: lr, b1, 1-b1, b2, 1-b2, c1, c2, clip.
struct AdamW {
  explicit AdamW(const KernelCall& c)
      : w(c.out[0].as<float>()),
        m(c.out[1].as<float>()),
        v(c.out[2].as<float>()),
        s(c.in[3].as<float>()),
        parts(c.in.subspan(4)),
        eps(all(c.attrs.get_float("eps"))),
        eps_root(all(c.attrs.get_float("eps_root"))),
        decay(c.attrs.get_float("weight_decay")) {}

  template <class Io>
  void operator()(int64_t i, const Io& io) const {
    const Word g = mul(gradient(parts, i, io), all(s[7]));
    const Word m1 = add(mul(all(s[1]), io.get(m + i)), mul(all(s[2]), g));
    const Word v1 = add(mul(all(s[3]), io.get(v + i)), mul(all(s[4]), mul(g, g)));
    io.put(m + i, m1), io.put(v + i, v1);
    const Word w0 = io.get(w + i);
    Word u = div(div(m1, all(s[5])), add(sqrt(add(div(v1, all(s[6])), eps_root)), eps));
    if (decay != 0.0f) u = add(u, mul(all(decay), w0));
    io.put(w + i, sub(w0, mul(all(s[0]), u)));
  }

  float *w, *m, *v;
  const float* s;
  std::span<const Tensor> parts;
  Word eps, eps_root;
  float decay;
};

// The 16 x 16 tiles of a matrix. A vector is a matrix [n/16, 16]; its last row may be short.
struct Tiles {
  explicit Tiles(const Type& type)
      : numel(type.numel()),
        cols(type.rank() == 1 ? 16 : type.dim(1)),
        rows(ceil_div(numel, cols)),
        across(ceil_div(cols, 16)) {}
  int64_t down() const { return ceil_div(rows, 16); }

  // The sum of squares in tile t; lanes that are not there add +0.
  double sum(std::span<const Tensor> parts, int64_t t) const {
    Doubles16 squares;
    const int64_t r0 = t / across * 16, c0 = t % across * 16;
    for (int64_t r = r0; r < smaller(rows, r0 + 16); ++r) {
      const int64_t i = r * cols + c0, n = smaller(cols - c0, numel - i);
      squares.add_squares(n >= 16 ? gradient(parts, i, Whole16{}) : gradient(parts, i, Part16{n}));
    }
    return lane_sum(squares);
  }

  int64_t numel, cols, rows, across;
};

// Powers of two whose product is 2^shift, -962 <= shift <= 1136: one factor alone may not be a double.
struct PowerOfTwo {
  double first, second;
  explicit PowerOfTwo(int shift) : first(std::ldexp(1.0, shift / 2)), second(std::ldexp(1.0, shift - shift / 2)) {}
};

// Rounds to nearest even, as nearbyint does.
int64_t rounded(double x) { return _mm_cvtsd_si64(_mm_set_sd(x)); }

}  // namespace

void adamw(const KernelCall& c) { for_words(c.pool, c.out[0].numel(), AdamW(c)); }

// By bands of 16 rows, so that a tile's new weights are still in cache when their squares are summed.
void adamw_squares(const KernelCall& c) {
  const AdamW update(c);
  const Tiles tiles(c.out[0].type);
  double* out = c.out[3].as<double>();
  for_ranges(c.pool, tiles.down(), 16 * tiles.cols, 1, [&](int64_t begin, int64_t end) {
    for (int64_t band = begin; band < end; ++band) {
      words_of(band * 16 * tiles.cols, smaller(tiles.numel, (band + 1) * 16 * tiles.cols), update);
      for (int64_t t = band * tiles.across; t < (band + 1) * tiles.across; ++t) out[t] = tiles.sum(c.out.first(1), t);
    }
  });
}

void sgd(const KernelCall& c) {
  float* w = c.out[0].as<float>();
  const std::span<const Tensor> parts = c.in.subspan(2);
  const float* s = c.in[1].as<float>();
  for_words(c.pool, c.out[0].numel(), [=](int64_t i, auto io) {
    const Word g = mul(gradient(parts, i, io), all(s[7]));
    io.put(w + i, sub(io.get(w + i), mul(all(s[0]), g)));
  });
}

void sum_squares(const KernelCall& c) {
  const Tiles tiles(c.in[0].type);
  double* out = c.out[0].as<double>();
  for_ranges(c.pool, c.out[0].numel(), 256 * static_cast<int64_t>(c.in.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) out[t] = tiles.sum(c.in, t);
  });
}

// An order-free sum: each term times a power of two that brings the largest below 2^62, rounded to an integer.
void norm(const KernelCall& c) {
  double largest = 0;
  for (const Tensor& t : c.in)
    for (int64_t i = 0; i < t.numel(); ++i)
      if (const double x = t.as<double>()[i]; x > largest || x != x) largest = x;
  double* out = c.out[0].as<double>();
  out[0] = largest;
  if (largest == 0 || !std::isfinite(largest)) return;
  int exponent = 0;
  std::frexp(largest, &exponent);
  const int shift = 62 - exponent;
  const PowerOfTwo scale(shift);
  int64_t low = 0, high = 0;
  for (const Tensor& t : c.in)
    for (int64_t i = 0; i < t.numel(); ++i) {
      const int64_t x = rounded(t.as<double>()[i] * scale.first * scale.second);
      low += x & 0x7fffffff, high += x >> 31;
    }
  const double sum = static_cast<double>((static_cast<__int128>(high) << 31) + low);
  out[0] = std::sqrt(std::ldexp(sum, -shift));
}

void recast(const KernelCall& c) {
  const float* parameter = c.in[1].as<float>();
  with_storage(c.out[0].type.dtype, [&]<class T>() {
    T* weight = c.out[0].as<T>();
    for_words(c.pool, c.out[0].numel(), [=](int64_t i, auto io) { io.put(weight + i, io.get(parameter + i)); });
  });
}

}  // namespace nibble::NIBBLE_TARGET
