#include "passes/weight_only.h"

#include <set>

#include "ops/ops.h"
#include "passes/grad.h"

namespace nibble {
namespace {

bool is_parameter(const Node& n) {
  return n.op == &read_op && n.attrs.get_string("role") == name_of(StateRole::parameter);
}

}  // namespace

WeightSpecs weight_specs(const Graph& graph, const std::vector<QuantizedSite>& sites, const QuantSpec& table) {
  WeightSpecs specs;
  for (const QuantizedSite& s : sites)
    if (s.fprop.active()) specs[s.weight] = s.fprop.b;
  if (!table.active()) return specs;
  for (const Node& n : graph.nodes) {
    const bool head = n.label == "head" && (n.op == &linear_op || n.op == &cross_entropy_op);
    if (n.op != &embedding_op && !head) continue;
    const Node& read = graph.producer(n.in[1]);
    NIBBLE_CHECK(is_parameter(read), "{}: {} is no parameter", n.label, read.label);
    specs[read.attrs.get_string("name")] = table;
  }
  return specs;
}

// A read of codes stands where its first product does; who else reads the parameter keeps it.
void weights_to_codes(Graph& graph, const WeightSpecs& specs) {
  Graph next;
  next.values = graph.values, next.outputs = graph.outputs;
  std::map<std::string, Value> codes;
  std::set<int32_t> shared;  // inputs whose products stand already
  const auto append = [&next](Node n) {
    for (size_t k = 0; k < n.out.size(); ++k) {
      ValueInfo& info = next.values[static_cast<size_t>(n.out[k].id)];
      info.node = static_cast<int32_t>(next.nodes.size()), info.index = static_cast<int32_t>(k);
    }
    next.nodes.push_back(std::move(n));
  };
  const auto spec_of = [&](const Node& n) {
    if (n.op != &linear_op && n.op != &embedding_op) return specs.end();
    const Node& read = graph.producer(n.in[1]);
    return is_parameter(read) ? specs.find(read.attrs.get_string("name")) : specs.end();
  };
  const auto read_codes = [&](const std::string& name, const Type& type) {
    const auto [known, is_new] = codes.try_emplace(name, Value{});
    if (is_new) {
      known->second = {static_cast<int32_t>(next.values.size())};
      next.values.push_back({type});
      append({&read_op, {}, {known->second}, {{"role", std::string(name_of(StateRole::codes))}, {"name", name}}, ""});
    }
    return known->second;
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& n = graph.nodes[i];
    const auto spec = spec_of(n);
    if (spec == specs.end()) {
      append(n);
      continue;
    }
    if (n.op == &embedding_op) {
      Node lookup = n;
      lookup.op = &embedding_w4_op, lookup.in[1] = read_codes(spec->first, graph.type(n.in[1]).as(spec->second.format));
      append(std::move(lookup));
      continue;
    }
    if (shared.contains(n.in[0].id)) continue;  // it stands with the first one of its input
    Node product{&linear_w4_op, {n.in[0]}, {}, {}, n.label};
    for (size_t k = i; k < graph.nodes.size(); ++k) {
      const Node& other = graph.nodes[k];
      const auto its = spec_of(other);
      if (its == specs.end() || other.op != &linear_op || other.in[0] != n.in[0]) continue;
      product.in.push_back(read_codes(its->first, graph.type(other.in[1]).as(its->second.format)));
      product.out.push_back(other.out[0]);
    }
    shared.insert(n.in[0].id);
    append(std::move(product));
  }
  graph = std::move(next);
  remove_dead(graph);
}

}  // namespace nibble
