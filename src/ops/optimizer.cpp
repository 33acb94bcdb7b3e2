// adamw, sgd, recast, and the norm that clipping needs: sum_squares per tile, norm over all tiles
// (spec/training.md 2.9, 2.11). Numbers that change from step to step are an input (UpdateScalar), so an update never
// rebuilds anything.
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace adamw_writes[] = {{0, 0}, {1, 1}, {2, 2}};
constexpr InPlace sgd_writes[] = {{0, 0}}, recast_writes[] = {{0, 0}};
const Type scalars_type{DType::f32, {update_scalars}};

void require_gradients(const OpCall& c, size_t first) {
  c.require(c.in.size() > first, "needs at least one gradient");
  for (size_t i = first; i < c.in.size(); ++i)
    c.require(c.in[i] == c.in[0], "gradient {} must have the type of the weight {}", to_string(c.in[i]),
              to_string(c.in[0]));
  c.require(c.in[first - 1] == scalars_type, "scalars must be {}, got {}", to_string(scalars_type),
            to_string(c.in[first - 1]));
}
Types adamw_shape(const OpCall& c) {
  require_gradients(c, 4);
  c.require(c.in[1] == c.in[0] && c.in[2] == c.in[0], "moments must have the type of the weight {}",
            to_string(c.in[0]));
  return {c.in[0], c.in[0], c.in[0]};
}
Cost adamw_cost(const OpCall& c) { return {16 * c.in[0].numel(), c.io_bytes()}; }
Types sgd_shape(const OpCall& c) {
  require_gradients(c, 2);
  return {c.in[0]};
}
Cost sgd_cost(const OpCall& c) { return {3 * c.in[0].numel(), c.io_bytes()}; }

Types sum_squares_shape(const OpCall& c) {
  for (const Type& t : c.in)
    c.require(t == c.in[0] && t.rank() <= 2, "parts must have one type of rank 1 or 2, got {}", to_string(t));
  const Type& x = c.in[0];
  const int64_t tiles = x.rank() == 1 ? (x.dim(0) + 255) / 256 : ((x.dim(0) + 15) / 16) * ((x.dim(1) + 15) / 16);
  return {{DType::f64, {tiles}}};
}
Cost sum_squares_cost(const OpCall& c) {
  return {2 * c.in[0].numel() * static_cast<int64_t>(c.in.size()), c.io_bytes()};
}
Types norm_shape(const OpCall& c) {
  for (const Type& t : c.in)
    c.require(t.dtype == DType::f64 && t.rank() == 1, "tile sums must be f64 [tiles], got {}", to_string(t));
  return {{DType::f64, {1}}};
}
Cost norm_cost(const OpCall& c) { return {c.io_bytes() / 8, c.io_bytes()}; }

Types recast_shape(const OpCall& c) {
  c.require(c.in[1] == c.in[0].as(DType::f32), "parameter {} must be f32 with the axes of the weight {}",
            to_string(c.in[1]), to_string(c.in[0]));
  return {c.in[0]};
}
Cost recast_cost(const OpCall& c) { return {0, c.in[0].nbytes() + c.in[1].nbytes()}; }

Values with(std::initializer_list<Value> head, const Values& tail) {
  Values all(head);
  all.insert(all.end(), tail.begin(), tail.end());
  return all;
}

}  // namespace

constinit const Op adamw_op{.name = "adamw",
                            .shape = adamw_shape,
                            .vjp = nullptr,
                            .cost = adamw_cost,
                            .sharding = "..., ..., ..., 8, ... -> ..., ..., ...",
                            .composed = nullptr,
                            .in_place = adamw_writes,
                            .variadic = true};
constinit const Op sgd_op{.name = "sgd",
                          .shape = sgd_shape,
                          .vjp = nullptr,
                          .cost = sgd_cost,
                          .sharding = "..., 8, ... -> ...",
                          .composed = nullptr,
                          .in_place = sgd_writes,
                          .variadic = true};
constinit const Op sum_squares_op{.name = "sum_squares",
                                  .shape = sum_squares_shape,
                                  .vjp = nullptr,
                                  .cost = sum_squares_cost,
                                  .sharding = "rc -> t | r whole, c whole, t whole",
                                  .composed = nullptr,
                                  .variadic = true};
constinit const Op norm_op{.name = "norm",
                           .shape = norm_shape,
                           .vjp = nullptr,
                           .cost = norm_cost,
                           .sharding = "t -> 1 | t whole",
                           .composed = nullptr,
                           .variadic = true};

constinit const Op recast_op{.name = "recast",
                             .shape = recast_shape,
                             .vjp = nullptr,
                             .cost = recast_cost,
                             .sharding = "..., ... -> ...",
                             .composed = nullptr,
                             .in_place = recast_writes};

Value adamw(Builder& b, Value w, Value m, Value v, const Values& gradients, Value scalars, double eps, double eps_root,
            double weight_decay) {
  return b.emit(adamw_op, with({w, m, v, scalars}, gradients),
                {{"eps", eps}, {"eps_root", eps_root}, {"weight_decay", weight_decay}})[0];
}
Value sgd(Builder& b, Value w, const Values& gradients, Value scalars) {
  return b.emit1(sgd_op, with({w, scalars}, gradients));
}
Value recast(Builder& b, Value weight, Value parameter) { return b.emit1(recast_op, {weight, parameter}); }
Value sum_squares(Builder& b, const Values& parts) { return b.emit1(sum_squares_op, parts); }
Value norm(Builder& b, const Values& tiles) { return b.emit1(norm_op, tiles); }

}  // namespace nibble
