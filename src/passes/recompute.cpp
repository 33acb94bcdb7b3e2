#include "passes/recompute.h"

#include <algorithm>
#include <set>

#include "ops/ops.h"
#include "passes/grad.h"

namespace nibble {
namespace {

bool is_source(const Node& n) { return n.op == &input_op || n.op == &read_op; }

class Recompute {
 public:
  Recompute(Graph& graph, const std::vector<bool>& again) : old_(graph), again_(again) {
    next_.values = graph.values;
    next_.outputs = graph.outputs;
    copy_of_.assign(graph.values.size(), Value{});
  }

  Recomputation run() {
    done_.kept_before = kept_bytes(old_);
    for (size_t i = 0; i < old_.nodes.size(); ++i) {
      Node n = old_.nodes[i];
      if (i >= again_.size()) {
        std::set<size_t> needed;  // in the order of the forward pass, which passes/fuse and schedule know
        for (const Value v : n.in) need(v, needed);
        for (const size_t k : needed) copy(old_.nodes[k]);
        for (Value& v : n.in) v = now(v);
      }
      append(std::move(n));
    }
    old_ = std::move(next_);
    remove_dead(old_);
    done_.kept_bytes = kept_bytes(old_);
    return done_;
  }

 private:
  size_t producer(Value v) const { return static_cast<size_t>(old_.values[static_cast<size_t>(v.id)].node); }
  // What the backward pass and copies read in place of v.
  Value now(Value v) const {
    const Value copy = copy_of_[static_cast<size_t>(v.id)];
    return copy.valid() ? copy : v;
  }

  void append(Node n) {
    for (size_t k = 0; k < n.out.size(); ++k) {
      ValueInfo& info = next_.values[static_cast<size_t>(n.out[k].id)];
      info.node = static_cast<int32_t>(next_.nodes.size()), info.index = static_cast<int32_t>(k);
    }
    next_.nodes.push_back(std::move(n));
  }

  bool is_kept(Value v) const {
    const size_t p = producer(v);
    if (p >= again_.size() || is_source(old_.nodes[p])) return true;
    return old_.nodes[p].op->view ? is_kept(old_.nodes[p].in[0]) : !again_[p];
  }

  // Adds the nodes that must run again for v to be there.
  void need(Value v, std::set<size_t>& nodes) const {
    if (is_kept(v) || now(v) != v || !nodes.insert(producer(v)).second) return;
    for (const Value from : old_.nodes[producer(v)].in) need(from, nodes);
  }

  void copy(const Node& n) {
    NIBBLE_CHECK(n.op->in_place.empty(), "{} ({}) writes in place: it cannot run twice", n.op->name, n.label);
    Node c = n;
    for (Value& v : c.in) v = now(v);
    for (Value& v : c.out) {
      const Value from = v;
      v = {static_cast<int32_t>(next_.values.size())};
      next_.values.push_back(old_.values[static_cast<size_t>(from.id)]);
      copy_of_[static_cast<size_t>(from.id)] = v;
    }
    c.label = std::string(recompute_label) + n.label;
    append(std::move(c));
    if (n.op->view) return;
    const Cost cost = cost_of(old_, n);
    done_.nodes += 1;
    done_.flops += static_cast<double>(cost.flops), done_.bytes += static_cast<double>(cost.bytes);
  }

  Graph& old_;
  const std::vector<bool>& again_;
  Graph next_;
  std::vector<Value> copy_of_;  // by Value::id of the old graph
  Recomputation done_;
};

}  // namespace

size_t forward_nodes(const Graph& graph) {
  const auto loss = std::ranges::find(graph.nodes, &cross_entropy_grad_op, &Node::op);
  return static_cast<size_t>(loss - graph.nodes.begin());
}

int64_t kept_bytes(const Graph& graph) {
  const size_t forward = forward_nodes(graph);
  std::vector<bool> kept(graph.values.size(), false);
  for (size_t i = forward; i < graph.nodes.size(); ++i)
    for (const Value v : graph.nodes[i].in) {
      const Value from = graph.behind_views(v);
      const auto node = static_cast<size_t>(graph.values[static_cast<size_t>(from.id)].node);
      if (node < forward && !is_source(graph.nodes[node])) kept[static_cast<size_t>(from.id)] = true;
    }
  int64_t bytes = 0;
  for (size_t id = 0; id < kept.size(); ++id)
    if (kept[id]) bytes += graph.values[id].type.nbytes();
  return bytes;
}

Recomputation recompute(Graph& graph, const std::vector<bool>& again) { return Recompute(graph, again).run(); }

}  // namespace nibble
