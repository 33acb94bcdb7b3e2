// Products with 4-bit weights: the definitions.
#pragma once
#include "core/kernel.h"

namespace nibble::ref {

void linear_w4(const KernelCall& c);
void embedding_w4(const KernelCall& c);

}  // namespace nibble::ref
