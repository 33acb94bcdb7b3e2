#include "passes/schedule.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace nibble {
namespace {

bool is_source(const Node& n) { return n.op == &input_op || n.op == &read_op; }

class Scheduler {
 public:
  explicit Scheduler(Graph& graph)
      : g_(graph),
        readers_left_(graph.values.size(), 0),
        waits_for_(graph.nodes.size(), 0),
        then_(graph.nodes.size()) {}

  std::vector<size_t> order() {
    edges();
    std::vector<size_t> order;
    std::set<size_t> ready;
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (is_source(g_.nodes[i])) order.push_back(i);
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (!is_source(g_.nodes[i]) && waits_for_[i] == 0) ready.insert(i);
    while (!ready.empty()) {
      const size_t next = *std::ranges::min_element(ready, {}, [this](size_t i) { return rank(i); });
      ready.erase(next);
      order.push_back(next);
      for (const Value v : g_.nodes[next].in) --readers_left_[static_cast<size_t>(v.id)];
      for (const size_t t : then_[next])
        if (--waits_for_[t] == 0) ready.insert(t);
    }
    NIBBLE_CHECK(order.size() == g_.nodes.size(), "the graph has a cycle: {} of {} nodes can run", order.size(),
                 g_.nodes.size());
    return order;
  }

 private:
  void edge(size_t from, size_t to) {
    if (from == to || is_source(g_.nodes[from])) return;
    then_[from].push_back(to);
    ++waits_for_[to];
  }

  void edges() {
    std::vector<std::vector<size_t>> readers(g_.values.size());
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      for (const Value v : g_.nodes[i].in) {
        edge(static_cast<size_t>(g_.values[static_cast<size_t>(v.id)].node), i);
        readers[static_cast<size_t>(g_.behind_views(v).id)].push_back(i);
        ++readers_left_[static_cast<size_t>(v.id)];
      }
    for (size_t i = 0; i < g_.nodes.size();
         ++i)  // a writer in place waits for all readers of the old value and its views
      for (const InPlace& w : g_.nodes[i].op->in_place)
        for (const size_t r :
             readers[static_cast<size_t>(g_.behind_views(g_.nodes[i].in[static_cast<size_t>(w.in)]).id)])
          edge(r, i);
    for (const Output& o : g_.outputs) ++readers_left_[static_cast<size_t>(o.value.id)];
  }

  // What frees memory or needs none runs first. The rest keeps its order: it is that of the model and of its gradient,
  // and has a copy of a forward node right before the gradient that reads it (passes/recompute).
  std::tuple<int64_t, size_t> rank(size_t i) const { return {std::min<int64_t>(growth(i), 1), i}; }

  // Bytes by which running node i now changes what is alive.
  int64_t growth(size_t i) const {
    const Node& n = g_.nodes[i];
    int64_t bytes = 0;
    if (!n.op->view)
      for (size_t k = 0; k < n.out.size(); ++k)
        if (std::ranges::none_of(n.op->in_place, [k](InPlace w) { return static_cast<size_t>(w.out) == k; }))
          bytes += g_.type(n.out[k]).nbytes();
    for (size_t k = 0; k < n.in.size(); ++k) {
      if (n.op->view || is_source(g_.producer(n.in[k]))) continue;
      if (std::ranges::any_of(n.op->in_place, [k](InPlace w) { return static_cast<size_t>(w.in) == k; })) continue;
      if (readers_left_[static_cast<size_t>(n.in[k].id)] == 1) bytes -= g_.type(n.in[k]).nbytes();
    }
    return bytes;
  }

  Graph& g_;
  std::vector<int32_t> readers_left_, waits_for_;
  std::vector<std::vector<size_t>> then_;
};

}  // namespace

void schedule(Graph& graph) {
  const std::vector<size_t> order = Scheduler(graph).order();
  std::vector<Node> nodes;
  nodes.reserve(order.size());
  for (const size_t i : order) {
    for (const Value v : graph.nodes[i].out)
      graph.values[static_cast<size_t>(v.id)].node = static_cast<int32_t>(nodes.size());
    nodes.push_back(std::move(graph.nodes[i]));
  }
  graph.nodes = std::move(nodes);
}

}  // namespace nibble
