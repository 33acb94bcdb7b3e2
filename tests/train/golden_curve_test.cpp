// Obligation T31 of spec/training.md: twenty steps of MaxText in float32 are followed, in both attention scalings, weights included.
#include <gtest/gtest.h>

#include <fstream>

#include "io/json.h"
#include "io/safetensors.h"
#include "train/schedule.h"
#include "train/step.h"

namespace nibble {
namespace {

constexpr int64_t batch = 4, length = 64, steps = 20;
const std::string folder = std::string(NIBBLE_GOLDEN_DIR) + "/maxtext_llama_tiny/";

StepConfig tiny(bool fold) {
  StepConfig c;
  c.model = {.layers = 2, .width = 64, .heads = 4, .kv_heads = 2, .head_size = 16, .hidden = 160, .vocab = 256};
  if (fold) c.model.score_scale = 1;
  c.microbatch = {batch, length};
  c.decayed.assign(llama_parameters(c.model).size(), true);
  return c;
}

// q is stored with the scale at run time; a folded run trains q / 4.
void load(Stepper& s, const std::string& file, bool fold) {
  const SafetensorsModel in(folder + file);
  for (const Parameter& p : s.parameters()) {
    const Tensor w = s.program().state(StateRole::parameter, p.name);
    read_f32(in.at(p.name), w.as<float>());
    if (fold && p.name.find("q_proj") != std::string::npos)
      for (int64_t i = 0; i < w.numel(); ++i) w.as<float>()[i] /= 4;
  }
}

class TrainingT31 : public testing::TestWithParam<std::tuple<bool, CpuTarget>> {};

TEST_P(TrainingT31, CurveOfMaxText) {
  const auto [fold, target] = GetParam();
  const Json curve = Json::parse(std::ifstream(folder + "curve.json"))["runs"][fold ? "maxtext_qfold" : "standard"]["steps"];
  std::ifstream file(folder + "tokens.bin", std::ios::binary);
  std::vector<int32_t> tokens(steps * batch * (length + 1));
  file.read(reinterpret_cast<char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * 4));
  const StepConfig c = tiny(fold);
  Stepper s(c, plan_training(c, 2, target));
  load(s, "model.safetensors", fold);
  const Schedule schedule{.peak = 3e-3, .length = steps, .warmup = 5};
  const int64_t n = batch * length;
  std::vector<int32_t> inputs(n), targets(n), segments(n, 1), positions(n);
  const std::vector<float> weights(n, 1);
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < n; ++i) {
      const int32_t* row = tokens.data() + (step * batch + i / length) * (length + 1);
      inputs[i] = row[i % length], targets[i] = row[i % length + 1], positions[i] = static_cast<int32_t>(i % length);
    }
    const StepResult r = s.run({inputs.data(), targets.data(), segments.data(), positions.data(), weights.data(), batch}, schedule.rate(step), step + 1);
    const auto& want = curve[step];
    const double loss = want["loss"], norm = want["grad_norm_raw"], clipped = want["grad_norm_clipped"], weight_norm = want["param_norm_after"];
    EXPECT_NEAR(r.loss.loss(), loss, 2e-6 * loss) << step;
    EXPECT_NEAR(r.raw_norm, norm, 5e-6 * norm) << step;
    EXPECT_NEAR(r.norm, clipped, 5e-6 * clipped) << step;
    EXPECT_NEAR(r.param_norm, weight_norm, 1e-6 * weight_norm) << step;
  }
  Stepper want(c, plan_training(c, 1, CpuTarget::ref));
  load(want, fold ? "final_maxtext_qfold.safetensors" : "final.safetensors", fold);
  for (const Parameter& p : s.parameters()) {
    const float *got = s.program().state(StateRole::parameter, p.name).as<float>(), *w = want.program().state(StateRole::parameter, p.name).as<float>();
    const float scale = fold && p.name.find("q_proj") != std::string::npos ? 4 : 1;
    float worst = 0;
    for (int64_t i = 0; i < p.shape.numel(); ++i) worst = std::max(worst, scale * std::abs(got[i] - w[i]));
    EXPECT_LE(worst, 2e-5f) << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(BothRuns, TrainingT31, testing::Combine(testing::Bool(), testing::ValuesIn(cpu_targets())),
                         [](const auto& i) { return std::string(std::get<0>(i.param) ? "qfold_" : "standard_") + name_of(std::get<1>(i.param)); });

}  // namespace
}  // namespace nibble
