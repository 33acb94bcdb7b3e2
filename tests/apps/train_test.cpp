// nibble train with signals, streams and kills: obligations T46, T48, T55 and T56 of spec/training.md.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "program.h"

namespace nibble {
namespace {

const std::vector<std::string> run_200 = {"steps=200", "run_name=run", "eval_fraction=0.05", "eval_holdout=tail",
                                          "eval_interval=70"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// A finished run of 200 steps, by which stopped ones are judged.
struct Whole {
  Workplace place;
  std::map<std::pair<std::string, int64_t>, std::string> metrics;
  std::map<std::string, std::string> checkpoint;
  Whole() {
    const Ended r = place(place.train(run_200));
    EXPECT_EQ(r.exit, 0) << r.err;
    metrics = metrics_of(place / "nibble_output/run"),
    checkpoint = checkpoint_bytes(place / "nibble_output/run/checkpoints/00000200");
    EXPECT_EQ(metrics.size(), 203u);
  }
};
const Whole& whole() {
  static const Whole w;
  return w;
}

int64_t newest_step(const std::string& run) {
  int64_t newest = -1;
  for (const auto& e : std::filesystem::directory_iterator(run + "/checkpoints"))
    newest = std::max<int64_t>(newest, std::stoll(e.path().filename().string()));
  return newest;
}

/// Resumes as the program says it can be done, and compares with the run that was never stopped.
void expect_resumes_to_the_same(const Workplace& place) {
  const Ended r = place({"train", "nibble_output/run/config.yml"});
  EXPECT_EQ(r.exit, 0) << r.err;
  EXPECT_EQ(metrics_of(place / "nibble_output/run"), whole().metrics);
  EXPECT_TRUE(checkpoint_bytes(place / "nibble_output/run/checkpoints/00000200") == whole().checkpoint);
}

// The run is blocked by its full stdout at most some twenty steps after the line that was waited for: the signal always
// comes in the middle.
TEST(TrainingT55, StopSignalsSaveAndResume) {
  for (const auto& [signal, line] :
       {std::pair(SIGTERM, "completed step: 3,"), std::pair(SIGUSR1, "completed step: 69,"),
        std::pair(SIGHUP, "running loss"), std::pair(SIGTERM, "global batch")}) {
    const Workplace place;
    Running p(place.train(run_200), {.folder = place.path()});
    ASSERT_TRUE(p.read_out_until(line)) << line;
    p.send(signal);
    const Ended r = p.finish();
    EXPECT_EQ(r.exit, 75) << r.err;
    EXPECT_NE(r.out.find("resume:    nibble train nibble_output/run/config.yml\n"), std::string::npos) << r.out;
    const std::string run = place / "nibble_output/run";
    const int64_t step = newest_step(run);
    EXPECT_GE(step, 0);
    EXPECT_LT(step, 120);
    EXPECT_NE(r.out.find("stopped at step " + std::to_string(step)), std::string::npos);
    EXPECT_EQ(events_of(run), (std::vector<std::string>{"start", "signal", "save"}));
    expect_resumes_to_the_same(place);
  }
}

TEST(TrainingT55, WithoutAutocheckpointNothingIsSaved) {
  const Workplace place;
  Running p(place.train(with(run_200, {"enable_autocheckpoint=false"})), {.folder = place.path()});
  ASSERT_TRUE(p.read_out_until("completed step: 3,"));
  p.send(SIGTERM);
  const Ended r = p.finish();
  EXPECT_EQ(r.exit, 75);
  EXPECT_NE(r.out.find("without saving"), std::string::npos) << r.out;
  EXPECT_EQ(newest_step(place / "nibble_output/run"), -1);
}

TEST(TrainingT56, FirstInterruptSaves) {
  const Workplace place;
  Running p(place.train(run_200), {.folder = place.path()});
  ASSERT_TRUE(p.read_out_until("completed step: 5,"));
  p.send(SIGINT);
  const Ended r = p.finish();
  EXPECT_EQ(r.exit, 130);
  EXPECT_TRUE(std::regex_search(r.err, std::regex("finishing .*step.*, saving; press again to stop now\n"))) << r.err;
  EXPECT_NE(r.out.find("resume:    nibble train nibble_output/run/config.yml\n"), std::string::npos) << r.out;
  expect_resumes_to_the_same(place);
}

TEST(TrainingT56, SecondInterruptStopsAtOnce) {
  const Workplace place;
  // Who leaves at once joins no thread; the thread sanitizer is told so, and of nothing else.
  Running p(place.train(with(run_200, {"checkpoint_period=2"})),
            {.folder = place.path(), .environment = {{"TSAN_OPTIONS", "halt_on_error=1:report_thread_leaks=0"}}});
  ASSERT_TRUE(p.read_out_until("completed step: 5,"));
  p.send(SIGINT);  // stdout is full or will be: this step cannot end
  ASSERT_TRUE(p.read_err_until("press again"));
  p.send(SIGINT);
  const Ended r = p.finish();
  EXPECT_EQ(r.exit, 130) << r.err;
  EXPECT_EQ(place({"ckpt", "verify", "nibble_output/run"}).exit, 0);  // no half file is visible
  EXPECT_EQ(place(place.train(run_200)).exit, 0);
  EXPECT_EQ(metrics_of(place / "nibble_output/run"), whole().metrics);
}

TEST(TrainingT56, Usr2SavesAndGoesOn) {
  const Workplace place;
  Running p(place.train(run_200), {.folder = place.path()});
  ASSERT_TRUE(p.read_out_until("completed step: 5,"));
  p.send(SIGUSR2);
  EXPECT_EQ(p.finish().exit, 0);
  const std::string run = place / "nibble_output/run";
  EXPECT_EQ(events_of(run), (std::vector<std::string>{"start", "save", "save", "stop"}));
  int64_t checkpoints = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(run + "/checkpoints")) ++checkpoints;
  EXPECT_EQ(checkpoints, 2);
  EXPECT_EQ(metrics_of(run), whole().metrics);
}

TEST(TrainingT56, AStdoutThatNobodyReadsOnlySilences) {
  for (const bool no_streams : {false, true}) {
    const Workplace place;
    const Ended r =
        Running(place.train(run_200), {.folder = place.path(), .unread = true, .no_streams = no_streams}).finish();
    EXPECT_EQ(r.exit, 0);
    EXPECT_EQ(metrics_of(place / "nibble_output/run"), whole().metrics);
    EXPECT_TRUE(checkpoint_bytes(place / "nibble_output/run/checkpoints/00000200") == whole().checkpoint);
  }
}

TEST(TrainingT56, AClosedStdoutEndsPrintCommandsQuietly) {
  const Workplace place;
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"help", "train"},
                                             {"config"},
                                             {"config", "keys"},
                                             {"plan", "model_name=nibble-1m", "dataset_type=synthetic"}}) {
    EXPECT_EQ(Running(words, {.folder = place.path(), .unread = true}).finish().exit, 0) << words[0];
  }
}

