// What an NVFP4 element stands for as a number.  Source: spec/precision.md 2.4 step 6, 2.7, 2.8.
#pragma once
#include "core/quantized.h"
#include "numerics/e2m1.h"
#include "numerics/nvfp4.h"

namespace nibble {

/// What an element of a block with this scale byte is multiplied with, one rounding an operation. NaN if the tensor is
/// poisoned.
static inline float decoded_scale(int byte, const QuantizedHeader& h) {
  return h.by_amax != 0 ? (e4m3_decode(byte) * h.amax) * rcp_2688 : e4m3_decode(byte) * h.decode;
}

/// Element i of row r of an nvfp4 or nvfp4_2d tensor.
static inline float decoded_value(const QuantizedView& v, int64_t r, int64_t i) {
  return e2m1_decode(v.codes(r)[i / 2] >> (i % 2 * 4) & 15) * decoded_scale(v.scales(r)[i / 16], v.header());
}

}  // namespace nibble
