// add, scale, swiglu: one result element depends on the same element of each input.
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace first_operand[] = {{0, 0}}, any_operand[] = {{0, 0}, {0, 1}},
                  over_gate_and_up[] = {{0, 1}, {1, 2}, {0, 0}, {1, 0}};

Types same_as_all(const OpCall& c) {
  for (const Type& t : c.in)
    c.require(t == c.in[0], "all inputs must have the type of the first, {}", to_string(c.in[0]));
  return {c.in[0]};
}
Cost one_flop(const OpCall& c) { return {c.out[0].numel(), c.io_bytes()}; }

void add_vjp(Vjp& g) {
  for (int i = 0; i < 2; ++i)
    if (g.wants(i)) g.give(i, g.grad(0));
}

void scale_vjp(Vjp& g) { g.give(0, scale(g.builder(), g.grad(0), g.node().attrs.get_double("factor"))); }

// dgate = dy up s (1 + gate (1 - s)), dup = dy silu(gate), s = sigmoid(gate)
void swiglu_vjp(Vjp& g) {
  const Values d = g.builder().emit(swiglu_grad_op, {g.grad(0), g.in(0), g.in(1)});
  if (g.wants(0)) g.give(0, d[0]);
  if (g.wants(1)) g.give(1, d[1]);
}
Cost swiglu_cost(const OpCall& c) { return {6 * c.in[0].numel(), c.io_bytes()}; }
Types swiglu_grad_shape(const OpCall& c) {
  same_as_all(c);
  return {c.in[0], c.in[0]};
}
Cost swiglu_grad_cost(const OpCall& c) { return {12 * c.in[0].numel(), c.io_bytes()}; }

}  // namespace

constinit const Op add_op{.name = "add",
                          .shape = same_as_all,
                          .vjp = add_vjp,
                          .cost = one_flop,
                          .sharding = "..., ... -> ...",
                          .composed = nullptr,
                          .reuses = any_operand};
constinit const Op scale_op{.name = "scale",
                            .shape = same_as_all,
                            .vjp = scale_vjp,
                            .cost = one_flop,
                            .sharding = "... -> ...",
                            .composed = nullptr,
                            .reuses = first_operand};
constinit const Op swiglu_op{.name = "swiglu",
                             .shape = same_as_all,
                             .vjp = swiglu_vjp,
                             .cost = swiglu_cost,
                             .sharding = "..., ... -> ...",
                             .composed = nullptr,
                             .reuses = any_operand};
constinit const Op swiglu_grad_op{.name = "swiglu_grad",
                                  .shape = swiglu_grad_shape,
                                  .vjp = nullptr,
                                  .cost = swiglu_grad_cost,
                                  .sharding = "..., ..., ... -> ..., ...",
                                  .composed = nullptr,
                                  .reuses = over_gate_and_up};

Value add(Builder& b, Value x, Value y) { return b.emit1(add_op, {x, y}); }
Value scale(Builder& b, Value x, double factor) { return b.emit1(scale_op, {x}, {{"factor", factor}}); }
Value swiglu(Builder& b, Value gate, Value up) { return b.emit1(swiglu_op, {gate, up}); }

}  // namespace nibble
