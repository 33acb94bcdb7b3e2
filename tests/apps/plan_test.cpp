// nibble plan, run as the program runs it: results, exit codes and error rows of spec/plan.md 1 and
// spec/training.md 7.2.
#include "../../apps/nibble/plan.cpp"  // the command is no library

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

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
      {{"quantization=te_nvfp4", "amax_scope=local"}, "E010"},
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

// ---- recipes ----

using Formats = std::map<std::pair<std::string, std::string>, std::string>;  // site and GEMM: the operands

Formats formats_of(std::vector<std::string> words, std::vector<std::string>* left = nullptr) {
  words.insert(words.end(), {"model_name=nibble-1m", "threads=2", "cpu_target=ref"});
  std::vector<std::string> as_json = words;
  as_json.insert(as_json.end(), {"--json", "--layers"});
  const Outcome json = outcome_of(plan_command, as_json), text = outcome_of(plan_command, words);
  EXPECT_EQ(json.exit, 0) << json.message;
  EXPECT_EQ(text.exit, 0) << text.message;
  Formats formats;
  const auto report = nlohmann::json::parse(json.out);
  for (const auto& g : report["gemms"]) {
    formats[std::pair(g["site"].get<std::string>(), g["gemm"].get<std::string>())] = g["format"].get<std::string>();
    EXPECT_NE(text.out.find("  " + g["format"].get<std::string>() + " "), std::string::npos) << g["format"];
  }
  if (left != nullptr) {
    std::istringstream lines(text.out);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("  not quantized: ")) left->push_back(line.substr(17));
  }
  return formats;
}

// What nibble-1m has: four layers, seven linears each; the products that share an input have one dgrad.
void expect_formats(const Formats& formats, const std::vector<bool>& quantised, const char* fprop, const char* dgrad,
                    const char* wgrad, const char* otherwise) {
  size_t seen = 1;
  for (size_t i = 0; i < quantised.size(); ++i) {
    const std::string layer = fmt::format("layers.{}/", i);
    const auto expect = [&](const std::string& site, const char* gemm, const char* format) {
      const auto found = formats.find({layer + site, gemm});
      ASSERT_TRUE(found != formats.end()) << layer << site << " " << gemm;
      EXPECT_EQ(found->second, quantised[i] ? format : otherwise) << layer << site << " " << gemm;
      ++seen;
    };
    for (const char* site : {"self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj", "self_attn/o_proj",
                             "mlp/gate_proj", "mlp/up_proj", "mlp/down_proj"})
      expect(site, "fprop", fprop), expect(site, "wgrad", wgrad);
    for (const char* site :
         {"self_attn/q_proj+k_proj+v_proj", "self_attn/o_proj", "mlp/gate_proj+up_proj", "mlp/down_proj"})
      expect(site, "dgrad", dgrad);
  }
  EXPECT_EQ(formats.at({"head", "head"}), otherwise);
  EXPECT_EQ(formats.size(), seen);
}

TEST(PrecisionP49, ThePlanSaysHowEachOperandIsMade) {
  const std::vector<bool> all(4, true), but_last = {true, true, true, false};
  std::vector<std::string> left;
  expect_formats(formats_of({"quantization=te_nvfp4"}, &left), all, "nvfp4, nvfp4_2d", "nvfp4 stochastic, nvfp4_2d",
                 "nvfp4 stochastic hadamard=16, nvfp4 hadamard=16", "f32");
  EXPECT_EQ(left, (std::vector<std::string>{"head, embedding, attention, norms: by no recipe"}));
  left.clear();
  expect_formats(formats_of({"quantization=nvfp4", "dtype=bfloat16"}, &left), but_last, "nvfp4, nvfp4_2d",
                 "nvfp4 stochastic, nvfp4_2d", "nvfp4 stochastic hadamard=16, nvfp4 hadamard=16", "bf16");
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0], "7 linear layers: layers from 3 on stay in high precision");
  expect_formats(formats_of({"quantization=mxfp4"}), all, "mxfp4, mxfp4", "mxfp4, mxfp4", "mxfp4, mxfp4", "f32");
  expect_formats(formats_of({"quantization=quartet2"}), all, "nvfp4 four_six=mse, nvfp4 four_six=mse",
                 "nvfp4 eden hadamard=128, nvfp4 eden hadamard=128", "nvfp4 eden hadamard=128, nvfp4 eden hadamard=128",
                 "f32");
  expect_formats(formats_of({"quantization=mxfp4_tseng"}), all, "f32",
                 "mxfp4 stochastic floor hadamard=64, mxfp4 stochastic floor hadamard=64",
                 "mxfp4 stochastic floor hadamard=64, mxfp4 stochastic floor hadamard=64", "f32");
  expect_formats(formats_of({"quantization=mxfp4_quartet"}), all, "mxfp4 quest hadamard=32, mxfp4 quest hadamard=32",
                 "mxfp4 stochastic floor hadamard=32, mxfp4 stochastic floor hadamard=32",
                 "mxfp4 stochastic floor hadamard=32, mxfp4 stochastic floor hadamard=32", "f32");
  expect_formats(formats_of({"quantization=te_fp8_delayedscaling"}), all, "e4m3 delayed, e4m3 delayed",
                 "e5m2 delayed, e4m3 delayed", "e5m2 delayed, e4m3 delayed", "f32");
  expect_formats(formats_of({"quantization=te_nvfp4", "tensor_scale=pow2", "recipe_disable=[rht,weight_2d]",
                             "high_precision_last_layers=1"}),
                 but_last, "nvfp4 pow2, nvfp4 pow2", "nvfp4 stochastic pow2, nvfp4 pow2",
                 "nvfp4 stochastic pow2, nvfp4 pow2", "f32");
  left.clear();
  const Formats mlp = formats_of({"quantization=te_nvfp4", "quantize_sites=mlp"}, &left);
  EXPECT_EQ(mlp.at({"layers.2/self_attn/o_proj", "fprop"}), "f32");
  EXPECT_EQ(mlp.at({"layers.2/mlp/up_proj", "fprop"}), "nvfp4, nvfp4_2d");
  EXPECT_EQ(left.at(0), "16 linear layers: quantize_sites=mlp");
}

