// E2M1, the 4-bit element of NVFP4 and MXFP4: sign, two bits of exponent, one of mantissa. No Inf, no NaN.
// Source: spec/precision.md 1 (codec) and 4.2 (stochastic rounding).
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace nibble {

/// Values of codes 0 to 7; 8 to 15 are the same negated (8 is -0).
inline constexpr float e2m1_values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
inline constexpr float e2m1_max = 6;

static inline float e2m1_decode(int code) {
  const float v = e2m1_values[code & 7];
  return (code & 8) != 0 ? -v : v;
}

/// Nearest, ties to the even code, saturating; the sign is copied, a NaN gives 7.
static inline int e2m1_encode(float x) {
  if (x != x) return 7;
  const float a = std::fabs(x);
  const int index = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
  return index | (std::signbit(x) ? 8 : 0);
}

/// Stochastic rounding with eight random bits: the upper neighbour with probability floor(256 f) / 256, f the distance
/// to the lower one in steps. Grid points stay; beyond 6 it saturates.
static inline int e2m1_encode_stochastic(float x, uint32_t byte) {
  if (x != x) return 7;
  const auto step_at = [](float a) { return a >= 4 ? 2.0f : a >= 2 ? 1.0f : 0.5f; };
  const float a = std::fabs(x) > 8 ? 8 : std::fabs(x);
  const float t = std::fma(static_cast<float>(byte & 255) * 0x1p-8f, step_at(a), a);
  const float step = step_at(t);
  const float down = std::floor(t / step) * step;
  return e2m1_encode(down > e2m1_max ? e2m1_max : down) | (std::signbit(x) ? 8 : 0);
}

}  // namespace nibble
