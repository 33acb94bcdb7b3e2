// The ops that passes/fuse makes. Each is a group of plainer ops in one visit of memory, and `composed` is that group:
// the definition, rounding points included. They come after differentiation, so none has a gradient of its own.
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace sum_over_term[] = {{0, 0}, {0, 1}};
constexpr InPlace accumulates[] = {{0, 0}};
constexpr InPlace rotates[] = {{0, 0}, {1, 1}};
constexpr InPlace updates[] = {{0, 0}, {1, 1}, {2, 2}};

// The rules of an op for some of the operands and results of a fused one.
Types types_of(const Op& op, const OpCall& c, std::initializer_list<size_t> operands) {
  Types in;
  for (const size_t i : operands) in.push_back(c.in[i]);
  return op.shape({c.op, in, {}, c.attrs, c.label});
}
int64_t flops_of(const Op& op, const OpCall& c, std::span<const Type> in) {
  return op.cost({op, in, c.out, c.attrs, c.label}).flops;
}

// h = x + residual;  y, r = rms_norm(h, w).  In: x, residual, w; out: h, y, r.
Types residual_norm_shape(const OpCall& c) {
  c.require(c.in[1] == c.in[0], "residual {} must have the type of x {}", to_string(c.in[1]), to_string(c.in[0]));
  Types types = types_of(rms_norm_op, c, {0, 2});
  types.insert(types.begin(), c.in[0]);
  return types;
}
Cost residual_norm_cost(const OpCall& c) { return {5 * c.in[0].numel(), c.io_bytes()}; }
Values residual_norm_composed(Builder& b, const Node& n) {
  const Value h = add(b, n.in[0], n.in[1]);
  const Values y = b.emit(rms_norm_op, {h, n.in[2]}, n.attrs);
  return {h, y[0], y[1]};
}

// dx = rms_norm's gradient + dh, what reaches its input on the other way.  In: dw, dy, x, w, r, dh; out: dw, dx.
Types residual_norm_grad_shape(const OpCall& c) {
  c.require(c.in[5] == c.in[2], "dh {} must have the type of x {}", to_string(c.in[5]), to_string(c.in[2]));
  return types_of(rms_norm_grad_op, c, {0, 1, 2, 3, 4});
}
Cost residual_norm_grad_cost(const OpCall& c) { return {11 * c.in[1].numel(), c.io_bytes()}; }
Values residual_norm_grad_composed(Builder& b, const Node& n) {
  const Values d = b.emit(rms_norm_grad_op, {n.in.begin(), n.in.begin() + 5}, n.attrs);
  return {d[0], add(b, d[1], n.in[5])};
}

// q and k rotated in place.  In: q, k, table, positions.
Types rope_pair_shape(const OpCall& c) {
  return {types_of(rope_op, c, {0, 2, 3})[0], types_of(rope_op, c, {1, 2, 3})[0]};
}
Cost rope_pair_cost(const OpCall& c) {
  return {3 * (c.in[0].numel() + c.in[1].numel()), 2 * (c.in[0].nbytes() + c.in[1].nbytes())};
}
Values rope_pair_composed(Builder& b, const Node& n) {
  const Value q = b.emit1(rope_op, {n.in[0], n.in[2], n.in[3]}, n.attrs);
  return {q, b.emit1(rope_op, {n.in[1], n.in[2], n.in[3]}, n.attrs)};
}

// adamw, and the sums of squares of the new weight.  In: those of adamw; out: w, m, v, tiles.
Types adamw_squares_shape(const OpCall& c) {
  Types types = adamw_op.shape({c.op, c.in, {}, c.attrs, c.label});
  types.push_back(types_of(sum_squares_op, c, {0})[0]);
  return types;
}
Cost adamw_squares_cost(const OpCall& c) { return {flops_of(adamw_op, c, c.in) + 2 * c.in[0].numel(), c.io_bytes()}; }
Values adamw_squares_composed(Builder& b, const Node& n) {
  Values r = b.emit(adamw_op, n.in, n.attrs);
  r.push_back(sum_squares(b, {r[0]}));
  return r;
}

}  // namespace

constinit const Op residual_rms_norm_op{.name = "residual_rms_norm",
                                        .shape = residual_norm_shape,
                                        .vjp = nullptr,
                                        .cost = residual_norm_cost,
                                        .sharding = "...c, ...c, c -> ...c, ...c, ... | c whole",
                                        .composed = residual_norm_composed,
                                        .reuses = sum_over_term};
constinit const Op residual_rms_norm_grad_op{.name = "residual_rms_norm_grad",
                                             .shape = residual_norm_grad_shape,
                                             .vjp = nullptr,
                                             .cost = residual_norm_grad_cost,
                                             .sharding = "+c, ...c, ...c, c, ..., ...c -> c, ...c | c whole, ... sum",
                                             .composed = residual_norm_grad_composed,
                                             .in_place = accumulates};
constinit const Op rope_pair_op{.name = "rope_pair",
                                .shape = rope_pair_shape,
                                .vjp = nullptr,
                                .cost = rope_pair_cost,
                                .sharding = "...hd, ...kd, pd, ... -> ...hd, ...kd | d whole, p whole",
                                .composed = rope_pair_composed,
                                .in_place = rotates};
constinit const Op adamw_squares_op{.name = "adamw_squares",
                                    .shape = adamw_squares_shape,
                                    .vjp = nullptr,
                                    .cost = adamw_squares_cost,
                                    .sharding = "rc, rc, rc, 8, rc -> rc, rc, rc, t | r whole, c whole, t whole",
                                    .composed = adamw_squares_composed,
                                    .in_place = updates,
                                    .variadic = true};

}  // namespace nibble
