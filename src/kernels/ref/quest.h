// Gradients through rotated operands that were cut off: the definitions (spec/precision.md 3.4, mxfp4_quartet).
#pragma once
#include "core/kernel.h"

namespace nibble::ref {

void quest_mask(const KernelCall& c);
void quest_back(const KernelCall& c);
void quest_back_add(const KernelCall& c);

}  // namespace nibble::ref
