#include "train/optimizer.h"

#include <algorithm>
#include <regex>

#include "numerics/functions.h"
#include "ops/ops.h"

namespace nibble {
namespace {

Values read_gradients(Builder& b, const Parameter& p, const GradientStates& gradients) {
  Values parts;
  const auto found = gradients.find(p.name);
  if (found == gradients.end()) return parts;
  for (auto name = found->second.rbegin(); name != found->second.rend(); ++name)
    parts.push_back(b.read(StateRole::gradient, *name, {DType::f32, p.shape}));
  return parts;
}

}  // namespace

Graph gradient_norm_graph(const std::vector<Parameter>& parameters, const GradientStates& gradients) {
  Graph graph;
  Builder b(graph);
  Values tiles;
  for (const Parameter& p : parameters)
    if (const Values parts = read_gradients(b, p, gradients); !parts.empty()) {
      auto scope = b.scope(p.name);
      tiles.push_back(sum_squares(b, parts));
    }
  b.output("norm", norm(b, tiles));
  return graph;
}

Graph update_graph(const OptimizerConfig& c, const std::vector<Parameter>& parameters, const GradientStates& gradients,
                   const std::vector<bool>& decayed) {
  Graph graph;
  Builder b(graph);
  const Value scalars = b.input("scalars", {DType::f32, {update_scalars}});
  Values tiles;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const Type type{DType::f32, p.shape};
    const Values parts = read_gradients(b, p, gradients);
    auto scope = b.scope(p.name);
    const Value w = b.read(StateRole::parameter, p.name, type);
    Value now = w;
    if (!parts.empty()) {
      if (c.kind == OptimizerConfig::Kind::sgd)
        now = sgd(b, w, parts, scalars);
      else
        now = adamw(b, w, b.read(StateRole::moment_m, p.name, type), b.read(StateRole::moment_v, p.name, type), parts,
                    scalars, c.eps, c.eps_root, decayed[i] ? c.weight_decay : 0);
    }
    tiles.push_back(sum_squares(b, {now}));
  }
  b.output("param_norm", norm(b, tiles));
  return graph;
}

void fill_update_scalars(const OptimizerConfig& c, double lr, int64_t t, float clip, float* s) {
  double b1 = c.b1, b2 = c.b2, c1 = 1, c2 = 1;
  const double power1 = ipow_f64(c.b1, t), power2 = ipow_f64(c.b2, t);
  if (c.kind == OptimizerConfig::Kind::adam_pax) {  // b_t = b (1 - b^(t-1)) / (1 - b^t), no further correction
    b1 = c.b1 * (1 - ipow_f64(c.b1, t - 1)) / (1 - power1);
    b2 = c.b2 * (1 - ipow_f64(c.b2, t - 1)) / (1 - power2);
  } else {
    c1 = 1 - power1, c2 = 1 - power2;
  }
  s[update_lr] = static_cast<float>(lr);
  s[update_b1] = static_cast<float>(b1), s[update_1mb1] = static_cast<float>(1 - b1);
  s[update_b2] = static_cast<float>(b2), s[update_1mb2] = static_cast<float>(1 - b2);
  s[update_c1] = static_cast<float>(c1), s[update_c2] = static_cast<float>(c2);
  s[update_clip] = clip;
}

float clip_factor(double threshold, double norm) {
  return threshold > 0 && norm > threshold ? static_cast<float>(threshold / norm) : 1.0f;
}

std::string maxtext_path(const std::string& hf_name) {
  constexpr std::pair<std::string_view, std::string_view> parts[] = {
      {"embed_tokens", "token_embedder-embedding"},
      {"lm_head", "decoder-logits_dense-kernel"},
      {"self_attn.q_proj", "self_attention-query-kernel"},
      {"self_attn.k_proj", "self_attention-key-kernel"},
      {"self_attn.v_proj", "self_attention-value-kernel"},
      {"self_attn.o_proj", "self_attention-out-kernel"},
      {"post_attention_layernorm", "post_self_attention_layer_norm-scale"},
      {"input_layernorm", "pre_self_attention_layer_norm-scale"},
      {"gate_proj", "mlp-wi_0-kernel"},
      {"up_proj", "mlp-wi_1-kernel"},
      {"down_proj", "mlp-wo-kernel"},
      {"model.norm", "decoder-decoder_norm-scale"}};
  for (const auto& [hf, maxtext] : parts)
    if (hf_name.find(hf) != std::string::npos)
      return fmt::format("params-{}{}", hf_name.find("layers.") != std::string::npos ? "decoder-layers-" : "", maxtext);
  return "params-" + hf_name;
}

std::vector<bool> decay_mask(const std::vector<Parameter>& parameters, const std::vector<std::string>& mask) {
  std::vector<std::regex> patterns;
  for (const std::string& text : mask) {
    try {
      patterns.emplace_back(text);
    } catch (const std::regex_error& e) {
      throw Error("E002", "adamw_mask: {} is no regular expression", text)
          .where("{}", e.what())
          .expected("an ECMAScript pattern", text)
          .hint("adamw_mask=[norm,bias,sinks]");
    }
  }
  std::vector<bool> decayed;
  decayed.reserve(parameters.size());
  for (const Parameter& p : parameters)
    decayed.push_back(std::ranges::none_of(patterns, [&](const std::regex& r) {
      return std::regex_search(p.name, r) || std::regex_search(maxtext_path(p.name), r);
    }));
  return decayed;
}

}  // namespace nibble
