// Training with dtype=bfloat16: bf16 activations and operands, f32 sums, masters and optimizer (docs/numerics.md).
#include <cmath>

#include "tiny.h"
#include "train/step.h"

namespace nibble {
namespace {

struct Trained {
  std::vector<double> losses, norms;
  uint64_t weights = 0, m = 0, v = 0;
  bool operator==(const Trained&) const = default;
};

Trained train(DType dtype, int64_t accumulation, int threads, CpuTarget target, int64_t steps = 3, double lr = 1e-2) {
  constexpr int64_t rows = 8, length = 32;
  StepConfig c;
  c.model = tiny_model(true), c.accumulation = accumulation, c.microbatch = {rows / accumulation, length};
  c.dtype = dtype, c.z_loss = 1e-4;
  c.decayed = decay_mask(llama_parameters(c.model), {"norm"});
  Stepper s(c, plan_training(c, threads, target));
  initialize_parameters(s.program(), s.parameters(), 3);
  Trained t;
  for (int64_t step = 0; step < steps; ++step) {
    const StepResult r =
        s.run(RandomRows(rows, length, 260, static_cast<uint32_t>(step % 3), step % 3).rows(), lr, step + 1);
    t.losses.push_back(r.loss.loss()), t.norms.push_back(r.raw_norm);
  }
  t.weights = hash_of_states(s, StateRole::parameter), t.m = hash_of_states(s, StateRole::moment_m),
  t.v = hash_of_states(s, StateRole::moment_v);
  return t;
}

// Kernels without BF16 instructions widen exactly, so they keep the orders of f32 and give its equality of bits.
TEST(TrainingBf16, TargetsThreadsAndAccumulationGiveTheSameBits) {
  const Trained want = train(DType::bf16, 1, 1, CpuTarget::ref);
  EXPECT_NE(want.losses[1], want.losses[2]);
  EXPECT_NE(want.weights, train(DType::f32, 1, 1, CpuTarget::ref).weights);
  for (const CpuTarget target : {CpuTarget::avx2, CpuTarget::avx512}) {
    if (!cpu_runs(target)) continue;
    for (const int64_t accumulation : {1, 2, 4})
      EXPECT_EQ(train(DType::bf16, accumulation, 3, target), want) << name_of(target) << " GA " << accumulation;
  }
}

// Whatever path runs by default here: bit-stable within it, and the loss stays by the one of f32.
TEST(TrainingBf16, LossFollowsF32) {
  const CpuTarget best = cpu_targets().back();
  const Trained wide = train(DType::f32, 1, 2, best, 20), half = train(DType::bf16, 1, 2, best, 20);
  EXPECT_EQ(half, train(DType::bf16, 1, 1, best, 20));
  EXPECT_LT(wide.losses.back(), 0.8 * wide.losses.front());
  for (size_t i = 0; i < wide.losses.size(); ++i) {
    EXPECT_NE(wide.losses[i], half.losses[i]) << i;
    EXPECT_NEAR(half.losses[i], wide.losses[i], 0.02 * wide.losses[i]) << i;
  }
}

TEST(TrainingBf16, OverflowIsNamedByItsNode) {
  StepConfig c;
  c.model = tiny_model(), c.microbatch = {2, 32}, c.dtype = DType::bf16;
  Stepper s(c, plan_training(c, 2, cpu_targets().back()));
  initialize_parameters(s.program(), s.parameters(), 0);
  const Tensor up = s.program().state(StateRole::parameter, "model.layers.1.mlp.up_proj.weight");
  for (int64_t i = 0; i < up.numel(); ++i) up.as<float>()[i] *= 1e38f;
  const RandomRows data(2, 32, 260, 5);
  EXPECT_FALSE(s.run(data.rows(), 1e-2, 1).updated);
  const auto found = s.find_non_finite(data.rows(), 1);
  ASSERT_TRUE(found);
  EXPECT_NE(found->tensor.find("layers.1/mlp/up_proj linear"), std::string::npos) << found->tensor;
}

// The arena holds half of the activations, and the rounded weights beside their masters.
TEST(TrainingBf16, ActivationsTakeHalf) {
  StepConfig c;
  c.model = tiny_model(), c.microbatch = {8, 64};
  const ProgramPlan wide = plan_training(c, 1, CpuTarget::ref);
  c.dtype = DType::bf16;
  const ProgramPlan half = plan_training(c, 1, CpuTarget::ref);
  int64_t weights = 0;
  for (const StateInfo& s : half.states) {
    EXPECT_EQ(s.role == StateRole::weight, s.type.dtype == DType::bf16) << s.name;
    if (s.role == StateRole::weight) weights += s.type.numel();
  }
  EXPECT_EQ(weights, parameter_count(c.model));
  const auto temporary = [](const ProgramPlan& plan, DType dtype) {
    int64_t bytes = 0;
    const ExecutablePlan& e = plan.executable("microbatch");
    for (const Placement& p : e.memory.buffers)
      if (!p.keeps && e.graph.type(p.value).dtype == dtype) bytes += p.bytes;
    return bytes;
  };
  const int64_t statistics = temporary(half, DType::f32);
  EXPECT_GT(temporary(half, DType::bf16), 20 * statistics);
  EXPECT_EQ(2 * temporary(half, DType::bf16), temporary(wide, DType::f32) - statistics);
}

}  // namespace
}  // namespace nibble
