#include "runtime/interpreter.h"

#include "runtime/registry.h"

namespace nibble {

Interpreter::Interpreter(const Graph& graph, Scalar scalar) : graph_(graph), scalar_(scalar) {
  tensors_.resize(graph.values.size());
  for (const Node& n : graph.nodes)
    for (size_t k = 0; k < n.out.size(); ++k) {
      Value shared;
      if (n.op->view && k == 0) shared = n.in[0];
      for (const InPlace& w : n.op->in_place)
        if (static_cast<size_t>(w.out) == k) shared = n.in[static_cast<size_t>(w.in)];
      const Type& type = graph.type(n.out[k]);
      void* data = nullptr;
      if (shared.valid()) {
        data = value(shared).data;
      } else {  // 16 bytes hold the largest element, a complex<double>
        memory_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(type.numel()) * 16));
        data = memory_.back().get();
      }
      tensors_[static_cast<size_t>(n.out[k].id)] = {type, data};
    }
}

Tensor Interpreter::input(std::string_view name) const {
  for (const Node& n : graph_.nodes)
    if (n.op == &input_op && n.attrs.get_string("name") == name) return value(n.out[0]);
  internal_error(fmt::format("the graph has no input {}", name), __FILE__, __LINE__);
}

Tensor Interpreter::state(StateRole role, std::string_view name) const {
  for (const Node& n : graph_.nodes)
    if (n.op == &read_op && n.attrs.get_string("role") == name_of(role) && n.attrs.get_string("name") == name)
      return value(n.out[0]);
  internal_error(fmt::format("the graph does not read {} {}", name_of(role), name), __FILE__, __LINE__);
}

void Interpreter::run() {
  ThreadPool pool(1);
  std::vector<std::byte> workspace;
  for (const Node& n : graph_.nodes) {
    if (n.op == &input_op || n.op == &read_op || n.op->view) continue;
    std::vector<Tensor> in, out;
    for (const Value v : n.in) in.push_back(value(v));
    for (const Value v : n.out) out.push_back(value(v));
    const RefKernel& ref = *kernels_of(*n.op).ref;
    const KernelRun kernel = scalar_ == Scalar::f32 ? ref.f32 : scalar_ == Scalar::f64 ? ref.f64 : ref.complex;
    NIBBLE_CHECK(kernel != nullptr, "{} is defined in f32 only", n.op->name);
    if (ref.workspace != nullptr) {
      Types in_types, out_types;
      for (const Tensor& t : in) in_types.push_back(t.type);
      for (const Tensor& t : out) out_types.push_back(t.type);
      workspace.resize(static_cast<size_t>(4 * ref.workspace({in_types, out_types, n.attrs, 1})));
    }
    kernel({in, out, n.attrs, workspace.data(), pool});
  }
}

}  // namespace nibble
