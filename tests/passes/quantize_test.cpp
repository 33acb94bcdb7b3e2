// The quantize pass: which products take which operands, that each tensor is quantised once, what is left for the
// backward pass, and what a recipe leaves alone. Obligations P56 and P58 of spec/precision.md.
#include "passes/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/quant_spec.h"
#include "graph/verify.h"
#include "models/tiny_llama.h"
#include "passes/recompute.h"

namespace nibble {
namespace {

constexpr BatchShape small{2, 9};
constexpr const char* quantizing[] = {"te_nvfp4", "te_nvfp4_no_rht", "te_nvfp4_46", "nvfp4",
                                      "mxfp4",    "mxfp4_rht_sr",    "mxfp4_tseng", "quartet2",
                                      "mxfp8",    "fp8_current",     "fp8_block"};  // mxfp4_quartet: below

LlamaConfig tiny(int64_t layers) {
  LlamaConfig c = tiny_llama();
  c.layers = layers;
  return c;
}

Recipe recipe(const std::string& name, int64_t layers, const RecipeOptions& o = {}) {
  return *recipe_of(name, layers, o);
}

struct Quantized {
  Graph graph;
  std::vector<QuantizedSite> sites;
};

// The graph of a microbatch, or without a gradient that of evaluation.
Quantized quantized(const Recipe& r, int64_t layers = 2, bool gradient = true, DType dtype = DType::f32,
                    BatchShape shape = small) {
  Quantized q{llama_loss_graph(tiny(layers), shape, 0, dtype), {}};
  q.sites = quantized_sites(q.graph, r);
  if (gradient) {
    Builder b(q.graph);
    const Value ce = q.graph.output("ce");
    grad(q.graph, {{ce, ones(b, q.graph.type(ce))}}, {});
  }
  quantize(q.graph, q.sites);
  verify(q.graph, "quantize");
  return q;
}
Quantized quantized(const std::string& name, const RecipeOptions& o = {}) { return quantized(recipe(name, 2, o)); }

std::vector<const Node*> nodes(const Graph& g, const Op& op) {
  std::vector<const Node*> list;
  for (const Node& n : g.nodes)
    if (n.op == &op) list.push_back(&n);
  return list;
}
int64_t count(const Graph& g, const Op& op) { return std::ssize(nodes(g, op)); }

size_t place(const Graph& g, const Node& n) { return static_cast<size_t>(&n - g.nodes.data()); }
bool is_forward(const Graph& g, const Node& n) { return place(g, n) < forward_nodes(g); }

bool is_read(const Graph& g, Value v, StateRole role) {
  const Node& n = g.producer(v);
  return n.op == &read_op && n.attrs.get_string("role") == name_of(role);
}
QuantSpec copy_of(const Node& n, const char* which) {
  return n.attrs.has(which) ? parse_quant_spec(n.attrs.get_string(which)) : QuantSpec{};
}

// Values that a node of the forward pass makes and a later one reads, but states and what is behind views.
std::set<int32_t> kept(const Graph& g) {
  std::set<int32_t> values;
  for (const Node& n : g.nodes) {
    if (is_forward(g, n)) continue;
    for (const Value v : n.in)
      if (const Value owner = g.behind_views(v); is_forward(g, g.producer(owner))) values.insert(owner.id);
  }
  return values;
}

TEST(PassesQuantize, EveryProductTakesQuantisedOperands) {
  const Quantized q = quantized("te_nvfp4");
  EXPECT_EQ(q.sites.size(), 14u);
  EXPECT_EQ(count(q.graph, qlinear_op), 14);
  EXPECT_EQ(count(q.graph, qlinear_wgrad_op), 14);
  EXPECT_EQ(count(q.graph, qlinear_dgrad_op), 8);  // q, k, v share one, gate and up another
  for (const Op* op : {&linear_op, &linear_dgrad_op, &linear_wgrad_op, &requantize_op})
    EXPECT_EQ(count(q.graph, *op), 0) << op->name;
  for (const Node* n : nodes(q.graph, qlinear_op)) {
    EXPECT_EQ(n->attrs.get_string("a"), "nvfp4") << n->label;
    EXPECT_EQ(n->attrs.get_string("b"), "nvfp4_2d") << n->label;
    EXPECT_EQ(q.graph.producer(n->in[0]).op, &quantize_op) << n->label;
    EXPECT_TRUE(is_read(q.graph, n->in[1], StateRole::codes)) << n->label;
  }
  for (const Node* n : nodes(q.graph, qlinear_dgrad_op)) {
    EXPECT_EQ(n->attrs.get_string("a"), "nvfp4 stochastic") << n->label;
    for (size_t i = 0; i < n->in.size(); i += 2) {
      EXPECT_EQ(q.graph.producer(n->in[i]).op, &quantize_op) << n->label;
      EXPECT_TRUE(is_read(q.graph, n->in[i + 1], StateRole::codes_transposed)) << n->label;
    }
  }
  for (const Node* n : nodes(q.graph, qlinear_wgrad_op)) {
    EXPECT_EQ(n->attrs.get_string("a"), "nvfp4 stochastic hadamard=16") << n->label;
    EXPECT_EQ(n->attrs.get_string("b"), "nvfp4 hadamard=16") << n->label;
    EXPECT_TRUE(is_read(q.graph, n->in[0], StateRole::gradient)) << n->label;
  }
}

// One node for both copies: of an x that several layers read, and of each dy.
TEST(PassesQuantize, EachTensorIsQuantisedOnce) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Quantized q = quantized(recipe("te_nvfp4", 2), 2, true, dtype);
    std::map<int32_t, int> times;
    int64_t x = 0, dy = 0;
    for (const Node* n : nodes(q.graph, quantize_op)) {
      EXPECT_EQ(n->out.size(), 2u) << n->label;
      EXPECT_EQ(++times[q.graph.behind_views(n->in[0]).id], 1) << n->label;
      EXPECT_EQ(n->attrs.get_int("tokens"), small.length);
      EXPECT_EQ(q.graph.type(n->in[0]).dtype, dtype);
      ++(is_forward(q.graph, *n) ? x : dy);
      const bool is_x = is_forward(q.graph, *n);
      EXPECT_EQ(to_string(copy_of(*n, "row")), is_x ? "nvfp4" : "nvfp4 stochastic") << n->label;
      EXPECT_EQ(to_string(copy_of(*n, "column")), is_x ? "nvfp4 hadamard=16" : "nvfp4 stochastic hadamard=16 stream=1");
    }
    EXPECT_EQ(x, 2 * 4);  // of q, k, v; o; gate, up; down
    EXPECT_EQ(dy, 2 * 7);
  }
}

