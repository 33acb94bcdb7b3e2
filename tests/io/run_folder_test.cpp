// Run folders: retention (T51), the lock (E605), CKPT arguments (E204, E406), the checks before step 0 (E803).
#include "io/run_folder.h"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include "io_fixture.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

void save_steps(const TempFolder& run, std::initializer_list<int64_t> steps) {
  for (int64_t step : steps) save_checkpoint(run.path(), TinyRun(step).content);
}

std::vector<int64_t> steps_of(const TempFolder& run, bool valid = true) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(run.path()))
    if (entry.valid() == valid) steps.push_back(entry.step);
  return steps;
}

using Steps = std::vector<int64_t>;

TEST(TrainingT51, NewestKAndEveryMth) {
  const TempFolder run;
  save_steps(run, {100000000, 10, 20, 30, 40, 50});  // by step number, not by name order or file time
  EXPECT_EQ(steps_of(run), (Steps{10, 20, 30, 40, 50, 100000000}));
  EXPECT_EQ(apply_retention(run.path(), std::nullopt, 0), Steps{});
  EXPECT_EQ(apply_retention(run.path(), 9, 0), Steps{});
  EXPECT_EQ(apply_retention(run.path(), 2, 20), (Steps{10, 30}));
  EXPECT_EQ(steps_of(run), (Steps{20, 40, 50, 100000000}));
  EXPECT_EQ(apply_retention(run.path(), 1, 0), (Steps{20, 40, 50}));
  expect_restores(run / "checkpoints/100000000", 100000000);
}

TEST(TrainingT51, NeverTheLastValidOne) {
  const TempFolder run;
  save_steps(run, {1, 2, 3, 4});
  flip_byte(run / "checkpoints/00000004/model-00001-of-00001.safetensors", 300);  // sizes match, bytes do not
  fs::remove(run / "checkpoints/00000003/config.json");                           // visibly invalid
  EXPECT_EQ(apply_retention(run.path(), 1, 0), (Steps{1}));
  EXPECT_EQ(steps_of(run, false), (Steps{3}));
  expect_restores(run / "checkpoints/00000002", 2);
  EXPECT_EQ(apply_retention(run.path(), 1, 0), Steps{});
  flip_byte(run / "checkpoints/00000002/state/optim-00001-of-00001.safetensors", 500);
  EXPECT_EQ(apply_retention(run.path(), 1, 0), Steps{});  // none verifies: nothing is deleted
  EXPECT_TRUE(fs::exists(run / "checkpoints/00000004/nibble.json"));
}

TEST(TrainingT51, EverySystemCallOfADeletionMayFail) {
  for (int64_t nth = 1;; ++nth) {
    const TempFolder run;
    save_steps(run, {1, 2, 3});
    FaultInjection::arm(nth, EIO, true);
    try {
      apply_retention(run.path(), 1, 0);
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E801");
    }
    const int64_t calls = FaultInjection::disarm();
    EXPECT_EQ(steps_of(run, false), Steps{});
    expect_restores(run / "checkpoints/00000003", 3);
    clean_run(run.path());
    apply_retention(run.path(), 1, 0);
    EXPECT_EQ(steps_of(run), (Steps{3}));
    EXPECT_EQ(std::distance(fs::directory_iterator(run / "checkpoints"), {}), 1);
    if (calls < nth) break;
    ASSERT_LT(nth, 50);
  }
}

TEST(TrainingRunFolder, NewestValid) {
  const TempFolder run;
  EXPECT_TRUE(newest_valid_checkpoint(run.path()).empty());
  save_steps(run, {1, 2, 3});
  fs::create_directory(run / "checkpoints/00000009");  // no nibble.json
  fs::create_directory(run / "checkpoints/notes");
  fs::rename(run / "checkpoints/00000003", run / "checkpoints/00000007");
  const auto list = list_checkpoints(run.path());
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[2].problem, "nibble.json is of step 3");
  EXPECT_NE(list[3].problem.find("holds no checkpoint"), std::string::npos);
  EXPECT_EQ(newest_valid_checkpoint(run.path()).filename(), "00000002");
  EXPECT_EQ(newest_valid_checkpoint(run.path(), 2).filename(), "00000001");
  EXPECT_TRUE(newest_valid_checkpoint(run.path(), 1).empty());
}

