// nibble profile, run as the program runs it.
#include "../../apps/nibble/profile.cpp"  // the command is no library

#include <gtest/gtest.h>

#include "apps/outcome.h"
#include "temporary_folder.h"

namespace nibble {
namespace {

const std::vector<std::string> tiny = {"model_name=nibble-1m", "per_device_batch_size=1", "max_target_length=16",
                                       "--repeats=2"};

Outcome profile(std::vector<std::string> words) {
  words.insert(words.end(), tiny.begin(), tiny.end());
  return outcome_of(profile_command, words);
}

TEST(Profile, RowsAddUpToTheStep) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{}, {"--ops"}, {"--layers"}}) {
    std::vector<std::string> with = words;
    with.insert(with.end(), {"--json", "threads=2"});
    const Outcome r = profile(with);
    ASSERT_EQ(r.exit, 0) << r.message;
    const auto j = nlohmann::json::parse(r.out);
    double sum = j["outside_seconds"];
    for (const auto& row : j["operations"]) sum += row["seconds"].get<double>();
    EXPECT_NEAR(sum / j["step_seconds"].get<double>(), 1, 0.02);
  }
}

TEST(Profile, TextAndTrace) {
  const TemporaryFolder folder;
  const std::string file = folder / "trace.json";
  const Outcome r = profile({"--trace", file});
  ASSERT_EQ(r.exit, 0) << r.message;
  for (const char* part : {"bench profile   nibble-1m", "layers.*/mlp/down_proj", "outside the kernels", "\nstep "})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " in\n" << r.out;
  const auto trace = nlohmann::json::parse(content_of(file));
  EXPECT_TRUE(trace.is_array());
  EXPECT_GT(trace.size(), 100u);
  EXPECT_EQ(profile({"--trace", folder / "missing/trace.json"}).id, "E801");
}

TEST(Profile, WhatDoesNotGoIsNamed) {
  EXPECT_EQ(profile({"--layers", "--ops"}).id, "E102");
  EXPECT_EQ(profile({"--seconds=0"}).id, "E002");
  EXPECT_EQ(outcome_of(profile_command, {"model_name=llama3-8b", "memory_limit=1G"}).id, "E107");
  EXPECT_EQ(outcome_of(profile_command, {"--tracee"}).id, "E007");
}

}  // namespace
}  // namespace nibble
