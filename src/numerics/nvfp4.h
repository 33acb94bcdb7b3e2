// NVFP4: blocks of 16 (or tiles of 16 x 16) E2M1 elements with an E4M3 scale, under one f32 scale of the tensor.
// Every operation below is one rounding to f32.  Source: spec/precision.md 2.4 to 2.8; arXiv 2509.25149.
#pragma once
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "numerics/e2m1.h"
#include "numerics/fp8.h"

namespace nibble {

inline constexpr int nvfp4_block = 16;
inline constexpr float rcp_6 = 0x1.555556p-3f, rcp_2688 = 0x1.861862p-12f, rcp_7225344 = 0x1.293726p-23f;

/// What a tensor's amax becomes.
struct Nvfp4Scale {
  float amax;         // of the tensor; a quiet NaN poisons it
  float encode;       // S
  float decode;       // S_dec = 1/S
  float multiplier;   // of a block's amax
  bool exact = true;  // S is numerator/amax, neither rounded down nor 1
};

/// How S follows from the amax: `numerator` = largest block scale times `largest` element.
struct Nvfp4Rule {
  float numerator = 2688, reciprocal_largest = rcp_6;
  bool pow2 = false;  // S rounded down to a power of two: codes do not depend on the amax (2.7)
  bool unit = false;  // S = 1: no tensor scale (recipe_disable=two_level)
};
inline constexpr Nvfp4Rule nvfp4_standard{}, nvfp4_four_six{.numerator = 1536};

/// amax with Inf and NaN as one quiet NaN: order-free, NaN > Inf > finite in the order of the bits.
static inline float stored_amax(uint32_t magnitude_bits) {
  return std::bit_cast<float>(magnitude_bits >= 0x7f800000u ? 0x7fc00000u : magnitude_bits);
}
static inline uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }
static inline float at_most_max(float x) { return x < FLT_MAX ? x : FLT_MAX; }

static inline Nvfp4Scale nvfp4_scale(float amax, const Nvfp4Rule& rule = nvfp4_standard) {
  Nvfp4Scale s{amax, 1, 1, rule.reciprocal_largest};
  if (amax != amax) return {amax, amax, amax, amax};
  if (amax != 0 && !rule.unit) s.encode = at_most_max(rule.numerator / amax);
  if (rule.pow2) s.encode = std::bit_cast<float>(std::bit_cast<uint32_t>(s.encode) & 0x7f800000u);
  s.decode = 1 / s.encode;
  s.multiplier = s.encode * rule.reciprocal_largest;
  s.exact = !rule.pow2 && !rule.unit;
  return s;
}

/// E4M3 byte of a block from its amax.
static inline int nvfp4_block_scale(float block_amax, const Nvfp4Scale& s) {
  return e4m3_encode(at_most_max(block_amax * s.multiplier));
}
/// What elements of a block with this scale byte are multiplied with: e_b.
static inline float nvfp4_encode_scale(int byte, const Nvfp4Scale& s) {
  return at_most_max(1 / (e4m3_decode(byte) * s.decode));
}
/// The value of a code under the standard rule.
static inline float nvfp4_value(int code, int byte, float amax) {
  return e2m1_decode(code) * ((e4m3_decode(byte) * amax) * rcp_2688);
}
/// The value of a code where S_dec is what decodes: pow2, unit, four-over-six, EDEN.
static inline float nvfp4_value_by_decode(int code, int byte, const Nvfp4Scale& s) {
  return e2m1_decode(code) * (e4m3_decode(byte) * s.decode);
}

// ---- four over six: of two scales per block the one with the smaller error (2.8; arXiv 2512.02010) ----

enum class FourSixError { mse, mae };

struct FourSixBytes {
  int six, four;
};
static inline FourSixBytes four_six_bytes(float block_amax, const Nvfp4Scale& s) {
  const float t = at_most_max((block_amax / 6) * s.encode);
  return {e4m3_encode(t), e4m3_encode(at_most_max(1.5f * t))};
}
/// Error of n <= 16 elements under a scale byte, added in ascending order from 0. Where S does not follow exactly from
/// the amax, S_dec is what decodes.
static inline float four_six_error(const float* x, int n, int byte, const Nvfp4Scale& s, FourSixError kind) {
  const float encode = nvfp4_encode_scale(byte, s);
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    const float product = e2m1_decode(e2m1_encode(x[i] * encode)) * e4m3_decode(byte);  // exact
    const float d = (s.exact ? (product * s.amax) / 1536 : product * s.decode) - x[i];
    sum += kind == FourSixError::mse ? d * d : std::fabs(d);
  }
  return sum;
}

}  // namespace nibble
