// The calling convention of kernels: what one node hands to the function that computes it.
#pragma once
#include <cstddef>
#include <span>

#include "core/attrs.h"
#include "core/threads.h"
#include "core/type.h"

namespace nibble {

/// Types of one call, all that is known before the run: what a kernel needs to accept or to size its workspace.
struct KernelShape {
  std::span<const Type> in, out;
  const Attrs& attrs;
  int threads;
};

/// One call. `out` of an in-place operand is the same memory as its `in`. The workspace is at least what the kernel's
/// workspace function answered, 64-byte aligned, with undefined contents.
struct KernelCall {
  std::span<const Tensor> in, out;
  const Attrs& attrs;
  std::byte* workspace;
  ThreadPool& pool;
  bool from_zero = false;  // an accumulator counts as +0, whatever its memory holds: the first of several sums
};

using KernelRun = void (*)(const KernelCall&);
using KernelWorkspace = int64_t (*)(const KernelShape&);

}  // namespace nibble
