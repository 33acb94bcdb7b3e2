// What the plan says of a run: parameter counts, memory classes, matrix products, FLOPs.
#include "plan/report.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <numeric>

#include "train/fits.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

Config config_of(std::vector<std::string> words) {
  static const std::vector<std::string> environment;
  ResolveOptions options{.command = "plan"};
  options.environment = &environment;
  words.push_back("dataset_type=synthetic");
  return resolve(words, options).config;
}

PlanReport report_of(const Config& c, const ProgramPlan& plan, bool layers = false) {
  const StepConfig step = step_of(c);
  return make_report(plan,
                     {.model_name = c.get_string("model_name"),
                      .model = step.model,
                      .batch = step.microbatch.rows,
                      .length = step.microbatch.length,
                      .accumulation = step.accumulation,
                      .steps = 100,
                      .memory_limit = int64_t{1} << 40},
                     layers);
}

struct Model {
  const char* name;
  int64_t parameters;
};
// spec/training.md 3; nibble's own sizes as their files say.
const Model models[] = {{"default", 1104218112},         {"nibble-1m", 918656},         {"nibble-10m", 8933440},
                        {"nibble-34m", 33563136},        {"nibble-135m", 124635456},    {"smollm2-135m", 134515008},
                        {"llama2-7b", 6738415616},       {"llama2-13b", 13015864320},   {"llama2-70b", 68976648192},
                        {"llama3-8b", 8030261248},       {"llama3.1-8b", 8030261248},   {"llama3-70b", 70553706496},
                        {"llama3.1-70b", 70553706496},   {"llama3.3-70b", 70553706496}, {"llama3-405b", 405853388800},
                        {"llama3.1-405b", 405853388800}, {"llama3.2-1b", 1235814400},   {"llama3.2-3b", 3212749824},
                        {"mistral-7b", 7241732096}};

int64_t expected_parameters(const std::string& name) {
  for (const Model& m : models)
    if (m.name == name) return m.parameters;
  return 0;
}

TEST(TrainingT29, EveryPackagedModelHasItsParameters) {
  for (const std::string& name : model_names())
    EXPECT_EQ(parameter_count(llama_of(config_of({"model_name=" + name}))), expected_parameters(name)) << name;
  EXPECT_EQ(model_names().size(), std::size(models));
}

// The states of the plan hold exactly the parameters, four times over with AdamW.
TEST(TrainingT29, ThePlanHoldsThemWithoutAllocating) {
  for (const char* name : {"llama3-8b", "llama2-70b"}) {
    const Config c = config_of({std::string("model_name=") + name, "per_device_batch_size=1", "max_target_length=64"});
    const ProgramPlan plan = plan_run(c, 2, CpuTarget::ref);
    int64_t weights = 0, others = 0;
    for (const StateInfo& s : plan.states) {
      if (s.role == StateRole::parameter)
        weights += s.type.numel();
      else if (s.role != StateRole::constant)
        others += s.type.numel();
    }
    EXPECT_EQ(weights, expected_parameters(name));
    EXPECT_EQ(others, 3 * weights);
  }
}

TEST(TrainingT29, TheLargestModelIsPlannedInSeconds) {
  const auto start = std::chrono::steady_clock::now();
  const Config c = config_of({"model_name=llama3.1-405b", "per_device_batch_size=1", "max_target_length=8192"});
  const PlanReport report = report_of(c, plan_run(c, 2, CpuTarget::ref));
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20);  // 0.6 alone
  EXPECT_EQ(report.parameters, 405853388800);
  EXPECT_EQ(report.memory[0].bytes, 4 * report.parameters);
  EXPECT_NEAR(report.model_flops.total() / 1e12, 20676.25, 0.005);
  EXPECT_NE(plan_text(report, false).find("layers.0-125/self_attn/q_proj"), std::string::npos);
}

