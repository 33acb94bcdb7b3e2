// Products of quantised operands, and what makes the operands. All three products contract the last axis of both:
//   qlinear        y [.., N]  =  x [.., K] . w [N, K]
//   qlinear_dgrad  dx [.., K] =  sum of  dy [.., N] . wt [K, N]      D = fl(alpha acc) of each pair, added in order
//   qlinear_wgrad  dw [N, K] +=  dyt [N, M] . xt [K, M]
// quantize makes a row copy (blocks along the last axis) and a column copy (blocks along the tokens of each sequence,
// filled up; the transpose) from one tensor; requantize makes a column copy from a saved 4-bit row copy.
// Values are rounded to BF16 before they are quantised.  Source: spec/precision.md 2, 3.3, 5.1.
#include "core/quantized.h"
#include "core/quant_spec.h"
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace accumulates[] = {{0, 0}};
constexpr InPlace writes_weight[] = {{0, 0}}, writes_weights[] = {{0, 0}, {1, 1}};

const Type random_type{DType::i32, {quantize_words}}, scale_type{DType::f32, {1}};

Types copies(const OpCall& c, const Type& x, bool row_too) {
  const QuantSpec row = spec_of(c.attrs, "row"), column = spec_of(c.attrs, "column");
  const int64_t tokens = c.attrs.get_int("tokens"), width = x.dim(-1);
  c.require(tokens > 0 && x.rows() % tokens == 0, "{} rows are no multiple of sequences of {}", x.rows(), tokens);
  c.require((row.active() && row_too) || column.active(), "makes no copy");
  Types out;
  if (row.active()) out.push_back(x.with_last(row.hadamard > 0 ? filled(row, width) : width).as(row.format));
  if (column.active()) out.push_back({column.format, {width, x.rows() / tokens * filled(column, tokens)}});
  return out;
}

Types quantize_shape(const OpCall& c) {
  const Type& x = c.in[0];
  c.require(x.dtype == DType::f32 || x.dtype == DType::bf16, "x must be f32 or bf16, got {}", to_string(x));
  c.require(c.in[1] == random_type, "random must be {}, got {}", to_string(random_type), to_string(c.in[1]));
  const bool delayed = spec_of(c.attrs, "row").tensor_scale == TensorScale::delayed ||
                       spec_of(c.attrs, "column").tensor_scale == TensorScale::delayed;
  c.require(c.in.size() == (delayed ? 3u : 2u), "takes {} operands, got {}", delayed ? 3 : 2, c.in.size());
  if (delayed)
    c.require(c.in[2] == scale_type, "the scale must be {}, got {}", to_string(scale_type), to_string(c.in[2]));
  return copies(c, x, true);
}
// The largest magnitude, then the codes: x is read twice.
Cost quantize_cost(const OpCall& c) { return {2 * c.in[0].numel(), c.io_bytes() + c.in[0].nbytes()}; }

Types requantize_shape(const OpCall& c) {
  c.require(c.in[0].dtype == DType::nvfp4 || c.in[0].dtype == DType::mxfp4, "x must be nvfp4 or mxfp4, got {}",
            to_string(c.in[0]));
  c.require(c.in[1] == random_type, "random must be {}, got {}", to_string(random_type), to_string(c.in[1]));
  return copies(c, c.in[0], false);
}

Types quantize_weight_shape(const OpCall& c) {
  const size_t states = c.in.size() - 2;
  const Types made = quantize_shape({c.op, c.in.subspan(states), {}, c.attrs, c.label});
  c.require(made.size() == states, "{} states for {} copies", states, made.size());
  for (size_t i = 0; i < states; ++i)
    c.require(c.in[i] == made[i], "state {} is {}, its copy {}", i, to_string(c.in[i]), to_string(made[i]));
  return made;
}
Cost quantize_weight_cost(const OpCall& c) {
  Cost cost = quantize_cost({c.op, c.in.subspan(c.in.size() - 2), {}, c.attrs, c.label});
  for (const Type& t : c.out) cost.bytes += t.nbytes();
  return cost;
}

