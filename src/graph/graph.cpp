#include "graph/graph.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::pair<StateRole, std::string_view> role_names[] = {
    {StateRole::parameter, "parameter"}, {StateRole::weight, "weight"},
    {StateRole::codes, "codes"},         {StateRole::codes_transposed, "codes_transposed"},
    {StateRole::fp8_scale, "fp8_scale"}, {StateRole::fp8_history, "fp8_history"},
    {StateRole::gradient, "gradient"},   {StateRole::moment_m, "moment_m"},
    {StateRole::moment_v, "moment_v"},   {StateRole::kv_cache, "kv_cache"},
    {StateRole::constant, "constant"}};

Types no_shape(const OpCall& c) {
  c.require(false, "{} is made by Builder::input and Builder::read, which know its type", c.op.name);
  return {};
}
Cost free_cost(const OpCall&) { return {}; }

}  // namespace

constinit const Op input_op{
    .name = "input", .shape = no_shape, .vjp = nullptr, .cost = free_cost, .sharding = "", .composed = nullptr};
constinit const Op read_op{
    .name = "read", .shape = no_shape, .vjp = nullptr, .cost = free_cost, .sharding = "", .composed = nullptr};

std::string_view name_of(StateRole role) {
  for (const auto& [r, name] : role_names)
    if (r == role) return name;
  return "?";
}

bool parse_state_role(std::string_view text, StateRole* out) {
  for (const auto& [role, name] : role_names)
    if (name == text) return *out = role, true;
  return false;
}

Value Graph::output(std::string_view name) const {
  for (const Output& o : outputs)
    if (o.name == name) return o.value;
  internal_error(fmt::format("the graph has no output {}", name), __FILE__, __LINE__);
}

Value Graph::behind_views(Value v) const {
  while (producer(v).op->view) v = producer(v).in[0];
  return v;
}

Types result_types(const OpCall& c) {
  const std::string_view operands = c.op.sharding.substr(0, c.op.sharding.find("->"));
  const auto patterns = operands.empty() ? 0 : static_cast<size_t>(std::ranges::count(operands, ',')) + 1;
  c.require(c.in.size() == patterns || (c.op.variadic && c.in.size() > patterns), "takes {}{} operands, got {}",
            patterns, c.op.variadic ? " or more" : "", c.in.size());
  return c.op.shape(c);
}

Cost cost_of(const Graph& graph, const Node& n) {
  if (n.op->cost == nullptr) return {};
  Types in, out;
  for (const Value v : n.in) in.push_back(graph.type(v));
  for (const Value v : n.out) out.push_back(graph.type(v));
  return n.op->cost({*n.op, in, out, n.attrs, n.label});
}

int64_t OpCall::io_bytes() const {
  int64_t bytes = 0;
  for (const Type& t : in) bytes += t.nbytes();
  for (const Type& t : out) bytes += t.nbytes();
  return bytes;
}

void OpCall::fail(const std::string& text) const {
  std::string operands;
  for (const Type& t : in) operands += (operands.empty() ? "" : ", ") + to_string(t);
  throw Error("E901", "{}: {}", op.name, text)
      .where("{} of ({}) {}", label.empty() ? "node" : label, operands, to_string(attrs))
      .hint("this is a bug in nibble or in a model that was built with it");
}

}  // namespace nibble
