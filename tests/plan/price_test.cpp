// Prices: fitted from measured nodes, summed to the time of a step.
#include "plan/price.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "train/model_setup.h"

namespace nibble {
namespace {

std::vector<PriceSample> samples_of(const OpPrice& p, double noise) {
  std::vector<PriceSample> samples;
  uint32_t word = 1;
  for (int i = 0; i < 24; ++i) {
    const auto draw = [&](double most) {
      word = word * 1664525u + 1013904223u;
      return most * (0.01 + static_cast<double>(word >> 8) * 0x1p-24);
    };
    PriceSample s{.work = {.flops = draw(1e9), .read = draw(1e7), .written = draw(1e6), .functions = draw(1e5)},
                  .far_share = i % 3 == 0 ? 0 : 0.9};
    s.seconds = p.seconds(s.work, s.far_share) * (1 + noise * (i % 2 == 0 ? 1 : -1));
    samples.push_back(s);
  }
  return samples;
}

TEST(PlanPrice, TheFitFindsTheCoefficients) {
  const OpPrice p{.fixed = 2e-6, .flop = 1e-11, .byte = 2e-11, .far_byte = 5e-11, .function = 1e-9};
  const OpPrice exact = fit_price(samples_of(p, 0));
  EXPECT_NEAR(exact.fixed / p.fixed, 1, 1e-6);
  EXPECT_NEAR(exact.flop / p.flop, 1, 1e-6);
  EXPECT_NEAR(exact.byte / p.byte, 1, 1e-6);
  EXPECT_NEAR(exact.far_byte / p.far_byte, 1, 1e-6);
  EXPECT_NEAR(exact.function / p.function, 1, 1e-6);
  EXPECT_LT(exact.error, 1e-9);
  EXPECT_EQ(exact.samples, 24);
  const OpPrice noisy = fit_price(samples_of(p, 0.02));
  EXPECT_LT(noisy.error, 0.03);
  EXPECT_NEAR(noisy.flop / p.flop, 1, 0.1);
}

// A part that is not there stays out; nothing is ever negative, so a larger node never gets cheaper (L18).
TEST(PlanL18, NoCoefficientIsNegative) {
  const OpPrice p{.fixed = 0, .flop = 0, .byte = 2e-11, .far_byte = 0, .function = 0};
  for (const double noise : {0.0, 0.1, 0.3}) {
    const OpPrice fit = fit_price(samples_of(p, noise));
    for (const double x : {fit.fixed, fit.flop, fit.byte, fit.far_byte, fit.function}) EXPECT_GE(x, 0);
    EXPECT_LT(fit.error, noise + 1e-9);
  }
}

struct Planned {
  StepConfig step;
  ProgramPlan plan;
};
Planned planned(std::vector<std::string> words) {
  static const std::vector<std::string> environment;
  words.insert(words.end(), {"model_name=nibble-1m", "dataset_type=synthetic"});
  ResolveOptions options{.command = "plan"};
  options.environment = &environment;
  const StepConfig step = step_of(resolve(words, options).config);
  return {step, plan_training(step, 2, CpuTarget::ref)};
}

Machine machine_with_limits() {
  Machine m;
  m.limits = {{.threads = 2, .f32 = 1e11, .l1 = 1e11, .l2 = 1e11, .l3 = 5e10, .read = 2e10, .copy = 2e10}};
  m.caches = {32 << 10, 1 << 20, 32 << 20};
  return m;
}

TEST(PlanPrice, WithoutPricesThereIsNoForecast) {
  const Planned p = planned({});
  Machine m = machine_with_limits();
  EXPECT_FALSE(forecast_step(p.plan, 1, m).has_value());
  m.prices.push_back({.op = "linear", .kernel = "ref", .format = "f32", .threads = 1, .flop = 1e-10});
  EXPECT_FALSE(forecast_step(p.plan, 1, m).has_value()) << "of another number of threads";
  const std::string text = forecast_text(std::nullopt, m, 2, 100, 1e9, "some/machine.json");
  EXPECT_NE(text.find("some/machine.json"), std::string::npos);
  EXPECT_NE(text.find("nibble bench --calibrate"), std::string::npos);
  EXPECT_EQ(std::ranges::count(text, '\n'), 2) << "a blank line and one line";
  EXPECT_TRUE(forecast_json(std::nullopt, m).is_null());
}

TEST(PlanPrice, AStepIsTheSumOfItsNodes) {
  const Planned one = planned({}), two = planned({"gradient_accumulation_steps=2"});
  Machine m = machine_with_limits();
  m.prices.push_back({.op = "linear", .kernel = "ref", .format = "f32", .threads = 2, .fixed = 1e-3});
  m.prices.push_back({.op = std::string(outside_kernels), .threads = 2, .fixed = 5e-3});
  const auto f = forecast_step(one.plan, 1, m), g = forecast_step(two.plan, 2, m);
  ASSERT_TRUE(f && g);
  const auto part = [](const StepForecast& x, std::string_view name) {
    double sum = 0;
    for (const auto& [op, seconds] : x.parts)
      if (op.starts_with(name) && (name != "linear" || op == name)) sum += seconds;
    return sum;
  };
  double sum = 0;
  for (const auto& [name, seconds] : f->parts) sum += seconds;
  EXPECT_DOUBLE_EQ(sum, f->seconds);
  int64_t linears = 0;
  for (const Node& n : one.plan.executable("microbatch").graph.nodes) linears += n.op->name == "linear";
  EXPECT_GT(linears, 0);
  EXPECT_NEAR(part(*f, "linear"), 1e-3 * static_cast<double>(linears), 1e-12);
  EXPECT_NEAR(part(*g, "linear"), 2 * part(*f, "linear"), 1e-12);
  EXPECT_NEAR(part(*g, "adamw"), part(*f, "adamw"), 1e-12) << "one update a step";
  EXPECT_EQ(part(*f, outside_kernels), 5e-3);
  EXPECT_TRUE(std::ranges::any_of(f->by_limit, [](const std::string& op) { return op.starts_with("adamw"); }));
  EXPECT_EQ(std::ranges::find(f->by_limit, "linear"), f->by_limit.end());
  EXPECT_EQ(f->range, 0.1);
  m.checks.push_back({.what = "", .format = "f32", .threads = 2, .predicted = 0.96, .measured = 1});
  EXPECT_NEAR(forecast_step(one.plan, 1, m)->range, 0.04, 1e-12);
}

// More tokens, layers or width never take less time (L18).
TEST(PlanL18, LargerIsNeverFaster) {
  Machine m = machine_with_limits();
  for (const char* op : {"linear", "linear_dgrad", "linear_wgrad", "attention", "attention_grad", "adamw"})
    m.prices.push_back({.op = op,
                        .kernel = "ref",
                        .format = "f32",
                        .threads = 2,
                        .fixed = 1e-6,
                        .flop = 1e-11,
                        .byte = 1e-11,
                        .far_byte = 3e-11,
                        .function = 1e-9});
  const auto seconds = [&](std::vector<std::string> words) {
    const Planned p = planned(std::move(words));
    return forecast_step(p.plan, 1, m)->seconds;
  };
  const double base = seconds({"max_target_length=64", "per_device_batch_size=2"});
  EXPECT_GT(seconds({"max_target_length=128", "per_device_batch_size=2"}), base);
  EXPECT_GT(seconds({"max_target_length=64", "per_device_batch_size=3"}), base);
  EXPECT_GT(seconds({"max_target_length=64", "per_device_batch_size=2", "override_model_config=true",
                     "base_num_decoder_layers=5"}),
            base);
  EXPECT_GT(
      seconds({"max_target_length=64", "per_device_batch_size=2", "override_model_config=true", "vocab_size=2048"}),
      base);
}

// A run that ends with another recipe has executables of its own for it; norm and update are those of every step.
TEST(PlanPrice, StepsOfTheEndOfARun) {
  EXPECT_EQ(runs_a_step("microbatch", 3), 3);
  EXPECT_EQ(runs_a_step("microbatch_finish", 3), 0);
  EXPECT_EQ(runs_a_step("microbatch_finish", 3, true), 3);
  EXPECT_EQ(runs_a_step("microbatch", 3, true), 0);
  for (const char* name : {"gradient_norm", "update"})
    for (const bool finish : {false, true}) EXPECT_EQ(runs_a_step(name, 3, finish), 1) << name;
  EXPECT_EQ(runs_a_step("recast_finish", 3, true), 1);
  EXPECT_EQ(runs_a_step("recast", 3, true), 0);
  EXPECT_EQ(runs_a_step("evaluate_finish", 3, true), 0);
  EXPECT_EQ(runs_a_step("decode_1", 3), 0);
}

}  // namespace
}  // namespace nibble
