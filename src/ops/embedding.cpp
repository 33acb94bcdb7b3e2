// embedding: a table's rows by token id; the gradient adds each token's row to its id's (spec/training.md 2.11,
// column sums: the rows of a block of 64 with one id are summed first).
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace accumulates[] = {{0, 0}};

Types embedding_shape(const OpCall& c) {
  const Type &tokens = c.in[0], &table = c.in[1];
  c.require(tokens.dtype == DType::i32 && table.rank() == 2 && tokens.rank() < Shape::max_rank,
            "tokens {} must be i32 and table {} [V, E]", to_string(tokens), to_string(table));
  std::vector<int64_t> dims(tokens.shape.dims().begin(), tokens.shape.dims().end());
  dims.push_back(table.dim(1));
  return {{table.dtype, Shape(dims)}};
}
Cost embedding_cost(const OpCall& c) { return {0, 2 * c.out[0].nbytes() + c.in[0].nbytes()}; }
void embedding_vjp(Vjp& g) {
  g.give_accumulated(1, g.builder().emit1(embedding_grad_op, {g.accumulator(1), g.in(0), g.grad(0)}));
}

Types embedding_grad_shape(const OpCall& c) {
  const Type &acc = c.in[0], &tokens = c.in[1], &dx = c.in[2];
  c.require(tokens.dtype == DType::i32 && dx.rows() == tokens.numel() && acc.rank() == 2 && acc.dtype == DType::f32 &&
                dx.dim(-1) == acc.dim(1),
            "accumulator {}, tokens {} and dx {} do not fit", to_string(acc), to_string(tokens), to_string(dx));
  return {acc};
}
Cost embedding_grad_cost(const OpCall& c) {
  return {c.in[2].numel(), c.in[2].nbytes() + 2 * c.in[2].as(DType::f32).nbytes() + c.in[1].nbytes()};
}

}  // namespace

constinit const Op embedding_op{.name = "embedding",
                                .shape = embedding_shape,
                                .vjp = embedding_vjp,
                                .cost = embedding_cost,
                                .sharding = "..., ve -> ...e | v whole",
                                .composed = nullptr};
constinit const Op embedding_grad_op{.name = "embedding_grad",
                                     .shape = embedding_grad_shape,
                                     .vjp = nullptr,
                                     .cost = embedding_grad_cost,
                                     .sharding = "+ve, ..., ...e -> ve | v whole, ... sum",
                                     .composed = nullptr,
                                     .in_place = accumulates};

Value embedding(Builder& b, Value tokens, Value table_VE) { return b.emit1(embedding_op, {tokens, table_VE}); }

}  // namespace nibble
