// The planned peak is the real one (obligation T58 of spec/training.md): what the kernels write is watched, not read
// off the plan again. The arena is filled with a pattern, a step is run, and the last byte that changed is the peak;
// twice, with two patterns, for a byte may happen to be written as it was.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/philox.h"
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

struct Case {
  std::vector<std::string> words;
  int threads;
  size_t target;  // of cpu_targets(), from the best
};

// 30: models, rows, lengths, microbatches, threads, targets and policies, each with each of the others somewhere.
std::vector<Case> cases() {
  const auto model = [](int64_t width, int64_t hidden, int64_t heads, int64_t layers, int64_t vocab) {
    return std::vector<std::string>{"model_name=default",
                                    "override_model_config=true",
                                    fmt::format("base_emb_dim={}", width),
                                    fmt::format("base_mlp_dim={}", hidden),
                                    fmt::format("base_num_query_heads={}", heads),
                                    "base_num_kv_heads=2",
                                    "head_dim=16",
                                    fmt::format("base_num_decoder_layers={}", layers),
                                    fmt::format("vocab_size={}", vocab)};
  };
  const std::vector<std::vector<std::string>> models = {model(32, 64, 2, 2, 260), model(96, 160, 6, 4, 300),
                                                        model(64, 200, 4, 3, 700)};
  const char* policies[] = {"none",          "full",          "minimal", "minimal_with_context", "auto",
                            "save_qkv_proj", "save_out_proj", "custom",  "save_dot_except_mlp",  "none"};
  const int64_t lengths[] = {64, 33, 48, 16, 40}, rows[] = {1, 2, 3, 4};
  std::vector<Case> list;
  for (size_t i = 0; i < 30; ++i) {
    Case c{models[i % 3], 1 + static_cast<int>(i / 3 % 2), i / 2 % 3};
    c.words.push_back(fmt::format("max_target_length={}", lengths[i % 5]));
    c.words.push_back(fmt::format("per_device_batch_size={}", rows[i / 5 % 4]));
    c.words.push_back(fmt::format("gradient_accumulation_steps={}", 1 + i % 2));
    c.words.push_back(fmt::format("remat_policy={}", policies[i % 10]));
    if (i % 10 == 7) c.words.insert(c.words.end(), {"mlpwi=device", "key_proj=device"});
    if (i % 7 == 3) c.words.push_back("opt_type=sgd");
    if (i % 6 == 5) c.words.insert(c.words.end(), {"eval_fraction=0.5", "eval_per_device_batch_size=5"});
    list.push_back(std::move(c));
  }
  return list;
}

std::string text_of(const Case& c) { return fmt::format("{} threads={}", fmt::join(c.words, " "), c.threads); }

CpuTarget target_of(const Case& c) {
  const std::vector<CpuTarget> targets = cpu_targets();
  return targets[targets.size() - 1 - c.target % targets.size()];
}

// Bytes of the arena up to the last one that a step, and an evaluation if there is one, wrote over `pattern`.
int64_t touched_bytes(const Config& config, const ProgramPlan& plan, std::byte pattern) {
  const StepConfig step = step_of(config);
  Stepper s(step, plan);
  const std::span<std::byte> arena = s.program().arena();
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::byte* const end = arena.data() + (arena.size() + page - 1) / page * page;  // of the mapping
  std::memset(arena.data() + plan.state_bytes, static_cast<int>(pattern),
              static_cast<size_t>(end - arena.data() - plan.state_bytes));
  initialize_parameters(s.program(), s.parameters(), 1);
  const int64_t length = step.microbatch.length;
  const int64_t rows = std::max(step.accumulation * step.microbatch.rows, step.evaluation.rows);
  const auto n = static_cast<size_t>(rows * length);
  std::vector<int32_t> tokens(n), positions(n), segments(n, 1);
  const std::vector<float> weights(n, 1.0f);
  for (size_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<int32_t>(philox4x32({static_cast<uint32_t>(i), 0, 0, 7}, 1, 2)[0] % step.model.vocab);
    positions[i] = static_cast<int32_t>(i) % static_cast<int32_t>(length);
  }
  Rows data{tokens.data(),    tokens.data(),  segments.data(),
            positions.data(), weights.data(), step.accumulation * step.microbatch.rows};
  EXPECT_TRUE(s.run(data, 1e-3, 1).updated);
  data.rows = step.evaluation.rows;
  if (data.rows > 0) s.evaluate(data);
  const std::byte* last = end;
  while (last > arena.data() + plan.state_bytes && last[-1] == pattern) --last;
  return last - arena.data();
}

