// From gradient to weight: obligations T22, T23 and T24 of spec/training.md.
#include "train/optimizer.h"

#include <cmath>

#include "tiny.h"

namespace nibble {
namespace {

// One matrix with two gradient parts (a tied table), one vector, one without decay.
const std::vector<Parameter> parameters = {{"table", {19, 33}, Parameter::Init::normal, 1},
                                           {"norm", {45}, Parameter::Init::ones, 0},
                                           {"plain", {16, 16}, Parameter::Init::normal, 1}};
const GradientStates gradients = {{"table", {"table", "table#1"}}, {"norm", {"norm"}}, {"plain", {"plain"}}};
const std::vector<bool> decayed = {true, false, true};

float draw(uint32_t seed, int64_t i) {  // in (-1, 1)
  return static_cast<float>(static_cast<int32_t>(philox4x32({static_cast<uint32_t>(i), 0, 0, 0x1f9}, seed, 9)[0])) *
         0x1p-31f;
}

// The formulas of spec/training.md 2.9 once more, from the text: scalar, float, every operation rounded (the build
// contracts nothing).
struct Reference {
  OptimizerConfig c;
  std::vector<float> w, m, v;
  bool decay;
  void step(const std::vector<float>& g, double rate, int64_t t, float clip) {
    const auto f = [](double x) { return static_cast<float>(x); };
    double p1 = 1, p2 = 1, q1 = 1, q2 = 1;  // b^t and b^(t-1) by plain products of ipow's order: high bit first
    const auto power = [](double b, int64_t n) {
      double r = 1;
      for (int bit = 62; bit >= 0; --bit) {
        r = r * r;
        if (n >> bit & 1) r = r * b;
      }
      return r;
    };
    p1 = power(c.b1, t), p2 = power(c.b2, t), q1 = power(c.b1, t - 1), q2 = power(c.b2, t - 1);
    const bool pax = c.kind == OptimizerConfig::Kind::adam_pax;
    const double d1 = pax ? c.b1 * (1 - q1) / (1 - p1) : c.b1, d2 = pax ? c.b2 * (1 - q2) / (1 - p2) : c.b2;
    const float b1 = f(d1), a1 = f(1 - d1), b2 = f(d2), a2 = f(1 - d2), c1 = pax ? 1 : f(1 - p1),
                c2 = pax ? 1 : f(1 - p2);
    const float lr = f(rate), eps = f(c.eps), root = f(c.eps_root), wd = f(c.weight_decay);
    for (size_t i = 0; i < w.size(); ++i) {
      const float x = g[i] * clip;
      if (c.kind == OptimizerConfig::Kind::sgd) {
        const float change = lr * x;
        w[i] = w[i] - change;
        continue;
      }
      float old = b1 * m[i], add = a1 * x;
      m[i] = old + add;
      const float square = x * x;
      old = b2 * v[i], add = a2 * square;
      v[i] = old + add;
      const float first = m[i] / c1;
      float second = v[i] / c2;
      second = second + root;
      second = std::sqrt(second);
      second = second + eps;
      float u = first / second;
      if (decay) {
        const float pull = wd * w[i];
        u = u + pull;
      }
      const float change = lr * u;
      w[i] = w[i] - change;
    }
  }
};

class TrainingT22 : public testing::TestWithParam<std::tuple<OptimizerConfig::Kind, CpuTarget>> {};

TEST_P(TrainingT22, HundredStepsMatchAScalarReference) {
  const auto [kind, target] = GetParam();
  OptimizerConfig c;
  c.kind = kind, c.eps_root = 1e-12;
  std::vector<NamedGraph> graphs;
  graphs.push_back({"update", update_graph(c, parameters, gradients, decayed)});
  Program program(plan_program(std::move(graphs), 2, target));
  std::vector<Reference> want;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto n = static_cast<size_t>(parameters[p].shape.numel());
    Reference r{c, std::vector<float>(n), std::vector<float>(n, 0.0f), std::vector<float>(n, 0.0f), decayed[p]};
    for (size_t i = 0; i < n; ++i)
      r.w[i] = program.state(StateRole::parameter, parameters[p].name).as<float>()[i] =
          draw(static_cast<uint32_t>(p), static_cast<int64_t>(i));
    want.push_back(std::move(r));
  }
  if (kind != OptimizerConfig::Kind::sgd) program.zero(StateRole::moment_m), program.zero(StateRole::moment_v);
  for (int64_t t = 1; t <= 100; ++t) {
    const double rate = 1e-2 * static_cast<double>(t % 7);
    const float clip = t % 3 == 0 ? 0.37f : 1.0f;
    for (size_t p = 0; p < parameters.size(); ++p) {
      std::vector<float> sum(want[p].w.size());
      const auto& parts = gradients.at(parameters[p].name);
      for (size_t k = 0; k < parts.size(); ++k) {  // head ("#1") + embedding: two terms, so the order does not matter
        float* g = program.state(StateRole::gradient, parts[k]).as<float>();
        for (size_t i = 0; i < sum.size(); ++i) {
          g[i] = draw(static_cast<uint32_t>(1000 * t + 10 * static_cast<int64_t>(p) + static_cast<int64_t>(k)),
                      static_cast<int64_t>(i)) *
                 (t % 5 == 0 ? 1e-6f : 0.1f);
          sum[i] += g[i];
        }
      }
      want[p].step(sum, rate, t, clip);
    }
    Executable& update = program.executable("update");
    fill_update_scalars(c, rate, t, clip, update.input("scalars").as<float>());
    update.run();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const size_t bytes = want[p].w.size() * 4;
      ASSERT_EQ(std::memcmp(program.state(StateRole::parameter, parameters[p].name).data, want[p].w.data(), bytes), 0)
          << parameters[p].name << " step " << t;
      if (kind == OptimizerConfig::Kind::sgd) continue;
      ASSERT_EQ(std::memcmp(program.state(StateRole::moment_m, parameters[p].name).data, want[p].m.data(), bytes), 0)
          << parameters[p].name << " step " << t;
      ASSERT_EQ(std::memcmp(program.state(StateRole::moment_v, parameters[p].name).data, want[p].v.data(), bytes), 0)
          << parameters[p].name << " step " << t;
    }
  }
  double squares = 0;
  for (const Reference& r : want)
    for (const float x : r.w) squares += static_cast<double>(x) * static_cast<double>(x);
  EXPECT_NEAR(program.executable("update").output("param_norm").as<double>()[0], std::sqrt(squares),
              1e-12 * std::sqrt(squares));
}

