// The MX formats: blocks of 32 elements under a power of two, no scale of the tensor.
// Source: spec/precision.md 2.9; OCP Microscaling Formats v1.0.
#pragma once
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

}  // namespace nibble