// The random bits of a dy are those of its own layer; an x that draws none may be shared.
TEST(PassesQuantize, SitesAreNumberedAsTheModelStands) {
  const Quantized q = quantized("te_nvfp4");
  for (size_t i = 0; i < q.sites.size(); ++i) EXPECT_EQ(q.sites[i].ordinal, static_cast<int64_t>(i));
  EXPECT_EQ(q.sites[0].label, "layers.0/self_attn/q_proj");
  EXPECT_EQ(q.sites[6].label, "layers.0/mlp/down_proj");
  EXPECT_EQ(q.sites[13].weight, "model.layers.1.mlp.down_proj.weight");
  std::set<int64_t> drawn;
  for (const Node* n : nodes(q.graph, quantize_op))
    if (!is_forward(q.graph, *n)) drawn.insert(n->attrs.get_int("site"));
  EXPECT_EQ(drawn.size(), 14u);
  for (const Quantized& other :
       {quantized("quartet2"), quantized("mxfp4_tseng"), quantized(recipe("te_nvfp4", 2, {.sites = Sites::mlp}))})
    for (const QuantizedSite& s : other.sites) EXPECT_EQ(s.ordinal, q.sites[static_cast<size_t>(s.ordinal)].ordinal);
}

// What the backward pass keeps of an x is its quantised copy: the numbers are gone with the forward pass, unless
// somebody else reads them.
TEST(PassesQuantize, WhatIsKeptOfXIsQuantised) {
  for (const char* name : quantizing) {
    const Quantized q = quantized(name);
    const std::set<int32_t> keeps = kept(q.graph);
    for (const Node* n : nodes(q.graph, qlinear_wgrad_op)) {
      const Node& copy = q.graph.producer(n->in[2]);
      const Value saved = copy.op == &requantize_op ? copy.in[0] : n->in[2];
      EXPECT_TRUE(keeps.contains(saved.id)) << name << " " << n->label;
      EXPECT_TRUE(is_quantized(q.graph.type(saved).dtype)) << name << " " << n->label;
      const Node& made = q.graph.producer(saved);
      EXPECT_EQ(made.op, &quantize_op) << name << " " << n->label;
      const Value x = q.graph.behind_views(made.in[0]);
      const bool of_attention = q.graph.producer(x).op == &attention_op;  // its gradient reads it
      EXPECT_EQ(keeps.contains(x.id), of_attention) << name << " " << n->label;
    }
    EXPECT_EQ(count(q.graph, qlinear_wgrad_op), std::string(name) == "nvfp4" ? 7 : 14) << name;
  }
}

