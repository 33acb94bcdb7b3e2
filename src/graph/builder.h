// Records nodes. Model code calls the functions of ops/ops.h with a Builder; each call appends one node whose types
// were derived and checked. Scopes give nodes their labels and parameters their place in the network.
#pragma once
#include <map>

#include "graph/graph.h"

namespace nibble {

class Builder {
 public:
  /// While a builder lives, nodes are only added to the graph, by anybody.
  explicit Builder(Graph& graph) : graph_(&graph) {}

  /// A value that the caller fills before each run. One name, one input.
  Value input(std::string_view name, const Type& type);
  /// The state's value as it is when the run starts (or, for a state this graph has written, asking again is an error
  /// found by verify). Reading the same state twice gives the same Value.
  Value read(StateRole role, std::string_view name, const Type& type);
  /// A parameter under its Hugging Face name: the f32 master, or the weight of set_dtype's type that was rounded from
  /// it. Activations take their type from it.
  Value param(std::string_view hf_name, std::initializer_list<int64_t> dims);
  void set_dtype(DType dtype) { dtype_ = dtype; }
  /// Appends a node; returns its outputs.
  Values emit(const Op& op, const Values& in, Attrs attrs = {});
  Value emit1(const Op& op, const Values& in, Attrs attrs = {}) { return emit(op, in, std::move(attrs)).at(0); }
  /// Names a result. A name is given once.
  void output(std::string_view name, Value value);

  /// Appends "/name" (or "name.i") to the labels of nodes recorded while the returned object lives.
  class Scope {
   public:
    Scope(Builder& b, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Builder& builder_;
    size_t length_;
  };
  [[nodiscard]] Scope scope(std::string_view name) { return {*this, name}; }
  [[nodiscard]] Scope scope(std::string_view name, int64_t i) { return {*this, fmt::format("{}.{}", name, i)}; }
  /// The label that the next node gets.
  const std::string& label() const { return label_; }
  void set_label(std::string label) { label_ = std::move(label); }

  const Type& type(Value v) const { return graph_->type(v); }
  Graph& graph() { return *graph_; }

 private:
  Value source(const Op& op, Attrs attrs, const Type& type);
  Graph* graph_;
  std::string label_;
  DType dtype_ = DType::f32;
  std::map<std::pair<const Op*, std::string>, Value> sources_;  // by op and attributes; of the first seen_nodes_ nodes
  size_t seen_nodes_ = 0;
};

}  // namespace nibble
