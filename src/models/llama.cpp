#include "models/llama.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

// Weights are named by the scope they stand in: layers.3/mlp/up_proj is model.layers.3.mlp.up_proj.weight.
std::string weight_name(const Builder& b, std::string_view name) {
  std::string path = b.label();
  std::ranges::replace(path, '/', '.');
  return fmt::format("model.{}{}{}.weight", path, path.empty() ? "" : ".", name);
}

Value project(Builder& b, Value x, std::string_view name, int64_t width) {
  const Value w = b.param(weight_name(b, name), {width, b.type(x).dim(-1)});
  auto scope = b.scope(name);
  return linear(b, x, w);
}

Value normalize(Builder& b, const LlamaConfig& c, Value x, std::string_view name) {
  const Value w = b.param(weight_name(b, name), {c.width});
  auto scope = b.scope(name);
  return rms_norm(b, x, w, c.eps);
}

Value self_attention(Builder& b, const LlamaConfig& c, const Attend& attend, int64_t layer, Value x, Value positions,
                     Value table) {
  auto scope = b.scope("self_attn");
  Value q = split_heads(b, project(b, x, "q_proj", c.heads * c.head_size), c.heads);
  Value k = split_heads(b, project(b, x, "k_proj", c.kv_heads * c.head_size), c.kv_heads);
  const Value v = split_heads(b, project(b, x, "v_proj", c.kv_heads * c.head_size), c.kv_heads);
  q = rope(b, q, table, positions);
  k = rope(b, k, table, positions);
  return project(b, merge_heads(b, attend(b, layer, q, k, v)), "o_proj", c.width);
}

Value mlp(Builder& b, const LlamaConfig& c, Value x) {
  auto scope = b.scope("mlp");
  const Value gate = project(b, x, "gate_proj", c.hidden);
  const Value up = project(b, x, "up_proj", c.hidden);
  return project(b, swiglu(b, gate, up), "down_proj", c.width);
}

}  // namespace

double LlamaConfig::attention_scale() const {
  return score_scale > 0 ? score_scale : 1 / std::sqrt(static_cast<double>(head_size));
}

Value llama_hidden(Builder& b, const LlamaConfig& c, const Attend& attend, Value tokens, Value positions,
                   Value table_PD) {
  Value x = embedding(b, tokens, b.param(llama_embedding, {c.vocab, c.width}));
  for (int64_t i = 0; i < c.layers; ++i) {
    auto scope = b.scope("layers", i);
    x = add(b, x, self_attention(b, c, attend, i, normalize(b, c, x, "input_layernorm"), positions, table_PD));
    x = add(b, x, mlp(b, c, normalize(b, c, x, "post_attention_layernorm")));
  }
  x = normalize(b, c, x, "norm");
  return c.head_scale == 1 ? x : scale(b, x, c.head_scale);
}

Value llama_head_weight(Builder& b, const LlamaConfig& c) {
  return b.param(c.tied ? llama_embedding : llama_head, {c.vocab, c.width});
}

Value llama_rope_table(Builder& b, const LlamaConfig& c, int64_t positions) {
  return b.read(StateRole::constant, "rope_table", {DType::f32, {positions, c.head_size}});
}

std::vector<Parameter> llama_parameters(const LlamaConfig& c, InitMethod method, double init_std, bool fold_scores) {
  using enum Parameter::Init;
  std::vector<Parameter> list;
  const double by_width = 1 / std::sqrt(static_cast<double>(c.width));
  const auto matrix = [&](std::string name, int64_t out, int64_t in, Parameter::Init init, double std,
                          double depth = 1) {
    if (method != InitMethod::fan_in)
      init = normal, std = method == InitMethod::depth_scaled ? init_std / depth : init_std;
    list.push_back({std::move(name), {out, in}, init, std});
  };
  const auto norm = [&](std::string name) { list.push_back({std::move(name), {c.width}, ones, 0}); };
  const double depth = std::sqrt(2 * static_cast<double>(c.layers)),
               heads_size = static_cast<double>(c.heads * c.head_size);
  matrix(llama_embedding, c.vocab, c.width, normal, c.tied ? by_width : 1);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string p = fmt::format("model.layers.{}.", i);
    norm(p + "input_layernorm.weight");
    matrix(p + "self_attn.q_proj.weight", c.heads * c.head_size, c.width, normal, by_width);
    if (fold_scores) list.back().std /= std::sqrt(static_cast<double>(c.head_size));
    matrix(p + "self_attn.k_proj.weight", c.kv_heads * c.head_size, c.width, normal, by_width);
    matrix(p + "self_attn.v_proj.weight", c.kv_heads * c.head_size, c.width, normal, by_width);
    matrix(p + "self_attn.o_proj.weight", c.width, c.heads * c.head_size, normal, 1 / std::sqrt(heads_size), depth);
    norm(p + "post_attention_layernorm.weight");
    matrix(p + "mlp.gate_proj.weight", c.hidden, c.width, truncated, by_width);
    matrix(p + "mlp.up_proj.weight", c.hidden, c.width, truncated, by_width);
    matrix(p + "mlp.down_proj.weight", c.width, c.hidden, truncated, 1 / std::sqrt(static_cast<double>(c.hidden)),
           depth);
  }
  norm("model.norm.weight");
  if (!c.tied) matrix(llama_head, c.vocab, c.width, truncated, by_width);
  return list;
}

int64_t parameter_count(const LlamaConfig& c) {
  int64_t n = 0;
  for (const Parameter& p : llama_parameters(c)) n += p.shape.numel();
  return n;
}

}  // namespace nibble
