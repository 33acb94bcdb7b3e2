// attention: causal softmax attention within segments, grouped-query (spec/training.md 2.6; orders in 2.11).
// allow(q, k): same segment, not 0, k <= q, and q - k < window where there is one. The scores are never stored: the
// backward pass recomputes them from lse, as FlashAttention does (arXiv 2205.14135).
#include "ops/ops.h"

namespace nibble {
namespace {

// Allowed pairs of a query row and a key in rows of T, were each row one segment: what the kernels multiply.
int64_t causal_pairs(int64_t t, int64_t window) {
  const int64_t w = window == 0 ? t : std::min(window, t);
  return w * (w + 1) / 2 + (t - w) * w;
}

void require_qkv(const OpCall& c, const Type& q, const Type& k, const Type& v, const Type& segments) {
  c.require(q.rank() == 4 && k.rank() == 4 && k == v && q.dtype == k.dtype,
            "q {} must be [B, T, H, D], k {} and v {} [B, T, K, D]", to_string(q), to_string(k), to_string(v));
  c.require(q.dim(0) == k.dim(0) && q.dim(1) == k.dim(1) && q.dim(3) == k.dim(3), "q {} and k {} must share B, T and D",
            to_string(q), to_string(k));
  c.require(q.dim(2) % k.dim(2) == 0, "{} query heads must be a multiple of {} key/value heads", q.dim(2), k.dim(2));
  c.require(segments == Type{DType::i32, {q.dim(0), q.dim(1)}}, "segments {} must be i32 [B, T] of q {}",
            to_string(segments), to_string(q));
  c.require(c.attrs.get_int("window") >= 0 && c.attrs.get_double("scale") > 0, "window or scale is negative");
}
Types attention_shape(const OpCall& c) {
  require_qkv(c, c.in[0], c.in[1], c.in[2], c.in[3]);
  return {c.in[0], c.in[0].drop_last().as(DType::f32)};
}
// One exponential a pair and head.
Cost product_cost(const OpCall& c, const Type& q, int products) {
  const int64_t pairs = q.dim(0) * q.dim(2) * causal_pairs(q.dim(1), c.attrs.get_int("window"));
  return {int64_t{2} * products * q.dim(3) * pairs, c.io_bytes(), pairs};
}
Cost attention_cost(const OpCall& c) { return product_cost(c, c.in[0], 2); }

void attention_vjp(Vjp& g) {
  NIBBLE_CHECK(!g.grad(1).valid(), "{}: lse is for the gradient alone, nothing else reads it", g.node().label);
  const Values d = g.builder().emit(
      attention_grad_op, {g.grad(0), g.in(0), g.in(1), g.in(2), g.out(0), g.out(1), g.in(3)}, g.node().attrs);
  for (int i = 0; i < 3; ++i)
    if (g.wants(i)) g.give(i, d[static_cast<size_t>(i)]);
}

Types attention_grad_shape(const OpCall& c) {
  require_qkv(c, c.in[1], c.in[2], c.in[3], c.in[6]);
  c.require(c.in[0] == c.in[1] && c.in[4] == c.in[1] && c.in[5] == c.in[1].drop_last().as(DType::f32),
            "dout {}, out {} and lse {} do not fit q {}", to_string(c.in[0]), to_string(c.in[4]), to_string(c.in[5]),
            to_string(c.in[1]));
  return {c.in[1], c.in[2], c.in[3]};
}
Cost attention_grad_cost(const OpCall& c) { return product_cost(c, c.in[1], 5); }

}  // namespace

// h and k are cut together: a query head needs its key/value head.
constinit const Op attention_op{.name = "attention",
                                .shape = attention_shape,
                                .vjp = attention_vjp,
                                .cost = attention_cost,
                                .sharding = "bthd, btkd, btkd, bt -> bthd, bth | t whole, d whole, h with k",
                                .composed = nullptr};
constinit const Op attention_grad_op{
    .name = "attention_grad",
    .shape = attention_grad_shape,
    .vjp = nullptr,
    .cost = attention_grad_cost,
    .sharding = "bthd, bthd, btkd, btkd, bthd, bth, bt -> bthd, btkd, btkd | t whole, d whole, h with k",
    .composed = nullptr};

Value attention(Builder& b, Value q, Value k, Value v, Value segments, double scale, int64_t window) {
  return b.emit(attention_op, {q, k, v, segments}, {{"scale", scale}, {"window", window}})[0];
}

}  // namespace nibble
