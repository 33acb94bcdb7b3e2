// Runs that end with another recipe (finish_high_precision), and recipes that nibble chooses: obligation P57 of
// spec/precision.md, and its sections 3.5, 3.8, 5.2.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "io/checkpoint.h"
#include "io/json.h"
#include "io/run_folder.h"
#include "ops/ops.h"
#include "tiny.h"
#include "train/fits.h"
#include "train/step.h"
#include "train/trainer.h"

namespace nibble {
namespace {

constexpr int64_t length = 32;

StepConfig with_recipe(std::string_view name, DType dtype = DType::f32) {
  StepConfig c;
  c.model = tiny_model(), c.microbatch = {2, length}, c.dtype = dtype, c.seed = 11;
  c.decayed = decay_mask(llama_parameters(c.model), {"norm"});
  c.recipe = *recipe_of(name, c.model.layers);
  return c;
}
StepConfig finishing(std::string_view name, const std::string& mode, int64_t step, DType dtype = DType::f32) {
  StepConfig c = with_recipe(name, dtype);
  c.finish = Finish{mode, step, finished(c.recipe, mode)};
  return c;
}

struct State {
  std::vector<double> losses;
  uint64_t weights = 0, m = 0, v = 0;
  bool operator==(const State&) const = default;
};
State state_of(Stepper& s, std::vector<double> losses) {
  return {std::move(losses), hash_of_states(s, StateRole::parameter), hash_of_states(s, StateRole::moment_m),
          hash_of_states(s, StateRole::moment_v)};
}

// Steps [0, count), those from the switch on finished.
State train(const StepConfig& c, int64_t count, CpuTarget target = cpu_targets().back()) {
  Stepper s(c, plan_training(c, 2, target));
  initialize_parameters(s.program(), s.parameters(), 3);
  std::vector<double> losses;
  for (int64_t step = 0; step < count; ++step) {
    s.finish(c.finish && step >= c.finish->step);
    const StepResult r = s.run(RandomRows(2, length, 260, static_cast<uint32_t>(step)).rows(), 1e-2, step + 1);
    EXPECT_TRUE(r.updated);
    losses.push_back(r.loss.loss());
  }
  return state_of(s, std::move(losses));
}

// What the products of an executable multiply, by gemm.
std::map<std::string, std::string> formats(const ProgramPlan& plan, std::string_view name) {
  std::map<std::string, std::string> list;
  for (const Node& n : plan.executable(name).graph.nodes) {
    if (n.label.find("_proj") == n.label.npos && n.op != &qlinear_dgrad_op && n.op != &linear_dgrad_op) continue;
    const std::string text = n.attrs.has("a") ? n.attrs.get_string("a") : "number";
    if (n.op == &linear_op || n.op == &qlinear_op) list["fprop"] = text;
    if (n.op == &linear_dgrad_op || n.op == &qlinear_dgrad_op) list["dgrad"] = text;
    if (n.op == &linear_wgrad_op || n.op == &qlinear_wgrad_op) list["wgrad"] = text;
  }
  return list;
}

TEST(PrecisionP57, EachModeChangesItsProductsOnly) {
  using Formats = std::map<std::string, std::string>;
  const Formats before = {{"fprop", "nvfp4"}, {"dgrad", "nvfp4 stochastic"}, {"wgrad", "nvfp4 stochastic hadamard=16"}};
  const auto with = [&](const char* gemm, const char* text) {
    Formats f = before;
    f[gemm] = text;
    return f;
  };
  const std::pair<const char*, Formats> rows[] = {
      {"fwd_bf16", with("fprop", "number")},
      {"bwd_bf16", {{"fprop", "nvfp4"}, {"dgrad", "number"}, {"wgrad", "number"}}},
      {"all_mxfp8", {{"fprop", "mxfp8"}, {"dgrad", "mxfp8"}, {"wgrad", "mxfp8"}}}};
  for (const auto& [mode, after] : rows)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const ProgramPlan plan = plan_training(finishing("te_nvfp4", mode, 2, dtype), 1, cpu_targets().back());
      EXPECT_EQ(formats(plan, "microbatch"), before) << mode;
      EXPECT_EQ(formats(plan, "microbatch_finish"), after) << mode;
    }
}

// Before the switch the run is the one without it, at and after it the one that has the other recipe, which goes on
// from the same weights, moments and random streams.
TEST(PrecisionP57, TheSwitchChangesTheProductsAndNothingElse) {
  constexpr int64_t at = 2, count = 5;
  for (const char* name : {"te_nvfp4", "fp8_delayed"})
    for (const char* mode : {"fwd_bf16", "bwd_bf16", "all_mxfp8"})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const StepConfig c = finishing(name, mode, at, dtype);
        const State got = train(c, count);
        // By hand: a stepper of the first recipe, then one of the second that is given its states.
        StepConfig first = with_recipe(name, dtype), second = first;
        second.recipe = c.finish->recipe;
        Stepper a(first, plan_training(first, 2, cpu_targets().back())),
            b(second, plan_training(second, 2, cpu_targets().back()));
        initialize_parameters(a.program(), a.parameters(), 3);
        std::vector<double> losses;
        for (int64_t step = 0; step < count; ++step) {
          if (step == at)
            for (const StateInfo& s : a.program().plan().states)
              if (s.role != StateRole::gradient && b.program().has_state(s.role, s.name) &&
                  b.program().state(s.role, s.name).type == s.type)
                std::memcpy(b.program().state(s.role, s.name).data, a.program().state(s.role, s.name).data,
                            static_cast<size_t>(s.type.nbytes()));
          Stepper& s = step < at ? a : b;
          losses.push_back(
              s.run(RandomRows(2, length, 260, static_cast<uint32_t>(step)).rows(), 1e-2, step + 1).loss.loss());
        }
        EXPECT_EQ(got, state_of(b, losses)) << name << " " << mode << " " << name_of(dtype);
        const State never = train(with_recipe(name, dtype), count);
        EXPECT_EQ(std::vector(got.losses.begin(), got.losses.begin() + at),
                  std::vector(never.losses.begin(), never.losses.begin() + at));
        if (std::string(mode) == "bwd_bf16")
          EXPECT_EQ(got.losses[at], never.losses[at]) << "the forward pass of step T_s is the same";
        else
          EXPECT_NE(got.losses[at], never.losses[at]) << mode;
        EXPECT_NE(got.weights, never.weights) << mode;
      }
}

