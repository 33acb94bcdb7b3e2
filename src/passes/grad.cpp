#include "passes/grad.h"

#include <algorithm>

#include "graph/verify.h"
#include "ops/ops.h"

namespace nibble {
namespace {

class Tape final : public Vjp {
 public:
  explicit Tape(Graph& graph) : graph_(graph), b_(graph), forward_nodes_(graph.nodes.size()) {}

  GradResult run(const std::vector<std::pair<Value, Value>>& roots, const Values& wanted) {
    find_active(wanted);
    count_uses();
    for (const auto& [root, seed] : roots) {
      NIBBLE_CHECK(graph_.type(root) == graph_.type(seed), "seed {} for a root {}", to_string(graph_.type(seed)),
                   to_string(graph_.type(root)));
      terms_[root.id].push_back(seed);
    }
    for (size_t i = forward_nodes_; i-- > 0;) visit(i);
    GradResult result{{}, states_};
    for (const Value v : wanted) result.of_wanted.push_back(total(v));
    apply_replacements();
    return result;
  }

  Builder& builder() override { return b_; }
  const Node& node() const override { return node_; }
  Value grad(int i) const override { return grads_[static_cast<size_t>(i)]; }
  bool wants(int i) const override { return active(in(i)); }
  void give(int i, Value g) override {
    NIBBLE_CHECK(graph_.type(g) == graph_.type(in(i)), "{}: gradient {} of an input {}", node_.op->name,
                 to_string(graph_.type(g)), to_string(graph_.type(in(i))));
    given_.push_back(i);
    if (!active(in(i))) return;
    NIBBLE_CHECK(!is_parameter(in(i)),
                 "{} ({}): the gradient of parameter {} is no sum over tokens here, not in this version",
                 node_.op->name, node_.label, graph_.producer(in(i)).attrs.get_string("name"));
    terms_[in(i).id].push_back(g);
  }
  Value accumulator(int i) override {
    const Value v = in(i);
    const Type sum = graph_.type(v).as(DType::f32);
    if (!is_parameter(v)) return zeros(b_, sum);
    const auto& uses = uses_.at(v.id);
    const auto use = std::ranges::find(uses, std::pair(node_index_, i)) - uses.begin();
    const std::string& name = graph_.producer(v).attrs.get_string("name");
    const std::string state = use == 0 ? name : fmt::format("{}#{}", name, use);
    auto& list = states_[name];
    list.insert(list.begin(), state);  // the walk is backward: the first use comes last
    return b_.read(StateRole::gradient, state, sum);
  }
  void give_accumulated(int i, Value sum) override {
    given_.push_back(i);
    if (!is_parameter(in(i))) give(i, sum);
  }
  void replace(int i, Value v) override { replacements_.emplace_back(out(i), v); }

 private:
  bool active(Value v) const { return active_[static_cast<size_t>(v.id)]; }
  bool is_parameter(Value v) const {
    const Node& n = graph_.producer(v);
    if (n.op != &read_op) return false;
    const std::string& role = n.attrs.get_string("role");
    return role == name_of(StateRole::parameter) || role == name_of(StateRole::weight);
  }

  void find_active(const Values& wanted) {
    active_.assign(graph_.values.size(), false);
    for (const Value v : wanted) active_[static_cast<size_t>(v.id)] = true;
    for (const Node& n : graph_.nodes) {
      const bool is = std::ranges::any_of(n.in, [this](Value v) { return active(v); });
      for (const Value v : n.out)
        if (is || is_parameter(v)) active_[static_cast<size_t>(v.id)] = true;
    }
  }

  void count_uses() {
    for (size_t i = 0; i < forward_nodes_; ++i)
      for (size_t k = 0; k < graph_.nodes[i].in.size(); ++k)
        if (is_parameter(graph_.nodes[i].in[k])) uses_[graph_.nodes[i].in[k].id].emplace_back(i, static_cast<int>(k));
  }

  void visit(size_t i) {
    node_ = graph_.nodes[i];  // a copy: emitting moves the array
    node_index_ = i;
    if (node_.in.empty() || std::ranges::none_of(node_.in, [this](Value v) { return active(v); })) return;
    b_.set_label(node_.label);
    grads_.clear();
    for (const Value v : node_.out) grads_.push_back(total(v));
    if (std::ranges::none_of(grads_, &Value::valid)) return;
    NIBBLE_CHECK(node_.op->vjp != nullptr, "{} ({}) is not differentiable", node_.op->name, node_.label);
    given_.clear();
    node_.op->vjp(*this);
    for (int k = 0; k < static_cast<int>(node_.in.size()); ++k)
      NIBBLE_CHECK(!active(in(k)) || std::ranges::count(given_, k) > 0, "{} ({}) is not differentiable in operand {}",
                   node_.op->name, node_.label, k);
    b_.set_label("");
  }

