// linear: y = x W^T, and its two gradient products, dgrad (dx = dy W) and wgrad (dW += dy^T x).
// Orders of every sum: spec/training.md 2.11, row "GEMM". Products that share their input (q, k, v; gate, up) have one
// dgrad node: one accumulator runs through the terms in order (2.3); merge_sums tells passes/grad to make it.
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace accumulates[] = {{0, 0}};

Types linear_shape(const OpCall& c) {
  const Type &x = c.in[0], &w = c.in[1];
  c.require(w.rank() == 2 && x.dim(-1) == w.dim(1) && x.dtype == w.dtype,
            "weight {} must be [N, K] with the element type and the last axis K of x {}", to_string(w), to_string(x));
  return {x.with_last(w.dim(0))};
}
Cost linear_cost(const OpCall& c) { return {2 * c.in[0].numel() * c.in[1].dim(0), c.io_bytes()}; }
void linear_vjp(Vjp& g) {
  // wgrad first: what is recomputed for it can go before dgrad adds another gradient.
  if (g.wants(1)) g.give_accumulated(1, g.builder().emit1(linear_wgrad_op, {g.accumulator(1), g.grad(0), g.in(0)}));
  if (g.wants(0)) g.give(0, g.builder().emit1(linear_dgrad_op, {g.grad(0), g.in(1)}));
}

Types dgrad_shape(const OpCall& c) {
  c.require(!c.in.empty() && c.in.size() % 2 == 0, "takes pairs of dy and weight, got {} operands", c.in.size());
  const Type dx = c.in[0].with_last(c.in[1].dim(1));
  for (size_t i = 0; i < c.in.size(); i += 2)
    c.require(c.in[i + 1].rank() == 2 && c.in[i].dim(-1) == c.in[i + 1].dim(0) && c.in[i + 1].dtype == dx.dtype &&
                  c.in[i].with_last(c.in[i + 1].dim(1)) == dx,
              "term {}: dy {} times weight {} must give {}", i / 2, to_string(c.in[i]), to_string(c.in[i + 1]),
              to_string(dx));
  return {dx};
}
Cost dgrad_cost(const OpCall& c) {
  Cost cost{0, c.io_bytes()};
  for (size_t i = 0; i < c.in.size(); i += 2) cost.flops += 2 * c.in[i].numel() * c.in[i + 1].dim(1);
  return cost;
}

Types wgrad_shape(const OpCall& c) {
  const Type &acc = c.in[0], &dy = c.in[1], &x = c.in[2];
  c.require(acc.rank() == 2 && acc.dtype == DType::f32 && dy.dtype == x.dtype && dy.dim(-1) == acc.dim(0) &&
                x.dim(-1) == acc.dim(1) && dy.rows() == x.rows(),
            "dy {} and x {} must have the rows of each other and the axes of the f32 accumulator {}", to_string(dy),
            to_string(x), to_string(acc));
  return {acc};
}
Cost wgrad_cost(const OpCall& c) { return {2 * c.in[1].numel() * c.in[2].dim(-1), c.io_bytes()}; }

}  // namespace

constinit const Op linear_op{.name = "linear",
                             .shape = linear_shape,
                             .vjp = linear_vjp,
                             .cost = linear_cost,
                             .sharding = "...k, nk -> ...n | k sum",
                             .composed = nullptr};
constinit const Op linear_dgrad_op{.name = "linear_dgrad",
                                   .shape = dgrad_shape,
                                   .vjp = nullptr,
                                   .cost = dgrad_cost,
                                   .sharding = "...n, nk -> ...k | n sum",
                                   .composed = nullptr,
                                   .merge_sums = true,
                                   .variadic = true};
constinit const Op linear_wgrad_op{.name = "linear_wgrad",
                                   .shape = wgrad_shape,
                                   .vjp = nullptr,
                                   .cost = wgrad_cost,
                                   .sharding = "+nk, ...n, ...k -> nk | ... sum",
                                   .composed = nullptr,
                                   .in_place = accumulates};

Value linear(Builder& b, Value x, Value weight_NK) { return b.emit1(linear_op, {x, weight_NK}); }

}  // namespace nibble