const std::vector<std::string> shapes[] = {
    {"model_name=nibble-1m", "max_target_length=64", "per_device_batch_size=2"},
    {"model_name=nibble-1m", "max_target_length=48", "per_device_batch_size=3", "gradient_accumulation_steps=2"},
    {"model_name=nibble-1m", "max_target_length=16", "per_device_batch_size=1"},  // the update needs more than the step
    {"model_name=nibble-1m", "max_target_length=64", "per_device_batch_size=1", "opt_type=sgd"},
    {"model_name=nibble-1m", "max_target_length=32", "sample_interval=10"},
    {"model_name=nibble-10m", "max_target_length=32", "per_device_batch_size=1", "eval_fraction=0.5",
     "eval_per_device_batch_size=9"},
    {"model_name=smollm2-135m", "max_target_length=32", "per_device_batch_size=1"}};

TEST(PlanL10, ClassesAddUpToTheArena) {
  for (const auto& words : shapes) {
    const ProgramPlan plan = plan_run(config_of(words), 2, cpu_targets().back());
    int64_t sum = 0;
    for (const MemoryClass& c : memory_classes(plan)) {
      EXPECT_GE(c.bytes, 0) << c.name;
      sum += c.bytes;
    }
    EXPECT_EQ(sum, plan.arena_bytes()) << fmt::format("{}", fmt::join(words, " "));
  }
}

int64_t class_bytes(const ProgramPlan& plan, const std::string& name) {
  for (const MemoryClass& c : memory_classes(plan))
    if (c.name == name) return c.bytes;
  ADD_FAILURE() << "no class " << name;
  return 0;
}

// Twice the rows keep twice the activations; states do not move.
TEST(PlanL10, KeptActivationsFollowTheBatch) {
  const ProgramPlan one = plan_run(
      config_of({"model_name=nibble-10m", "max_target_length=64", "per_device_batch_size=2"}), 1, CpuTarget::ref);
  const ProgramPlan two = plan_run(
      config_of({"model_name=nibble-10m", "max_target_length=64", "per_device_batch_size=4"}), 1, CpuTarget::ref);
  EXPECT_GT(class_bytes(one, "activations kept"), 0);
  EXPECT_EQ(class_bytes(two, "activations kept"), 2 * class_bytes(one, "activations kept"));
  EXPECT_EQ(class_bytes(two, "weights"), class_bytes(one, "weights"));
  EXPECT_EQ(class_bytes(one, "optimizer"), 2 * class_bytes(one, "weights"));
  EXPECT_EQ(class_bytes(one, "caches"), 0);
}

TEST(PlanL10, SamplesAddACache) {
  const ProgramPlan plan =
      plan_run(config_of({"model_name=nibble-1m", "max_target_length=32", "sample_interval=10"}), 1, CpuTarget::ref);
  const LlamaConfig m = llama_of(config_of({"model_name=nibble-1m"}));
  EXPECT_EQ(class_bytes(plan, "caches"), 2 * m.layers * 32 * m.kv_heads * m.head_size * 4);
}

// Bytes of the mapping that starts at `address`.
int64_t mapping_bytes(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &from, &to) == 2 && from == reinterpret_cast<uintptr_t>(address))
      return static_cast<int64_t>(to - from);
  }
  return -1;
}

// What is planned is what is mapped: to the byte, rounded up to pages.
TEST(TrainingT58, ThePlannedArenaIsTheMappedOne) {
  for (const auto& words : shapes) {
    const Config c = config_of(words);
    ProgramPlan plan = plan_run(c, 1, CpuTarget::ref);
    const int64_t planned = plan.arena_bytes();
    Program program(std::move(plan));
    const StateInfo& first = program.plan().states.front();
    ASSERT_EQ(first.offset, 0);
    EXPECT_EQ(mapping_bytes(program.state(first.role, first.name).data), (planned + 4095) / 4096 * 4096)
        << fmt::format("{}", fmt::join(words, " "));
  }
}

