// Obligations T12 and T29 of spec/training.md: parameter counts without allocating, and the initial distributions.
#include "models/llama.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "models/tiny_llama.h"
#include "numerics/normal.h"

namespace nibble {
namespace {

TEST(TrainingT29, ParameterCounts) {
  struct Row {
    const char* name;
    LlamaConfig c;  // layers, width, heads, kv_heads, head_size, hidden, vocab
    int64_t count;
  };
  const auto llama = [](int64_t layers, int64_t width, int64_t heads, int64_t kv, int64_t head, int64_t hidden,
                        int64_t vocab, bool tied) {
    LlamaConfig c{.layers = layers,
                  .width = width,
                  .heads = heads,
                  .kv_heads = kv,
                  .head_size = head,
                  .hidden = hidden,
                  .vocab = vocab};
    c.tied = tied;
    return c;
  };
  // clang-format off
  const Row rows[] = {
      {"smollm2-135m",  llama(30, 576, 9, 3, 64, 1536, 49152, true),          134515008},
      {"llama2-7b",     llama(32, 4096, 32, 32, 128, 11008, 32000, false),    6738415616},
      {"llama2-13b",    llama(40, 5120, 40, 40, 128, 13824, 32000, false),    13015864320},
      {"llama2-70b",    llama(80, 8192, 64, 8, 128, 28672, 32000, false),     68976648192},
      {"llama3-8b",     llama(32, 4096, 32, 8, 128, 14336, 128256, false),    8030261248},
      {"llama3-70b",    llama(80, 8192, 64, 8, 128, 28672, 128256, false),    70553706496},
      {"llama3-405b",   llama(126, 16384, 128, 8, 128, 53248, 128256, false), 405853388800},
      {"llama3.2-1b",   llama(16, 2048, 32, 8, 64, 8192, 128256, true),       1235814400},
      {"llama3.2-3b",   llama(28, 3072, 24, 8, 128, 8192, 128256, true),      3212749824},
      {"mistral-7b",    llama(32, 4096, 32, 8, 128, 14336, 32000, false),     7241732096},
      {"nibble-1m",     llama(4, 128, 4, 2, 32, 384, 1024, true),             918656},
      {"nibble-10m",    llama(6, 320, 5, 5, 64, 896, 4096, true),             8933440},
      {"nibble-34m",    llama(8, 512, 8, 4, 64, 1536, 8192, false),           33563136}};
  // clang-format on
  for (const Row& row : rows) EXPECT_EQ(parameter_count(row.c), row.count) << row.name;
}

TEST(TrainingT29, TheGraphReadsExactlyTheTable) {
  for (const bool tied : {false, true}) {
    const LlamaConfig c = tiny_llama(tied);
    std::map<std::string, Shape> want, got;
    for (const Parameter& p : llama_parameters(c))
      EXPECT_TRUE(want.emplace(p.name, p.shape).second) << p.name << " twice";
    const Graph g = llama_loss_graph(c, {2, 5}, 0);
    for (const Node& n : g.nodes)
      if (n.op == &read_op && n.attrs.get_string("role") == "parameter")
        got[n.attrs.get_string("name")] = g.type(n.out[0]).shape;
    EXPECT_EQ(got, want);
  }
}

// Variance and fourth moment of a standard normal cut at two: m2 = 1 - 2 a phi / Z, m4 = 3 - 2 (a^3 + 3 a) phi / Z, a
// = 2.
constexpr double cut_m2 = 0.7737413035499232, cut_m4 = 1.4161891248494625;

TEST(TrainingT12, InitialDistributions) {
  const LlamaConfig c{
      .layers = 2, .width = 64, .heads = 4, .kv_heads = 2, .head_size = 16, .hidden = 160, .vocab = 256};
  for (const bool tied : {false, true}) {
    LlamaConfig model = c;
    model.tied = tied;
    const std::map<std::string, std::pair<bool, double>> want{// truncated, std
                                                              {"embed_tokens", {false, tied ? 1.0 / 8 : 1.0}},
                                                              {"q_proj", {false, 1.0 / 8}},
                                                              {"k_proj", {false, 1.0 / 8}},
                                                              {"v_proj", {false, 1.0 / 8}},
                                                              {"o_proj", {false, 1.0 / 8}},
                                                              {"gate_proj", {true, 1.0 / 8}},
                                                              {"up_proj", {true, 1.0 / 8}},
                                                              {"down_proj", {true, 1 / std::sqrt(160.0)}},
                                                              {"lm_head", {true, 1.0 / 8}}};
    for (const Parameter& p : llama_parameters(model)) {
      if (p.init == Parameter::Init::ones) {
        EXPECT_NE(p.name.find("norm"), std::string::npos) << p.name;
        continue;
      }
      const std::string stem = p.name.substr(0, p.name.rfind('.'));
      const auto [truncated, std] = want.at(stem.substr(stem.rfind('.') + 1));
      EXPECT_EQ(p.init == Parameter::Init::truncated, truncated) << p.name;
      std::vector<float> w(static_cast<size_t>(p.shape.numel()));
      fill_normal(w.data(), 0, p.shape.numel(), 0, p.name, p.std, truncated);
      double sum = 0, squares = 0, largest = 0;
      for (const float x : w)
        sum += x, squares += static_cast<double>(x) * x, largest = std::max(largest, std::abs(static_cast<double>(x)));
      const auto n = static_cast<double>(w.size());
      const double mean = sum / n, got = std::sqrt(squares / n - mean * mean);
      const double kurtosis = truncated ? cut_m4 / (cut_m2 * cut_m2) : 3;
      EXPECT_LE(std::abs(mean), 4 * std / std::sqrt(n)) << p.name;
      EXPECT_LE(std::abs(got - std), 4 * std * std::sqrt((kurtosis - 1) / (4 * n))) << p.name;
      const double edge = 2 * std / std::sqrt(cut_m2);
      if (truncated) {
        EXPECT_LE(largest, edge * (1 + 1e-6)) << p.name;
        EXPECT_GE(largest, edge * 0.99) << p.name;
      } else {
        EXPECT_GE(largest, 3 * std) << p.name;
      }
    }
  }
}

TEST(TrainingT12, FoldedScoresDivideQAndOnlyQ) {
  const LlamaConfig c = tiny_llama();
  for (const InitMethod method : {InitMethod::fan_in, InitMethod::normal, InitMethod::depth_scaled}) {
    const std::vector<Parameter> plain = llama_parameters(c, method, 0.02, false),
                                 folded = llama_parameters(c, method, 0.02, true);
    ASSERT_EQ(plain.size(), folded.size());
    int64_t divided = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      const bool is_q = plain[i].name.ends_with("q_proj.weight");
      EXPECT_EQ(folded[i].std, is_q ? plain[i].std / std::sqrt(6.0) : plain[i].std) << plain[i].name;
      EXPECT_EQ(folded[i].init, plain[i].init);
      divided += is_q;
    }
    EXPECT_EQ(divided, c.layers);
  }
}

TEST(TrainingT12, NormalAndDepthScaledUseInitStd) {
  const LlamaConfig c = tiny_llama();
  for (const Parameter& p : llama_parameters(c, InitMethod::normal, 0.03)) {
    if (p.init == Parameter::Init::ones) continue;
    EXPECT_EQ(p.init, Parameter::Init::normal) << p.name;
    EXPECT_EQ(p.std, 0.03) << p.name;
  }
  for (const Parameter& p : llama_parameters(c, InitMethod::depth_scaled, 0.03)) {
    if (p.init == Parameter::Init::ones) continue;
    const bool scaled = p.name.ends_with("o_proj.weight") || p.name.ends_with("down_proj.weight");
    EXPECT_EQ(p.std, scaled ? 0.03 / 2 : 0.03) << p.name;  // sqrt(2 L) = 2
  }
}

TEST(TrainingT12, ScaleOfScores) {
  LlamaConfig c = tiny_llama();
  EXPECT_EQ(c.attention_scale(), 1 / std::sqrt(6.0));
  c.score_scale = 1;
  EXPECT_EQ(c.attention_scale(), 1);
}

}  // namespace
}  // namespace nibble
