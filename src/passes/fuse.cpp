#include "passes/fuse.h"

#include <algorithm>

#include "graph/verify.h"
#include "ops/ops.h"
#include "passes/grad.h"

namespace nibble {
namespace {

bool is_source(const Node& n) { return n.op == &input_op || n.op == &read_op; }

class Fuser {
 public:
  explicit Fuser(Graph& graph) : g_(graph) {
    std::ranges::stable_partition(g_.nodes, is_source);
    number_nodes();
    gone_.assign(g_.nodes.size(), false);
    readers_.resize(g_.values.size());
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      for (const Value v : g_.nodes[i].in) readers_[index(v)].push_back(i);
    is_output_.assign(g_.values.size(), false);
    for (const Output& o : g_.outputs) is_output_[index(o.value)] = true;
  }

  void run() {
    constexpr bool (Fuser::*patterns[])(size_t) = {&Fuser::residual_norm, &Fuser::residual_norm_grad, &Fuser::rope_pair,
                                                   &Fuser::adamw_squares};
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      for (const auto pattern : patterns)
        if (!gone_[i] && (this->*pattern)(i)) break;
    size_t kept = 0;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (gone_[i]) continue;
      if (kept != i) g_.nodes[kept] = std::move(g_.nodes[i]);
      ++kept;
    }
    g_.nodes.resize(kept);
    number_nodes();
    remove_dead(g_);  // the values that are made no more
  }

 private:
  static size_t index(Value v) { return static_cast<size_t>(v.id); }
  Node& node(size_t i) { return g_.nodes[i]; }
  size_t place(Value v) const { return static_cast<size_t>(g_.values[index(v)].node); }
  bool unread(Value v) const { return readers_[index(v)].empty() && !is_output_[index(v)]; }
  bool read_once(Value v) const { return readers_[index(v)].size() == 1 && !is_output_[index(v)]; }

  void number_nodes() {
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      for (size_t k = 0; k < g_.nodes[i].out.size(); ++k) {
        ValueInfo& info = g_.values[index(g_.nodes[i].out[k])];
        info.node = static_cast<int32_t>(i), info.index = static_cast<int32_t>(k);
      }
  }

  // Puts the fused node at place i; its results are values of the nodes it replaces, so no reader changes.
  void replace(size_t i, std::initializer_list<size_t> absorbed, const Op& op, Values in, Values out,
               const Node& attrs_and_label) {
    Node fused{&op, std::move(in), std::move(out), attrs_and_label.attrs, attrs_and_label.label};
    for (const size_t a : absorbed) gone_[a] = true;
    gone_[i] = false;
    g_.nodes[i] = std::move(fused);
    for (size_t k = 0; k < node(i).out.size(); ++k) {
      ValueInfo& info = g_.values[index(node(i).out[k])];
      info.node = static_cast<int32_t>(i), info.index = static_cast<int32_t>(k);
    }
  }

  // The first reader of v that is `op` and takes v as operand `operand`; the number of nodes if there is none.
  size_t reader(Value v, const Op& op, size_t operand) const {
    for (const size_t r : readers_[index(v)])
      if (!gone_[r] && g_.nodes[r].op == &op && g_.nodes[r].in[operand] == v) return r;
    return g_.nodes.size();
  }

  bool residual_norm(size_t i) {
    if (node(i).op != &add_op) return false;
    const size_t k = reader(node(i).out[0], rms_norm_op, 0);
    if (k == g_.nodes.size()) return false;
    const Node sum = node(i), norm = node(k);
    if (place(norm.in[1]) > i) return false;
    replace(i, {k}, residual_rms_norm_op, {sum.in[0], sum.in[1], norm.in[1]}, {sum.out[0], norm.out[0], norm.out[1]},
            norm);
    return true;
  }

  bool residual_norm_grad(size_t i) {
    if (node(i).op != &add_op) return false;
    for (const size_t operand : {size_t{0}, size_t{1}}) {
      const Value dx = node(i).in[operand], dh = node(i).in[1 - operand];
      const size_t k = place(dx);
      if (node(k).op != &rms_norm_grad_op || node(k).out[1] != dx || dh == dx) continue;
      if (!read_once(dx) || !unread(node(k).out[0]) || overwritten_between(k, i)) continue;
      const Node norm = node(k);
      Values in = norm.in;
      in.push_back(dh);
      replace(i, {k}, residual_rms_norm_grad_op, in, {norm.out[0], node(i).out[0]}, norm);
      return true;
    }
    return false;
  }

  // Whether a node behind k and before i writes over an operand of node k, which is about to move to i.
  bool overwritten_between(size_t k, size_t i) {
    for (size_t j = k + 1; j < i; ++j)
      for (const InPlace& w : node(j).op->in_place) {
        const Value written = g_.behind_views(node(j).in[static_cast<size_t>(w.in)]);
        if (!gone_[j] && std::ranges::any_of(node(k).in, [&](Value v) { return g_.behind_views(v) == written; }))
          return true;
      }
    return false;
  }

  bool rope_pair(size_t i) {
    if (node(i).op != &rope_op || !is_ours(node(i).in[0])) return false;
    const Node q = node(i);
    const std::vector<size_t>& same_angles = readers_[index(q.in[2])];
    for (const size_t k : same_angles) {
      if (k <= i || gone_[k] || node(k).op != &rope_op) continue;
      const Node other = node(k);
      if (place(other.in[0]) > i) return false;  // that of a later layer
      if (other.in[1] != q.in[1] || other.in[2] != q.in[2] || other.attrs != q.attrs || !is_ours(other.in[0])) continue;
      if (g_.behind_views(other.in[0]) == g_.behind_views(q.in[0])) continue;
      replace(i, {k}, rope_pair_op, {q.in[0], other.in[0], q.in[1], q.in[2]}, {q.out[0], other.out[0]}, q);
      return true;
    }
    return false;
  }

  // An intermediate value with one reader, through its views.
  bool is_ours(Value v) const {
    for (;; v = g_.producer(v).in[0]) {
      if (!read_once(v)) return false;
      if (!g_.producer(v).op->view) break;
    }
    return !is_source(g_.producer(v)) && state_of(g_, v) < 0;
  }

  bool adamw_squares(size_t i) {
    if (node(i).op != &adamw_op) return false;
    const size_t k = reader(node(i).out[0], sum_squares_op, 0);
    if (k == g_.nodes.size() || node(k).in.size() != 1) return false;
    const Node update = node(i);
    Values out = update.out;
    out.push_back(node(k).out[0]);
    replace(i, {k}, adamw_squares_op, update.in, out, update);
    return true;
  }

  Graph& g_;
  std::vector<std::vector<size_t>> readers_;  // by Value::id, ascending; of the graph as it came
  std::vector<bool> is_output_, gone_;
};

}  // namespace

void fuse(Graph& graph) { Fuser(graph).run(); }

}  // namespace nibble
