// Runs a graph node by node on the reference kernels, with float, double or complex elements in place of every f32.
// An oracle for tests: slow, one thread, each value in memory of its own.
#pragma once
#include <memory>

#include "graph/graph.h"

namespace nibble {

enum class Scalar { f32, f64, complex };

class Interpreter {
 public:
  Interpreter(const Graph& graph, Scalar scalar);
  /// Memory of a value; write inputs and states before run(), read results after. Elements typed f32 in the graph are
  /// float, double or std::complex<double>; i32 stay i32.
  Tensor value(Value v) const { return tensors_[static_cast<size_t>(v.id)]; }
  Tensor input(std::string_view name) const;
  Tensor state(StateRole role, std::string_view name) const;
  Tensor output(std::string_view name) const { return value(graph_.output(name)); }
  void run();

 private:
  const Graph& graph_;
  Scalar scalar_;
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace nibble