TEST(PrecisionP57, ThePlanShowsBothPhases) {
  std::vector<std::string> words = {"model_name=nibble-1m",  "steps=100", "lr_schedule_type=wsd",
                                    "quantization=te_nvfp4", "--layers",  "finish_high_precision=bwd_bf16",
                                    "dtype=bfloat16",        "threads=1"};
  const Outcome text = outcome_of(plan_command, words);
  EXPECT_NE(text.out.find("finish   finish_high_precision=bwd_bf16 from step 90 on\n"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("matrix products of a microbatch, finish_high_precision=bwd_bf16 from step 90 on\n"),
            std::string::npos);
  words.emplace_back("--json");
  const auto j = nlohmann::json::parse(outcome_of(plan_command, words).out);
  EXPECT_EQ(j["finish"]["when"], "finish_high_precision=bwd_bf16 from step 90 on");
  ASSERT_EQ(j["gemms"].size(), j["finish"]["gemms"].size());
  for (const auto& before : j["gemms"]) {
    const auto& rows = j["finish"]["gemms"];
    const auto same = std::ranges::find_if(rows, [&](const auto& row) {
      return row["site"] == before["site"] && row["gemm"] == before["gemm"];
    });
    ASSERT_NE(same, rows.end()) << before.dump();
    const auto& after = *same;
    if (before["gemm"] == "fprop" || before["gemm"] == "head")
      EXPECT_EQ(before["format"], after["format"]) << before["site"];
    else
      EXPECT_EQ(after["format"], "bf16") << before["site"];
  }
}

TEST(PrecisionRecipes, ThePlanSaysWhatAutoChoseAndWhy) {
  const Outcome narrow = outcome_of(plan_command, {"model_name=nibble-1m", "quantization=auto"});
  EXPECT_NE(narrow.out.find("recipe   quantization=auto: no recipe; the model's width 128 is below 256"),
            std::string::npos)
      << narrow.out;
  if (!cpu_runs(CpuTarget::avx2)) GTEST_SKIP() << "this CPU has no AVX2: auto chooses no recipe there";
  const Outcome r = outcome_of(plan_command, {"model_name=nibble-10m", "quantization=auto", "cpu_target=avx2"});
  EXPECT_NE(r.out.find("recipe   quantization=auto: te_nvfp4; integer products of 4-bit operands (avx2 kernels)"),
            std::string::npos)
      << r.out;
  EXPECT_NE(r.out.find("nvfp4 stochastic hadamard=16, nvfp4 hadamard=16"), std::string::npos);
}

TEST(PrecisionP28, ThePlanRefusesWhatIsNoRecipe) {
  const struct {
    std::vector<std::string> words;
    const char *id, *says;
  } rows[] = {
      {{"quantization=quartet2", "recipe_disable=[rht]"}, "E102", "EDEN needs the rotation of 128"},
      {{"quantization=quartet2", "recipe_disable=[sr,rht]", "tensor_scale=pow2"}, "E102", "EDEN needs the rotation"},
      {{"quantization=bf16"}, "E102", "quantization=bf16 needs dtype=bfloat16"},
      {{"quantization=fp32", "dtype=bfloat16"}, "E102", "quantization=fp32 needs dtype=float32"},
      {{"quantization=te_nvfp5"}, "E502", "te_nvfp5"},
      {{"quantization=NVFP4"}, "E502", "NVFP4"},
      {{"quantization=int8"}, "E502", "int8"},
      {{"quantization=te_nvfp4", "recipe_disable=[rounding]"}, "E002", "recipe_disable"},
      {{"quantization=te_nvfp4", "quantize_sites=attention"}, "E002", "quantize_sites"},
      {{"quantization=te_nvfp4", "high_precision_last_layers=-1"}, "E002", "high_precision_last_layers"},
      {{"quantization=te_nvfp4", "recipe_addons=[oscireset]"}, "E010", "recipe_addons"},
      {{"quantization=te_nvfp4", "recipe_addons=[sr_vmax,averis]"}, "E010", "recipe_addons"},
      {{"quantization=te_nvfp4", "finish_high_precision=fwd_bf16", "finish_high_precision_start=auto"},
       "E010",
       "the noise of the gradient"},
      {{"quantization=quartet2", "finish_high_precision=fwd_bf16"}, "E102", "nothing is saved"},
      {{"quantization=te_nvfp4", "finish_high_precision=fwd_bf16", "lr_schedule_type=constant"},
       "E102",
       "a constant one has none"},
      {{"quantization=te_nvfp4", "recipe_file=x.yml"}, "E102", "both say what the recipe is"},
      {{"quantization=te_nvfp4", "model_name=nibble-1m", "high_precision_last_layers=4"},
       "E502",
       "te_nvfp4 quantises nothing: the first 0 and the last 4 of 4 layers"},
      {{"recipe_file=no_such_recipe.yml"}, "E005", "no_such_recipe.yml"}};
  for (const auto& row : rows) {
    const Outcome r = outcome_of(plan_command, row.words);
    EXPECT_EQ(r.id, row.id) << fmt::format("{}", fmt::join(row.words, " ")) << ": " << r.message;
    EXPECT_NE(r.message.find(row.says), std::string::npos) << r.message;
    EXPECT_EQ(r.out, "") << row.words[0];
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
