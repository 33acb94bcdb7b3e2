// rope: rotary position embedding on halves (spec/training.md 2.5). The table is a constant of the model; the inverse
// rotation, which the gradient is, changes the sign of the sines.
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace over_x[] = {{0, 0}};

Types rope_shape(const OpCall& c) {
  const Type &x = c.in[0], &table = c.in[1], &positions = c.in[2];
  c.require(x.rank() >= 3 && x.dim(-1) % 2 == 0, "x {} must be [..., heads, even head size]", to_string(x));
  c.require(table.rank() == 2 && table.dim(1) == x.dim(-1), "table {} must be [positions, head size of x {}]",
            to_string(table), to_string(x));
  c.require(positions == x.drop_last().drop_last().as(DType::i32),
            "positions {} must be i32 with the leading axes of x {}", to_string(positions), to_string(x));
  return {x};
}
Cost rope_cost(const OpCall& c) { return {3 * c.in[0].numel(), 2 * c.in[0].nbytes()}; }
void rope_vjp(Vjp& g) {
  const int64_t inverse = g.node().attrs.get_int("inverse");
  g.give(0, g.builder().emit1(rope_op, {g.grad(0), g.in(1), g.in(2)}, {{"inverse", 1 - inverse}}));
}

}  // namespace

constinit const Op rope_op{.name = "rope",
                           .shape = rope_shape,
                           .vjp = rope_vjp,
                           .cost = rope_cost,
                           .sharding = "...hd, pd, ... -> ...hd | d whole, p whole",
                           .composed = nullptr,
                           .reuses = over_x};

Value rope(Builder& b, Value x, Value table_PD, Value positions) {
  return b.emit1(rope_op, {x, table_PD, positions}, {{"inverse", int64_t{0}}});
}

}  // namespace nibble
