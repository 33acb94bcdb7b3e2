// Joins the table of ops with the tables of kernels, and chooses: the first kernel of an op's list that the target
// allows and that accepts the node. The reference is the last of every list.
#pragma once
#include <string>

#include "graph/graph.h"
#include "kernels/kernel.h"
#include "kernels/ref/lists.h"

namespace nibble {

struct KernelRow {
  const Op* op;
  std::span<const Kernel> cpu;
  const RefKernel* ref;
};
/// One row for each op that computes something (views, inputs and reads have none).
std::span<const KernelRow> kernel_table();
/// The row of an op; an op without one is an internal error.
const KernelRow& kernels_of(const Op& op);

struct KernelChoice {
  std::string_view name;  // "avx512", "avx2", "ref"
  KernelRun run = nullptr;
  KernelWorkspace workspace = nullptr;
  std::string refusals;  // why each faster kernel was passed over, "avx512: needs avx512, cpu_target is avx2"
};
KernelChoice choose_kernel(const Op& op, const KernelShape& shape, CpuTarget target);

}  // namespace nibble
