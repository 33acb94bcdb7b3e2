#include "passes/memory.h"

#include <algorithm>
#include <numeric>

#include "graph/verify.h"

namespace nibble {
namespace {

bool is_source(const Node& n) { return n.op == &input_op || n.op == &read_op; }

// The value whose memory node n's result k shares, or an invalid one if it needs memory of its own.
Value shared_with(const Node& n, size_t k) {
  if (n.op->view && k == 0) return n.in[0];
  for (const InPlace& w : n.op->in_place)
    if (static_cast<size_t>(w.out) == k) return n.in[static_cast<size_t>(w.in)];
  return {};
}

void find_buffers(const Graph& graph, MemoryPlan& plan) {
  plan.buffer_of.assign(graph.values.size(), -1);
  plan.state_of.assign(graph.values.size(), -1);
  const auto end = static_cast<int32_t>(graph.nodes.size());
  for (int32_t i = 0; i < end; ++i) {
    const Node& n = graph.nodes[static_cast<size_t>(i)];
    for (const Value v : n.in)
      if (const int32_t b = plan.buffer_of[static_cast<size_t>(v.id)]; b >= 0)
        plan.buffers[static_cast<size_t>(b)].last = i;
    for (size_t k = 0; k < n.out.size(); ++k) {
      const auto id = static_cast<size_t>(n.out[k].id);
      if (n.op == &read_op) {
        plan.state_of[id] = i;
      } else if (const Value from = shared_with(n, k); from.valid()) {
        plan.buffer_of[id] = plan.buffer_of[static_cast<size_t>(from.id)];
        plan.state_of[id] = plan.state_of[static_cast<size_t>(from.id)];
      } else {
        plan.buffer_of[id] = static_cast<int32_t>(plan.buffers.size());
        plan.buffers.push_back({n.out[k], 0, align_up(graph.type(n.out[k]).nbytes()), i, i, n.op == &input_op});
      }
    }
  }
  for (const Output& o : graph.outputs)
    if (const int32_t b = plan.buffer_of[static_cast<size_t>(o.value.id)]; b >= 0)
      plan.buffers[static_cast<size_t>(b)].keeps = true;
  for (Placement& p : plan.buffers)
    if (p.keeps) p.first = 0, p.last = end;
}

// First fit, largest buffers first: `placed` stays sorted by offset.
void place(MemoryPlan& plan) {
  std::vector<int32_t> order(plan.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    return plan.buffers[static_cast<size_t>(a)].bytes > plan.buffers[static_cast<size_t>(b)].bytes;
  });
  std::vector<const Placement*> placed;
  for (const int32_t i : order) {
    Placement& p = plan.buffers[static_cast<size_t>(i)];
    int64_t at = 0;
    for (const Placement* other : placed) {
      if (other->last < p.first || p.last < other->first) continue;
      if (at + p.bytes <= other->offset) break;
      at = std::max(at, other->offset + other->bytes);
    }
    p.offset = at;
    placed.insert(std::ranges::upper_bound(placed, at, {}, &Placement::offset), &p);
    plan.bytes = std::max(plan.bytes, at + p.bytes);
  }
}

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const std::function<int64_t(const Node&)>& workspace) {
  MemoryPlan plan;
  find_buffers(graph, plan);
  place(plan);
  for (const Node& n : graph.nodes)
    if (!is_source(n) && !n.op->view) plan.workspace_bytes = std::max(plan.workspace_bytes, align_up(workspace(n)));
  plan.workspace_offset = plan.bytes;
  plan.bytes += plan.workspace_bytes;
  return plan;
}

}  // namespace nibble