TEST(PrecisionP57, EvaluationFollowsTheSwitch) {
  StepConfig c = finishing("te_nvfp4", "fwd_bf16", 0), plain = c, quantised = with_recipe("te_nvfp4");
  c.evaluation = plain.evaluation = quantised.evaluation = {2, length};
  plain.finish.reset(), plain.recipe = {};
  const auto loss = [](const StepConfig& config, bool finish) {
    Stepper s(config, plan_training(config, 2, cpu_targets().back()));
    initialize_parameters(s.program(), s.parameters(), 3);
    s.finish(finish);
    return s.evaluate(RandomRows(2, length, 260, 5).rows()).loss();
  };
  EXPECT_EQ(loss(c, true), loss(plain, false));
  EXPECT_EQ(loss(c, false), loss(quantised, false));
  EXPECT_NE(loss(c, true), loss(c, false));
}

// Memory of both phases is planned before the run, recomputation included.
TEST(PrecisionP57, BothPhasesArePlanned) {
  const auto config = [](const std::string& policy) {
    return tiny_config({"dataset_type=synthetic", "quantization=te_nvfp4", "finish_high_precision=fwd_bf16",
                        "finish_high_precision_start=3", "steps=5", "remat_policy=" + policy});
  };
  const ProgramPlan none = plan_run(config("none"), 2, cpu_targets().back()),
                    full = plan_run(config("full"), 2, cpu_targets().back());
  for (const char* name : {"microbatch", "microbatch_finish"})
    EXPECT_LT(full.executable(name).memory.bytes, none.executable(name).memory.bytes) << name;
  EXPECT_GE(none.temporary_bytes, none.executable("microbatch_finish").memory.bytes);
  const int64_t limit = (none.arena_bytes() + full.arena_bytes()) / 2;
  const ProgramPlan by_itself =
      plan_run(config("auto").with("memory_limit", std::to_string(limit), "test"), 2, cpu_targets().back());
  EXPECT_LE(by_itself.arena_bytes(), limit);
  StepConfig step = step_of(config("none"));
  const auto steps = [&](ProgramPlan plan) {
    Stepper s(step, std::move(plan));
    initialize_parameters(s.program(), s.parameters(), 3);
    for (int64_t i = 0; i < 5; ++i) {
      s.finish(i >= 3);
      s.run(RandomRows(2, length, 260, static_cast<uint32_t>(i)).rows(), 1e-2, i + 1);
    }
    return hash_of_states(s, StateRole::parameter);
  };
  const uint64_t want = steps(none);
  EXPECT_EQ(steps(full), want);
  EXPECT_EQ(steps(by_itself), want);
}

