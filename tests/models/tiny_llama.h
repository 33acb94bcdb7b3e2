// A Llama small enough for the interpreter, its batch and its weights; for tests of graphs, passes and the program.
#pragma once
#include "models/graphs.h"
#include "numerics/normal.h"
#include "ops/values.h"
#include "passes/grad.h"
#include "runtime/program.h"

namespace nibble {

inline LlamaConfig tiny_llama(bool tied = false) {
  return {.layers = 2, .width = 24, .heads = 4, .kv_heads = 2, .head_size = 6, .hidden = 20, .vocab = 37, .tied = tied};
}

/// The loss graph of a microbatch with its gradients: outputs "ce" and "lse", gradient states by name.
inline Graph tiny_training_graph(const LlamaConfig& c, BatchShape shape, double z_loss, GradResult* states = nullptr) {
  Graph graph = llama_loss_graph(c, shape, z_loss);
  Builder b(graph);
  const Value ce = graph.output("ce");
  const GradResult r = grad(graph, {{ce, ones(b, graph.type(ce))}}, {});
  if (states != nullptr) *states = r;
  return graph;
}

/// Weights, rope table and batch of tiny_llama, for whoever holds a graph's tensors (Interpreter, Program). Two
/// documents a row, the last position padding.
struct TinyInputs {
  std::map<std::string, std::vector<float>> weights;
  std::vector<float> table;
  std::vector<int32_t> tokens, targets, segments, positions;
  float inv_n = 0;
};

inline TinyInputs tiny_inputs(const LlamaConfig& c, BatchShape shape, uint64_t seed = 3) {
  TinyInputs in;
  for (const Parameter& p : llama_parameters(c)) {
    std::vector<float>& w = in.weights[p.name];
    w.assign(static_cast<size_t>(p.shape.numel()), 1.0f);
    if (p.init != Parameter::Init::ones)
      fill_normal(w.data(), 0, p.shape.numel(), 0, p.name, p.std, p.init == Parameter::Init::truncated);
  }
  in.table.resize(static_cast<size_t>(shape.length * c.head_size));
  fill_rope_table(c.rope, c.head_size, 0, shape.length, in.table.data());
  Random random(seed);
  int64_t count = 0;
  for (int64_t r = 0; r < shape.rows; ++r)
    for (int64_t t = 0, cut = random.below(shape.length); t < shape.length; ++t) {
      const bool padding = shape.length > 1 && t == shape.length - 1;
      in.tokens.push_back(static_cast<int32_t>(random.below(c.vocab)));
      in.targets.push_back(padding || t == cut - 1 ? -1 : static_cast<int32_t>(random.below(c.vocab)));
      in.segments.push_back(padding ? 0 : t < cut ? 1 : 2);
      in.positions.push_back(static_cast<int32_t>(t < cut ? t : t - cut));
      count += in.targets.back() >= 0;
    }
  in.inv_n = 1.0f / static_cast<float>(count);
  return in;
}

/// Copies the inputs and states that `graph` has; `tensor` answers where a source lies.
inline void fill(const Graph& graph, Scalar scalar, const TinyInputs& in,
                 const std::function<Tensor(const Node&)>& tensor) {
  const auto copy = [&](const Tensor& t, const auto& list) {
    NIBBLE_CHECK(static_cast<size_t>(t.numel()) == list.size(), "{} elements for {}", list.size(), to_string(t.type));
    for (int64_t i = 0; i < t.numel(); ++i) store(t, scalar, i, static_cast<double>(list[static_cast<size_t>(i)]));
  };
  for (const Node& n : graph.nodes) {
    if (n.op != &input_op && n.op != &read_op) continue;
    const std::string& name = n.attrs.get_string("name");
    if (n.op == &read_op && n.attrs.get_string("role") == "parameter")
      copy(tensor(n), in.weights.at(name));
    else if (name == "rope_table")
      copy(tensor(n), in.table);
    else if (name == "tokens")
      copy(tensor(n), in.tokens);
    else if (name == "targets")
      copy(tensor(n), in.targets);
    else if (name == "segments")
      copy(tensor(n), in.segments);
    else if (name == "positions")
      copy(tensor(n), in.positions);
    else if (name == "inv_n")
      copy(tensor(n), std::vector<float>{in.inv_n});
  }
}
inline void fill(Interpreter& run, const Graph& graph, Scalar scalar, const TinyInputs& in) {
  fill(graph, scalar, in, [&run](const Node& n) { return run.value(n.out[0]); });
}
inline void fill(Program& program, std::string_view executable, const TinyInputs& in) {
  Executable& x = program.executable(executable);
  fill(x.plan().graph, Scalar::f32, in, [&](const Node& n) {
    const std::string& name = n.attrs.get_string("name");
    StateRole role{};
    if (n.op == &input_op) return x.input(name);
    parse_state_role(n.attrs.get_string("role"), &role);
    return program.state(role, name);
  });
}

}  // namespace nibble
