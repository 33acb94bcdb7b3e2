// Random legal graphs with views, writes in place over states and over intermediate values, and results of two sizes.
#pragma once
#include <algorithm>

#include "graph/verify.h"
#include "ops/ops.h"
#include "ops/values.h"
#include "passes/grad.h"

namespace nibble {

class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : random_(seed), b_(graph_) {}

  Graph make(int nodes) {
    for (int i = 0; i < 4; ++i) {
      const int64_t n = i < 2 ? 4 : 8;
      pool_.push_back(b_.input(fmt::format("x{}", i), {DType::f32, {n, n}}));
      pool_.push_back(b_.read(StateRole::gradient, fmt::format("s{}", i), {DType::f32, {n, n}}));
    }
    for (int i = 0; i < nodes; ++i) node();
    for (int i = 0; i < 3; ++i) b_.output(fmt::format("y{}", i), pick());
    remove_dead(graph_);
    verify(graph_, "RandomGraph");
    return graph_;
  }

 private:
  Value pick() { return pool_[static_cast<size_t>(random_.below(static_cast<int64_t>(pool_.size())))]; }
  Value pick_like(Value v) {
    for (;;)
      if (const Value u = pick(); graph_.type(u) == graph_.type(v)) return u;
  }

  void node() {
    const Value x = pick();
    switch (random_.below(5)) {
      case 0:
        return pool_.push_back(scale(b_, x, random_.uniform(-1, 1)));
      case 1:
        return pool_.push_back(add(b_, x, pick_like(x)));
      case 2:
        return pool_.push_back(swiglu(b_, x, pick_like(x)));
      case 3:
        return pool_.push_back(merge_heads(b_, split_heads(b_, x, 2)));
      default:
        return write(x);
    }
  }

  // x += dy^T dx in place: x and its views are gone, the result may be used on.
  void write(Value x) {
    const Value owner = graph_.behind_views(x), dy = pick_like(x), dx = pick_like(x);
    if (graph_.producer(owner).op == &input_op ||
        (state_of(graph_, owner) >= 0 && graph_.producer(owner).op != &read_op))
      return;
    if (graph_.behind_views(dy) == owner || graph_.behind_views(dx) == owner) return;
    std::erase_if(pool_, [&](Value v) { return graph_.behind_views(v) == owner; });
    pool_.push_back(b_.emit1(linear_wgrad_op, {x, dy, dx}));
  }

  Random random_;
  Graph graph_;
  Builder b_;
  Values pool_;
};

/// Random contents for every input and state of `graph`.
inline void fill_random(Interpreter& run, const Graph& graph, Scalar scalar, uint64_t seed) {
  Random random(seed);
  std::vector<const Node*> sources;
  for (const Node& n : graph.nodes)
    if (n.op == &input_op || n.op == &read_op) sources.push_back(&n);
  std::ranges::sort(sources, {},
                    [](const Node* n) { return to_string(n->attrs); });  // whatever their order in the graph
  for (const Node* n : sources) {
    const Tensor t = run.value(n->out[0]);
    for (int64_t i = 0; i < t.numel(); ++i) store(t, scalar, i, random.uniform(-1, 1));
  }
}

}  // namespace nibble
