// Quantised activations under one tensor scale a row, amax scope `row` (spec/precision.md 6, spec/generation.md 1.2):
// what evaluation and generation multiply, so that a token's result depends on no other row of the batch.
//   quantize_rows   x [.., K] -> codes [.., K], rows f32 [R, 2] = {amax, decode}     each row as quantize makes it
//   alone qlinear_rows    y [.., N] = x [.., K] . w [N, K]                                 D = fl(alpha acc), alpha of
//   the row
// Only formats with a tensor scale need this; MX formats and fp8_block have none. To nearest, no rotation, fprop only.
#include "core/quant_spec.h"
#include "ops/ops.h"

namespace nibble {
namespace {

const Type random_type{DType::i32, {quantize_words}};

Types quantize_rows_shape(const OpCall& c) {
  const Type& x = c.in[0];
  const QuantSpec row = parse_quant_spec(c.attrs.get_string("row"));
  c.require(x.dtype == DType::f32 || x.dtype == DType::bf16, "x must be f32 or bf16, got {}", to_string(x));
  c.require(c.in[1] == random_type, "random must be {}, got {}", to_string(random_type), to_string(c.in[1]));
  c.require(row.active() && block_format(row.format).rows == 1 && row.rounding == Rounding::nearest &&
                row.hadamard == 0 && row.tensor_scale != TensorScale::delayed,
            "{} is no quantiser of single rows to nearest", to_string(row));
  c.require(c.attrs.get_int("tokens") == 1, "a row is a sequence of its own");
  return {x.as(row.format), {DType::f32, {x.rows(), 2}}};
}
Cost quantize_rows_cost(const OpCall& c) { return {2 * c.in[0].numel(), c.io_bytes() + c.in[0].nbytes()}; }

Types qlinear_rows_shape(const OpCall& c) {
  const Type &x = c.in[0], &rows = c.in[1], &w = c.in[2];
  const BlockFormat fx = block_format(x.dtype), fw = block_format(w.dtype);
  c.require(fx.bits > 0 && fx.bits == fw.bits && fx.columns == fw.columns && w.rank() == 2 && x.dim(-1) == w.dim(1),
            "{} and {} are no operands of one product along their last axes", to_string(x), to_string(w));
  c.require(rows == Type{DType::f32, {x.rows(), 2}}, "rows must be f32 [{}, 2], got {}", x.rows(), to_string(rows));
  Type y = x.with_last(w.dim(0));
  c.require(parse_dtype(c.attrs.get_string("dtype"), &y.dtype) && (y.dtype == DType::f32 || y.dtype == DType::bf16),
            "dtype must be f32 or bf16, got {}", c.attrs.get_string("dtype"));
  return {y};
}
Cost qlinear_rows_cost(const OpCall& c) { return {2 * c.in[0].numel() * c.in[2].dim(0), c.io_bytes()}; }

}  // namespace

// Rows are alone, but codes of several rows share one buffer with one header: not cut.
constinit const Op quantize_rows_op{.name = "quantize_rows",
                                    .shape = quantize_rows_shape,
                                    .vjp = nullptr,
                                    .cost = quantize_rows_cost,
                                    .sharding = "...c, 4 -> ...c, r2 | ... whole, c whole, r whole",
                                    .composed = nullptr};
constinit const Op qlinear_rows_op{.name = "qlinear_rows",
                                   .shape = qlinear_rows_shape,
                                   .vjp = nullptr,
                                   .cost = qlinear_rows_cost,
                                   .sharding = "...k, r2, nk -> ...n | ... whole, r whole, k whole, n whole",
                                   .composed = nullptr};

}  // namespace nibble