std::string case_name(const testing::TestParamInfo<TrainingT22::ParamType>& info) {
  constexpr const char* names[] = {"adamw", "adam_pax", "sgd"};
  return std::string(names[static_cast<int>(std::get<0>(info.param))]) + "_" + name_of(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Everywhere, TrainingT22,
                         testing::Combine(testing::Values(OptimizerConfig::Kind::adamw, OptimizerConfig::Kind::adam_pax,
                                                          OptimizerConfig::Kind::sgd),
                                          testing::ValuesIn(cpu_targets())),
                         case_name);

TEST(TrainingT23, DefaultMaskExcludesExactlyTheVectors) {
  const Config config = tiny_config({"dataset_type=synthetic", "steps=1"});
  for (const bool tied : {false, true}) {
    const std::vector<Parameter> all = llama_parameters(tiny_model(tied));
    const std::vector<bool> mask = decay_mask(all, config.get_list("adamw_mask"));
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(mask[i], all[i].shape.rank() == 2) << all[i].name;
    const std::vector<bool> everything = decay_mask(all, {});
    EXPECT_EQ(std::ranges::count(everything, true), static_cast<int64_t>(all.size()));
  }
  EXPECT_EQ(decay_mask(llama_parameters(tiny_model()), {}),
            step_of(tiny_config({"dataset_type=synthetic", "steps=1", "adamw_mask=[]"})).decayed);
}

int64_t undecayed(const std::vector<std::string>& mask) {
  return std::ranges::count(decay_mask(llama_parameters(tiny_model()), mask), false);
}

TEST(TrainingT23, PatternsSearchBothNames) {
  EXPECT_EQ(undecayed({"q_proj"}), 2);                                 // Hugging Face name
  EXPECT_EQ(undecayed({"params-decoder-layers-mlp-wi_0-kernel"}), 2);  // MaxText path
  EXPECT_EQ(undecayed({"self_attention-(query|key)-kernel$"}), 4);
  EXPECT_EQ(undecayed({"token_embedder", "logits_dense"}), 2);
  EXPECT_EQ(undecayed({"decoder_norm-scale", "layer_norm-scale"}), 5);
  EXPECT_EQ(undecayed({"layers\\.1\\."}), 9);
  EXPECT_EQ(undecayed({"no such"}), 0);
  EXPECT_THROW(undecayed({"("}), Error);
}

TEST(TrainingT24, ClipFactor) {
  EXPECT_EQ(clip_factor(1, 0.999), 1.0f);
  EXPECT_EQ(clip_factor(1, 1), 1.0f);  // only above
  EXPECT_EQ(clip_factor(1, 4), 0.25f);
  EXPECT_EQ(clip_factor(0, 1e30), 1.0f);  // off
  EXPECT_EQ(clip_factor(1, 3), static_cast<float>(1 / 3.0));
}

// Below the threshold not a bit changes; above, the gradient is that of a threshold scaled by c / norm.
TEST(TrainingT24, NormsBelowTheThresholdAreUntouched) {
  const RandomRows rows(2, 32, 260, 1);
  const auto trained = [&](double clip, StepResult* result) {
    StepConfig c;
    c.model = tiny_model(), c.microbatch = {2, 32}, c.optimizer.kind = OptimizerConfig::Kind::sgd,
    c.optimizer.clip = clip;
    Stepper s(c, plan_training(c, 1, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 0);
    *result = s.run(rows.rows(), 0.5, 1);
    return hash_of_states(s, StateRole::parameter);
  };
  StepResult off, above, below;
  const uint64_t plain = trained(0, &off);
  EXPECT_EQ(trained(off.raw_norm * 1.001, &above), plain);
  EXPECT_EQ(above.norm, off.raw_norm);
  EXPECT_NE(trained(off.raw_norm / 2, &below), plain);
  EXPECT_EQ(below.raw_norm, off.raw_norm);
  EXPECT_EQ(below.norm, off.raw_norm * 0.5);
}

}  // namespace
}  // namespace nibble