  // The gradient of a value: its terms in the order of the forward nodes that gave them. Products that may be one
  // node (Op::merge_sums) become one, at the place of the first.
  Value total(Value v) {
    const auto found = terms_.find(v.id);
    if (found == terms_.end()) return {};
    Values terms(found->second.rbegin(), found->second.rend());
    merge(terms);
    Value sum = terms[0];
    for (size_t i = 1; i < terms.size(); ++i) sum = add(b_, sum, terms[i]);
    found->second = {sum};
    return sum;
  }

  void merge(Values& terms) {
    const Op* op = nullptr;
    Values operands, rest;
    size_t place = 0, merged = 0;
    for (const Value t : terms) {
      const Node& n = graph_.producer(t);
      if (n.op->merge_sums && (op == nullptr || op == n.op)) {
        if (op == nullptr) op = n.op, place = rest.size();
        operands.insert(operands.end(), n.in.begin(), n.in.end());
        ++merged;
      } else {
        rest.push_back(t);
      }
    }
    if (merged < 2) return;
    rest.insert(rest.begin() + static_cast<std::ptrdiff_t>(place), b_.emit1(*op, operands));
    terms = rest;  // the single products are dead now
  }

  void apply_replacements() {
    const auto now = [this](Value v) {
      for (const auto& [from, to] : replacements_)
        if (v == from) return to;
      return v;
    };
    for (Node& n : graph_.nodes)
      for (Value& v : n.in) v = now(v);
    for (Output& o : graph_.outputs) o.value = now(o.value);
  }

  Graph& graph_;
  Builder b_;
  size_t forward_nodes_;
  std::vector<bool> active_;
  std::map<int32_t, std::vector<std::pair<size_t, int>>> uses_;  // parameter -> (node, operand), ascending
  std::map<int32_t, Values> terms_;                              // value -> gradient terms, last forward node first
  std::map<std::string, std::vector<std::string>> states_;
  std::vector<std::pair<Value, Value>> replacements_;
  Node node_;
  size_t node_index_ = 0;
  std::vector<int> given_;  // operands of the node whose gradient its vjp gave
  Values grads_;
};

}  // namespace

GradResult grad(Graph& graph, const std::vector<std::pair<Value, Value>>& roots, const Values& wanted) {
  GradResult result = Tape(graph).run(roots, wanted);
  for (const Value v : result.of_wanted)  // keeps them alive through remove_dead
    if (v.valid()) graph.outputs.push_back({fmt::format("#grad{}", v.id), v});
  const std::vector<Value> now = remove_dead(graph);
  std::erase_if(graph.outputs, [](const Output& o) { return o.name.starts_with("#grad"); });
  for (Value& v : result.of_wanted)
    if (v.valid()) v = now[static_cast<size_t>(v.id)];
  return result;
}

std::vector<Value> remove_dead(Graph& graph) {
  std::vector<bool> live(graph.values.size(), false);
  for (const Output& o : graph.outputs) live[static_cast<size_t>(o.value.id)] = true;
  std::vector<bool> keep(graph.nodes.size(), false);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& n = graph.nodes[i];
    keep[i] = std::ranges::any_of(n.out, [&](Value v) { return live[static_cast<size_t>(v.id)]; }) ||
              std::ranges::any_of(n.op->in_place,
                                  [&](InPlace w) { return state_of(graph, n.in[static_cast<size_t>(w.in)]) >= 0; });
    if (!keep[i]) continue;
    for (const Value v : n.in) live[static_cast<size_t>(v.id)] = true;
  }
  Graph next;
  std::vector<Value> now(graph.values.size());
  const auto renumber = [&now](Values& list) {
    for (Value& v : list) v = now[static_cast<size_t>(v.id)];
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!keep[i]) continue;
    Node n = std::move(graph.nodes[i]);
    for (size_t k = 0; k < n.out.size(); ++k) {
      now[static_cast<size_t>(n.out[k].id)] = {static_cast<int32_t>(next.values.size())};
      next.values.push_back({graph.type(n.out[k]), static_cast<int32_t>(next.nodes.size()), static_cast<int32_t>(k)});
    }
    renumber(n.in), renumber(n.out);
    next.nodes.push_back(std::move(n));
  }
  next.outputs = std::move(graph.outputs);
  for (Output& o : next.outputs) o.value = now[static_cast<size_t>(o.value.id)];
  graph = std::move(next);
  return now;
}

}  // namespace nibble
