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
int64_t quantize_workspace(const KernelShape& s);

}  // namespace nibble::ref