// Of one row as many blocks: a column copy counts the fill of its last block, a row copy does not.
bool pair(const Type& a, const Type& b) {
  const BlockFormat fa = block_format(a.dtype), fb = block_format(b.dtype);
  return fa.bits > 0 && fa.bits == fb.bits && fa.columns == fb.columns && b.rank() == 2 &&
         QuantizedLayout(a).blocks == QuantizedLayout(b).blocks;
}
// accumulation: how the sums of 4-bit blocks are rounded, "sequential" (5.1) or "blackwell" (5.2: NVFP4 only).
void require_accumulation(const OpCall& c, const Type& a) {
  if (!c.attrs.has("accumulation") || c.attrs.get_string("accumulation") == "sequential") return;
  c.require(c.attrs.get_string("accumulation") == "blackwell" && block_format(a.dtype).bits == 4 &&
                block_format(a.dtype).columns == 16,
            "accumulation {} is not defined for {}", c.attrs.get_string("accumulation"), to_string(a));
}
Type result(const OpCall& c, const Type& a, const Type& b) {
  Type y = a.with_last(b.dim(0));
  c.require(parse_dtype(c.attrs.get_string("dtype"), &y.dtype) && (y.dtype == DType::f32 || y.dtype == DType::bf16),
            "dtype must be f32 or bf16, got {}", c.attrs.get_string("dtype"));
  return y;
}

Types qlinear_shape(const OpCall& c) {
  c.require(pair(c.in[0], c.in[1]), "{} and {} are no operands of one product along their last axes",
            to_string(c.in[0]), to_string(c.in[1]));
  require_accumulation(c, c.in[0]);
  return {result(c, c.in[0], c.in[1])};
}
Cost qlinear_cost(const OpCall& c) { return {2 * c.in[0].numel() * c.in[1].dim(0), c.io_bytes()}; }

Types qlinear_dgrad_shape(const OpCall& c) {
  c.require(!c.in.empty() && c.in.size() % 2 == 0, "takes pairs of dy and weight, got {} operands", c.in.size());
  const Type dx = result(c, c.in[0], c.in[1]);
  for (size_t i = 0; i < c.in.size(); i += 2)
    c.require(pair(c.in[i], c.in[i + 1]) && result(c, c.in[i], c.in[i + 1]) == dx,
              "term {}: dy {} times weight {} must give {}", i / 2, to_string(c.in[i]), to_string(c.in[i + 1]),
              to_string(dx));
  require_accumulation(c, c.in[0]);
  return {dx};
}
Cost qlinear_dgrad_cost(const OpCall& c) {
  Cost cost{0, c.io_bytes()};
  for (size_t i = 0; i < c.in.size(); i += 2) cost.flops += 2 * c.in[i].numel() * c.in[i + 1].dim(0);
  return cost;
}

Types qlinear_wgrad_shape(const OpCall& c) {
  const Type &acc = c.in[0], &dy = c.in[1], &x = c.in[2];
  c.require(acc.rank() == 2 && acc.dtype == DType::f32 && dy.rank() == 2 && pair(dy, x) && dy.dim(0) == acc.dim(0) &&
                x.dim(0) == acc.dim(1),
            "dy {} and x {} must contract to the axes of the f32 accumulator {}", to_string(dy), to_string(x),
            to_string(acc));
  require_accumulation(c, dy);
  return {acc};
}
Cost qlinear_wgrad_cost(const OpCall& c) { return {2 * c.in[1].numel() * c.in[2].dim(0), c.io_bytes()}; }

