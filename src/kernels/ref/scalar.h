// The scalar arithmetic of the reference kernels, for three element types: float (the definition, bit for bit),
// double (an oracle for accuracy) and std::complex<double> (the imaginary part of f(x + i h d)/h is the derivative of
// f along d without cancellation: "complex-step", Squire and Trapp 1998).
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>

#include "core/kernel.h"
#include "numerics/functions.h"

namespace nibble::ref {

using Complex = std::complex<double>;

inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline double fma(double a, double b, double c) { return std::fma(a, b, c); }
inline Complex fma(Complex a, Complex b, Complex c) { return a * b + c; }
inline float exp(float x) { return exp_f32(x); }
inline double exp(double x) { return exp_f64(x); }
inline Complex exp(Complex x) { return std::exp(x); }
inline float log(float x) { return log_f32(x); }
inline double log(double x) { return log_f64(x); }
inline Complex log(Complex x) { return std::log(x); }
inline float sqrt(float x) { return std::sqrt(x); }
inline double sqrt(double x) { return std::sqrt(x); }
inline Complex sqrt(Complex x) { return std::sqrt(x); }
inline float real(float x) { return x; }
inline double real(double x) { return x; }
inline double real(Complex x) { return x.real(); }

/// Maximum that keeps NaN: the larger real part, or the NaN.
template <class S>
S larger(S a, S b) {
  return real(b) > real(a) || real(b) != real(b) ? b : a;
}

/// The lane sum of spec/training.md 2.11: 16 virtual lanes from +0, lane j takes elements j, j + 16, ... ascending;
/// then strides 8, 4, 2, 1.
template <class S>
class LaneSum {
 public:
  void add(int64_t i, S x) { lane_[i % 16] += x; }
  void fma(int64_t i, S a, S b) { lane_[i % 16] = ref::fma(a, b, lane_[i % 16]); }
  S total() {
    for (int h = 8; h >= 1; h /= 2)
      for (int i = 0; i < h; ++i) lane_[i] += lane_[i + h];
    return lane_[0];
  }

 private:
  S lane_[16] = {};
};

/// The accumulator that result 0 continues, set to +0 where the call starts from there.
template <class S>
S* accumulator(const KernelCall& c) {
  S* sum = c.out[0].as<S>();
  if (c.from_zero) std::fill_n(sum, c.out[0].numel(), S(0));
  return sum;
}

}  // namespace nibble::ref
