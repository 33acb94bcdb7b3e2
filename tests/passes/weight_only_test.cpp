// Weights as codes: which nodes change, which states remain, and that the result is linear's on decoded weights.
#include "passes/weight_only.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "graph/verify.h"
#include "models/graphs.h"
#include "ops/ops.h"
#include "recipes/recipe.h"

namespace nibble {
namespace {

LlamaConfig small(bool tied) {
  return {
      .layers = 2, .width = 32, .heads = 4, .kv_heads = 2, .head_size = 8, .hidden = 48, .vocab = 272, .tied = tied};
}
Recipe one_by_sixteen() {
  Recipe r;
  r.fprop = {.a = {.format = DType::nvfp4}, .b = {.format = DType::nvfp4}};
  return r;
}
std::set<std::string> states(const Graph& g, StateRole role) {
  std::set<std::string> names;
  for (const Node& n : g.nodes)
    if (n.op == &read_op && n.attrs.get_string("role") == name_of(role)) names.insert(n.attrs.get_string("name"));
  return names;
}
int64_t count(const Graph& g, const Op& op) { return std::ranges::count(g.nodes, &op, &Node::op); }

TEST(WeightOnly, LinearLayersReadCodesAndNothingElseDoes) {
  Graph g = llama_decode_graph(small(false), 4, 64);
  const WeightSpecs specs = weight_specs(g, quantized_sites(g, one_by_sixteen()));
  EXPECT_EQ(specs.size(), 14u);
  weights_to_codes(g, specs);
  verify(g, "weights_to_codes");
  EXPECT_EQ(count(g, linear_w4_op), 8);  // of a layer: q k v, o, gate up, down
  EXPECT_EQ(count(g, linear_op), 1);
  EXPECT_EQ(count(g, embedding_op), 1);
  EXPECT_EQ(states(g, StateRole::codes).size(), 14u);
  const std::set<std::string> left = states(g, StateRole::parameter);
  EXPECT_EQ(left.size(), 7u);  // embedding, head, five norms
  EXPECT_TRUE(left.contains(llama_embedding) && left.contains(llama_head));
}

TEST(WeightOnly, AllIncludesEmbeddingAndHead) {
  for (const bool tied : {false, true}) {
    Graph g = llama_decode_graph(small(tied), 4, 64);
    const WeightSpecs specs = weight_specs(g, quantized_sites(g, one_by_sixteen()), QuantSpec{.format = DType::nvfp4});
    weights_to_codes(g, specs);
    verify(g, "weights_to_codes");
    EXPECT_EQ(count(g, linear_op) + count(g, embedding_op), 0);
    EXPECT_EQ(count(g, linear_w4_op), 9);
    EXPECT_EQ(count(g, embedding_w4_op), 1);
    EXPECT_EQ(states(g, StateRole::codes).size(), tied ? 15u : 16u);  // a tied table is one state
    EXPECT_EQ(states(g, StateRole::parameter).size(), 5u);            // norms
    // The loss graph names the same weights.
    const Graph loss = llama_loss_graph(small(tied), {1, 4}, 0);
    EXPECT_EQ(weight_specs(loss, quantized_sites(loss, one_by_sixteen()), QuantSpec{.format = DType::nvfp4}), specs);
  }
}

TEST(WeightOnly, LayersLeftInHighPrecisionStayNumbers) {
  Recipe r = one_by_sixteen();
  r.last_high = 1, r.sites = Sites::mlp;
  Graph g = llama_decode_graph(small(false), 1, 64);
  weights_to_codes(g, weight_specs(g, quantized_sites(g, r)));
  EXPECT_EQ(states(g, StateRole::codes),
            (std::set<std::string>{"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                                   "model.layers.0.mlp.down_proj.weight"}));
}

TEST(PrecisionP52, RowScopeQuantisesAnInputOnceForAllItsProducts) {
  Graph g = llama_decode_graph(small(false), 4, 64);
  quantize(g, quantized_sites(g, *recipe_of("te_nvfp4", 2)), AmaxScope::row);
  verify(g, "quantize");
  EXPECT_EQ(count(g, quantize_rows_op), 8);  // of a layer: for q k v, o, gate up, down
  EXPECT_EQ(count(g, qlinear_rows_op), 14);
  EXPECT_EQ(count(g, quantize_op) + count(g, qlinear_op), 0);
  Graph mx = llama_decode_graph(small(false), 4, 64);  // no tensor scale: rows are alone already
  quantize(mx, quantized_sites(mx, *recipe_of("mxfp4", 2)), AmaxScope::row);
  EXPECT_EQ(count(mx, quantize_rows_op), 0);
  EXPECT_EQ(count(mx, qlinear_op), 14);
}

}  // namespace
}  // namespace nibble
