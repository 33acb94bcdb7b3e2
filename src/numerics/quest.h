// What QuEST's scale (numerics/mx.h) cuts off, and how a gradient of the values that were quantised becomes one of the
// numbers they were made from: nothing passes where a value was cut off, and the rotation is turned back.
// Source: spec/precision.md 3.4 (mxfp4_quartet); Quartet, arXiv 2505.14669.
#pragma once
#include "numerics/hadamard.h"
#include "numerics/mx.h"

namespace nibble {

/// Bit i: value i of a block of n <= 32 BF16 values is beyond 6 times the scale of its block, after the rotation by 32
/// if there is one (then n is 32). A block whose scale is NaN cuts nothing off: its products are NaN.
static inline uint32_t quest_mask(const float* v, int n, bool rotated) {
  float turned[mx_block];
  BFloat16 rounded[mx_block];
  if (rotated) {
    hadamard_to_bf16(v, mx_block, rht16_signs, rounded);
    for (int i = 0; i < mx_block; ++i) turned[i] = widen(rounded[i]);
    v = turned;
  }
  const int byte = mxfp4_quest_scale(v, n);
  uint32_t mask = 0;
  for (int i = 0; i < n; ++i) mask |= static_cast<uint32_t>(beyond_mxfp4(v[i], byte)) << i;
  return mask;
}

/// g: gradients of a block's 32 quantised values -> of its numbers, exact but for the sums of the rotation in f64.
static inline void quest_back(const float* g, uint32_t mask, bool rotated, double* numbers) {
  for (int i = 0; i < mx_block; ++i) numbers[i] = (mask >> i & 1u) != 0 ? 0.0 : static_cast<double>(g[i]);
  if (rotated) hadamard_back(numbers, mx_block, rht16_signs);
}

}  // namespace nibble