// Of one x with 64 tokens a sequence, which fill blocks of 16 and of 32.
TEST(PassesQuantize, KeptBytesFall) {
  const auto bytes = [](const std::string& name) {
    const Quantized q = quantized(recipe(name, 2), 2, true, DType::bf16, {2, 64});
    return kept_bytes(q.graph);
  };
  const int64_t plain = bytes("bf16"), eight = bytes("mxfp8"), four = bytes("te_nvfp4"), saved = bytes("quartet2");
  const int64_t x =
      2 * (2 * 24 + 20) * 128;  // elements that only products read: of q, k, v; gate, up; down; both layers
  EXPECT_LT(eight, plain);
  EXPECT_LT(four, eight);
  EXPECT_LT(saved, plain);
  EXPECT_GT(plain - four, x);  // more than a byte an element
}

TEST(PassesQuantize, WithoutARecipeNothingChanges) {
  for (const char* name : {"bf16", "fp32"}) {
    const Quantized q = quantized(name);
    EXPECT_EQ(count(q.graph, linear_op), 14) << name;
    EXPECT_EQ(count(q.graph, linear_wgrad_op), 14) << name;
    EXPECT_EQ(count(q.graph, quantize_op), 0) << name;
    for (const Node* n : nodes(q.graph, input_op)) EXPECT_NE(n->attrs.get_string("name"), "random");
  }
}

// Tables and head are read as parameters by every recipe, the layers' weights by none.
TEST(PassesQuantize, HeadAndEmbeddingAreUntouched) {
  for (const char* name : {"te_nvfp4", "quartet2", "mxfp8", "fp8_current"}) {
    const Quantized q = quantized(recipe(name, 2));
    std::set<std::string> parameters;
    for (const Node* n : nodes(q.graph, read_op))
      if (n->attrs.get_string("role") == "parameter") parameters.insert(n->attrs.get_string("name"));
    EXPECT_TRUE(parameters.contains("model.embed_tokens.weight")) << name;
    EXPECT_TRUE(parameters.contains("lm_head.weight")) << name;
    EXPECT_EQ(parameters.size(), 2u + 5u) << name;  // the norms
    for (const Op* op : {&embedding_op, &embedding_grad_op, &cross_entropy_grad_op})
      EXPECT_EQ(count(q.graph, *op), 1) << name << " " << op->name;
    for (const Op* op : {&attention_op, &attention_grad_op})
      EXPECT_EQ(count(q.graph, *op), 2) << name << " " << op->name;
  }
}

// What is quantised by layer, as "0-6" of the ordinals in a layer; everything else is left as it was.
std::vector<std::vector<bool>> quantised_by_layer(const Quantized& q, int64_t layers) {
  std::vector<std::vector<bool>> list(static_cast<size_t>(layers));
  for (const QuantizedSite& s : q.sites) {
    list[static_cast<size_t>(s.layer)].push_back(s.active());
    EXPECT_EQ(s.active(), s.why.empty()) << s.label;
  }
  return list;
}

