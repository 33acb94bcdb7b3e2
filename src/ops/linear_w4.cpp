// Products with 4-bit weights and activations that stay numbers, for generation and evaluation:
//   linear_w4      y [.., N]  =  x [.., K] . w [N, K]      with w the numbers that NVFP4 codes stand for; several w
//   give
//                  several y: what shares x (q, k, v; gate, up) is one node, and the threads share its rows once
//   embedding_w4   rows of such a table
// The numbers of w are those of spec/precision.md 2.4 step 6, and the sum over K is that of `linear`: so the result is
// linear's on decoded weights, bit for bit, and a row of it does not depend on the other rows.
// Weights are not differentiable, and nobody trains through them: no gradient.
#include "ops/ops.h"

namespace nibble {
namespace {

bool is_nvfp4(const Type& t) { return t.dtype == DType::nvfp4 || t.dtype == DType::nvfp4_2d; }
bool is_number(const Type& t) { return t.dtype == DType::f32 || t.dtype == DType::bf16; }

Types linear_w4_shape(const OpCall& c) {
  const Type& x = c.in[0];
  c.require(is_number(x), "x must be f32 or bf16, got {}", to_string(x));
  Types y;
  for (const Type& w : c.in.subspan(1)) {
    c.require(is_nvfp4(w) && w.rank() == 2 && x.dim(-1) == w.dim(1), "weight {} must be NVFP4 [N, {}]", to_string(w),
              x.dim(-1));
    y.push_back(x.with_last(w.dim(0)));
  }
  return y;
}
Cost linear_w4_cost(const OpCall& c) {
  Cost cost{0, c.io_bytes()};
  for (const Type& w : c.in.subspan(1)) cost.flops += 2 * c.in[0].numel() * w.dim(0);
  return cost;
}

Types embedding_w4_shape(const OpCall& c) {
  const Type &tokens = c.in[0], &table = c.in[1];
  c.require(tokens.dtype == DType::i32 && is_nvfp4(table) && table.rank() == 2 && tokens.rank() < Shape::max_rank,
            "tokens {} must be i32 and table {} NVFP4 [V, E]", to_string(tokens), to_string(table));
  std::vector<int64_t> dims(tokens.shape.dims().begin(), tokens.shape.dims().end());
  dims.push_back(table.dim(1));
  return {{DType::f32, Shape(dims)}};
}
Cost embedding_w4_cost(const OpCall& c) { return {c.out[0].numel(), 2 * c.out[0].nbytes() + c.in[0].nbytes()}; }

}  // namespace

// The scale of a quantised tensor belongs to all of it, and tiles to 16 rows: weights are not cut.
constinit const Op linear_w4_op{.name = "linear_w4",
                                .shape = linear_w4_shape,
                                .vjp = nullptr,
                                .cost = linear_w4_cost,
                                .sharding = "...k, nk -> ...n | ... whole, k whole, n whole",
                                .composed = nullptr,
                                .variadic = true};
constinit const Op embedding_w4_op{.name = "embedding_w4",
                                   .shape = embedding_w4_shape,
                                   .vjp = nullptr,
                                   .cost = embedding_w4_cost,
                                   .sharding = "..., ve -> ...e | ... whole, v whole, e whole",
                                   .composed = nullptr};

}  // namespace nibble
