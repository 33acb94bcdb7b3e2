// Views and constants: split_heads, merge_heads, zeros, ones.
#include "ops/ops.h"

namespace nibble {
namespace {

Types split_shape(const OpCall& c) {
  const Type& x = c.in[0];
  const int64_t head_size = c.attrs.get_int("head_size");
  c.require(head_size > 0 && x.dim(-1) % head_size == 0, "head size {} must divide the last axis of {}", head_size,
            to_string(x));
  c.require(x.rank() < Shape::max_rank, "no room for another axis in {}", to_string(x));
  std::vector<int64_t> dims(x.shape.dims().begin(), x.shape.dims().end() - 1);
  dims.push_back(x.dim(-1) / head_size), dims.push_back(head_size);
  return {{x.dtype, Shape(dims)}};
}
Types merge_shape(const OpCall& c) {
  const Type& x = c.in[0];
  c.require(x.rank() >= 2, "{} has no heads to merge", to_string(x));
  return {x.drop_last().with_last(x.dim(-2) * x.dim(-1))};
}
void split_vjp(Vjp& g) { g.give(0, merge_heads(g.builder(), g.grad(0))); }
void merge_vjp(Vjp& g) { g.give(0, split_heads(g.builder(), g.grad(0), g.builder().type(g.in(0)).dim(-2))); }
Cost no_cost(const OpCall&) { return {}; }

Types constant_shape(const OpCall& c) {
  std::string_view text = c.attrs.get_string("type");
  Type t;
  c.require(parse_type(&text, &t) && text.empty(), "attribute type is no type: {}", c.attrs.get_string("type"));
  return {t};
}
Cost constant_cost(const OpCall& c) { return {0, c.out[0].nbytes()}; }

}  // namespace

// The joined axis is cut between heads, and the attribute is what no cut changes: the size of a head.
constinit const Op split_heads_op{.name = "split_heads",
                                  .shape = split_shape,
                                  .vjp = split_vjp,
                                  .cost = no_cost,
                                  .sharding = "...(hd) -> ...hd | d whole",
                                  .composed = nullptr,
                                  .view = true};
constinit const Op merge_heads_op{.name = "merge_heads",
                                  .shape = merge_shape,
                                  .vjp = merge_vjp,
                                  .cost = no_cost,
                                  .sharding = "...hd -> ...(hd) | d whole",
                                  .composed = nullptr,
                                  .view = true};
constinit const Op zeros_op{.name = "zeros",
                            .shape = constant_shape,
                            .vjp = nullptr,
                            .cost = constant_cost,
                            .sharding = "-> ... | ... whole",
                            .composed = nullptr};
constinit const Op ones_op{.name = "ones",
                           .shape = constant_shape,
                           .vjp = nullptr,
                           .cost = constant_cost,
                           .sharding = "-> ... | ... whole",
                           .composed = nullptr};

Value split_heads(Builder& b, Value x, int64_t heads) {
  const int64_t width = b.type(x).dim(-1);
  NIBBLE_CHECK(heads > 0 && width % heads == 0, "{} heads must divide the last axis of {}", heads,
               to_string(b.type(x)));
  return b.emit1(split_heads_op, {x}, {{"head_size", width / heads}});
}
Value merge_heads(Builder& b, Value x) { return b.emit1(merge_heads_op, {x}); }
Value zeros(Builder& b, const Type& type) { return b.emit1(zeros_op, {}, {{"type", to_string(type)}}); }
Value ones(Builder& b, const Type& type) { return b.emit1(ones_op, {}, {{"type", to_string(type)}}); }

}  // namespace nibble