TEST(PassesQuantize, SitesAndLayersThatAreLeft) {
  const std::vector<bool> all(7, true), none(7, false), mlp = {false, false, false, false, true, true, true};
  struct Row {
    RecipeOptions options;
    std::vector<std::vector<bool>> want;
  };
  const Row rows[] = {{{}, {all, all, all, all}},
                      {{.sites = Sites::mlp}, {mlp, mlp, mlp, mlp}},
                      {{.first_high = 1}, {none, all, all, all}},
                      {{.last_high = 2}, {all, all, none, none}},
                      {{.sites = Sites::mlp, .first_high = 1, .last_high = 1}, {none, mlp, mlp, none}},
                      {{.first_high = 3, .last_high = 3}, {none, none, none, none}},
                      {{.first_high = 9}, {none, none, none, none}}};
  for (const char* name : {"te_nvfp4", "quartet2"})
    for (const Row& row : rows) {
      const Quantized q = quantized(recipe(name, 4, row.options), 4);
      EXPECT_EQ(quantised_by_layer(q, 4), row.want) << name;
      int64_t active = 0;
      for (const auto& layer : row.want) active += std::ranges::count(layer, true);
      EXPECT_EQ(count(q.graph, qlinear_op), active);
      EXPECT_EQ(count(q.graph, linear_op), 28 - active);
      EXPECT_EQ(count(q.graph, qlinear_wgrad_op), active);
      EXPECT_EQ(count(q.graph, linear_wgrad_op), 28 - active);
      EXPECT_EQ(count(q.graph, qlinear_dgrad_op) + count(q.graph, linear_dgrad_op), 16);
      for (const Node* n : nodes(q.graph, qlinear_op))
        EXPECT_EQ(std::ranges::count(q.sites, n->label, &QuantizedSite::label), 1) << n->label;
      for (const QuantizedSite& s : q.sites) {
        const auto linear = std::ranges::find(q.graph.nodes, s.label, &Node::label);
        const bool found = std::ranges::any_of(q.graph.nodes, [&](const Node& n) {
          return n.label == s.label && n.op == (s.active() ? &qlinear_op : &linear_op);
        });
        EXPECT_TRUE(linear != q.graph.nodes.end() && found) << s.label;
      }
    }
}

TEST(PassesQuantize, EvaluationHasRowCopiesOnly) {
  for (const char* name : quantizing) {
    const bool forward = std::string(name) != "mxfp4_tseng";  // whose forward pass is in high precision
    const Quantized q = quantized(recipe(name, 2), 2, false);
    EXPECT_EQ(count(q.graph, qlinear_op), forward ? (std::string(name) == "nvfp4" ? 7 : 14) : 0) << name;
    for (const Node* n : nodes(q.graph, quantize_op)) {
      EXPECT_EQ(n->out.size(), 1u) << name;
      EXPECT_FALSE(copy_of(*n, "column").active()) << name;
    }
    for (const Node* n : nodes(q.graph, read_op)) EXPECT_NE(n->attrs.get_string("role"), "codes_transposed") << name;
    EXPECT_EQ(count(q.graph, requantize_op), 0) << name;
  }
}

// ---- quartet2: what is saved is requantised ----

TEST(PrecisionP58, SavedOperandsAreFourBit) {
  const Quantized q = quantized("quartet2");
  EXPECT_EQ(count(q.graph, qlinear_op), 14);
  int64_t x = 0, dy = 0;
  for (const Node* n : nodes(q.graph, quantize_op)) {
    if (is_forward(q.graph, *n)) {
      ++x;
      EXPECT_EQ(n->attrs.get_string("row"), "nvfp4 four_six=mse");
      EXPECT_FALSE(copy_of(*n, "column").active()) << n->label << ": no second copy is saved";
    } else {
      ++dy;
      EXPECT_EQ(n->attrs.get_string("row"), "nvfp4 eden hadamard=128 signs=16");
      EXPECT_EQ(n->attrs.get_string("column"), "nvfp4 eden hadamard=128 stream=1 signs=17");
    }
  }
  EXPECT_EQ(x, 2 * 4);
  EXPECT_EQ(dy, 2 * 7);
  std::set<std::string> weights;
  int64_t activations = 0;
  for (const Node* n : nodes(q.graph, requantize_op)) {
    EXPECT_EQ(q.graph.type(n->in[0]).dtype, DType::nvfp4) << n->label;
    if (is_read(q.graph, n->in[0], StateRole::codes)) {
      EXPECT_TRUE(weights.insert(q.graph.producer(n->in[0]).attrs.get_string("name")).second) << n->label;
      EXPECT_EQ(n->attrs.get_string("column"), "nvfp4 eden hadamard=128 stream=2 signs=16");
    } else {
      ++activations;
      EXPECT_EQ(n->attrs.get_string("column"), "nvfp4 eden hadamard=128 stream=3 signs=17");
      EXPECT_TRUE(is_forward(q.graph, q.graph.producer(n->in[0])));
    }
  }
  EXPECT_EQ(weights.size(), 14u);
  EXPECT_EQ(activations, 14);
  for (const Node* n : nodes(q.graph, read_op)) EXPECT_NE(n->attrs.get_string("role"), "codes_transposed");
  for (const int32_t id : kept(q.graph)) {  // of what one layer's products save, nothing is wider
    const Node& made = q.graph.producer({id});
    if (made.op == &quantize_op) {
      EXPECT_EQ(q.graph.type({id}).dtype, DType::nvfp4);
    }
  }
}

