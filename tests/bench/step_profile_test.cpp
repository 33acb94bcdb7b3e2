// The profile of a step: its rows and the time outside the kernels are the step, and its trace is one that viewers
// read.
#include "bench/step_profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "train/model_setup.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

Config tiny_config(std::vector<std::string> words = {}) {
  static const std::vector<std::string> environment;
  words.insert(words.begin(), {"model_name=nibble-1m", "max_target_length=16", "per_device_batch_size=1"});
  ResolveOptions options{.command = "profile"};
  options.environment = &environment;
  return resolve(words, options).config;
}

class BenchProfile : public testing::Test {
 protected:
  BenchProfile()
      : c_(step_of(tiny_config({"gradient_accumulation_steps=2"}))),
        rows_(2, 16, c_.model.vocab),
        stepper_(c_, plan_training(c_, 2, cpu_targets().back())) {
    initialize_parameters(stepper_.program(), stepper_.parameters(), 0);
    limits_ = {.threads = 2, .f32 = 1e11, .l1 = 1e11, .l2 = 1e11, .l3 = 1e11, .read = 1e10, .copy = 1e10};
    profiles_ = profile_steps(stepper_, rows_.view(), 3, 3, 0, &finite_);
  }
  StepConfig c_;
  SyntheticRows rows_;
  Stepper stepper_;
  Limits limits_;
  CacheSizes caches_{32 << 10, 1 << 20, 32 << 20};
  bool finite_ = true;
  std::vector<StepProfile> profiles_;
};

TEST_F(BenchProfile, RowsAndTheRestAreTheStep) {
  ASSERT_EQ(profiles_.size(), 3u);
  EXPECT_TRUE(finite_);
  for (const StepProfile& p : profiles_) {
    EXPECT_GT(p.kernel_seconds(), 0);
    EXPECT_GE(p.outside_seconds(), 0);
    for (const Grouping grouping : {Grouping::op, Grouping::site, Grouping::node}) {
      double sum = p.outside_seconds();
      for (const ProfileRow& r : profile_rows(p, grouping, limits_, caches_)) sum += r.seconds;
      EXPECT_NEAR(sum / p.seconds, 1, 0.02);
    }
    EXPECT_GE(p.seconds, fastest(profiles_).seconds);
  }
}

TEST_F(BenchProfile, EveryNodeOfAStepIsThere) {
  int64_t nodes = 0;
  double flops = 0;
  for (const char* name : {"microbatch", "gradient_norm", "update"}) {
    const ExecutablePlan& e = stepper_.program().executable(name).plan();
    const int64_t runs = std::string_view(name) == "microbatch" ? 2 : 1;
    for (size_t i = 0; i < e.kernels.size(); ++i)
      if (e.kernels[i].run != nullptr)
        nodes += runs, flops += static_cast<double>(runs) * work_of(e.graph, e.graph.nodes[i]).flops;
  }
  EXPECT_EQ(profiles_[0].events.size(), static_cast<size_t>(nodes));
  for (const Grouping grouping : {Grouping::op, Grouping::site, Grouping::node}) {
    int64_t counted = 0;
    double sum = 0;
    for (const ProfileRow& r : profile_rows(profiles_[0], grouping, limits_, caches_)) {
      counted += r.nodes, sum += r.flops;
      EXPECT_GT(r.seconds, 0);
      EXPECT_GT(r.limit, 0) << r.op;
    }
    EXPECT_EQ(counted, nodes);
    EXPECT_DOUBLE_EQ(sum, flops);
  }
}

TEST_F(BenchProfile, LayersShareTheRowOfTheirPlace) {
  const auto rows = profile_rows(profiles_[0], Grouping::site, limits_, caches_);
  const auto at = std::ranges::find_if(
      rows, [](const ProfileRow& r) { return r.op == "linear" && r.site.ends_with("layers.*/mlp/up_proj"); });
  ASSERT_NE(at, rows.end());
  EXPECT_EQ(at->nodes, 2 * c_.model.layers);
  EXPECT_TRUE(std::ranges::is_sorted(rows, std::greater{}, &ProfileRow::seconds));
  const std::string text = profile_text(profiles_[0], rows);
  for (const char* part : {"linear layers.*/mlp/up_proj", "outside the kernels", "of limit", "ms above", "\nstep "})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

// The trace event format: complete events with microseconds; those of a track nest or follow each other.
TEST_F(BenchProfile, TheTraceIsOneThatViewersRead) {
  const StepProfile& p = profiles_[1];
  const Json trace = Json::parse(trace_text(p, limits_, caches_));
  ASSERT_TRUE(trace.is_array());
  std::map<int, std::string> tracks;
  std::map<int, double> end_of;  // of the last event of the track
  double kernels = 0;
  std::vector<std::string> executables;
  for (const Json& e : trace) {
    if (e["ph"] == "M") {
      if (e["name"] == "thread_name") tracks[e["tid"]] = e["args"]["name"];
      continue;
    }
    EXPECT_EQ(e["ph"], "X");
    EXPECT_EQ(e["pid"], 1);
    const double start = e["ts"], duration = e["dur"];
    EXPECT_GE(start, 0);
    EXPECT_GE(duration, 0);
    EXPECT_LE(start + duration, 1e6 * p.seconds * (1 + 1e-9));
    EXPECT_TRUE(tracks.contains(e["tid"])) << e;
    if (e["cat"] == "executable") executables.push_back(e["name"]);
    if (e["cat"] != "kernel") continue;
    kernels += duration;
    EXPECT_GE(start, end_of[e["tid"]]) << e;
    end_of[e["tid"]] = start + duration - 1e-3;  // a nanosecond of rounding
    EXPECT_FALSE(e["args"]["results"].empty());
  }
  EXPECT_NEAR(kernels / (1e6 * p.kernel_seconds()), 1, 1e-6);
  EXPECT_EQ(executables, (std::vector<std::string>{"microbatch", "microbatch", "gradient_norm", "update"}));
  EXPECT_EQ(tracks, (std::map<int, std::string>{{1, "step"}, {2, "kernels"}}));
}

}  // namespace
}  // namespace nibble
