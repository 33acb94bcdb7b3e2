// One kernel with operands of its own, as a program would call it.
#pragma once
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "runtime/registry.h"

namespace nibble {

class LoneKernel {
 public:
  LoneKernel(const Op& op, const Types& in, const Attrs& attrs, int threads, CpuTarget target);
  void run(ThreadPool& pool);

 private:
  std::byte* allocate(int64_t bytes);
  Tensor filled(const Type& type);
  Attrs attrs_;
  KernelChoice choice_;
  std::vector<Tensor> in_, out_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::byte* workspace_ = nullptr;
};

}  // namespace nibble
