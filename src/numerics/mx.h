// The MX formats: blocks of 32 elements under a power of two, no scale of the tensor.
// Source: spec/precision.md 2.9; OCP Microscaling Formats v1.0.
#pragma once
#include <cmath>

#include "numerics/e2m1.h"
#include "numerics/fp8.h"

namespace nibble {

inline constexpr int mx_block = 32;
inline constexpr float rcp_448 = 0x1.24924ap-9f, rcp_57344 = 0x1.24924ap-16f;

/// Scale bytes from the amax of a block; a non-finite amax gives 0xFF, which poisons the block.
static inline int mx_scale(float amax, float reciprocal_largest) {
  if (!(amax < __builtin_inff())) return e8m0_nan;
  return e8m0_round_up(amax * reciprocal_largest);
}
static inline int mxfp4_scale(float amax) { return mx_scale(amax, 0x1.555556p-3f); }
static inline int mxfp8_e4m3_scale(float amax) { return mx_scale(amax, rcp_448); }
static inline int mxfp8_e5m2_scale(float amax) { return mx_scale(amax, rcp_57344); }
/// The floor rule for E2M1 elements.
static inline int mxfp4_floor_scale(float amax) {
  if (!(amax < __builtin_inff())) return e8m0_nan;
  return e8m0_floor(amax, 2);
}

/// QuEST's scale of a block of n <= 32 values, those that are missing 0: 2^floor(log2(2.92247856 sigma / 6 + 1e-8)),
/// sigma the standard deviation of the 32 values, all in f64 and in ascending order. 2.92247856 is where the E2M1 grid
/// should end for a normal variable; values beyond 6 times the scale saturate.  Source: spec/precision.md 3.4;
/// Quartet, arXiv 2505.14669, whose kernels take the mean away and divide by 32.
static inline int mxfp4_quest_scale(const float* v, int n) {
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(v[i]);
  if (!(std::fabs(sum) < static_cast<double>(__builtin_inff()))) return e8m0_nan;
  const double mean = sum / mx_block;
  for (int i = 0; i < mx_block; ++i) {
    const double d = (i < n ? static_cast<double>(v[i]) : 0.0) - mean;
    squares += d * d;
  }
  const int byte = 127 + std::ilogb(2.92247856 * std::sqrt(squares / mx_block) / 6 + 1e-8);
  return byte < 254 ? byte : 254;  // at least 100, by the 1e-8
}
/// Whether a value lies beyond what its block can hold: no gradient passes it.
static inline bool beyond_mxfp4(float v, int byte) { return std::fabs(v) > 6 * e8m0_decode(byte); }

}  // namespace nibble
