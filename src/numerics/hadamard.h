// Random Hadamard transforms of groups of 16, 32, 64 or 128 values: signs, then the orthonormal Sylvester matrix. They
// spread outliers over a group and cancel in a product whose two operands were turned alike along the contracted axis.
// Source: spec/precision.md 4.1; arXiv 2509.25149, 4.2; arXiv 2601.22813.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/philox.h"
#include "numerics/bf16.h"

namespace nibble {

/// TransformerEngine's fixed signs of 16: bit i set means -1.
inline constexpr uint32_t rht16_signs = 0xD7E8;

/// In place, strides 1, 2, 4, ...: (a, b) -> (a + b, a - b).
template <class F>
static inline void butterfly(F* v, int n) {
  for (int h = 1; h < n; h *= 2)
    for (int i = 0; i < n; i += 2 * h)
      for (int j = i; j < i + h; ++j) {
        const F a = v[j], b = v[j + h];
        v[j] = a + b, v[j + h] = a - b;
      }
}

/// One rounding from f64 to BF16, to nearest even: to odd in f32 first, which keeps what decides a tie.
static inline BFloat16 round_bf16(double x) {
  const auto f = static_cast<float>(x);
  auto bits = std::bit_cast<uint32_t>(f);
  if (x == x && static_cast<double>(f) != x) {
    if (std::fabs(static_cast<double>(f)) > std::fabs(x)) --bits;
    bits |= 1;
  }
  return round_bf16(std::bit_cast<float>(bits));
}

/// y = scale * H (s v) in f64, each result rounded once to BF16; an exact zero is +0. n is 16, 32 or 64; sign i is bit
/// i % 16 of `signs` (32 and 64 repeat the sixteen).
static inline void hadamard_to_bf16(const float* v, int n, uint32_t signs, BFloat16* y) {
  double t[64];
  for (int i = 0; i < n; ++i) t[i] = (signs >> (i % 16) & 1u) != 0 ? -static_cast<double>(v[i]) : v[i];
  butterfly(t, n);
  const double scale = n == 16 ? 0.25 : n == 32 ? 0x1.6a09e667f3bcdp-3 : 0.125;
  for (int i = 0; i < n; ++i) y[i] = round_bf16(t[i] * scale + 0.0);
}
/// The inverse: s (H v) * scale in f64, not rounded yet.
static inline void hadamard_back(double* v, int n, uint32_t signs) {
  butterfly(v, n);
  const double scale = n == 16 ? 0.25 : n == 32 ? 0x1.6a09e667f3bcdp-3 : 0.125;
  for (int i = 0; i < n; ++i) v[i] = (signs >> (i % 16) & 1u) != 0 ? -(v[i] * scale) : v[i] * scale;
}
static inline void rht16(const float* v, BFloat16* y) { hadamard_to_bf16(v, 16, rht16_signs, y); }

inline constexpr float rht128_scale = 0x1.6a09e6p-4f;

/// RHT-128 in f32, no rounding to BF16; sign i is bit i % 32 of words[i / 32]. In place.
static inline void rht128(float* v, const PhiloxWords& words) {
  for (int i = 0; i < 128; ++i)
    if ((words[static_cast<size_t>(i / 32)] >> (i % 32) & 1u) != 0) v[i] = -v[i];
  butterfly(v, 128);
  for (int i = 0; i < 128; ++i) v[i] = v[i] * rht128_scale + 0.0f;
}

}  // namespace nibble
