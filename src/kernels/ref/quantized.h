// Quantisers and products of quantised operands: the definitions (spec/precision.md 2, 3.3, 3.6, 5.1).
#pragma once
#include "core/kernel.h"

namespace nibble::ref {

void quantize(const KernelCall& c);
void requantize(const KernelCall& c);
void quantize_weights(const KernelCall& c);  // one copy or two
void qlinear(const KernelCall& c);
void qlinear_dgrad(const KernelCall& c);
void qlinear_wgrad(const KernelCall& c);
void record_amax(const KernelCall& c);
void advance_scale(const KernelCall& c);
/// Sees the values that a quantiser made a copy of, rounded to BF16 and rotated as it does, one row of the copy after
/// the other, with the fill. buffer: one row.
struct ValueVisitor {
  float* buffer;
  void* context;
  void (*see)(void* context, int64_t row, const float* values);
};
/// x, random, attrs: of the quantize, requantize or quantize_weight(s) node.
void visit_values(const Attrs& attrs, bool column, const Tensor& x, const int32_t* random, const ValueVisitor& visitor);

int64_t quantize_workspace(const KernelShape& s);

}  // namespace nibble::ref