// The piece of the temporary part that ends last, in whichever executable.
struct Last {
  int64_t from = 0, end = 0;
  bool workspace = false;
};
Last last_piece(const ProgramPlan& plan) {
  Last last;
  const auto see = [&](const Placement& p, bool workspace) {
    const int64_t end = plan.state_bytes + p.offset + p.bytes;
    if (p.bytes > 0 && (end > last.end || (end == last.end && !workspace)))
      last = {plan.state_bytes + p.offset, end, workspace};
  };
  for (const ExecutablePlan& e : plan.executables) {
    for (const Placement& p : e.memory.buffers) see(p, false);
    for (const Placement& p : e.memory.workspaces) see(p, true);
  }
  return last;
}

// Tensors are written to their last element. A workspace has room for the widest words and for all threads: of one that
// ends last, what this target and these threads do not need stays as it was.
void expect_the_planned_peak(const Case& c) {
  const Config config = config_of(c.words);
  const ProgramPlan plan = plan_run(config, c.threads, target_of(c));
  const int64_t seen =
      std::max(touched_bytes(config, plan, std::byte{0x5a}), touched_bytes(config, plan, std::byte{0xa5}));
  const Last last = last_piece(plan);
  EXPECT_EQ(last.end, plan.arena_bytes());
  EXPECT_LE(seen, plan.arena_bytes()) << text_of(c);
  if (last.workspace)
    EXPECT_GT(seen, last.from) << text_of(c) << " " << name_of(target_of(c));
  else
    EXPECT_EQ(align_up(seen), plan.arena_bytes()) << text_of(c) << " " << name_of(target_of(c));
}

TEST(TrainingT58, ThePlannedPeakIsTheObservedOne) {
  ASSERT_EQ(cases().size(), 30u);
  for (const Case& c : cases()) expect_the_planned_peak(c);
}

// Quantised tensors are written to their last byte, fill included; weights of a recipe are states.
TEST(TrainingT58, ThePlannedPeakIsTheObservedOneWithARecipe) {
  const std::vector<Case> plain = cases();
  const char* recipes[] = {"te_nvfp4", "quartet2", "mxfp4_rht_sr", "nvfp4", "fp8_delayed", "mxfp4_quartet"};
  for (size_t i = 0; i < 12; ++i) {
    Case c = plain[i];
    c.words.push_back(fmt::format("quantization={}", recipes[i % 6]));
    if (i % 2 == 1) c.words.push_back("dtype=bfloat16");
    expect_the_planned_peak(c);
  }
}

// The planned bytes as memory_limit are enough, one less is E107, whose alternatives fit. With remat_policy=auto one
// less is a plan that recomputes more, down to the least there is: then it is E107 too.
TEST(TrainingT58, TheByteThatIsMissing) {
  int recomputed = 0, refused = 0;
  for (const Case& c : cases()) {
    const Config config = config_of(c.words);
    const auto at = [&](int64_t limit) { return config.with("memory_limit", std::to_string(limit), "test"); };
    const auto plan = [&](const Config& with) { return plan_run(with, c.threads, target_of(c)); };
    int64_t bytes = plan(config).arena_bytes();
    if (const int64_t less = plan(at(bytes - 1)).arena_bytes(); less < bytes) {
      EXPECT_EQ(config.get_string("remat_policy"), "auto");
      EXPECT_NO_THROW(check_fits(at(bytes - 1), plan(at(bytes - 1))));
      ++recomputed;
      bytes = plan(at(plan(config).state_bytes + 1)).arena_bytes();  // the least
      EXPECT_LT(bytes, less);
    }
    EXPECT_EQ(plan(at(bytes)).arena_bytes(), bytes) << text_of(c);
    EXPECT_NO_THROW(check_fits(at(bytes), plan(at(bytes)))) << text_of(c);
    const Config with = at(bytes - 1);
    const ProgramPlan short_of = plan(with);
    EXPECT_EQ(short_of.arena_bytes(), bytes) << text_of(c);
    try {
      check_fits(with, short_of);
      ADD_FAILURE() << "accepted with a byte too few: " << text_of(c);
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E107");
      ++refused;
    }
    for (const Alternative& a : alternatives_that_fit(with, short_of))
      EXPECT_LE(a.bytes, a.words.starts_with("memory_limit=") ? bytes : bytes - 1) << a.words;
  }
  EXPECT_EQ(refused, 30);
  EXPECT_EQ(recomputed, 3);
}

}  // namespace
}  // namespace nibble