// ---- mxfp4_quartet: operands that are rotated and cut off; their gradients are turned back ----

TEST(PassesQuantize, GradientsOfCutOffOperandsAreTurnedBack) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Quantized q = quantized(recipe("mxfp4_quartet", 2), 2, true, dtype);
    EXPECT_EQ(count(q.graph, qlinear_op), 14 + 14);  // 14 of them give weight gradients, which are turned back
    EXPECT_EQ(count(q.graph, qlinear_wgrad_op), 0);
    EXPECT_EQ(count(q.graph, quest_back_op), 8);
    EXPECT_EQ(count(q.graph, quest_back_add_op), 14);
    EXPECT_EQ(count(q.graph, quest_mask_op), 2 * 4 + 14);  // of each x that products share, of each weight
    for (const Node* n : nodes(q.graph, quest_back_op)) {
      const Node& product = q.graph.producer(n->in[0]);
      EXPECT_EQ(product.op, &qlinear_dgrad_op);
      EXPECT_EQ(q.graph.type(n->in[0]).dtype, DType::f32);
      EXPECT_EQ(q.graph.type(n->out[0]).dtype, dtype);
      const Node& mask = q.graph.producer(n->in[1]);
      EXPECT_TRUE(is_forward(q.graph, mask)) << "the mask is saved, not x";
      EXPECT_EQ(q.graph.type(mask.in[0]).dim(-1), q.graph.type(n->out[0]).dim(-1)) << n->label;
    }
    for (const Node* n : nodes(q.graph, quest_back_add_op)) {
      EXPECT_TRUE(is_read(q.graph, n->in[0], StateRole::gradient)) << n->label;
      EXPECT_EQ(q.graph.producer(n->in[1]).attrs.get_string("gemm"), "wgrad");
      const Node& mask = q.graph.producer(n->in[2]);
      EXPECT_TRUE(is_read(q.graph, mask.in[0], StateRole::parameter)) << n->label;
      EXPECT_EQ(q.graph.producer(mask.in[0]).attrs.get_string("name"),
                q.graph.producer(n->in[0]).attrs.get_string("name"));
    }
    for (const Node* n : nodes(q.graph, requantize_op))
      EXPECT_EQ(q.graph.type(n->in[0]).dtype, DType::mxfp4) << n->label;
    const Quantized evaluation = quantized(recipe("mxfp4_quartet", 2), 2, false, dtype);
    EXPECT_EQ(count(evaluation.graph, quest_mask_op), 0);
    EXPECT_EQ(count(evaluation.graph, qlinear_op), 14);
  }
}

// ---- recipes that differ in one place ----

