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

// Buffers and who lives in them, node by node.
class Buffers {
 public:
  Buffers(const Graph& graph, MemoryPlan& plan) : g_(graph), plan_(plan), last_read_(graph.values.size(), -1) {
    for (int32_t i = 0; i < static_cast<int32_t>(g_.nodes.size()); ++i)
      for (const Value v : g_.nodes[static_cast<size_t>(i)].in) last_read_[static_cast<size_t>(v.id)] = i;
    for (const Output& o : g_.outputs) last_read_[static_cast<size_t>(o.value.id)] = end();
  }

  void find() {
    plan_.buffer_of.assign(g_.values.size(), -1);
    plan_.state_of.assign(g_.values.size(), -1);
    for (int32_t i = 0; i < end(); ++i) {
      const Node& n = g_.nodes[static_cast<size_t>(i)];
      for (size_t k = 0; k < n.out.size(); ++k) {
        const auto id = static_cast<size_t>(n.out[k].id);
        if (n.op == &read_op) {
          plan_.state_of[id] = i;
        } else if (const Value from = shared_with(n, k); from.valid()) {
          plan_.buffer_of[id] = plan_.buffer_of[static_cast<size_t>(from.id)];
          plan_.state_of[id] = plan_.state_of[static_cast<size_t>(from.id)];
        } else if (const int32_t b = reusable(n, i, k); b >= 0) {
          plan_.buffer_of[id] = b;
        } else {
          plan_.buffer_of[id] = static_cast<int32_t>(plan_.buffers.size());
          plan_.buffers.push_back({n.out[k], 0, align_up(g_.type(n.out[k]).nbytes()), i, i, n.op == &input_op});
        }
        if (const int32_t b = plan_.buffer_of[id]; b >= 0) extend(buffer(b), std::max(last_read_[id], i));
      }
    }
    for (Placement& p : plan_.buffers)
      if (p.keeps) p.first = 0, p.last = end();
  }

 private:
  int32_t end() const { return static_cast<int32_t>(g_.nodes.size()); }
  Placement& buffer(int32_t b) { return plan_.buffers[static_cast<size_t>(b)]; }

  void extend(Placement& p, int32_t last) {
    p.last = std::max(p.last, last);
    p.keeps = p.keeps || last == end();
  }

  // The buffer of an operand that nobody reads after node i and that result k may take; -1 if there is none.
  int32_t reusable(const Node& n, int32_t i, size_t k) {
    if (last_read_[static_cast<size_t>(n.out[k].id)] == end()) return -1;
    for (const InPlace& w : n.op->reuses) {
      const Value from = n.in[static_cast<size_t>(w.in)];
      const int32_t b = plan_.buffer_of[static_cast<size_t>(from.id)];
      if (static_cast<size_t>(w.out) != k || b < 0 || buffer(b).keeps || buffer(b).last > i) continue;
      if (buffer(b).bytes != align_up(g_.type(n.out[k]).nbytes())) continue;
      bool taken = false;  // by an earlier result of this node
      for (size_t j = 0; j < k; ++j) taken = taken || plan_.buffer_of[static_cast<size_t>(n.out[j].id)] == b;
      if (!taken) return b;
    }
    return -1;
  }

  const Graph& g_;
  MemoryPlan& plan_;
  std::vector<int32_t> last_read_;  // by Value::id: the last node that reads it, end() for outputs, -1: nobody
};

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

// A node's workspace goes between the buffers that are alive while it runs, at the lowest place.
void place_workspaces(const Graph& graph, MemoryPlan& plan) {
  std::vector<std::vector<const Placement*>> from(graph.nodes.size() + 1), until(graph.nodes.size() + 1);
  for (const Placement& p : plan.buffers) {
    from[static_cast<size_t>(p.first)].push_back(&p);
    until[static_cast<size_t>(p.last)].push_back(&p);
  }
  std::vector<const Placement*> alive;  // by offset
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const Placement* p : from[i])
      alive.insert(std::ranges::upper_bound(alive, p->offset, {}, &Placement::offset), p);
    if (Placement& w = plan.workspaces[i]; w.bytes > 0) {
      for (const Placement* p : alive) {
        if (w.offset + w.bytes <= p->offset) break;
        w.offset = std::max(w.offset, p->offset + p->bytes);
      }
      plan.bytes = std::max(plan.bytes, w.offset + w.bytes);
    }
    for (const Placement* p : until[i]) alive.erase(std::ranges::find(alive, p));
  }
}

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const std::function<int64_t(const Node&)>& workspace) {
  MemoryPlan plan;
  Buffers(graph, plan).find();
  place(plan);
  for (int32_t i = 0; i < static_cast<int32_t>(graph.nodes.size()); ++i) {
    const Node& n = graph.nodes[static_cast<size_t>(i)];
    const int64_t bytes = is_source(n) || n.op->view ? 0 : align_up(workspace(n));
    plan.workspaces.push_back({{}, 0, bytes, i, i});
  }
  place_workspaces(graph, plan);
  return plan;
}

}  // namespace nibble
