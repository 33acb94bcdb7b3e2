// adamw, sgd, sum_squares, norm, recast (spec/training.md 2.9 and 2.11, spec/scale.md 5.2). Only in float: they are the
// definition for every back-end, each operation rounded, nothing contracted.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/ref/scalar.h"

namespace nibble::ref {

inline float gradient(const KernelCall& c, size_t first, int64_t i) {  // sum of the parts in order
  float g = c.in[first].as<float>()[i];
  for (size_t k = first + 1; k < c.in.size(); ++k) g += c.in[k].as<float>()[i];
  return g;
}

// Positions of UpdateScalar in ops/ops.h: lr, b1, 1-b1, b2, 1-b2, c1, c2, clip.
inline void adamw(const KernelCall& c) {
  float *w = c.out[0].as<float>(), *m = c.out[1].as<float>(), *v = c.out[2].as<float>();
  const float* s = c.in[3].as<float>();
  const float eps = c.attrs.get_float("eps"), eps_root = c.attrs.get_float("eps_root"),
              decay = c.attrs.get_float("weight_decay");
  for (int64_t i = 0; i < c.out[0].numel(); ++i) {
    const float g = gradient(c, 4, i) * s[7];
    m[i] = s[1] * m[i] + s[2] * g;
    v[i] = s[3] * v[i] + s[4] * (g * g);
    float u = (m[i] / s[5]) / (std::sqrt(v[i] / s[6] + eps_root) + eps);
    if (decay != 0.0f) u = u + decay * w[i];
    w[i] = w[i] - s[0] * u;
  }
}

inline void sgd(const KernelCall& c) {
  float* w = c.out[0].as<float>();
  const float* s = c.in[1].as<float>();
  for (int64_t i = 0; i < c.out[0].numel(); ++i) w[i] = w[i] - s[0] * (gradient(c, 2, i) * s[7]);
}

// One tile: lane = column mod 16, rows ascending, then the lane tree. A vector is a matrix [n/16, 16] in tiles of 16
// rows: 256 consecutive elements.
inline void sum_squares(const KernelCall& c) {
  const bool vector = c.in[0].type.rank() == 1;
  const int64_t cols = vector ? 16 : c.in[0].dim(1);
  const int64_t rows = vector ? (c.in[0].numel() + 15) / 16 : c.in[0].dim(0);
  const int64_t tiles_across = (cols + 15) / 16, numel = c.in[0].numel();
  for (int64_t tile = 0; tile < c.out[0].numel(); ++tile) {
    LaneSum<double> sum;
    const int64_t r0 = tile / tiles_across * 16, c0 = tile % tiles_across * 16;
    for (int64_t r = r0; r < std::min(rows, r0 + 16); ++r)
      for (int64_t j = c0; j < std::min(cols, c0 + 16); ++j)
        if (const int64_t i = r * cols + j; i < numel) {
          const double g = gradient(c, 0, i);
          sum.fma(j, g, g);
        }
    c.out[0].as<double>()[tile] = sum.total();
  }
}

/// Order-free sum: each term times a power of two that brings the largest below 2^62, rounded to an integer; integers
/// add exactly. NaN or Inf if any term is.
class ScaledSum {
 public:
  explicit ScaledSum(double largest) {
    int exponent = 0;
    std::frexp(largest, &exponent);  // largest < 2^exponent
    shift_ = 62 - exponent;
  }
  void add(double x) {
    const auto n = static_cast<int64_t>(std::nearbyint(std::ldexp(x, shift_)));
    low_ += n & 0x7fffffff, high_ += n >> 31;
  }
  double total() const { return std::ldexp(static_cast<double>((static_cast<__int128>(high_) << 31) + low_), -shift_); }

 private:
  int shift_;
  int64_t low_ = 0, high_ = 0;
};

inline void norm(const KernelCall& c) {
  double largest = 0;
  for (const Tensor& t : c.in)
    for (int64_t i = 0; i < t.numel(); ++i) largest = larger(largest, t.as<double>()[i]);
  double* out = c.out[0].as<double>();
  out[0] = largest;
  if (largest == 0 || !std::isfinite(largest)) return;
  ScaledSum sum(largest);
  for (const Tensor& t : c.in)
    for (int64_t i = 0; i < t.numel(); ++i) sum.add(t.as<double>()[i]);
  out[0] = std::sqrt(sum.total());
}

inline void recast(const KernelCall& c) {  // the weight is its parameter; rounding is the storage's
  std::copy_n(c.in[1].as<float>(), c.in[1].numel(), c.out[0].as<float>());
}

}  // namespace nibble::ref