TEST(PlanL7, MatrixProductsOfALayer) {
  const Config c = config_of({"model_name=nibble-34m"});
  const ProgramPlan plan = plan_run(c, 2, CpuTarget::ref);
  const std::vector<GemmRow> rows = gemm_rows(plan.executable("microbatch"), false);
  const auto find = [&](std::string_view site, std::string_view gemm) {
    for (const GemmRow& r : rows)
      if (r.site == site && r.gemm == gemm) return r;
    ADD_FAILURE() << "no row " << site << " " << gemm;
    return GemmRow{};
  };
  const auto expect = [&](const GemmRow& r, int64_t m, int64_t n, int64_t k, int64_t count) {
    EXPECT_EQ(r.m, m);
    EXPECT_EQ(r.n, n);
    EXPECT_EQ(r.k, k);
    EXPECT_EQ(r.count, count);
    EXPECT_EQ(r.flops, (r.gemm == "head" ? 6.0 : 2.0) * static_cast<double>(m * n * k)) << r.site << r.gemm;
    EXPECT_EQ(r.kernel, "ref");
    EXPECT_EQ(r.format, "f32");
  };
  expect(find("layers.0-7/self_attn/q_proj", "fprop"), 2048, 512, 512, 8);
  expect(find("layers.0-7/self_attn/q_proj", "wgrad"), 512, 512, 2048, 8);
  expect(find("layers.0-7/self_attn/q_proj+k_proj+v_proj", "dgrad"), 2048, 512, 1024, 8);
  expect(find("layers.0-7/mlp/gate_proj+up_proj", "dgrad"), 2048, 512, 3072, 8);
  expect(find("layers.0-7/mlp/down_proj", "dgrad"), 2048, 1536, 512, 8);
  expect(find("head", "head"), 2048, 8192, 512, 1);
  EXPECT_EQ(rows.size(), 19u);
  const std::vector<GemmRow> all = gemm_rows(plan.executable("microbatch"), true);
  EXPECT_EQ(all.size(), 8u * 18 + 1);
  EXPECT_EQ(all.front().site.substr(0, 9), "layers.0/");
}

// The executed products of weights are those of the formula; attention runs 7 products of the triangle, not 6.
TEST(PlanL7, ExecutedAgreesWithTheFormula) {
  const Config c = config_of({"model_name=nibble-34m", "gradient_accumulation_steps=2"});
  const PlanReport r = report_of(c, plan_run(c, 2, CpuTarget::ref));
  double weights = 0, attention = 0;
  for (const OpRow& o : r.ops) {
    if (o.op.starts_with("linear") || o.op.starts_with("cross_entropy")) weights += o.flops;
    if (o.op.starts_with("attention")) attention += o.flops;
  }
  EXPECT_EQ(weights, r.model_flops.weights);
  EXPECT_DOUBLE_EQ(attention, r.model_flops.attention * 7 / 6 * 513 / 512);  // the diagonal counts whole
  EXPECT_GT(r.traffic_bytes, 0);
}

TEST(PlanL28, JsonSaysWhatTheTextSays) {
  const Config c = config_of({"model_name=nibble-34m"});
  const PlanReport r = report_of(c, plan_run(c, 2, CpuTarget::ref));
  const auto j = plan_json(r);
  EXPECT_EQ(j["schema"], "nibble-plan-1");
  EXPECT_EQ(j["parameters"], 33563136);
  int64_t sum = 0;
  for (const auto& [name, bytes] : j["memory"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, j["arena_bytes"].get<int64_t>());
  EXPECT_EQ(j["gemms"].size(), 19u);
  EXPECT_EQ(plan_json(r).dump(), plan_json(report_of(c, plan_run(c, 2, CpuTarget::ref))).dump());
  const std::string text = plan_text(r, true);
  EXPECT_NE(text.find(grouped(r.arena_bytes)), std::string::npos);
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    EXPECT_LE(end - at, 130u) << text.substr(at, end - at);
  }
}

TEST(PlanL28, Numbers) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(size_text(64), "64 B");
  EXPECT_EQ(size_text(1536), "1.50 KiB");
  EXPECT_EQ(size_text(1129816192), "1.05 GiB");
}

}  // namespace
}  // namespace nibble
