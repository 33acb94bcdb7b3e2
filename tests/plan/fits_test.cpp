// E107: a run that does not fit says what it needs, and its hints, taken, do fit.
#include "train/fits.h"

#include <gtest/gtest.h>

#include "core/error.h"
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

ProgramPlan plan_of(const Config& c) { return plan_run(c, 2, CpuTarget::ref); }

std::vector<std::string> split(const std::string& words) {
  std::vector<std::string> out;
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    out.push_back(words.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

struct Case {
  std::vector<std::string> words;
  int64_t limit;                        // bytes; 0: one byte below what the run needs
  std::vector<std::string> first_keys;  // that an alternative sets first
};
const Case cases[] = {
    {{"model_name=nibble-34m"}, 620'000'000, {"per_device_batch_size", "max_target_length", "memory_limit"}},
    {{"model_name=nibble-34m", "remat_policy=none"},
     850'000'000,
     {"remat_policy=auto", "remat_policy=save_dot", "per_device_batch_size", "max_target_length", "memory_limit"}},
    {{"model_name=nibble-34m", "remat_policy=minimal"}, 0, {"remat_policy=auto", "remat_policy=save_dot"}},
    {{"model_name=nibble-10m", "per_device_batch_size=6", "gradient_accumulation_steps=2", "remat_policy=none"},
     0,
     {"remat_policy=auto", "remat_policy=minimal_with_context", "per_device_batch_size"}},
    {{"model_name=nibble-10m", "per_device_batch_size=1", "max_target_length=300", "remat_policy=full"},
     0,
     {"max_target_length"}},
    {{"model_name=nibble-10m", "per_device_batch_size=2", "eval_fraction=0.1", "eval_per_device_batch_size=16"},
     0,
     {"memory_limit"}},
    {{"model_name=llama3-8b", "per_device_batch_size=2", "max_target_length=128"}, 3'000'000'000, {"model_name"}},
    {{"model_name=nibble-34m", "per_device_batch_size=4", "max_target_length=4096"},
     600'000'000,
     {"max_target_length"}}};

// Words after the case's own, so that the later value of a key wins.
TEST(TrainingE107, EveryHintFitsWithTheBytesItNames) {
  for (const Case& k : cases) {
    std::vector<std::string> words = k.words;
    const int64_t limit = k.limit > 0 ? k.limit : plan_of(config_of(words)).arena_bytes() - 1;
    words.push_back(fmt::format("memory_limit={}", limit));
    const Config c = config_of(words);
    const std::vector<Alternative> found = alternatives_that_fit(c, plan_of(c));
    for (const std::string& key : k.first_keys)
      EXPECT_TRUE(std::ranges::any_of(found, [&](const Alternative& a) { return a.words.starts_with(key); }))
          << key << " for " << fmt::format("{}", fmt::join(words, " "));
    for (const Alternative& a : found) {
      std::vector<std::string> taken;
      for (const std::string& w : words)
        if (!a.words.starts_with("model_name=") || !w.starts_with("model_name=")) taken.push_back(w);
      for (const std::string& w : split(a.words)) taken.push_back(w);
      const Config then = config_of(taken);
      const ProgramPlan plan = plan_of(then);
      EXPECT_EQ(plan.arena_bytes(), a.bytes) << a.words;
      EXPECT_NO_THROW(check_fits(then, plan)) << a.words;
      if (a.words.find("max_target_length") == std::string::npos) {
        EXPECT_EQ(global_batch(then), global_batch(c)) << a.words;
      }
    }
  }
}

TEST(TrainingT58, OneByteBelowIsE107) {
  const Config c = config_of({"model_name=nibble-34m", "remat_policy=none"});
  const ProgramPlan plan = plan_of(c);
  const auto with_limit = [&](int64_t bytes) { return c.with("memory_limit", std::to_string(bytes), "argument 2"); };
  EXPECT_NO_THROW(check_fits(with_limit(plan.arena_bytes()), plan));
  EXPECT_NO_THROW(check_fits(c, plan));
  try {
    check_fits(with_limit(plan.arena_bytes() - 1), plan);
    FAIL() << "one byte too many was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.id, "E107");
    EXPECT_EQ(e.exit_code(), exit_config);
    const std::string text = e.message();
    for (const char* part :
         {"memory_limit from argument 2", "weights", "gradients", "optimizer", "activations kept", "workspace",
          "largest tensors:", "model.embed_tokens.weight f32[", "x 4 (weight, gradient, m, v)",
          "hint: remat_policy=auto (", "or remat_policy=minimal_with_context (",
          "or per_device_batch_size=", "gradient_accumulation_steps="})
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

TEST(TrainingE107, NothingSmallerSaysWhatTheStatesTake) {
  const Config c = config_of({"model_name=llama2-7b", "memory_limit=1000000", "per_device_batch_size=1"});
  const ProgramPlan plan = plan_of(c);
  EXPECT_TRUE(alternatives_that_fit(c, plan).empty());
  try {
    check_fits(c, plan);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.hint_text.find("a model with fewer parameters"), std::string::npos) << e.hint_text;
  }
}

TEST(TrainingE107, TheLimitIsTheMachineLessOneGibibyte) {
  const int64_t limit = memory_limit_of(config_of({}));
  EXPECT_EQ((limit + (int64_t{1} << 30)) % 4096, 0);
  EXPECT_GT(limit, 0);
  EXPECT_EQ(memory_limit_of(config_of({"memory_limit=2Gi"})), int64_t{2} << 30);
}

}  // namespace
}  // namespace nibble
