// One kernel with operands of its own, as a program would call it.
#pragma once
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "runtime/registry.h"

namespace nibble {

class LoneKernel {
 public:
  /// ids: integers are drawn from [0, ids); 0: all are 1.
  LoneKernel(const Op& op, const Types& in, const Attrs& attrs, int threads, CpuTarget target, int32_t ids);
  void run(ThreadPool& pool);
  std::string_view name() const { return choice_.name; }
  std::span<const Type> results() const { return results_; }

 private:
  std::byte* allocate(int64_t bytes);
  Tensor filled(const Type& type);
  Attrs attrs_;
  int32_t ids_;
  Types results_;
  KernelChoice choice_;
  std::vector<Tensor> in_, out_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::byte* workspace_ = nullptr;
};

}  // namespace nibble
