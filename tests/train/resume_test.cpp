// What a refused resume leaves behind, and what a run says that has no data: spec/training.md 6.2 and 7.2.
#include <fstream>
#include <iterator>

#include "tiny.h"
#include "train/trainer.h"

namespace nibble {
namespace {

std::string text_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string failure_of(const Config& config) {
  testing::internal::CaptureStdout(), testing::internal::CaptureStderr();
  std::string id = "none", hint;
  try {
    run_training(config, {});
  } catch (const Error& e) {
    id = e.id, hint = e.hint_text;
  }
  testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr();
  return id == "E402" ? id + " " + hint : id;
}

TEST(TrainingT57, ARefusedResumeLeavesTheRunAsItWas) {
  const TemporaryFolder folder;
  const std::string book = write_book(folder), run = folder / "out/run";
  const auto config = [&](std::vector<std::string> more) {
    more.insert(more.end(),
                {"run_name=run", "base_output_directory=" + (folder / "out"), "train_files=[" + book + "]"});
    return tiny_config(more);
  };
  ASSERT_EQ(failure_of(config({"steps=3", "checkpoint_period=2"})), "none");
  const std::string before = text_of(run + "/config.yml");
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(failure_of(config({"steps=2"})), "E103");
  EXPECT_EQ(text_of(run + "/config.yml"), before);
  EXPECT_EQ(failure_of(config({"steps=4", "base_num_decoder_layers=1"})), "E110");
  EXPECT_EQ(text_of(run + "/config.yml"), before);
  std::ofstream(book, std::ios::app) << "one more line\n";
  EXPECT_EQ(failure_of(config({"steps=4"})), "E310");
  EXPECT_EQ(text_of(run + "/config.yml"), before);
  EXPECT_EQ(failure_of(config({"steps=4", "allow_fallback=[data_changed]"})), "none");
  EXPECT_NE(text_of(run + "/config.yml"), before);
}

TEST(TrainingT51, ADamagedNewestCheckpointIsPassedOver) {
  const TemporaryFolder folder;
  const std::string book = write_book(folder), run = folder / "out/run";
  const auto config = [&](const std::string& steps) {
    return tiny_config({steps, "checkpoint_period=2", "run_name=run", "base_output_directory=" + (folder / "out"),
                        "train_files=[" + book + "]"});
  };
  const auto flip = [&](const std::string& step) {
    std::fstream file(run + "/checkpoints/" + step + "/model-00001-of-00001.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2000).put('X');
  };
  ASSERT_EQ(failure_of(config("steps=4")), "none");
  const std::string weights = text_of(run + "/checkpoints/00000004/model-00001-of-00001.safetensors");
  flip("00000004");
  EXPECT_EQ(failure_of(config("steps=4")), "none");  // from step 2 again, and step 4 is whole again
  EXPECT_EQ(text_of(run + "/checkpoints/00000004/model-00001-of-00001.safetensors"), weights);
  flip("00000004"), flip("00000002");
  EXPECT_EQ(failure_of(config("steps=4")), "E402 a good copy of one of them, or another run_name");
}

TEST(TrainingT57, AStartThatFailedLeavesItsNameFree) {
  const TemporaryFolder folder;
  const std::string book = write_book(folder);
  const auto config = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"steps=1", "base_output_directory=" + (folder / "out"), "train_files=[" + book + "]"});
    return tiny_config(more);
  };
  ASSERT_EQ(failure_of(config({"run_name=first"})), "none");
  const std::string weights = "load_parameters_path=" + (folder / "out/first");
  EXPECT_EQ(failure_of(config({"run_name=second", weights, "base_num_decoder_layers=1"})), "E404");
  EXPECT_EQ(failure_of(config({"run_name=second", weights})), "none") << "the corrected command under the same name";
}

TEST(TrainingT57, ASamplePromptThatDoesNotFitIsSaidAtTheStart) {
  const TemporaryFolder folder;
  const std::string book = write_book(folder);
  const auto config = [&](const std::string& prompt) {
    return tiny_config({"steps=1", "run_name=run", "sample_interval=1", "sample_prompt=" + prompt,
                        "base_output_directory=" + (folder / "out"), "train_files=[" + book + "]"});
  };
  EXPECT_EQ(failure_of(config(std::string(5000, 'x') + "y z")), "E311");
  EXPECT_FALSE(std::filesystem::exists(folder / "out/run"));
  EXPECT_EQ(failure_of(config("x")), "none");
}

TEST(TrainingT57, ADryRunLeavesNoFolder) {
  const TemporaryFolder folder;
  const Config config = tiny_config({"steps=1", "run_name=run", "base_output_directory=" + (folder / "out"),
                                     "train_files=[" + write_book(folder) + "]"});
  TrainOptions options;
  options.dry_run = true;
  testing::internal::CaptureStdout(), testing::internal::CaptureStderr();
  EXPECT_EQ(run_training(config, options), exit_done);
  testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr();
  EXPECT_FALSE(std::filesystem::exists(folder / "out/run"));
}

TEST(TrainingT57, NoDataIsSaidBeforeAnythingElse) {
  const TemporaryFolder folder;
  // The default model does not fit most machines: that must not be the first message of `nibble train`.
  EXPECT_EQ(failure_of(resolve({"base_output_directory=" + (folder / "out")}).config), "E201");
}

}  // namespace
}  // namespace nibble
