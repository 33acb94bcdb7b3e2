// FP8 tensors under one f32 scale: of the tensor at hand (current), of its past (delayed), of its blocks (DeepSeek).
// Source: spec/precision.md 2.10.
#pragma once
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <span>

#include "numerics/fp8.h"

namespace nibble {

/// largest: 448 for E4M3, 57344 for E5M2. A zero amax gives 1. pow2: rounded down to a power of two.
static inline float fp8_scale(float amax, float largest, bool pow2 = false) {
  if (amax != amax) return amax;
  if (amax == 0) return 1;
  const float quotient = largest / amax;
  const float scale = quotient < FLT_MAX ? quotient : FLT_MAX;
  return pow2 ? std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0x7f800000u) : scale;
}

/// One delayed scale after its step. `history` is TransformerEngine's ring: slot 0 takes the maximum of the running
/// step; then all slots turn down by one and slot 0 starts from 0. Returns the next scale; a maximum that is 0 or not
/// finite leaves it as it is.
static inline float fp8_delayed_update(std::span<float> history, float scale, float largest, int margin = 0) {
  uint32_t most = 0;
  for (const float a : history) most = std::max(most, std::bit_cast<uint32_t>(a) & 0x7fffffffu);
  const float amax = std::bit_cast<float>(most);
  if (most < 0x7f800000u && amax > 0) {
    const float quotient = largest / amax;
    scale = std::ldexp(quotient < FLT_MAX ? quotient : FLT_MAX, -margin);
  }
  std::rotate(history.begin(), history.begin() + 1, history.end());
  history[0] = 0;
  return scale;
}

}  // namespace nibble
