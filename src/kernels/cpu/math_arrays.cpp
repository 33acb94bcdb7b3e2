// The functions of numerics/functions.h over arrays, at the width of the target: for the equality tests and benchmarks.
// A last partial register goes through a padded copy, so every element takes the same path.
#include <cstdint>
#include <cstring>

#include "numerics/functions_simd.h"

namespace nibble::NIBBLE_TARGET {

#ifdef __AVX512F__
using F32 = F32x16;
using F64 = F64x8;
#else
using F32 = F32x8;
using F64 = F64x4;
#endif

template <class F, class Function>
[[gnu::always_inline]] static inline void each(const LaneOf<F>* x, LaneOf<F>* y, int64_t n, Function f) {
  constexpr int lanes = lanes_of<F>;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store_of<F>(y + i, f(load_of<F>(x + i)));
  if (i == n) return;
  LaneOf<F> part[lanes] = {};
  std::memcpy(part, x + i, static_cast<size_t>(n - i) * sizeof *x);
  store_of<F>(part, f(load_of<F>(part)));
  std::memcpy(y + i, part, static_cast<size_t>(n - i) * sizeof *x);
}

/// y[i] = f(x[i]), n elements; y may be x.
void exp_array(const float* x, float* y, int64_t n) { each<F32>(x, y, n, exp_f32_word<F32>); }
void log_array(const float* x, float* y, int64_t n) { each<F32>(x, y, n, log_f32_word<F32>); }
void tanh_array(const float* x, float* y, int64_t n) { each<F32>(x, y, n, tanh_f32_word<F32>); }
void sigmoid_array(const float* x, float* y, int64_t n) { each<F32>(x, y, n, sigmoid_f32_word<F32>); }
void silu_array(const float* x, float* y, int64_t n) { each<F32>(x, y, n, silu_f32_word<F32>); }
void exp_array(const double* x, double* y, int64_t n) { each<F64>(x, y, n, exp_f64_word<F64>); }
void log_array(const double* x, double* y, int64_t n) { each<F64>(x, y, n, log_f64_word<F64>); }
void sin_array(const double* x, double* y, int64_t n) { each<F64>(x, y, n, sin_f64_word<F64>); }
void cos_array(const double* x, double* y, int64_t n) { each<F64>(x, y, n, cos_f64_word<F64>); }

}  // namespace nibble::NIBBLE_TARGET
