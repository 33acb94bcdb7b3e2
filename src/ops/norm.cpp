// rms_norm: y = (x r) w over the last axis, r = 1/sqrt(mean(x^2) + eps) (arXiv 1910.07467; spec/training.md 2.4).
// r is kept for the backward pass:  t = dy w,  dx = r (t - x r^2 mean(t x)),  dw += column sum of dy (x r).
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace accumulates[] = {{0, 0}};

Types norm_shape(const OpCall& c) {
  const Type &x = c.in[0], &w = c.in[1];
  c.require(w.rank() == 1 && w.dim(0) == x.dim(-1) && w.dtype == x.dtype,
            "w {} must have the element type of x {} and be as long as its last axis", to_string(w), to_string(x));
  return {x, x.drop_last().as(DType::f32)};
}
Cost norm_cost(const OpCall& c) { return {4 * c.in[0].numel(), c.io_bytes()}; }
void norm_vjp(Vjp& g) {
  NIBBLE_CHECK(!g.grad(1).valid(), "{}: r is for the gradient alone, nothing else reads it", g.node().label);
  const Value acc = g.accumulator(1);
  const Values d = g.builder().emit(rms_norm_grad_op, {acc, g.grad(0), g.in(0), g.in(1), g.out(1)});
  if (g.wants(1)) g.give_accumulated(1, d[0]);
  if (g.wants(0)) g.give(0, d[1]);
}

Types norm_grad_shape(const OpCall& c) {
  const Type &acc = c.in[0], &dy = c.in[1], &x = c.in[2], &w = c.in[3], &r = c.in[4];
  c.require(dy == x && acc == w.as(DType::f32) && w.dtype == x.dtype && w.dim(0) == x.dim(-1) &&
                r == x.drop_last().as(DType::f32),
            "dy {}, x {}, w {} and r {} do not fit", to_string(dy), to_string(x), to_string(w), to_string(r));
  return {acc, x};
}
Cost norm_grad_cost(const OpCall& c) { return {10 * c.in[1].numel(), c.io_bytes()}; }

}  // namespace

constinit const Op rms_norm_op{.name = "rms_norm",
                               .shape = norm_shape,
                               .vjp = norm_vjp,
                               .cost = norm_cost,
                               .sharding = "...c, c -> ...c, ... | c whole",
                               .composed = nullptr};
constinit const Op rms_norm_grad_op{.name = "rms_norm_grad",
                                    .shape = norm_grad_shape,
                                    .vjp = nullptr,
                                    .cost = norm_grad_cost,
                                    .sharding = "+c, ...c, ...c, c, ... -> c, ...c | c whole, ... sum",
                                    .composed = nullptr,
                                    .in_place = accumulates};

Value rms_norm(Builder& b, Value x, Value w, double eps) { return b.emit(rms_norm_op, {x, w}, {{"eps", eps}})[0]; }

}  // namespace nibble
