// Which node of a Llama makes which of MaxText's tensors.
#include "models/tensor_names.h"

#include <gtest/gtest.h>

#include <map>

#include "models/tiny_llama.h"
#include "passes/recompute.h"

namespace nibble {
namespace {

TEST(ModelsTensorNames, OfEveryNodeOfALayer) {
  const Graph g = tiny_training_graph(tiny_llama(), {2, 9}, 0);
  const std::vector<TensorName> names = tensor_names(g, forward_nodes(g));
  std::map<std::string, std::string> found;  // "op label" -> name
  for (size_t i = 0; i < names.size(); ++i) {
    const Node& n = g.nodes[i];
    if (n.op == &input_op || n.op == &read_op || n.op->view) continue;
    const bool in_layer = n.label.starts_with("layers.");
    EXPECT_EQ(names[i].layer, in_layer ? n.label[7] - '0' : -1) << n.label << " " << n.op->name;
    if (n.label.starts_with("layers.1")) found[fmt::format("{} {}", n.op->name, n.label)] += std::string(names[i].name);
  }
  const std::map<std::string, std::string> want = {
      {"rms_norm layers.1/input_layernorm", ""},
      {"linear layers.1/self_attn/q_proj", "query_proj"},
      {"linear layers.1/self_attn/k_proj", "key_proj"},
      {"linear layers.1/self_attn/v_proj", "value_proj"},
      {"rope layers.1/self_attn", "query_projkey_proj"},
      {"attention layers.1/self_attn/attention", "context"},
      {"linear layers.1/self_attn/o_proj", "out_proj"},
      {"add layers.1", "decoder_layer_input"},  // of two sums the second, which ends the layer
      {"rms_norm layers.1/post_attention_layernorm", ""},
      {"linear layers.1/mlp/gate_proj", "mlpwi_0"},
      {"linear layers.1/mlp/up_proj", "mlpwi_1"},
      {"swiglu layers.1/mlp", ""},
      {"linear layers.1/mlp/down_proj", "mlpwo"}};
  EXPECT_EQ(found, want);
}

}  // namespace
}  // namespace nibble
