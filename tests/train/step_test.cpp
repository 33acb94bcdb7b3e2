// One optimizer step: accumulation to the bit (obligation T19 of spec/training.md) and the finite gate (T27).
#include "train/step.h"

#include <cmath>

#include "tiny.h"

namespace nibble {
namespace {

struct Trained {
  std::vector<double> losses, norms;
  uint64_t weights = 0, m = 0, v = 0;
  bool operator==(const Trained&) const = default;
};

Trained train(bool tied, int64_t accumulation, int threads, CpuTarget target, int64_t padding, bool fused = true,
              DType dtype = DType::f32) {
  constexpr int64_t rows = 8, length = 32;
  StepConfig c;
  c.model = tiny_model(tied), c.accumulation = accumulation, c.microbatch = {rows / accumulation, length},
  c.z_loss = 1e-4;
  c.decayed = decay_mask(llama_parameters(c.model), {"norm"}), c.fused = fused, c.dtype = dtype;
  Stepper s(c, plan_training(c, threads, target));
  initialize_parameters(s.program(), s.parameters(), 3);
  Trained t;
  for (int64_t step = 0; step < 3; ++step) {
    const StepResult r =
        s.run(RandomRows(rows, length, 260, static_cast<uint32_t>(step), padding * step).rows(), 1e-2, step + 1);
    t.losses.push_back(r.loss.loss()), t.norms.push_back(r.raw_norm);
  }
  t.weights = hash_of_states(s, StateRole::parameter), t.m = hash_of_states(s, StateRole::moment_m),
  t.v = hash_of_states(s, StateRole::moment_v);
  return t;
}

// B T is a multiple of 64 in all three: 256, 128, 64. Packed rows with unequal numbers of targets.
TEST(TrainingT19, AccumulationIsBitEqual) {
  for (const bool tied : {false, true})
    for (const int64_t padding : {0, 3}) {
      const Trained want = train(tied, 1, 1, CpuTarget::ref, padding);
      EXPECT_NE(want.losses[1], want.losses[2]);
      for (const CpuTarget target : cpu_targets())
        for (const int64_t accumulation : {1, 2, 4}) {
          if (target == CpuTarget::ref && accumulation == 1) continue;
          EXPECT_EQ(train(tied, accumulation, 2, target, padding), want) << name_of(target) << " GA " << accumulation;
        }
      EXPECT_EQ(train(tied, 4, 1, cpu_targets().back(), padding), want);
    }
}

TEST(TrainingT17, MoreTilesOfTheLossAreTheSameStepInLessMemory) {
  Trained first;
  int64_t bytes = 0;
  for (const char* tiles : {"num_vocab_tiling=1", "num_vocab_tiling=3", "num_vocab_tiling=64"}) {
    const StepConfig c = step_of(tiny_config({"per_device_batch_size=16", "eval_fraction=0.1", tiles}));
    Stepper s(c, plan_training(c, 2, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 3);
    const StepResult r = s.run(RandomRows(16, 32, 260, 1).rows(), 1e-2, 1);
    const Trained now{{r.loss.loss()}, {r.raw_norm}, hash_of_states(s, StateRole::parameter)};
    const int64_t needed = s.program().plan().arena_bytes();
    if (bytes == 0) first = now, bytes = needed + 1;
    EXPECT_EQ(now, first) << tiles;
    EXPECT_LT(needed, bytes) << tiles;
    bytes = needed;
  }
}

// Where B T is no multiple of 64 only the order of column sums may differ.
TEST(TrainingT19, OtherwiseWithinRounding) {
  const auto losses = [](int64_t accumulation) {
    StepConfig c;
    c.model = tiny_model(), c.accumulation = accumulation, c.microbatch = {6 / accumulation, 31};
    Stepper s(c, plan_training(c, 1, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 3);
    std::vector<double> list;
    for (int64_t step = 0; step < 5; ++step)
      list.push_back(s.run(RandomRows(6, 31, 260, static_cast<uint32_t>(step)).rows(), 1e-3, step + 1).loss.loss());
    return list;
  };
  const std::vector<double> one = losses(1);
  for (const int64_t accumulation : {2, 3, 6}) {
    const std::vector<double> many = losses(accumulation);
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(many[i], one[i], 1e-5 * one[i]) << accumulation << " step " << i;
  }
}

// The first microbatch of a step replaces what the gradient states hold, the others add to it.
TEST(TrainingT19, NothingIsLeftOfAnEarlierGradient) {
  const RandomRows data(4, 32, 260, 5);
  StepConfig c;
  c.model = tiny_model(true), c.accumulation = 2, c.microbatch = {2, 32};
  Stepper s(c, plan_training(c, 2, cpu_targets().back()));
  initialize_parameters(s.program(), s.parameters(), 3);
  std::vector<Tensor> gradients;  // two of the tied embedding
  for (const StateInfo& state : s.program().plan().states)
    if (state.role == StateRole::gradient) gradients.push_back(s.program().state(state.role, state.name));
  EXPECT_EQ(gradients.size(), s.parameters().size() + 1);
  const auto hashes = [&] {
    std::vector<uint64_t> list;
    for (const Tensor& g : gradients) list.push_back(xxh3(g.data, static_cast<size_t>(g.type.nbytes())));
    return list;
  };
  s.gradients(data.rows());
  const std::vector<uint64_t> want = hashes();
  for (const Tensor& g : gradients) std::fill_n(g.as<float>(), g.numel(), NAN);
  s.gradients(data.rows());
  EXPECT_EQ(hashes(), want);
}

// passes/fuse changes no bit of a step: with or without it, on every target.
TEST(DesignRule6, FusedStepEqualsUnfused) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const CpuTarget target : cpu_targets())
      EXPECT_EQ(train(true, 2, 2, target, 3, true, dtype), train(true, 2, 2, target, 3, false, dtype))
          << name_of(target) << " " << name_of(dtype);
}

// Dense rows, one document each and every token a target; and rows of very unequal numbers of targets, down to one.
TEST(TrainingT19, DenseAndUnequalRowsAreBitEqual) {
  constexpr int64_t rows = 8, length = 32;
  for (const bool dense : {true, false}) {
    const auto run = [dense](int64_t accumulation, CpuTarget target) {
      StepConfig c;
      c.model = tiny_model(), c.accumulation = accumulation, c.microbatch = {rows / accumulation, length};
      Stepper s(c, plan_training(c, 2, target));
      initialize_parameters(s.program(), s.parameters(), 3);
      std::vector<double> list;
      for (int64_t step = 0; step < 3; ++step) {
        RandomRows data(rows, length, 260, static_cast<uint32_t>(step));
        for (int64_t i = 0; i < rows * length; ++i) {
          const auto at = static_cast<size_t>(i);
          if (dense) data.segments[at] = 1, data.positions[at] = static_cast<int32_t>(i % length);
          data.weights[at] = dense || i % length <= 4 * (i / length) ? 1.0f : 0.0f;
        }
        const StepResult r = s.run(data.rows(), 1e-2, step + 1);
        EXPECT_EQ(r.loss.targets, dense ? rows * length : 8 + 4 * (1 + 2 + 3 + 4 + 5 + 6 + 7));
        list.push_back(r.loss.loss()), list.push_back(r.raw_norm);
      }
      list.push_back(static_cast<double>(hash_of_states(s, StateRole::parameter) >> 12));
      return list;
    };
    const std::vector<double> want = run(1, CpuTarget::ref);
    for (const CpuTarget target : cpu_targets())
      for (const int64_t accumulation : {1, 2, 4})
        EXPECT_EQ(run(accumulation, target), want) << name_of(target) << " GA " << accumulation << " dense " << dense;
  }
}

class TrainingT27Step : public testing::Test {
 protected:
  TrainingT27Step() {
    c_.model = tiny_model(), c_.microbatch = {2, 32};
    stepper_ = std::make_unique<Stepper>(c_, plan_training(c_, 2, cpu_targets().back()));
    initialize_parameters(stepper_->program(), stepper_->parameters(), 0);
    EXPECT_TRUE(stepper_->run(data_.rows(), 1e-2, 1).updated);
  }
  float& weight(const std::string& name, int64_t i) {
    return stepper_->program().state(StateRole::parameter, name).as<float>()[i];
  }
  std::array<uint64_t, 3> state() {
    return {hash_of_states(*stepper_, StateRole::parameter), hash_of_states(*stepper_, StateRole::moment_m),
            hash_of_states(*stepper_, StateRole::moment_v)};
  }
  // The gate closes on `value` in a weight, nothing is touched, and the report names it.
  void expect_found(const std::string& name, int64_t index, float value) {
    const float before = std::exchange(weight(name, index), value);
    const auto poisoned = state();
    const StepResult r = stepper_->run(data_.rows(), 1e-2, 2);
    EXPECT_FALSE(r.updated);
    EXPECT_EQ(state(), poisoned);
    const auto found = stepper_->find_non_finite(data_.rows(), 1);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->tensor, "parameter " + name);
    EXPECT_EQ(found->index, index);
    weight(name, index) = before;
  }
  StepConfig c_;
  RandomRows data_{2, 32, 260, 5};
  std::unique_ptr<Stepper> stepper_;
};

TEST_F(TrainingT27Step, BadWeightsAreNamedAndNothingIsUpdated) {
  const auto good = state();
  expect_found("model.layers.1.mlp.up_proj.weight", 77, NAN);
  expect_found("model.layers.0.self_attn.o_proj.weight", 0, -INFINITY);
  expect_found("model.layers.1.input_layernorm.weight", 31, NAN);
  expect_found("model.norm.weight", 3, INFINITY);
  expect_found("lm_head.weight", 9, NAN);
  EXPECT_EQ(state(), good);
  EXPECT_TRUE(stepper_->run(data_.rows(), 1e-2, 2).updated);  // the state was good all the time
}

// Every weight finite, a product overflows: the report names the node, in order of execution.
TEST_F(TrainingT27Step, OverflowIsNamedByItsNode) {
  for (int64_t i = 0; i < 64 * 32; ++i) weight("model.layers.1.mlp.up_proj.weight", i) *= 1e38f;
  EXPECT_FALSE(stepper_->run(data_.rows(), 1e-2, 2).updated);
  const auto found = stepper_->find_non_finite(data_.rows(), 1);
  ASSERT_TRUE(found);
  EXPECT_NE(found->tensor.find("layers.1/mlp/up_proj"), std::string::npos) << found->tensor;
  EXPECT_NE(found->tensor.find("linear"), std::string::npos) << found->tensor;
}

}  // namespace
}  // namespace nibble
