// The 8-bit formats: E4M3 and E5M2 elements, E4M3 block scales of NVFP4, E8M0 block scales of the MX formats.
// Source: spec/precision.md 1 (OCP Microscaling Formats v1.0; PTX ISA, cvt).
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "numerics/bf16.h"

namespace nibble {

inline constexpr float e4m3_max = 448, e5m2_max = 57344;
inline constexpr int e4m3_one = 0x38, e4m3_nan = 0x7F, e8m0_nan = 0xFF;

/// A minifloat with `mantissa` bits of mantissa and an exponent bias: nearest, ties to even, saturating at byte `most`.
/// A NaN gives 0x7F, whatever its sign.
template <int mantissa, int bias, int most>
static inline int minifloat_encode(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t a = bits & 0x7fffffffu;
  if (a > 0x7f800000u) return 0x7F;
  const int sign = static_cast<int>(bits >> 24) & 0x80;
  constexpr uint32_t least_normal = static_cast<uint32_t>(128 - bias) << 23;
  if (a < least_normal) {  // multiples of the subnormal step: the sum's last bit is one step
    constexpr float base = std::bit_cast<float>(static_cast<uint32_t>(128 - bias + 23 - mantissa) << 23);
    const float sum = std::bit_cast<float>(a) + base;
    return sign | static_cast<int>(std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(base));
  }
  constexpr int shift = 23 - mantissa;
  const uint32_t rounded = a + ((1u << (shift - 1)) - 1) + ((a >> shift) & 1u);
  const int code = static_cast<int>(rounded >> shift) - ((127 - bias) << mantissa);
  return sign | std::min(code, most);
}
template <int mantissa, int bias>
static constexpr float minifloat_decode(int byte) {
  const int exponent = (byte & 0x7F) >> mantissa, m = byte & ((1 << mantissa) - 1);
  constexpr float subnormal_step = std::bit_cast<float>(static_cast<uint32_t>(128 - bias - mantissa) << 23);
  const float a = exponent == 0 ? static_cast<float>(m) * subnormal_step
                                : std::bit_cast<float>(static_cast<uint32_t>(exponent + 127 - bias) << 23 |
                                                       static_cast<uint32_t>(m) << (23 - mantissa));
  return (byte & 0x80) != 0 ? -a : a;
}

static inline int e4m3_encode(float x) { return minifloat_encode<3, 7, 0x7E>(x); }
static inline int e5m2_encode(float x) { return minifloat_encode<2, 15, 0x7B>(x); }
static constexpr float e4m3_decode(int byte) {
  return (byte & 0x7F) == 0x7F ? __builtin_nanf("") : minifloat_decode<3, 7>(byte);
}
static inline float e5m2_decode(int byte) {
  const float infinite = (byte & 0x80) != 0 ? -__builtin_inff() : __builtin_inff();
  return (byte & 0x7C) != 0x7C ? minifloat_decode<2, 15>(byte) : (byte & 3) == 0 ? infinite : __builtin_nanf("");
}

/// E4M3 of t in [0, 448], up with probability (t - lo) / (hi - lo) by 24 random bits: the upper ones of `word`.
static inline int e4m3_encode_stochastic(float t, uint32_t word) {
  int lo = e4m3_encode(t);
  if (e4m3_decode(lo) > t) --lo;
  if (lo >= 0x7E) return 0x7E;
  const double low = e4m3_decode(lo), high = e4m3_decode(lo + 1);
  return static_cast<double>(word >> 8) * 0x1p-24 < (static_cast<double>(t) - low) / (high - low) ? lo + 1 : lo;
}

/// 2^(byte - 127); 0xFF is NaN.
static constexpr float e8m0_decode(int byte) {
  if (byte == e8m0_nan) return __builtin_nanf("");
  return std::bit_cast<float>(byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23);
}
/// 2^(127 - byte): what elements are multiplied with before they are rounded.
static inline float e8m0_inverse(int byte) { return e8m0_decode(byte == e8m0_nan ? e8m0_nan : 254 - byte); }

/// The least power of two that is not below x (x <= 2^-127, -0 too: byte 0). Never saturates an element.
static inline int e8m0_round_up(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return e8m0_nan;
  if (static_cast<int32_t>(bits) <= 0x00400000) return 0;
  return static_cast<int>(std::min((bits >> 23) + ((bits & 0x7fffffu) != 0), 254u));
}
/// The rule of the OCP specification, floor(log2 amax) - emax (emax: 2 for E2M1, 8 for E4M3, 15 for E5M2): up to half
/// an octave of the elements saturates.
static inline int e8m0_floor(float amax, int emax) {
  const uint32_t bits = std::bit_cast<uint32_t>(amax) & 0x7fffffffu;
  if (bits > 0x7f800000u) return e8m0_nan;
  if (bits == 0x7f800000u) return 0xFE;
  return std::clamp(static_cast<int>(bits >> 23) - emax, 0, 254);
}

}  // namespace nibble
