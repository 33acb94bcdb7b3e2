// Learning-rate schedules: obligation T25 of spec/training.md, with the golden numbers of its 2.9.
#include "train/schedule.h"

#include "tiny.h"

namespace nibble {
namespace {

Schedule golden(Schedule::Kind kind) {
  return {.kind = kind, .peak = 3e-4, .final_fraction = 0.1, .length = 100, .warmup = warmup_from_fraction(100, 0.1)};
}

struct Point {
  int64_t step;
  double rate;
};
void expect_rates(const Schedule& s, std::initializer_list<Point> points) {
  for (const Point& p : points) EXPECT_NEAR(s.rate(p.step), p.rate, 1e-12) << "step " << p.step;
}

TEST(TrainingT25, GoldenCosine) {
  expect_rates(
      golden(Schedule::Kind::cosine),
      {{0, 0}, {5, 1.5e-4}, {10, 3e-4}, {54, 1.673825449e-4}, {55, 1.626174551e-4}, {99, 3e-5}, {100, 0}, {1000, 0}});
}

TEST(TrainingT25, GoldenWsd) {
  Schedule s = golden(Schedule::Kind::wsd);
  EXPECT_EQ(s.decay_start(), 90);
  expect_rates(s, {{5, 1.5e-4}, {10, 3e-4}, {89, 3e-4}, {90, 3e-4}, {99, 3e-5}, {100, 0}});
  // x = (step - 90) / 9: the spec's 1.5e-4 at 95 is p + (f - p) * 5/9.
  expect_rates(s, {{95, 1.5e-4}});
  s.cosine_decay = true;
  expect_rates(s, {{90, 3e-4}, {95, 1.415574960e-4}, {99, 3e-5}, {100, 0}});
}

TEST(TrainingT25, ConstantAndLinear) {
  expect_rates(golden(Schedule::Kind::constant), {{0, 0}, {5, 1.5e-4}, {10, 3e-4}, {99, 3e-4}, {100, 0}});
  expect_rates(golden(Schedule::Kind::linear), {{10, 3e-4}, {99, 3e-5}, {100, 0}});
  EXPECT_NEAR(golden(Schedule::Kind::linear).rate(54), 3e-4 + (3e-5 - 3e-4) * 44 / 89.0, 1e-15);
}

TEST(TrainingT25, Corners) {
  Schedule s = golden(Schedule::Kind::cosine);
  s.warmup = 0;
  EXPECT_EQ(s.rate(0), 3e-4);  // no warm-up starts at the peak
  s.warmup = 200;              // longer than the schedule: never reaches the peak
  EXPECT_EQ(s.rate(99), 3e-4 * 99 / 200);
  EXPECT_EQ(s.rate(100), 0);
  s.warmup = 99;  // one step after the warm-up: x = 1
  EXPECT_NEAR(s.rate(99), 3e-5, 1e-18);
  Schedule d = golden(Schedule::Kind::wsd);
  d.decay_fraction = 0.01;  // one step of decay: linear stays at the peak, cosine is at the end
  EXPECT_EQ(d.rate(99), 3e-4);
  d.cosine_decay = true;
  EXPECT_NEAR(d.rate(99), 3e-5, 1e-18);
  EXPECT_EQ(warmup_from_fraction(99, 0.1), 9);  // truncated
}

TEST(TrainingT25, KeysOfTheConfiguration) {
  Schedule s = schedule_of(tiny_config({"dataset_type=synthetic", "steps=200"}));
  EXPECT_EQ(s.length, 200);
  EXPECT_EQ(s.warmup, 20);
  EXPECT_EQ(s.kind, Schedule::Kind::cosine);
  s = schedule_of(
      tiny_config({"dataset_type=synthetic", "steps=200", "learning_rate_schedule_steps=100", "warmup_steps=7",
                   "lr_schedule_type=wsd", "wsd_decay_style=cosine", "wsd_decay_steps_fraction=0.2",
                   "learning_rate=3e-4", "learning_rate_final_fraction=0.5"}));
  EXPECT_EQ(s.length, 100);
  EXPECT_EQ(s.warmup, 7);  // steps win over the fraction
  EXPECT_EQ(s.decay_start(), 80);
  EXPECT_TRUE(s.cosine_decay);
  EXPECT_NEAR(s.rate(99), 1.5e-4, 1e-18);
}

// Step 0 of a warm-up has rate 0: the moments move, the weights do not. Beyond S the same.
TEST(TrainingT25, RateZeroLeavesWeights) {
  StepConfig c;
  c.model = tiny_model(), c.microbatch = {2, 32};
  c.decayed.assign(llama_parameters(c.model).size(), true);
  Stepper s(c, plan_training(c, 1, cpu_targets().back()));
  initialize_parameters(s.program(), s.parameters(), 0);
  const uint64_t before = hash_of_states(s, StateRole::parameter), moments = hash_of_states(s, StateRole::moment_m);
  const Schedule schedule = golden(Schedule::Kind::cosine);
  const RandomRows rows(2, 32, 260, 1);
  EXPECT_TRUE(s.run(rows.rows(), schedule.rate(0), 1).updated);
  EXPECT_EQ(hash_of_states(s, StateRole::parameter), before);
  EXPECT_NE(hash_of_states(s, StateRole::moment_m), moments);
  s.run(rows.rows(), schedule.rate(100), 2);
  EXPECT_EQ(hash_of_states(s, StateRole::parameter), before);
  s.run(rows.rows(), schedule.rate(1), 3);
  EXPECT_NE(hash_of_states(s, StateRole::parameter), before);
}

}  // namespace
}  // namespace nibble