TEST(TrainingT45, QuietAndLogFile) {
  const Workplace place;
  Ended r = place(place.train({"steps=3", "run_name=q", "--quiet", "--log-file", "log.txt"}));
  EXPECT_EQ(r.exit, 0) << r.err;
  EXPECT_EQ(r.out.find("completed step"), std::string::npos);
  EXPECT_NE(r.out.find("done: 3 steps"), std::string::npos);
  EXPECT_EQ(r.err, "");
  EXPECT_NE(place.content("log.txt").find("completed step: 2,"), std::string::npos);
  r = place(place.train({"steps=3", "run_name=d", "--dry-run"}));
  EXPECT_EQ(r.exit, 0) << r.err;
  EXPECT_NE(r.out.find("dry run"), std::string::npos);
  EXPECT_EQ(r.out.find("completed step"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(place / "nibble_output/d/metrics.jsonl"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these keep memory of their own

// The resident peak of the process is the planned arena, the copy for checkpoints and a constant, whatever the run is.
TEST(TrainingT58, ResidentMemoryIsTheArenaAndAConstant) {
  const std::vector<std::string> runs[] = {
      {"model_name=nibble-1m", "per_device_batch_size=1", "max_target_length=32", "enable_checkpointing=false"},
      {"model_name=nibble-1m", "per_device_batch_size=4", "max_target_length=128", "remat_policy=full"},
      {"model_name=nibble-1m", "per_device_batch_size=8", "max_target_length=64", "async_checkpointing=false"},
      {"model_name=nibble-10m", "per_device_batch_size=1", "max_target_length=64"},
      {"model_name=nibble-10m", "per_device_batch_size=1", "max_target_length=64", "enable_checkpointing=false"}};
  for (std::vector<std::string> words : runs) {
    const Workplace place;
    words.insert(words.end(), {"dataset_type=synthetic", "threads=2", "steps=2", "run_name=run"});
    std::vector<std::string> plan = {"plan", "--json"}, train = {"train"};
    plan.insert(plan.end(), words.begin(), words.end()), train.insert(train.end(), words.begin(), words.end());
    const Ended planned = place(plan), trained = place(train);
    ASSERT_EQ(planned.exit, 0) << planned.err;
    ASSERT_EQ(trained.exit, 0) << trained.err;
    const auto j = nlohmann::json::parse(planned.out);
    const int64_t predicted =
        j["arena_bytes"].get<int64_t>() + j["checkpoint_copy_bytes"].get<int64_t>() + j["program_bytes"].get<int64_t>();
    std::ifstream metrics(place / "nibble_output/run/metrics.jsonl");
    int64_t resident = 0;
    for (std::string line; std::getline(metrics, line);)
      resident = std::max(resident, nlohmann::json::parse(line).value("perf/memory_peak_bytes", int64_t{0}));
    EXPECT_NEAR(static_cast<double>(resident - predicted), 0, 4 * 1048576.0)
        << fmt::format("{}", fmt::join(words, " "));
  }
}

// Where the limit is the arena, no copy is made: one notice says so, and the files are the same.
TEST(TrainingT58, NoCopyForCheckpointsBeyondTheLimit) {
  std::map<std::string, std::string> want;
  for (const bool limited : {false, true}) {
    const Workplace place;
    std::vector<std::string> words = {"model_name=nibble-1m",
                                      "per_device_batch_size=1",
                                      "max_target_length=32",
                                      "dataset_type=synthetic",
                                      "threads=1",
                                      "steps=2",
                                      "run_name=run",
                                      "checkpoint_period=1"};
    std::vector<std::string> plan = {"plan", "--json"};
    plan.insert(plan.end(), words.begin(), words.end());
    const auto arena = nlohmann::json::parse(place(plan).out)["arena_bytes"].get<int64_t>();
    if (limited) words.push_back(fmt::format("memory_limit={}", arena));
    words.insert(words.begin(), "train");
    const Ended r = place(words);
    ASSERT_EQ(r.exit, 0) << r.err;
    EXPECT_EQ(r.err.find("memory_limit has no room for a copy of the state") != std::string::npos, limited) << r.err;
    const auto files = checkpoint_bytes(place / "nibble_output/run/checkpoints/00000001");
    if (limited)
      EXPECT_TRUE(files == want);
    else
      want = files;
  }
}

#endif

}  // namespace
}  // namespace nibble
