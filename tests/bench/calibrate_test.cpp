// Calibration on shapes of milliseconds: everything that a forecast needs is in the file afterwards.
#include "bench/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/price.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

constexpr TrainingShape small[] = {{32, 64, 2, 1, 16, 256, 1, 16, 1}, {64, 96, 2, 2, 32, 256, 2, 48, 2}};
constexpr TrainingShape other[] = {{48, 64, 3, 1, 16, 256, 1, 32, 1}};

TEST(PlanL29, AStepIsPricedByWhatWasMeasured) {
  Machine m = this_machine();
  testing::internal::CaptureStderr();
  const BenchResult r = calibrate(m, {1, 2}, "auto", {"te_nvfp4"}, 0.01, {small, other});
  const std::string progress = testing::internal::GetCapturedStderr();
  EXPECT_NE(progress.find("check, float32, 1 thread: width 48"), std::string::npos) << progress;
  EXPECT_NE(r.text.find("no part of the prices"), std::string::npos);

  const Machine back = parse_machine(machine_text(m), "x");
  static const std::vector<std::string> environment;
  ResolveOptions options{.command = "plan"};
  options.environment = &environment;
  const auto step_with = [&](const std::string& recipe) {
    return step_of(resolve({"model_name=nibble-1m", "max_target_length=32", "per_device_batch_size=2",
                            "quantization=" + recipe},
                           options)
                       .config);
  };
  const StepConfig step = step_with("");
  for (const int threads : {1, 2})
    for (const StepConfig& priced : {step, step_with("te_nvfp4")}) {
      ASSERT_NE(back.limits_of(threads), nullptr);
      const auto f = forecast_step(plan_training(priced, threads, cpu_targets().back()), 1, back);
      ASSERT_TRUE(f.has_value());
      EXPECT_GT(f->seconds, 0);
      EXPECT_TRUE(f->by_limit.empty()) << f->by_limit.front() << " has no price";
    }
  // Another recipe has other quantisers, which this machine has not timed.
  const auto unmeasured = forecast_step(plan_training(step_with("mxfp4"), 1, cpu_targets().back()), 1, back);
  ASSERT_TRUE(unmeasured.has_value());
  EXPECT_NE(std::ranges::find(unmeasured->by_limit, "quantize"), unmeasured->by_limit.end());
  EXPECT_FALSE(forecast_step(plan_training(step, 3, cpu_targets().back()), 1, back).has_value());
  for (const Check& c : back.checks) {
    EXPECT_GT(c.predicted, 0);
    EXPECT_GT(c.measured, 0);
  }
  EXPECT_GE(back.checks.size(), 2u);
}

}  // namespace
}  // namespace nibble
