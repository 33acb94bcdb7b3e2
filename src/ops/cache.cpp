// Decoding: append rows to a key or value cache, attend over it, take one row (spec/generation.md 1.1, 1.2).
// span = {start, count}: a bucket of R rows runs with count <= R of them in use, at positions start ...
#include "ops/ops.h"

namespace nibble {
namespace {

constexpr InPlace appends[] = {{0, 0}};
const Type span_type{DType::i32, {2}};

Types append_shape(const OpCall& c) {
  const Type &cache = c.in[0], &x = c.in[1];
  c.require(cache.rank() == 3 && x.rank() == 3 && cache.dim(1) == x.dim(1) && cache.dim(2) == x.dim(2),
            "cache {} must be [N, K, D] and x {} [R, K, D]", to_string(cache), to_string(x));
  c.require(c.in[2] == span_type, "span must be i32[2], got {}", to_string(c.in[2]));
  return {cache};
}
Cost append_cost(const OpCall& c) { return {0, 2 * c.in[1].nbytes()}; }

Types attention_shape(const OpCall& c) {
  const Type &q = c.in[0], &k = c.in[1], &v = c.in[2];
  c.require(q.rank() == 3 && k.rank() == 3 && k == v && q.dim(2) == k.dim(2) && q.dim(1) % k.dim(1) == 0,
            "q {} must be [R, H, D], k {} and v {} [N, K, D], K dividing H", to_string(q), to_string(k), to_string(v));
  c.require(c.in[3] == span_type, "span must be i32[2], got {}", to_string(c.in[3]));
  return {q};
}
// With a full cache: the number of keys in use is known at run time only.
Cost attention_cost(const OpCall& c) {
  return {4 * c.in[0].numel() * c.in[1].dim(0), 2 * c.in[0].nbytes() + c.in[1].nbytes() + c.in[2].nbytes()};
}

Types take_row_shape(const OpCall& c) {
  c.require(c.in[0].rank() == 2 && c.in[1] == Type{DType::i32, {1}}, "takes x [R, E] and index i32[1], got {} and {}",
            to_string(c.in[0]), to_string(c.in[1]));
  return {{c.in[0].dtype, {1, c.in[0].dim(1)}}};
}
Cost take_row_cost(const OpCall& c) { return {0, 2 * c.out[0].nbytes()}; }

}  // namespace

constinit const Op append_op{.name = "append",
                             .shape = append_shape,
                             .vjp = nullptr,
                             .cost = append_cost,
                             .sharding = "nkd, rkd, 2 -> nkd | n whole, r whole",
                             .composed = nullptr,
                             .in_place = appends};
constinit const Op attention_cached_op{.name = "attention_cached",
                                       .shape = attention_shape,
                                       .vjp = nullptr,
                                       .cost = attention_cost,
                                       .sharding = "rhd, nkd, nkd, 2 -> rhd | r whole, n whole, d whole, h with k",
                                       .composed = nullptr};
constinit const Op take_row_op{.name = "take_row",
                               .shape = take_row_shape,
                               .vjp = nullptr,
                               .cost = take_row_cost,
                               .sharding = "re, 1 -> 1e | r whole",
                               .composed = nullptr};

Value append(Builder& b, Value cache_NKD, Value x_RKD, Value span) {
  return b.emit1(append_op, {cache_NKD, x_RKD, span});
}
Value attention_cached(Builder& b, Value q, Value k, Value v, Value span, double scale, int64_t window) {
  return b.emit1(attention_cached_op, {q, k, v, span}, {{"scale", scale}, {"window", window}});
}
Value take_row(Builder& b, Value x_RE, Value index) { return b.emit1(take_row_op, {x_RE, index}); }

}  // namespace nibble
