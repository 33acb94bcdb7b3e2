// Activations under one tensor scale a row: the definitions.
#pragma once
#include "core/kernel.h"

namespace nibble::ref {

void quantize_rows(const KernelCall& c);
void qlinear_rows(const KernelCall& c);
int64_t quantize_rows_workspace(const KernelShape& s);
int64_t qlinear_rows_workspace(const KernelShape& s);

}  // namespace nibble::ref
