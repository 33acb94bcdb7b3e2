// The NVFP4 rule that a quantiser of a recipe follows: which bound, which tensor scale.  Source: spec/precision.md 2.4
// to 2.8, 3.6, 3.8.
#pragma once
#include "core/quant_spec.h"
#include "numerics/eden.h"
#include "numerics/nvfp4.h"

namespace nibble {

/// v = 6 * 16/17, the largest element under sr_vmax: S = fl(448 v) / A, and fl(1/v). A block's scale, rounded to E4M3,
/// can then leave no element above 6, so stochastic rounding clips nothing.
inline constexpr Nvfp4Rule nvfp4_vmax{.numerator = 43008.0f / 17, .reciprocal_largest = 17.0f / 96};

static inline Nvfp4Rule nvfp4_rule(const QuantSpec& spec) {
  Nvfp4Rule rule = spec.rounding == Rounding::eden ? nvfp4_eden
                   : spec.four_six != FourSix::off ? nvfp4_four_six
                   : spec.vmax                     ? nvfp4_vmax
                                                   : nvfp4_standard;
  rule.pow2 = spec.tensor_scale == TensorScale::pow2, rule.unit = spec.tensor_scale == TensorScale::unit;
  return rule;
}

/// Whether a product's factor comes from both amaxes (5.1): under the standard bound and an exact tensor scale.
static inline bool factor_by_amax(const Nvfp4Rule& rule) {
  return rule.numerator == nvfp4_standard.numerator && !rule.pow2 && !rule.unit;
}

}  // namespace nibble
