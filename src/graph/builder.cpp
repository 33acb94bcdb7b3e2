#include "graph/builder.h"

namespace nibble {

Builder::Scope::Scope(Builder& b, std::string_view name) : builder_(b), length_(b.label_.size()) {
  if (!b.label_.empty()) b.label_ += '/';
  b.label_ += name;
}
Builder::Scope::~Scope() { builder_.label_.resize(length_); }

Value Builder::source(const Op& op, Attrs attrs, const Type& type) {
  for (; seen_nodes_ < graph_->nodes.size(); ++seen_nodes_) {
    const Node& n = graph_->nodes[seen_nodes_];
    if (n.op == &input_op || n.op == &read_op) sources_.try_emplace({n.op, to_string(n.attrs)}, n.out[0]);
  }
  if (const auto known = sources_.find({&op, to_string(attrs)}); known != sources_.end()) {
    NIBBLE_CHECK(graph_->type(known->second) == type, "{} {} has two types, {} and {}", op.name, to_string(attrs),
                 to_string(graph_->type(known->second)), to_string(type));
    return known->second;
  }
  const Value v{static_cast<int32_t>(graph_->values.size())};
  graph_->values.push_back({type, static_cast<int32_t>(graph_->nodes.size()), 0});
  graph_->nodes.push_back({&op, {}, {v}, std::move(attrs), ""});
  return v;
}

Value Builder::input(std::string_view name, const Type& type) {
  return source(input_op, {{"name", std::string(name)}}, type);
}

Value Builder::read(StateRole role, std::string_view name, const Type& type) {
  return source(read_op, {{"role", std::string(name_of(role))}, {"name", std::string(name)}}, type);
}

Value Builder::param(std::string_view hf_name, std::initializer_list<int64_t> dims) {
  const StateRole role = dtype_ == DType::f32 ? StateRole::parameter : StateRole::weight;
  return read(role, hf_name, {dtype_, Shape(dims)});
}

Values Builder::emit(const Op& op, const Values& in, Attrs attrs) {
  Types in_types;
  for (const Value v : in) {
    NIBBLE_CHECK(v.valid() && v.id < static_cast<int32_t>(graph_->values.size()), "{}: operand without a value",
                 op.name);
    in_types.push_back(graph_->type(v));
  }
  const Types out_types = result_types({op, in_types, {}, attrs, label_});
  Node node{&op, in, {}, std::move(attrs), label_};
  for (size_t i = 0; i < out_types.size(); ++i) {
    node.out.push_back({static_cast<int32_t>(graph_->values.size())});
    graph_->values.push_back({out_types[i], static_cast<int32_t>(graph_->nodes.size()), static_cast<int32_t>(i)});
  }
  graph_->nodes.push_back(node);
  return node.out;
}

void Builder::output(std::string_view name, Value value) {
  for (const Output& o : graph_->outputs) NIBBLE_CHECK(o.name != name, "output {} is given twice", name);
  graph_->outputs.push_back({std::string(name), value});
}

}  // namespace nibble
