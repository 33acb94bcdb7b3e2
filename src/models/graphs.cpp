#include "models/graphs.h"

namespace nibble {
namespace {

Value batch_hidden(Builder& b, const LlamaConfig& c, BatchShape shape) {
  const Type ids{DType::i32, {shape.rows, shape.length}};
  const Value tokens = b.input("tokens", ids), positions = b.input("positions", ids),
              segments = b.input("segments", ids);
  const Attend over_rows = [&](Builder& g, int64_t, Value q, Value k, Value v) {
    auto scope = g.scope("attention");
    return attention(g, q, k, v, segments, c.attention_scale(), c.window);
  };
  return llama_hidden(b, c, over_rows, tokens, positions, llama_rope_table(b, c, shape.length));
}

}  // namespace

Graph llama_loss_graph(const LlamaConfig& c, BatchShape shape, double z_loss, DType dtype, int64_t loss_tiles) {
  Graph graph;
  Builder b(graph);
  b.set_dtype(dtype);
  const Value h = batch_hidden(b, c, shape);
  const Value targets = b.input("targets", {DType::i32, {shape.rows, shape.length}}),
              inv_n = b.input("inv_n", {DType::f32, {1}});
  auto scope = b.scope("head");
  const CrossEntropy loss = cross_entropy(b, h, llama_head_weight(b, c), targets, inv_n, z_loss, loss_tiles);
  b.output("ce", loss.ce);
  b.output("lse", loss.lse);
  return graph;
}

Graph llama_logits_graph(const LlamaConfig& c, BatchShape shape) {
  Graph graph;
  Builder b(graph);
  const Value h = batch_hidden(b, c, shape);
  auto scope = b.scope("head");
  b.output("logits", linear(b, h, llama_head_weight(b, c)));
  return graph;
}

Graph llama_decode_graph(const LlamaConfig& c, int64_t rows, int64_t positions) {
  Graph graph;
  Builder b(graph);
  const Type ids{DType::i32, {rows}}, cache{DType::f32, {positions, c.kv_heads, c.head_size}};
  const Value tokens = b.input("tokens", ids), at = b.input("positions", ids),
              span = b.input("span", {DType::i32, {2}});
  const Attend over_cache = [&](Builder& g, int64_t layer, Value q, Value k, Value v) {
    auto scope = g.scope("attention");
    const Value keys = append(g, g.read(StateRole::kv_cache, fmt::format("k.{}", layer), cache), k, span);
    const Value values = append(g, g.read(StateRole::kv_cache, fmt::format("v.{}", layer), cache), v, span);
    return attention_cached(g, q, keys, values, span, c.attention_scale(), c.window);
  };
  const Value h = llama_hidden(b, c, over_cache, tokens, at, llama_rope_table(b, c, positions));
  auto scope = b.scope("head");
  b.output("logits", linear(b, take_row(b, h, b.input("last", {DType::i32, {1}})), llama_head_weight(b, c)));
  return graph;
}

}  // namespace nibble
