// nibble bench on tiny shapes: every figure is there, consistent, and of the kernels that were asked for.
#include "../../apps/nibble/bench.cpp"  // the command is no library

#include <gtest/gtest.h>

#include <set>

#include "apps/outcome.h"

namespace nibble {
namespace {

TEST(Bench, GemmMeasuresEveryProduct) {
  const Outcome r =
      outcome_of(bench_command, {"gemm", "model_name=nibble-1m", "per_device_batch_size=1", "max_target_length=64",
                                 "--repeats", "1", "--json", "threads=1", "cpu_target=auto"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["cpu_target"], name_of(cpu_targets().back()));
  std::set<std::string> gemms;
  for (const auto& g : j["gemms"]) {
    gemms.insert(g["gemm"]);
    EXPECT_GT(g["seconds"].get<double>(), 0) << g;
    const double flops =
        (g["gemm"] == "head" ? 6.0 : 2.0) * g["m"].get<double>() * g["n"].get<double>() * g["k"].get<double>();
    EXPECT_NEAR(g["flops_per_second"].get<double>() * g["seconds"].get<double>() / flops, 1, 1e-9) << g;
    if (cpu_runs(CpuTarget::avx2)) {
      EXPECT_GT(g["share"].get<double>(), 0) << g;
    }
  }
  EXPECT_EQ(gemms, (std::set<std::string>{"fprop", "dgrad", "wgrad", "head"}));
  EXPECT_EQ(j["gemms"].back()["site"], "square");
}

TEST(Bench, TrainMeasuresAStepAndItsOperations) {
  const Outcome r = outcome_of(
      bench_command, {"train", "model_name=nibble-1m", "per_device_batch_size=1", "max_target_length=16",
                      "gradient_accumulation_steps=2", "--repeats=2", "--json", "threads=2", "cpu_target=auto"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["repeats"], 2);
  EXPECT_EQ(j["rows"], 2);
  EXPECT_NEAR(j["tokens_per_second"].get<double>() * j["step_seconds"].get<double>(), 32, 1e-6);
  double flops = 0, seconds = 0;
  for (const auto& o : j["operations"]) flops += o["flops"].get<double>(), seconds += o["seconds"].get<double>();
  EXPECT_EQ(flops, j["executed_flops"].get<double>());
  EXPECT_GT(seconds, 0);
  EXPECT_GT(j["arena_bytes"].get<int64_t>(), 4 * 4 * 918656);
}

TEST(Bench, TextHasTheTable) {
  const Outcome r = outcome_of(bench_command, {"train", "model_name=nibble-1m", "per_device_batch_size=1",
                                               "max_target_length=16", "--repeats=1"});
  EXPECT_EQ(r.exit, 0);
  for (const char* part : {"tokens/s", "linear_wgrad", "outside the kernels", "FMA peak"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " in\n" << r.out;
}

TEST(Bench, WhatIsNotThereIsNamed) {
  for (const char* name : {"attention", "quantize", "generate", "data", "all", "--calibrate"}) {
    const Outcome r = outcome_of(bench_command, {name});
    EXPECT_EQ(r.id, "E010") << name;
    EXPECT_NE(r.message.find("not in this version"), std::string::npos) << r.message;
  }
  EXPECT_EQ(outcome_of(bench_command, {"gemm", "--save", "x.json"}).id, "E010");
  EXPECT_EQ(outcome_of(bench_command, {"gemm", "--compare=x.json"}).id, "E010");
  EXPECT_EQ(outcome_of(bench_command, {}).id, "E007");
  EXPECT_EQ(outcome_of(bench_command, {"gemmm"}).id, "E007");
  EXPECT_EQ(outcome_of(bench_command, {"gemm", "--repeats", "0"}).id, "E002");
  EXPECT_EQ(outcome_of(bench_command, {"train", "model_name=llama3-8b", "memory_limit=1G"}).id, "E107");
}

}  // namespace
}  // namespace nibble