// ---- whole runs ----

struct Said {
  int code = -1;
  std::string text, error;
};
Said run(const Config& config) {
  testing::internal::CaptureStdout(), testing::internal::CaptureStderr();
  Said said;
  try {
    said.code = run_training(config, {});
  } catch (const Error& e) {
    said.error = e.id + ": " + e.what_text;
  }
  said.text = testing::internal::GetCapturedStdout();
  said.text += testing::internal::GetCapturedStderr();
  return said;
}
bool says(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::map<std::string, std::string> files_of(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint))
    if (entry.is_regular_file() && entry.path().filename() != "run_info.json")
      files[std::filesystem::relative(entry.path(), checkpoint).string()] = content_of(entry.path());
  return files;
}
int64_t events(const std::string& run, const std::string& part) {
  int64_t n = 0;
  std::istringstream lines(content_of(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) n += says(line, "\"precision\"") && says(line, part);
  return n;
}

TEST(PrecisionP57, AStopBeforeAtOrAfterTheSwitchChangesNothing) {
  const TemporaryFolder folder;
  const std::string book = write_book(folder);
  for (const auto& [recipe, mode] : {std::pair("te_nvfp4", "fwd_bf16"),
                                     {"quartet2", "bwd_bf16"},
                                     {"fp8_delayed", "fwd_bf16"},
                                     {"te_nvfp4", "all_mxfp8"}}) {
    const auto config = [&, r = std::string(recipe), m = std::string(mode)](const std::string& place, int steps) {
      return tiny_config({fmt::format("steps={}", steps), "run_name=run", "learning_rate_schedule_steps=6",
                          "eval_fraction=0.1", "eval_holdout=tail", "eval_interval=2", "eval_steps=1",
                          "quantization=" + r, "dtype=bfloat16", "finish_high_precision=" + m,
                          "finish_high_precision_start=3", "cache_directory=" + (folder / "cache"),
                          "base_output_directory=" + (folder / (place + r + m)), "train_files=[" + book + "]"});
    };
    const std::string tail = std::string(recipe) + mode + "/run";
    ASSERT_EQ(run(config("whole", 6)).code, exit_done);
    const auto want = files_of(folder / ("whole" + tail + "/checkpoints/00000006"));
    const std::string event = fmt::format("finish_high_precision={} from step 3 on", mode);
    EXPECT_EQ(events(folder / ("whole" + tail), event), 1);
    for (const int stop : {2, 3, 4}) {
      const std::string place = fmt::format("stop{}", stop);
      ASSERT_EQ(run(config(place, stop)).code, exit_done);
      EXPECT_EQ(events(folder / (place + tail), event), stop > 3 ? 1 : 0) << stop;
      ASSERT_EQ(run(config(place, 6)).code, exit_done);
      EXPECT_TRUE(files_of(folder / (place + tail + "/checkpoints/00000006")) == want)
          << recipe << " " << mode << " stopped after " << stop;
      EXPECT_EQ(events(folder / (place + tail), event), 1) << stop;
    }
    const CheckpointInfo info = Checkpoint(folder / ("whole" + tail + "/checkpoints/00000006")).info();
    EXPECT_EQ(info.recipe.at("finish").at("mode"), mode);
    EXPECT_EQ(info.recipe.at("finish").at("step"), 3);
    EXPECT_EQ(info.recipe.at("finish").at("begun"), true);
    EXPECT_EQ(Checkpoint(folder / ("stop2" + tail + "/checkpoints/00000002")).info().recipe.at("finish").at("begun"),
              false);
  }
}

// The decay is that of the schedule; a resume that moves it says so.
TEST(PrecisionP57, TheStartIsThatOfTheDecay) {
  const auto step = [](std::vector<std::string> more) {
    more.insert(more.end(), {"dataset_type=synthetic", "quantization=te_nvfp4", "finish_high_precision=fwd_bf16",
                             "steps=100", "warmup_steps=7"});
    return step_of(tiny_config(more)).finish->step;
  };
  EXPECT_EQ(step({"lr_schedule_type=wsd", "wsd_decay_steps_fraction=0.2"}), 80);
  EXPECT_EQ(step({"lr_schedule_type=wsd", "wsd_decay_steps_fraction=0.2", "learning_rate_schedule_steps=50"}), 40);
  EXPECT_EQ(step({"lr_schedule_type=cosine"}), 7);
  EXPECT_EQ(step({"lr_schedule_type=linear"}), 7);
  EXPECT_EQ(step({"finish_high_precision_start=31", "lr_schedule_type=constant"}), 31);
  EXPECT_FALSE(step_of(tiny_config({"dataset_type=synthetic", "finish_high_precision=fwd_bf16"})).finish);
  EXPECT_FALSE(step_of(tiny_config({"dataset_type=synthetic", "quantization=te_nvfp4"})).finish);

  const TemporaryFolder folder;
  const auto config = [&](int steps) {
    return tiny_config({fmt::format("steps={}", steps), "run_name=run", "lr_schedule_type=wsd",
                        "wsd_decay_steps_fraction=0.5", "quantization=te_nvfp4", "finish_high_precision=fwd_bf16",
                        "base_output_directory=" + (folder / "out"), "dataset_type=synthetic"});
  };
  const Said first = run(config(4));
  EXPECT_TRUE(says(first.text, "finish_high_precision=fwd_bf16 from step 2 on: what this gains is lost again"))
      << first.text;
  const Said second = run(config(10));
  EXPECT_TRUE(says(second.text, "recipe/finish/step: 2 -> 5")) << second.text;
  const Said never = run(tiny_config({"steps=2", "run_name=never", "quantization=te_nvfp4", "dataset_type=synthetic",
                                      "finish_high_precision=bwd_bf16", "finish_high_precision_start=5",
                                      "base_output_directory=" + (folder / "out")}));
  EXPECT_TRUE(says(never.text, "from step 5 on: after the last step, so never")) << never.text;
}

// ---- what nibble chooses ----

TEST(PrecisionRecipes, AutoChoosesByHardwareAndWidth) {
  for (const CpuTarget t : {CpuTarget::avx2, CpuTarget::avx512, CpuTarget::avx512_bf16}) {
    EXPECT_EQ(auto_recipe(t, 256).name, "te_nvfp4") << name_of(t);
    EXPECT_NE(auto_recipe(t, 256).why.find(name_of(t)), std::string::npos);
    EXPECT_EQ(auto_recipe(t, 255).name, "") << name_of(t);
  }
  EXPECT_EQ(auto_recipe(CpuTarget::ref, 4096).name, "");
}

TEST(PrecisionRecipes, AutoIsRecordedAndAResumeKeepsIt) {
  const TemporaryFolder folder;
  const auto config = [&](int steps, const std::string& target, const std::string& width) {
    return tiny_config({fmt::format("steps={}", steps), "run_name=run" + width, "quantization=auto",
                        "base_emb_dim=" + width, "cpu_target=" + target, "base_output_directory=" + (folder / "out"),
                        "dataset_type=synthetic"});
  };
  const std::string best = name_of(cpu_targets().back());
  const Said small = run(config(1, best, "32"));
  EXPECT_TRUE(says(small.text, "quantization=auto: no recipe; the model's width 32 is below 256")) << small.text;
  EXPECT_TRUE(says(content_of(folder / "out/run32/config.yml"), "quantization: \"\""));
  if (cpu_targets().size() == 1) GTEST_SKIP() << "this CPU has no AVX2: auto chooses no recipe there";
  const Said first = run(config(1, best, "256"));
  EXPECT_EQ(first.error, "");
  EXPECT_TRUE(says(first.text, "quantization=auto: te_nvfp4; integer products of 4-bit operands")) << first.text;
  EXPECT_TRUE(says(first.text, "precision: te_nvfp4 in linear layers"));
  EXPECT_TRUE(says(content_of(folder / "out/run256/config.yml"), "quantization: te_nvfp4"));
  const Said again = run(config(2, "ref", "256"));  // where auto alone would choose none
  EXPECT_EQ(again.error, "");
  EXPECT_TRUE(says(again.text, "quantization=auto: te_nvfp4; the run began with it")) << again.text;
  EXPECT_FALSE(says(again.text, "quantization: ")) << again.text;  // of what changed since the checkpoint
}

// ---- sums and add-ons from the command line ----

TEST(PrecisionP41, BlackwellsSumsAreAChoiceOfTheRun) {
  // Blocks of one size have scales of one size, and then f32 holds their sums exactly: here they differ.
  const auto loss = [](const std::vector<std::string>& more, CpuTarget target) {
    std::vector<std::string> words = {"dataset_type=synthetic", "quantization=te_nvfp4", "base_emb_dim=128",
                                      "base_mlp_dim=512"};  // sums of more than one group of four blocks
    words.insert(words.end(), more.begin(), more.end());
    const StepConfig c = step_of(tiny_config(words));
    Stepper s(c, plan_training(c, 2, target));
    initialize_parameters(s.program(), s.parameters(), 3);
    for (const Parameter& p : s.parameters()) {
      if (p.name.find("_proj") == p.name.npos) continue;
      const Tensor w = s.program().state(StateRole::parameter, p.name);
      for (int64_t i = 0; i < w.numel(); ++i)
        w.as<float>()[i] *=
            std::exp2(static_cast<float>(-(i % p.shape.dim(1) / 16 % 7))) * (i / 16 % 5 == 0 ? 1.3f : 1);
    }
    return s.gradients(RandomRows(2, 32, 260, 5).rows()).loss();
  };
  const std::string blackwell = "gemm_accumulation=blackwell";
  const double want = loss({blackwell}, CpuTarget::ref);
  EXPECT_NE(want, loss({}, CpuTarget::ref));
  EXPECT_NEAR(want, loss({}, CpuTarget::ref), 1e-4);
  for (const CpuTarget target : cpu_targets()) EXPECT_EQ(loss({blackwell}, target), want) << name_of(target);
  const TemporaryFolder folder;
  const auto config = [&](int steps, const std::string& sums) {
    return tiny_config({fmt::format("steps={}", steps), "run_name=run", "quantization=te_nvfp4",
                        "gemm_accumulation=" + sums, "base_output_directory=" + (folder / "out"),
                        "dataset_type=synthetic"});
  };
  EXPECT_EQ(run(config(1, "blackwell")).error, "");
  const Said other = run(config(2, "sequential"));
  EXPECT_TRUE(says(other.text, "gemm_accumulation: \"blackwell\" -> \"sequential\"")) << other.text;
  EXPECT_TRUE(says(other.text, "recipe/fprop: \"nvfp4 . nvfp4_2d blackwell\" -> \"nvfp4 . nvfp4_2d\"")) << other.text;
}

TEST(PrecisionRecipes, TheWiderRangeOfStochasticRounding) {
  const auto train_with = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"dataset_type=synthetic", "quantization=te_nvfp4"};
    words.insert(words.end(), more.begin(), more.end());
    return train(step_of(tiny_config(words)), 3);
  };
  const State with = train_with({"recipe_addons=[sr_vmax]"}), without = train_with({});
  EXPECT_EQ(with.losses[0], without.losses[0]) << "the forward pass does not draw";
  EXPECT_NE(with.weights, without.weights);
  StepConfig c = step_of(tiny_config({"dataset_type=synthetic", "quantization=te_nvfp4", "recipe_addons=[sr_vmax]"}));
  const State want = train(c, 2, CpuTarget::ref);
  for (const CpuTarget target : cpu_targets()) EXPECT_EQ(train(c, 2, target), want) << name_of(target);
}

}  // namespace
}  // namespace nibble
