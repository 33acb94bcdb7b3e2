// What a product of quantised operands needs to know of them.  Source: spec/precision.md 5.1.
#pragma once
#include <bit>
#include <cstdint>

#include "core/quantized.h"
#include "numerics/fp8.h"
#include "numerics/nvfp4.h"

namespace nibble {

/// The factor on all sums of a product: both tensor scales. `more` is 16/9 where stochastic rounding took 3/4 of both
/// operands, else 1.
static inline float product_factor(const QuantizedHeader& a, const QuantizedHeader& b, float more = 1) {
  if (a.by_amax != 0 && b.by_amax != 0) return (a.amax * b.amax) * rcp_7225344;
  float alpha = a.decode * b.decode;
  if (a.saved != 1) alpha *= a.saved;
  if (b.saved != 1) alpha *= b.saved;
  if (more != 1) alpha *= more;
  return alpha;
}

/// A block's scale as the number that its elements are multiplied with; 1 where the format has none.
static inline float block_scale_value(DType format, int byte) {
  switch (format) {
    case DType::nvfp4:
    case DType::nvfp4_2d:
      return e4m3_decode(byte);
    case DType::e4m3:
    case DType::e5m2:
      return 1;
    default:
      return e8m0_decode(byte);
  }
}

/// The element's own value, without any scale.
static inline float element_value(DType format, const uint8_t* codes, int64_t i) {
  if (block_format(format).bits == 4) return e2m1_decode(codes[i / 2] >> (i % 2 * 4) & 15);
  return format == DType::e5m2 ? e5m2_decode(codes[i]) : e4m3_decode(codes[i]);
}

/// acc + t rounded towards zero: the accumulator of a Blackwell tensor core (5.2). The sum in f64 and what it lost
/// (Knuth's two-sum) are the exact sum together; it lies between the same two floats as the former unless that is one.
static inline float add_towards_zero(float acc, float t) {
  const double a = acc, b = t, sum = a + b, a_part = sum - b, lost = (a - a_part) + (b - (sum - a_part));
  const auto f = static_cast<float>(sum);
  const double beyond = sum - static_cast<double>(f);  // exact
  const double rest = beyond != 0 ? beyond : lost;     // its sign: where the exact sum lies as seen from f
  const bool too_far = f > 0 ? rest < 0 : rest > 0;
  return f != 0 && rest != 0 && too_far ? std::bit_cast<float>(std::bit_cast<uint32_t>(f) - 1) : f;
}

}  // namespace nibble