// Delayed FP8 scaling (2.10). record_amax: slot 0 of the history becomes the larger of itself and the amax of a
// quantised tensor. advance_scale: the scale of the next step from the history, which turns by one.
Types record_amax_shape(const OpCall& c) {
  c.require(c.in[0].dtype == DType::f32 && c.in[0].rank() == 1, "the history must be f32 [n], got {}",
            to_string(c.in[0]));
  c.require(is_quantized(c.in[1].dtype), "takes a quantised tensor, got {}", to_string(c.in[1]));
  return {c.in[0]};
}
Cost record_amax_cost(const OpCall&) { return {0, 12}; }
Types advance_scale_shape(const OpCall& c) {
  c.require(c.in[0] == scale_type && c.in[1].dtype == DType::f32 && c.in[1].rank() == 1,
            "takes the scale {} and the history f32 [n], got {} and {}", to_string(scale_type), to_string(c.in[0]),
            to_string(c.in[1]));
  return {c.in[0], c.in[1]};
}
Cost advance_scale_cost(const OpCall& c) { return {c.in[1].numel(), c.io_bytes()}; }

}  // namespace

constinit const Op record_amax_op{.name = "record_amax",
                                  .shape = record_amax_shape,
                                  .vjp = nullptr,
                                  .cost = record_amax_cost,
                                  .sharding = "h, ...c -> h | h whole, ... whole, c whole",
                                  .composed = nullptr,
                                  .in_place = accumulates};
constinit const Op advance_scale_op{.name = "advance_scale",
                                    .shape = advance_scale_shape,
                                    .vjp = nullptr,
                                    .cost = advance_scale_cost,
                                    .sharding = "1, h -> 1, h | h whole",
                                    .composed = nullptr,
                                    .in_place = writes_weights};

// The amax of a tensor is one number: no axis can be cut without it. The strings of quantize and quantize_weight are
// those of a row copy alone.
constinit const Op quantize_op{.name = "quantize",
                               .shape = quantize_shape,
                               .vjp = nullptr,
                               .cost = quantize_cost,
                               .sharding = "...c, 4 -> ...c | ... whole, c whole",
                               .composed = nullptr,
                               .variadic = true};
constinit const Op requantize_op{.name = "requantize",
                                 .shape = requantize_shape,
                                 .vjp = nullptr,
                                 .cost = quantize_cost,
                                 .sharding = "...c, 4 -> cm | ... whole, c whole, m whole",
                                 .composed = nullptr};
constinit const Op quantize_weight_op{.name = "quantize_weight",
                                      .shape = quantize_weight_shape,
                                      .vjp = nullptr,
                                      .cost = quantize_weight_cost,
                                      .sharding = "nk, nk, 4 -> nk | n whole, k whole",
                                      .composed = nullptr,
                                      .in_place = writes_weight};
constinit const Op quantize_weights_op{.name = "quantize_weights",
                                       .shape = quantize_weight_shape,
                                       .vjp = nullptr,
                                       .cost = quantize_weight_cost,
                                       .sharding = "nk, kn, nk, 4 -> nk, kn | n whole, k whole",
                                       .composed = nullptr,
                                       .in_place = writes_weights};
constinit const Op qlinear_op{.name = "qlinear",
                              .shape = qlinear_shape,
                              .vjp = nullptr,
                              .cost = qlinear_cost,
                              .sharding = "...k, nk -> ...n | ... whole, k whole, n whole",
                              .composed = nullptr};
constinit const Op qlinear_dgrad_op{.name = "qlinear_dgrad",
                                    .shape = qlinear_dgrad_shape,
                                    .vjp = nullptr,
                                    .cost = qlinear_dgrad_cost,
                                    .sharding = "...n, kn -> ...k | ... whole, k whole, n whole",
                                    .composed = nullptr,
                                    .variadic = true};
constinit const Op qlinear_wgrad_op{.name = "qlinear_wgrad",
                                    .shape = qlinear_wgrad_shape,
                                    .vjp = nullptr,
                                    .cost = qlinear_wgrad_cost,
                                    .sharding = "+nk, nm, km -> nk | n whole, k whole, m whole",
                                    .composed = nullptr,
                                    .in_place = accumulates};

}  // namespace nibble
