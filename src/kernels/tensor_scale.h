// What a quantised copy's header holds and the scale of the tensor as a whole, from its largest magnitude: for the
// reference and the fast quantisers.  Source: spec/precision.md 2.3 to 2.8, 2.10, 3.6.
#pragma once
#include "core/quant_spec.h"
#include "core/quantized.h"
#include "numerics/fp8_scaling.h"
#include "numerics/nvfp4_rule.h"

namespace nibble {

struct TensorScales {
  Nvfp4Scale nvfp4{};
  float element = 1;      // of FP8 with one scale: what elements are multiplied with
  bool poisoned = false;  // the whole tensor is; of MX formats only the blocks at fault are
};

/// most: bits of the largest magnitude; delayed: the scale of a format that is scaled by its past.
static inline TensorScales write_header(const QuantSpec& spec, uint32_t most, float delayed, QuantizedHeader* h) {
  TensorScales s;
  *h = {.amax = stored_amax(most), .decode = 1, .saved = 1, .by_amax = 0, .blank = most != 0};
  const bool not_finite = h->amax != h->amax;
  if (is_nvfp4(spec)) {
    const Nvfp4Rule rule = nvfp4_rule(spec);
    s.nvfp4 = nvfp4_scale(h->amax, rule);
    h->decode = s.nvfp4.decode, h->by_amax = factor_by_amax(rule);
  } else if (!block_format(spec.format).scales) {
    const float largest = spec.format == DType::e5m2 ? e5m2_max : e4m3_max;
    s.element = spec.tensor_scale == TensorScale::delayed
                    ? delayed
                    : fp8_scale(h->amax, largest, spec.tensor_scale == TensorScale::pow2);
    h->decode = 1 / s.element;
  }
  if (not_finite) h->blank = 0;
  s.poisoned = not_finite && !is_mx(spec);
  if (s.poisoned) h->decode = h->amax;
  return s;
}

/// The scale byte of every block of a poisoned tensor.
static inline int poison_byte(const QuantSpec& spec) { return is_nvfp4(spec) ? e4m3_nan : e8m0_nan; }

}  // namespace nibble
