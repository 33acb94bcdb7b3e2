// The typed SSA graph. A value is an index with a type; a node computes values from values. Nodes stand in execution
// order; a node's label is for people, never identity. What outlives a run (weights, moments, gradients, caches) is a
// State: read as a value by a `read` node and written in place by at most one node per graph (verify.h).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/attrs.h"
#include "core/error.h"
#include "core/type.h"

namespace nibble {

struct Op;

struct Value {
  int32_t id = -1;
  bool valid() const { return id >= 0; }
  bool operator==(const Value&) const = default;
};
using Values = std::vector<Value>;
using Types = std::vector<Type>;

struct Node {
  const Op* op = nullptr;
  Values in, out;
  Attrs attrs;
  std::string label;  // "layers.3/mlp/up_proj"
};

/// What a state is for. With its name this is the state's identity; parameters, weights, moments and gradients carry
/// the parameter's Hugging Face name. A `weight` is its parameter rounded to the type that products compute in (dtype);
/// `codes` and `codes_transposed` are its parameter quantised with blocks along the last axis, and along the first.
/// Of delayed FP8 scaling, by site and tensor ("layers.3/mlp/up_proj dy"): `fp8_scale` is what the next step divides
/// by, `fp8_history` the amaxes it comes from.
enum class StateRole {
  parameter,
  weight,
  codes,
  codes_transposed,
  fp8_scale,
  fp8_history,
  gradient,
  moment_m,
  moment_v,
  kv_cache,
  constant
};
std::string_view name_of(StateRole role);
bool parse_state_role(std::string_view text, StateRole* out);

struct ValueInfo {
  Type type;
  int32_t node = -1;  // the node that computes it
  int32_t index = 0;  // which of its outputs
};

struct Output {
  std::string name;
  Value value;
};

class Graph {
 public:
  std::vector<Node> nodes;        // in execution order
  std::vector<ValueInfo> values;  // by Value::id
  std::vector<Output> outputs;    // results the caller reads; kept alive to the end

  const Type& type(Value v) const { return values[static_cast<size_t>(v.id)].type; }
  const Node& producer(Value v) const { return nodes[static_cast<size_t>(values[static_cast<size_t>(v.id)].node)]; }
  Value output(std::string_view name) const;
  /// The value itself, or the one that it is a view of: what owns the contents.
  Value behind_views(Value v) const;
};

/// The sources of values: a graph's inputs and reads of states. Both are nodes without operands.
///   input {name="tokens"}          filled by the caller before each run
///   read {role="parameter", name="model.norm.weight"}
extern const Op input_op, read_op;

/// Cost of one node: floating-point operations as executed (a multiply-add is two) and bytes read plus written.
struct Cost {
  int64_t flops = 0, bytes = 0;
  int64_t functions = 0;  // exponentials and other functions that cost far more than an operation
};

/// Types and attributes of a node under construction; what shape and cost rules see.
struct OpCall {
  const Op& op;
  std::span<const Type> in;
  std::span<const Type> out;  // empty in the shape rule
  const Attrs& attrs;
  std::string_view label;

  /// Throws E901 naming the op, the node and the text, unless `condition` holds.
  template <class... A>
  void require(bool condition, fmt::format_string<A...> text, A&&... a) const {
    if (!condition) fail(fmt::format(text, std::forward<A>(a)...));
  }
  int64_t io_bytes() const;

 private:
  [[noreturn]] void fail(const std::string& text) const;
};

/// Output `out` is written over input `in`: a state that was read, or an intermediate value that nobody reads later.
struct InPlace {
  int out, in;
};

class Vjp;
class Builder;

/// One operation: everything that is known about it but its kernels. The table of all: ops/all.h.
struct Op {
  std::string_view name;
  Types (*shape)(const OpCall&);
  /// Emits the gradients of a node's inputs (passes/grad.h); nullptr: not differentiable.
  void (*vjp)(Vjp&);
  Cost (*cost)(const OpCall&);
  /// Axes by letters per operand, "bte, e -> bte | e whole"; grammar and test: docs/adding-an-op.md. One pattern an
  /// operand: it also says how many there are.
  std::string_view sharding;
  /// The op in terms of plainer ones, for fused ops; nullptr: the reference kernel is the definition.
  Values (*composed)(Builder&, const Node&);
  std::span<const InPlace> in_place = {};
  /// Output `out` may lie where input `in` does if nobody reads the input later (passes/memory decides): the kernels
  /// read an element of the input before they write that place.
  std::span<const InPlace> reuses = {};
  bool view = false;        // output 0 is input 0 with another shape: same memory, no kernel
  bool merge_sums = false;  // a sum of single outputs of this op is one node with all operands (spec/training.md 2.3)
  bool variadic = false;    // takes more operands than `sharding` has patterns
};

/// The op's cost of this node.
Cost cost_of(const Graph& graph, const Node& n);

/// The op's shape rule, after the number of operands was checked.
Types result_types(const OpCall& call);

}  // namespace nibble
