#include "graph/verify.h"

#include <algorithm>
#include <map>

#include "graph/print.h"

namespace nibble {
namespace {

class Verifier {
 public:
  Verifier(const Graph& g, std::string_view after) : g_(g), after_(after) {}

  void run(bool allow_dead) {
    defined_.assign(g_.values.size(), false);
    written_by_.assign(g_.values.size(), -1);
    used_.assign(g_.values.size(), false);
    for (const Output& o : g_.outputs) {
      check(0, o.value.valid() && o.value.id < static_cast<int32_t>(g_.values.size()), "output {} has no value",
            o.name);
      used_[index(o.value)] = true;
    }
    for (const Node& n : g_.nodes)
      for (const Value v : n.in) {
        check(0, v.valid() && v.id < static_cast<int32_t>(g_.values.size()), "operand %{} has no value", v.id);
        used_[index(v)] = true;
      }
    for (size_t i = 0; i < g_.nodes.size(); ++i) node(i, allow_dead);
    for (const Output& o : g_.outputs) {
      check(g_.nodes.size() - 1, defined_[index(o.value)], "output {} is never computed", o.name);
      const int32_t writer = written_by_[index(g_.behind_views(o.value))];
      check(g_.nodes.size() - 1, writer < 0, "output {} is %{}, which node {} wrote over", o.name, o.value.id, writer);
    }
    for (size_t id = 0; id < defined_.size(); ++id)
      check(g_.nodes.size() - 1, defined_[id], "value %{} has no node", id);
    sources();
  }

 private:
  static size_t index(Value v) { return static_cast<size_t>(v.id); }

  void node(size_t i, bool allow_dead) {
    const Node& n = g_.nodes[i];
    Types in;
    for (const Value v : n.in) {
      check(i, defined_[index(v)], "reads %{} before it is computed", v.id);
      const int32_t writer = written_by_[index(g_.behind_views(v))];
      check(i, writer < 0, "reads %{} after node {} wrote over it", v.id, writer);
      in.push_back(g_.type(v));
    }
    for (size_t k = 0; k < n.out.size(); ++k) {
      const Value v = n.out[k];
      check(i, v.valid() && index(v) < g_.values.size() && !defined_[index(v)], "%{} is defined twice", v.id);
      defined_[index(v)] = true;
      const ValueInfo& info = g_.values[index(v)];
      check(i, info.node == static_cast<int32_t>(i) && info.index == static_cast<int32_t>(k),
            "%{} does not know its node", v.id);
    }
    if (n.op != &input_op && n.op != &read_op) types(i, n, in);
    for (const InPlace& w : n.op->in_place) write(i, n, w);
    const bool live =
        n.op == &input_op || n.op == &read_op || std::ranges::any_of(n.out, [&](Value v) { return used_[index(v)]; }) ||
        std::ranges::any_of(n.op->in_place,
                            [&](InPlace w) { return state_of(g_, n.in[static_cast<size_t>(w.in)]) >= 0; });
    check(i, live || allow_dead, "is dead: nothing reads its results");
  }

  void types(size_t i, const Node& n, const Types& in) {
    const Types want = result_types({*n.op, in, {}, n.attrs, n.label});
    check(i, want.size() == n.out.size(), "has {} results, its op makes {}", n.out.size(), want.size());
    for (size_t k = 0; k < want.size(); ++k)
      check(i, want[k] == g_.type(n.out[k]), "%{} is recorded as {}, the shape rule says {}", n.out[k].id,
            to_string(g_.type(n.out[k])), to_string(want[k]));
  }

  void write(size_t i, const Node& n, const InPlace& w) {
    const Value old = n.in[static_cast<size_t>(w.in)], now = n.out[static_cast<size_t>(w.out)];
    const Value owner = g_.behind_views(old);
    check(i, g_.producer(owner).op != &input_op, "writes %{} in place, which is the caller's", old.id);
    check(i, g_.producer(owner).op == &read_op || state_of(g_, owner) < 0, "writes a state that node {} wrote already",
          g_.values[index(owner)].node);
    check(i, g_.type(old) == g_.type(now), "writes {} over {}", to_string(g_.type(now)), to_string(g_.type(old)));
    check(i, std::ranges::count_if(n.in, [&](Value v) { return g_.behind_views(v) == owner; }) == 1,
          "writes %{} in place and reads it as another operand", old.id);
    written_by_[index(owner)] = static_cast<int32_t>(i);
  }

  void sources() {
    std::map<std::pair<std::string_view, std::string>, size_t> seen;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      if (n.op != &read_op && n.op != &input_op) continue;
      const auto [first, is_new] = seen.try_emplace({n.op->name, to_string(n.attrs)}, i);
      check(i, is_new, "is the same source as node {}", first->second);
    }
  }

  template <class... A>
  void check(size_t i, bool ok, fmt::format_string<A...> text, A&&... a) const {
    if (ok) return;
    std::string around;
    const size_t from = i < 2 ? 0 : i - 2, to = std::min(i + 3, g_.nodes.size());
    for (size_t k = from; k < to; ++k) around += fmt::format("\n    {} {}", k == i ? ">" : " ", print(g_, g_.nodes[k]));
    throw Error("E901", "illegal graph after {}: node {} {}", after_, i, fmt::format(text, std::forward<A>(a)...))
        .where("{}", around)
        .hint("this is a bug in nibble or in a pass or model that was built with it");
  }

  const Graph& g_;
  std::string_view after_;
  std::vector<bool> defined_, used_;
  std::vector<int32_t> written_by_;  // the node that wrote over the value's memory; by the value behind all views
};

}  // namespace

void verify(const Graph& graph, std::string_view after, bool allow_dead) { Verifier(graph, after).run(allow_dead); }

int32_t state_of(const Graph& graph, Value v) {
  const ValueInfo& info = graph.values[static_cast<size_t>(v.id)];
  const Node& n = graph.nodes[static_cast<size_t>(info.node)];
  if (n.op == &read_op) return info.node;
  if (n.op->view) return state_of(graph, n.in[0]);
  for (const InPlace& w : n.op->in_place)
    if (w.out == info.index) return state_of(graph, n.in[static_cast<size_t>(w.in)]);
  return -1;
}

}  // namespace nibble