TEST(TrainingRunFolder, WhatAPathNames) {
  const TempFolder run;
  save_steps(run, {1, 2});
  ModelSource source = resolve_model(run.path());
  EXPECT_EQ(source.kind, ModelSource::checkpoint);
  EXPECT_EQ(source.path, run / "checkpoints/00000002");
  EXPECT_EQ(resolve_model(run / "checkpoints/00000001").path, run / "checkpoints/00000001");
  fs::remove(run / "checkpoints/00000002/config.json");
  EXPECT_EQ(resolve_model(run.path()).path, run / "checkpoints/00000001");
  error_of("E401", [&] { resolve_model(run / "checkpoints/00000002"); });
  source = resolve_model(fs::path(NIBBLE_GOLDEN_DIR) / "hf/llama");
  EXPECT_EQ(source.kind, ModelSource::hugging_face);
  fs::remove(run / "checkpoints/00000001/config.json");
  EXPECT_NE(error_of("E204", [&] { resolve_model(run.path()); }).find("00000002"), std::string::npos);
}

TEST(TrainingRunFolder, WhatIsNoModel) {
  const TempFolder folder;
  std::string message = error_of("E204", [&] { resolve_model(folder.path()); });
  for (const char* words : {"nibble.json", "config.json", "model.safetensors", "index.json", "none of them"})
    EXPECT_NE(message.find(words), std::string::npos) << words << message;
  EXPECT_NE(error_of("E204", [&] { resolve_model(folder / "absent"); }).find("no such file"), std::string::npos);
  put_file(folder / "config.json", "{}");
  error_of("E204", [&] { resolve_model(folder.path()); });
  put_file(folder / "pytorch_model.bin", "x");
  EXPECT_NE(error_of("E406", [&] { resolve_model(folder.path()); }).find("save_pretrained"), std::string::npos);
  error_of("E406", [&] { resolve_model(folder / "pytorch_model.bin"); });
  const TempFolder orbax;
  fs::create_directory(orbax / "items");
  put_file(orbax / "items/_METADATA", "x");
  EXPECT_NE(error_of("E406", [&] { resolve_model(orbax.path()); }).find("to_huggingface"), std::string::npos);
}

TEST(TrainingRunFolder, LockNamesItsOwner) {
  const TempFolder run;
  {
    const RunLock lock(run.path());
    try {
      RunLock second(run.path());
      FAIL() << "locked twice";
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E605");
      EXPECT_EQ(e.exit_code(), exit_cannot_create);
      EXPECT_NE(e.message().find(fmt::format("process {} on ", ::getpid())), std::string::npos) << e.message();
      EXPECT_NE(e.message().find("started 2"), std::string::npos) << e.message();
    }
  }
  const RunLock again(run.path());
}

TEST(TrainingRunFolder, LockOfADeadProcessIsTakenOver) {
  const TempFolder run;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(run.path());
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const std::string message = error_of("E605", [&] { RunLock lock(run.path()); });
  EXPECT_NE(message.find(fmt::format("process {} on ", child)), std::string::npos) << message;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const RunLock lock(run.path());  // the text of the dead owner is still in the file
  ::close(ready[0]), ::close(ready[1]);
}

TEST(TrainingRunFolder, ChecksBeforeStepZero) {
  const TempFolder run;
  preflight_run(run / "a/b", 1000);
  EXPECT_TRUE(fs::is_empty(run / "a/b/checkpoints"));
  const std::string message = error_of("E803", [&] { preflight_run(run / "a/b", int64_t{1} << 60); });
  EXPECT_NE(message.find("expected: 2305843009213693952 bytes"), std::string::npos) << message;
  put_file(run / "file", "x");
  error_of("E803", [&] { preflight_run(run / "file", 1); });
  for (int64_t nth = 1; nth <= 5; ++nth) {  // open, write, fsync, rename, fsync of the folder
    FaultInjection::arm(nth, EROFS, false);
    error_of("E803", [&] { preflight_run(run / "a/b", 1000); });
    FaultInjection::disarm();
    EXPECT_TRUE(fs::is_empty(run / "a/b/checkpoints"));
  }
}

}  // namespace
}  // namespace nibble
