// nibble plan, run as the program runs it: results, exit codes and error rows of spec/plan.md 1 and
// spec/training.md 7.2.
#include "../../apps/nibble/plan.cpp"  // the command is no library

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/outcome.h"
#include "temporary_folder.h"

namespace nibble {
namespace {

TEST(PlanL12, PrintsWhatTheRunTakes) {
  const Outcome text = outcome_of(plan_command, {"model_name=nibble-34m", "threads=2", "cpu_target=ref"});
  EXPECT_EQ(text.exit, 0);
  for (const char* part :
       {"nibble-34m   33,563,136 parameters", "4 rows x 512 tokens x 1 microbatch = 2,048 tokens", "activations kept",
        "layers.0-7/self_attn/q_proj+k_proj+v_proj", "2048 x 512 x 512", "cross_entropy_grad"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " in\n" << text.out;
  EXPECT_EQ(text.out.find("passed over"), std::string::npos);
  const Outcome verbose = outcome_of(plan_command, {"model_name=nibble-1m", "cpu_target=ref", "-v", "--layers"});
  EXPECT_NE(verbose.out.find("linear: avx512_bf16: takes bf16 only; avx512: needs avx512, cpu_target is ref"),
            std::string::npos)
      << verbose.out;
  EXPECT_NE(verbose.out.find("layers.3/mlp/up_proj "), std::string::npos);
}

TEST(PlanL12, JsonAddsUp) {
  const Outcome r = outcome_of(plan_command, {"model_name=nibble-1m", "--json", "gradient_accumulation_steps=2"});
  EXPECT_EQ(r.exit, 0);
  const auto j = nlohmann::json::parse(r.out);
  int64_t sum = 0;
  for (const auto& [name, bytes] : j["memory"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, j["arena_bytes"].get<int64_t>());
  EXPECT_EQ(j["parameters"], 918656);
  EXPECT_EQ(j["accumulation"], 2);
}

// The plan is printed, then the error; what is in the file system plays no part.
TEST(PlanL13, ALargeModelIsPlannedAndDoesNotFit) {
  const Outcome r =
      outcome_of(plan_command, {"model_name=llama3-8b", "memory_limit=16Gi", "train_files=[/does/not/exist.txt]"});
  EXPECT_EQ(r.id, "E107");
  EXPECT_EQ(r.exit, exit_config);
  EXPECT_NE(r.out.find("8,030,261,248 parameters"), std::string::npos);
  EXPECT_EQ(outcome_of(plan_command, {"model_name=llama3-8b", "memory_limit=4T"}).exit, 0);
}

TEST(PlanL12, WhatTrainRefusesPlanRefuses) {
  const std::pair<std::vector<std::string>, const char*> rows[] = {
      {{"stepz=5"}, "E001"},
      {{"steps=fifty"}, "E002"},
      {{"nothing"}, "E004"},
      {{"none.yml"}, "E005"},
      {{"model_name=llama3-8c"}, "E009"},
      {{"quantization=te_nvfp4"}, "E010"},
      {{"per_device_batch_size=1.5"}, "E101"},
      {{"base_num_query_heads=5", "base_num_kv_heads=3"}, "E104"}};
  for (const auto& [words, id] : rows) EXPECT_EQ(outcome_of(plan_command, words).id, id) << words[0];
}

TEST(PlanL32, LaterOptionsAreRefusedByName) {
  for (const char* word : {"--search", "--rows=rows.json", "--compare"}) {
    const Outcome r = outcome_of(plan_command, {word});
    EXPECT_EQ(r.id, "E010") << word;
    EXPECT_EQ(r.exit, exit_usage) << word;
    EXPECT_NE(r.message.find("not in this version"), std::string::npos) << r.message;
  }
}

// The time of a step comes from a machine file; without one a line says what makes it.
TEST(PlanL32, TheMachineIsAFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(outcome_of(plan_command, {"machine=h100"}).id, "E113");
  EXPECT_EQ(outcome_of(plan_command, {"machine=" + folder.write("bad.json", "{}")}).id, "E114");
  Machine m = this_machine();
  const auto plan_with = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"machine=" + folder.write("machine.json", machine_text(m)), "model_name=nibble-1m",
                               "threads=2", "cpu_target=ref"});
    return outcome_of(plan_command, words);
  };
  const Outcome without = plan_with({});
  EXPECT_EQ(without.exit, 0);
  EXPECT_NE(without.out.find("machine.json has no prices for 2 threads; `nibble bench --calibrate`"), std::string::npos)
      << without.out;
  EXPECT_TRUE(nlohmann::json::parse(plan_with({"--json"}).out)["time"].is_null());
  m.date = "2026-01-31 12:00 UTC", m.version = "0.1.0 abc";
  m.limits = {{.threads = 2, .f32 = 1e11, .l1 = 1e11, .l2 = 1e11, .l3 = 1e11, .read = 1e10, .copy = 1e10}};
  m.prices = {{.op = "linear", .kernel = "ref", .format = "f32", .threads = 2, .flop = 1e-9}};
  const Outcome with = plan_with({});
  EXPECT_EQ(with.exit, 0) << with.message;
  for (const char* part : {"s a step +-10 %", "tokens/s", "measured 2026-01-31 12:00 UTC by nibble 0.1.0 abc",
                           "taken at the machine's limits: "})
    EXPECT_NE(with.out.find(part), std::string::npos) << part << " in\n" << with.out;
  const auto j = nlohmann::json::parse(plan_with({"--json"}).out);
  double sum = 0;
  for (const auto& [name, seconds] : j["time"]["parts"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, j["time"]["step_seconds"].get<double>(), 1e-9);
}

}  // namespace
}  // namespace nibble
