#include "models/tensor_names.h"

#include <algorithm>
#include <charconv>

#include "ops/ops.h"

namespace nibble {
namespace {

// Names of products by the last part of their weight's name.
constexpr std::pair<std::string_view, std::string_view> products[] = {
    {".q_proj.weight", "query_proj"}, {".k_proj.weight", "key_proj"},   {".v_proj.weight", "value_proj"},
    {".o_proj.weight", "out_proj"},   {".gate_proj.weight", "mlpwi_0"}, {".up_proj.weight", "mlpwi_1"},
    {".down_proj.weight", "mlpwo"}};

constexpr std::string_view layer_input = "decoder_layer_input";

bool is_product(const Node& n) { return n.op == &linear_op || n.op == &qlinear_op; }

// The weight of a product or norm, "" for other nodes. A name ends at a blank: what follows tells codes apart.
std::string_view weight_of(const Graph& graph, const Node& n) {
  if (!is_product(n) && n.op != &rms_norm_op) return "";
  const Node* made = &graph.producer(graph.behind_views(n.in[1]));
  if (made->op == &quantize_op) made = &graph.producer(graph.behind_views(made->in[0]));  // in every microbatch
  const Node& read = *made;
  const std::string_view name = read.op == &read_op ? std::string_view(read.attrs.get_string("name")) : "";
  return name.substr(0, name.find(' '));
}

// 3 of "model.layers.3.mlp.up_proj.weight"; -1 without one.
int64_t layer_of(std::string_view weight) {
  constexpr std::string_view prefix = "model.layers.";
  int64_t layer = -1;
  if (weight.starts_with(prefix)) std::from_chars(weight.data() + prefix.size(), weight.data() + weight.size(), layer);
  return layer;
}

}  // namespace

std::vector<TensorName> tensor_names(const Graph& graph, size_t forward) {
  std::vector<TensorName> names(forward);
  const auto of = [&](Value v) -> TensorName& {  // `v` is a forward value
    return names[static_cast<size_t>(graph.values[static_cast<size_t>(graph.behind_views(v).id)].node)];
  };
  for (size_t i = 0; i < forward; ++i) {
    const Node& n = graph.nodes[i];
    const std::string_view weight = weight_of(graph, n);
    if (weight.empty()) {
      for (const Value v : n.in) names[i].layer = std::max(names[i].layer, of(v).layer);
    } else {
      names[i].layer = layer_of(weight);
    }
    if (n.op == &rms_norm_op && !weight.ends_with(".post_attention_layernorm.weight")) of(n.in[0]).name = layer_input;
    if (n.op == &rope_op) names[i].name = of(n.in[0]).name;
    if (n.op == &attention_op) names[i].name = "context";
    for (const auto& [suffix, name] : products)
      if (is_product(n) && weight.ends_with(suffix)) names[i].name = name;
  }
  return names;
}

}  // namespace nibble
