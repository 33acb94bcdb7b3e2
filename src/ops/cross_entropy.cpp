// cross_entropy: the head's product and the loss in one op, so that logits exist for a tile of tokens only
// (spec/training.md 2.7, 2.11). In training the number of targets N is known before the run: the gradient's kernel
// computes loss, dh and dW in one visit (three head products, not four) and takes the forward node's place.
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace accumulates[] = {{0, 0}};

void require_head(const OpCall& c, const Type& h, const Type& w, const Type& targets, const Type& inv_n) {
  c.require(w.rank() == 2 && h.dim(-1) == w.dim(1) && h.dtype == w.dtype,
            "weight {} must be [V, E] with the element type and the last axis E of h {}", to_string(w), to_string(h));
  c.require(targets == h.drop_last().as(DType::i32), "targets {} must be i32 with the leading axes of h {}",
            to_string(targets), to_string(h));
  c.require(inv_n == Type{DType::f32, {1}}, "inv_n must be f32[1], got {}", to_string(inv_n));
}
Types ce_shape(const OpCall& c) {
  require_head(c, c.in[0], c.in[1], c.in[2], c.in[3]);
  const Type loss = c.in[0].drop_last().as(DType::f32);
  return {loss, loss};
}
Cost ce_cost(const OpCall& c) {
  return {2 * c.in[0].numel() * c.in[1].dim(0), c.io_bytes(), c.in[0].rows() * c.in[1].dim(0)};
}

void ce_vjp(Vjp& g) {
  Builder& b = g.builder();
  NIBBLE_CHECK(b.graph().producer(g.grad(0)).op == &ones_op && !g.grad(1).valid(),
               "cross_entropy must be the root of the gradient: its own gradient is that of the batch's loss");
  const Values d =
      b.emit(cross_entropy_grad_op, {g.accumulator(1), g.in(0), g.in(1), g.in(2), g.in(3)}, g.node().attrs);
  if (g.wants(1)) g.give_accumulated(1, d[0]);
  if (g.wants(0)) g.give(0, d[1]);
  g.replace(0, d[2]), g.replace(1, d[3]);
}

Types ce_grad_shape(const OpCall& c) {
  require_head(c, c.in[1], c.in[2], c.in[3], c.in[4]);
  c.require(c.in[0] == c.in[2].as(DType::f32), "accumulator {} must be f32 with the axes of the weight {}",
            to_string(c.in[0]), to_string(c.in[2]));
  const Type loss = c.in[1].drop_last().as(DType::f32);
  return {c.in[0], c.in[1], loss, loss};
}
Cost ce_grad_cost(const OpCall& c) {
  return {6 * c.in[1].numel() * c.in[2].dim(0), c.io_bytes(), c.in[1].rows() * c.in[2].dim(0)};
}

}  // namespace

constinit const Op cross_entropy_op{.name = "cross_entropy",
                                    .shape = ce_shape,
                                    .vjp = ce_vjp,
                                    .cost = ce_cost,
                                    .sharding = "...e, ve, ..., 1 -> ..., ... | e whole, v whole",
                                    .composed = nullptr};
constinit const Op cross_entropy_grad_op{
    .name = "cross_entropy_grad",
    .shape = ce_grad_shape,
    .vjp = nullptr,
    .cost = ce_grad_cost,
    .sharding = "+ve, ...e, ve, ..., 1 -> ve, ...e, ..., ... | e whole, v whole, ... sum",
    .composed = nullptr,
    .in_place = accumulates};

CrossEntropy cross_entropy(Builder& b, Value h, Value weight_VE, Value targets, Value inv_n, double z_loss,
                           int64_t tiles) {
  Attrs attrs{{"z_loss", z_loss}};
  if (tiles > 1) attrs.set("tiles", tiles);
  const Values r = b.emit(cross_entropy_op, {h, weight_VE, targets, inv_n}, attrs);
  return {r[0], r[1]};
}

}  // namespace nibble
