// remat_policy: no policy changes a result (obligation T18 of spec/training.md), names keep what they name, and auto
// recomputes the least that fits.
#include "train/remat.h"

#include <fstream>
#include <iterator>

#include "passes/recompute.h"
#include "plan/report.h"
#include "tiny.h"
#include "train/fits.h"
#include "train/trainer.h"

namespace nibble {
namespace {

const std::vector<std::string> policies = {"none",
                                           "full",
                                           "minimal",
                                           "minimal_with_context",
                                           "minimal_with_quantization",
                                           "minimal_with_context_and_quantization",
                                           "minimal_flash",
                                           "minimal_offloaded",
                                           "save_dot_with_context_except_mlp",
                                           "save_dot_except_mlpwi",
                                           "save_dot_except_mlp",
                                           "save_qkv_proj",
                                           "save_out_proj",
                                           "qkv_proj_offloaded",
                                           "custom"};

struct Trained {
  std::vector<double> losses, norms;
  uint64_t weights = 0, m = 0, v = 0;
  bool operator==(const Trained&) const = default;
};

Trained train(const StepConfig& c, ProgramPlan plan) {
  Stepper s(c, std::move(plan));
  initialize_parameters(s.program(), s.parameters(), 3);
  Trained t;
  for (int64_t step = 0; step < 2; ++step) {
    const RandomRows data(c.accumulation * c.microbatch.rows, c.microbatch.length, 260, static_cast<uint32_t>(step), 2);
    const StepResult r = s.run(data.rows(), 1e-2, step + 1);
    t.losses.push_back(r.loss.loss()), t.norms.push_back(r.raw_norm);
  }
  t.weights = hash_of_states(s, StateRole::parameter), t.m = hash_of_states(s, StateRole::moment_m),
  t.v = hash_of_states(s, StateRole::moment_v);
  return t;
}

TEST(TrainingT18, EveryPolicyGivesTheSameBits) {
  const std::vector<std::string> words = {"dataset_type=synthetic", "gradient_accumulation_steps=2",
                                          "z_loss_multiplier=1e-4"};
  for (const CpuTarget target : cpu_targets()) {
    const Config plain = tiny_config(words);
    const StepConfig step = step_of(plain);
    const int64_t least = plan_run(plain.with("remat_policy", "full", "test"), 2, target).arena_bytes();
    const ProgramPlan kept = plan_run(plain, 2, target);
    const Trained want = train(step, kept);
    EXPECT_EQ(kept.recomputation.nodes, 0);
    EXPECT_TRUE(std::isfinite(want.losses[1]) && want.losses[0] != want.losses[1]);
    for (const std::string& policy : policies)
      EXPECT_EQ(train(step, plan_run(plain.with("remat_policy", policy, "test"), 2, target)), want)
          << policy << " " << name_of(target);
    for (const int64_t limit : {kept.arena_bytes() - 1, (kept.arena_bytes() + least) / 2, least}) {
      ProgramPlan plan = plan_run(plain.with("memory_limit", std::to_string(limit), "test"), 2, target);
      EXPECT_LE(plan.arena_bytes(), limit);
      EXPECT_GT(plan.recomputation.nodes, 0);
      EXPECT_EQ(train(step, std::move(plan)), want) << "auto at " << limit << " " << name_of(target);
    }
  }
}

// Checkpoint files of whole runs: weights, moments, and nibble.json, which holds no key of this kind.
TEST(TrainingT18, CheckpointsAreTheSameFiles) {
  const TemporaryFolder folder;
  const std::string book = write_book(folder);
  std::map<std::string, std::string> want;
  for (const std::string& policy : policies) {
    testing::internal::CaptureStdout(), testing::internal::CaptureStderr();
    run_training(tiny_config({"steps=2", "run_name=run_" + policy, "remat_policy=" + policy, "query_proj=device",
                              "base_output_directory=" + (folder / "out"), "train_files=[" + book + "]"}),
                 {});
    testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr();
    std::map<std::string, std::string> files;
    const std::filesystem::path step = folder / ("out/run_" + policy + "/checkpoints/00000002");
    for (const auto& entry : std::filesystem::recursive_directory_iterator(step)) {
      if (!entry.is_regular_file() || entry.path().filename() == "run_info.json") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      files[std::filesystem::relative(entry.path(), step).string()] = {std::istreambuf_iterator<char>(in), {}};
    }
    if (want.empty()) want = files;
    EXPECT_GE(files.size(), 4u);
    EXPECT_EQ(files.size(), want.size());
    for (const auto& [name, bytes] : want) EXPECT_TRUE(files[name] == bytes) << policy << " " << name;
  }
}

Config model_config(std::vector<std::string> words) {
  const std::vector<std::string> no_environment;
  ResolveOptions options{.command = "plan"};
  options.environment = &no_environment;
  words.push_back("dataset_type=synthetic");
  return resolve(words, options).config;
}
ProgramPlan plan_of(const Config& c) { return plan_run(c, 2, CpuTarget::ref); }

std::set<std::string> recomputed_sites(const ProgramPlan& plan) {
  std::set<std::string> sites;
  for (const Node& n : plan.executable("microbatch").graph.nodes)
    if (is_recomputed(n) && !n.op->view && n.label.find("layers.2/") != std::string::npos)
      sites.insert(fmt::format("{} {}", n.label.substr(n.label.find("layers.2/") + 9), n.op->name));
  return sites;
}

TEST(TrainingRemat, NamesKeepWhatTheyName) {
  const auto of = [](std::vector<std::string> words) {
    words.push_back("model_name=nibble-1m");
    return recomputed_sites(plan_of(model_config(words)));
  };
  using Sites = std::set<std::string>;
  const Sites norms = {"input_layernorm rms_norm", "post_attention_layernorm residual_rms_norm", "mlp swiglu"};
  const auto with = [&](Sites more) {
    more.insert(norms.begin(), norms.end());
    return more;
  };
  const Sites qkv = {"self_attn/q_proj linear", "self_attn/k_proj linear", "self_attn/v_proj linear",
                     "self_attn rope_pair"},
              mlp = {"mlp/gate_proj linear", "mlp/up_proj linear"};
  EXPECT_EQ(of({"remat_policy=none"}), Sites{});
  for (const char* recipe : {"quantization=te_nvfp4", "quantization=fp8_delayed"}) {  // products have their names still
    const Sites kept = of({"remat_policy=minimal_with_context", recipe}), none = of({"remat_policy=full", recipe});
    EXPECT_FALSE(kept.contains("mlp/up_proj qlinear")) << recipe;
    EXPECT_FALSE(kept.contains("self_attn/q_proj qlinear")) << recipe;
    EXPECT_TRUE(none.contains("mlp/up_proj qlinear")) << recipe;
    EXPECT_TRUE(none.contains("self_attn/q_proj qlinear")) << recipe;
  }
  EXPECT_EQ(of({"remat_policy=minimal_with_context"}), with({}));
  EXPECT_EQ(of({"remat_policy=minimal"}), with({"self_attn/attention attention"}));
  EXPECT_EQ(of({"remat_policy=save_dot_with_context_except_mlp"}), with(mlp));
  Sites all = with(mlp);
  all.insert({"self_attn/attention attention", "self_attn/o_proj linear"});
  EXPECT_EQ(of({"remat_policy=save_qkv_proj"}), all);
  all.insert(qkv.begin(), qkv.end());
  EXPECT_EQ(of({"remat_policy=full"}), all);
  EXPECT_EQ(of({"remat_policy=custom"}), all);
  all.erase("self_attn/o_proj linear");
  EXPECT_EQ(of({"remat_policy=save_out_proj"}), all);
  EXPECT_EQ(of({"remat_policy=custom", "out_proj=offload"}), all);
  EXPECT_EQ(of({"remat_policy=custom", "out_proj=device", "qkv_proj=device", "attention_out=device", "mlpwi=device"}),
            with({}));
}

// Bytes fall and FLOPs rise from policy to policy; executed FLOPs count them, the formula's do not.
TEST(TrainingRemat, PoliciesTradeBytesForFlops) {
  const Config c = model_config({"model_name=nibble-10m", "max_target_length=128"});
  const auto report = [&](const std::string& policy) {
    const Config with = c.with("remat_policy", policy, "test");
    const StepConfig step = step_of(with);
    return make_report(plan_of(with), {.model_name = "nibble-10m",
                                       .model = step.model,
                                       .batch = step.microbatch.rows,
                                       .length = step.microbatch.length,
                                       .accumulation = step.accumulation,
                                       .remat_policy = policy});
  };
  const PlanReport none = report("none");
  int64_t kept = none.recomputation.kept_bytes;
  double flops = 0;
  for (const std::string& policy : named_remat_policies()) {
    const PlanReport r = report(policy);
    EXPECT_LE(r.recomputation.kept_bytes, kept) << policy;
    EXPECT_GE(r.recomputation.flops, flops) << policy;
    EXPECT_EQ(r.recomputation.kept_before, none.recomputation.kept_bytes);
    EXPECT_LT(r.arena_bytes, none.arena_bytes) << policy;
    EXPECT_EQ(r.executed_flops, none.executed_flops + r.recomputation.flops) << policy;
    EXPECT_EQ(r.model_flops.total(), none.model_flops.total());
    double again = 0;
    for (const RematRow& row : r.recomputed) again += row.flops * static_cast<double>(row.count);
    EXPECT_EQ(again, r.recomputation.flops) << policy;
    kept = r.recomputation.kept_bytes, flops = r.recomputation.flops;
  }
}

// From one byte below what nothing costs down to the least: always within the limit, never fewer FLOPs for fewer bytes,
// never more FLOPs than the cheapest named policy that fits.
TEST(TrainingRemat, AutoRecomputesTheLeastThatFits) {
  const Config c = model_config({"model_name=nibble-10m", "max_target_length=128"});
  const auto plan = [&](int64_t limit) { return plan_of(c.with("memory_limit", std::to_string(limit), "test")); };
  const ProgramPlan none = plan_of(c);
  EXPECT_EQ(plan(none.arena_bytes()).recomputation.nodes, 0);
  const int64_t least = plan(none.state_bytes + 1).arena_bytes();
  EXPECT_EQ(plan(least).arena_bytes(), least);
  EXPECT_EQ(plan(least - 1).arena_bytes(), least) << "what does not fit says the least there is";
  std::vector<ProgramPlan> named;
  for (const std::string& policy : named_remat_policies())
    named.push_back(plan_of(c.with("remat_policy", policy, "t")));
  for (const ProgramPlan& p : named) EXPECT_LE(least, p.arena_bytes());
  double flops = 0;
  int64_t nodes = 0;
  for (int i = 0; i <= 8; ++i) {
    const int64_t limit = none.arena_bytes() - 1 - (none.arena_bytes() - 1 - least) * i / 8;
    const ProgramPlan p = plan(limit);
    EXPECT_LE(p.arena_bytes(), limit);
    EXPECT_GE(p.recomputation.flops, flops) << i;
    EXPECT_GT(p.recomputation.nodes, 0);
    for (const ProgramPlan& n : named) {
      if (n.arena_bytes() <= limit) {
        EXPECT_LE(p.recomputation.flops, n.recomputation.flops) << i;
      }
    }
    flops = p.recomputation.flops;
    nodes = std::max(nodes, p.recomputation.nodes);
  }
  EXPECT_LT(plan(none.arena_bytes() - 1).recomputation.nodes, 4) << "a byte is one tensor away";
  EXPECT_GT(nodes, 50);
}

// Where another executable is the largest, recomputation cannot help, and none is done.
TEST(TrainingRemat, AutoLeavesWhatItCannotHelp) {
  const Config c = model_config({"model_name=nibble-1m", "max_target_length=64", "per_device_batch_size=1",
                                 "eval_fraction=0.5", "eval_per_device_batch_size=64"});
  const ProgramPlan plan = plan_of(c);
  const ProgramPlan less = plan_of(c.with("memory_limit", std::to_string(plan.arena_bytes() - 1), "test"));
  EXPECT_EQ(less.arena_bytes(), plan.arena_bytes());
  EXPECT_EQ(less.recomputation.nodes, 0);
}

}  // namespace
}  // namespace nibble