TEST(PrecisionP56, WithoutRotationOnlyWgradDiffers) {
  const Quantized with = quantized("te_nvfp4"), without = quantized("te_nvfp4_no_rht");
  for (size_t i = 0; i < with.sites.size(); ++i) {
    EXPECT_EQ(with.sites[i].fprop, without.sites[i].fprop);
    EXPECT_EQ(with.sites[i].dgrad, without.sites[i].dgrad);
    EXPECT_NE(with.sites[i].wgrad, without.sites[i].wgrad);
  }
  ASSERT_EQ(with.graph.nodes.size(), without.graph.nodes.size());
  int64_t differ = 0;
  for (size_t i = 0; i < with.graph.nodes.size(); ++i) {
    const Node &a = with.graph.nodes[i], &b = without.graph.nodes[i];
    EXPECT_TRUE(a.op == b.op && a.in == b.in && a.out == b.out && a.label == b.label) << a.label;
    if (to_string(a.attrs) == to_string(b.attrs)) continue;
    ++differ;
    EXPECT_TRUE(a.op == &quantize_op || a.op == &qlinear_wgrad_op) << a.op->name;
    if (a.op != &quantize_op) continue;
    QuantSpec turned = copy_of(b, "column");
    turned.hadamard = 16;
    EXPECT_EQ(copy_of(a, "row"), copy_of(b, "row"));
    EXPECT_EQ(copy_of(a, "column"), turned);
  }
  EXPECT_EQ(differ, 8 + 14 + 14);
}

TEST(PrecisionP56, Nvfp4LeavesTheLastFifteenInAHundredLayers) {
  for (const int64_t layers : {1, 2, 6, 7, 13, 14, 20, 26, 32, 40}) {
    const Recipe r = recipe("nvfp4", layers);
    const int64_t last = (15 * layers + 99) / 100;  // in integers
    EXPECT_EQ(r.last_high, last) << layers;
    EXPECT_EQ(r.first_high, 0) << layers;
    const Graph g = llama_loss_graph(tiny(layers), small, 0);
    for (const QuantizedSite& s : quantized_sites(g, r)) {
      EXPECT_EQ(s.active(), s.layer < layers - last) << layers << " " << s.label;
      if (!s.active()) continue;
      const Recipe te = recipe("te_nvfp4", layers);
      for (const Gemm gemm : all_gemms) EXPECT_EQ(s.of(gemm), te.of(gemm));
    }
  }
}

// ---- the weights' graph ----

std::vector<std::string> text_of(const Graph& g) {
  std::vector<std::string> list;
  for (const Node& n : g.nodes)
    if (n.op != &read_op && n.op != &input_op) list.push_back(fmt::format("{} {}", n.op->name, n.label));
  std::ranges::sort(list);
  return list;
}

TEST(PassesQuantize, WeightsAreMadeOnceAStep) {
  const auto of = [](const char* name, bool gradient, DType dtype) {
    const Quantized q = quantized(recipe(name, 2), 2, gradient, dtype);
    const Graph w = weights_graph({&q.graph}, q.sites);
    verify(w, "weights");
    std::map<std::string, int64_t> ops;
    for (const Node& n : w.nodes)
      if (n.op != &read_op && n.op != &input_op) ++ops[std::string(n.op->name)];
    return ops;
  };
  using Ops = std::map<std::string, int64_t>;
  EXPECT_EQ(of("te_nvfp4", true, DType::f32), (Ops{{"quantize_weights", 14}}));
  EXPECT_EQ(of("te_nvfp4", false, DType::f32), (Ops{{"quantize_weight", 14}}));
  EXPECT_EQ(of("quartet2", true, DType::f32), (Ops{{"quantize_weight", 14}}));
  EXPECT_EQ(of("mxfp4_tseng", true, DType::f32), (Ops{{"quantize_weight", 14}}));  // the transpose alone
  EXPECT_EQ(of("mxfp4_tseng", false, DType::f32), Ops{});
  EXPECT_EQ(of("fp32", true, DType::f32), Ops{});
  // In bf16 what the recipe leaves is rounded: tables and norms; with nvfp4 the last layer too.
  EXPECT_EQ(of("te_nvfp4", true, DType::bf16), (Ops{{"quantize_weights", 14}, {"recast", 7}}));
  EXPECT_EQ(of("nvfp4", true, DType::bf16), (Ops{{"quantize_weights", 7}, {"recast", 14}}));
  EXPECT_EQ(of("bf16", true, DType::bf16), (Ops{{"recast", 21}}));
  // Microbatch and evaluation read the same codes.
  const Recipe r = recipe("te_nvfp4", 2);
  const Quantized training = quantized(r), evaluation = quantized(r, 2, false);
  EXPECT_EQ(text_of(weights_graph({&training.graph, &evaluation.graph}, training.sites)),
            text_of(weights_graph({&training.graph}, training.sites)));
}

}  // namespace
}  // namespace nibble
