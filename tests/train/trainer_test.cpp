// Whole runs in one process: obligations T27, T35, T43, T45 and T46 of spec/training.md.
#include "train/trainer.h"

#include <cmath>
#include <map>

#include "io/checkpoint.h"
#include "io/json.h"
#include "io/run_folder.h"
#include "tiny.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

/// Runs training without showing what it prints.
int train(const Config& config, std::string* printed = nullptr) {
  struct Silence {
    Silence() { testing::internal::CaptureStdout(), testing::internal::CaptureStderr(); }
    ~Silence() { text = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr(); }
    static std::string& last() {
      static std::string kept;
      return kept;
    }
    std::string& text = last();
  };
  int code = 0;
  {
    const Silence silence;
    code = run_training(config, {});
  }
  if (printed != nullptr) *printed = Silence::last();
  return code;
}

class Runs {
 public:
  /// A run called "run" in a folder of its own: run names are part of the metrics.
  Config config(const std::string& place, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"run_name=run", "base_output_directory=" + (folder_ / place),
                                      "cache_directory=" + (folder_ / "cache")};
    words.insert(words.end(), more.begin(), more.end());
    return tiny_config(words);
  }
  std::string run(const std::string& place) const { return folder_ / (place + "/run"); }
  std::string book() const { return "train_files=[" + write_book(folder_) + "]"; }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
};

bool is_time_field(const std::string& key) {
  return key == "time" || key.starts_with("perf/") || key == "eval/step_time_seconds";
}

/// metrics.jsonl without time fields; of each step and kind the last record; events apart.
std::map<std::pair<std::string, int64_t>, std::string> metrics(const std::string& run) {
  std::map<std::pair<std::string, int64_t>, std::string> last;
  std::ifstream in(run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    Json j = Json::parse(line), kept = Json::object();
    if (j["kind"] == "event") continue;
    for (const auto& [key, value] : j.items())
      if (!is_time_field(key)) kept[key] = value;
    last[{j["kind"], j["step"]}] = kept.dump();
  }
  return last;
}

std::vector<std::string> events(const std::string& run) {
  std::vector<std::string> list;
  std::ifstream in(run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    if (const Json j = Json::parse(line); j["kind"] == "event") list.push_back(j["name"]);
  return list;
}

/// Bytes of every file of a checkpoint but run_info.json.
std::map<std::string, std::string> bytes_of(const fs::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint))
    if (entry.is_regular_file() && entry.path().filename() != "run_info.json")
      files[fs::relative(entry.path(), checkpoint).string()] = content_of(entry.path());
  return files;
}

void expect_same_checkpoint(const fs::path& a, const fs::path& b) {
  const auto x = bytes_of(a), y = bytes_of(b);
  ASSERT_FALSE(x.empty()) << a;
  ASSERT_EQ(x.size(), y.size()) << a << " " << b;
  for (const auto& [name, content] : x) {
    ASSERT_TRUE(y.contains(name)) << name;
    EXPECT_TRUE(content == y.at(name)) << name << " of " << a << " and " << b;
  }
}

std::string checkpoint(const std::string& run, int64_t step) { return run + "/checkpoints/" + step_name(step); }

// ---- T35, T45, T46 ----

const std::vector<std::string> text_run = {"steps=20",
                                           "eval_fraction=0.1",
                                           "eval_holdout=tail",
                                           "eval_interval=6",
                                           "eval_steps=5",
                                           "learning_rate_schedule_steps=20",
                                           "save_checkpoint_on_completion=true"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(TrainingT45, TwoRunsWriteTheSameMetrics) {
  const Runs runs;
  for (const char* place : {"a", "b"}) EXPECT_EQ(train(runs.config(place, with(text_run, {runs.book()}))), exit_done);
  const auto a = metrics(runs.run("a"));
  EXPECT_EQ(a.size(), 20u + 4u);  // evaluations after 6, 12, 18 and 20
  EXPECT_EQ(a, metrics(runs.run("b")));
  EXPECT_EQ(events(runs.run("a")), (std::vector<std::string>{"start", "save", "stop"}));
  expect_same_checkpoint(checkpoint(runs.run("a"), 20), checkpoint(runs.run("b"), 20));
  EXPECT_EQ(content_of(runs.run("a") + "/tokenizer.json"), content_of(runs.run("b") + "/tokenizer.json"));
}

TEST(TrainingT46, AStopAfterAnyStepChangesNothing) {
  const Runs runs;
  const std::vector<std::string> words = with(text_run, {runs.book()});
  ASSERT_EQ(train(runs.config("whole", words)), exit_done);
  const auto want = metrics(runs.run("whole"));
  // "steps" is no part of a checkpoint: a run of n steps, continued to 2n, is the run of 2n steps. An evaluation at the
  // end of a run is one more record, not another one.
  for (int64_t stop = 1; stop < 20; ++stop) {
    const std::string place = fmt::format("stop{}", stop);
    ASSERT_EQ(train(runs.config(place, with(words, {fmt::format("steps={}", stop)}))), exit_done);
    ASSERT_EQ(train(runs.config(place, words)), exit_done);
    auto got = metrics(runs.run(place));
    EXPECT_EQ(got.erase({"eval", stop % 6 == 0 ? -1 : stop}), stop % 6 == 0 ? 0u : 1u);
    EXPECT_EQ(got, want) << "stop after " << stop;
    expect_same_checkpoint(checkpoint(runs.run(place), 20), checkpoint(runs.run("whole"), 20));
    EXPECT_EQ(events(runs.run(place)), (std::vector<std::string>{"start", "save", "stop", "resume", "save", "stop"}));
  }
}

TEST(TrainingT46, InBf16Too) {
  const Runs runs;
  const std::vector<std::string> words = with(text_run, {runs.book(), "dtype=bfloat16"});
  ASSERT_EQ(train(runs.config("whole", words)), exit_done);
  ASSERT_EQ(train(runs.config("wide", with(text_run, {runs.book()}))), exit_done);
  EXPECT_NE(metrics(runs.run("whole")), metrics(runs.run("wide")));
  for (const int64_t stop : {1, 7, 12, 19}) {
    const std::string place = fmt::format("stop{}", stop);
    ASSERT_EQ(train(runs.config(place, with(words, {fmt::format("steps={}", stop)}))), exit_done);
    ASSERT_EQ(train(runs.config(place, words)), exit_done);
    auto got = metrics(runs.run(place));
    got.erase({"eval", stop % 6 == 0 ? -1 : stop});
    EXPECT_EQ(got, metrics(runs.run("whole"))) << "stop after " << stop;
    expect_same_checkpoint(checkpoint(runs.run(place), 20), checkpoint(runs.run("whole"), 20));
  }
}

// One run that is stopped and resumed after every single step: batch hashes and everything else as without stops.
TEST(TrainingT35, ResumedAtEveryStep) {
  const Runs runs;
  std::vector<std::string> words = {runs.book(), "learning_rate_schedule_steps=25", "num_epoch=0",
                                    "max_num_checkpoints_to_keep=2"};
  ASSERT_EQ(train(runs.config("whole", with(words, {"steps=25"}))), exit_done);
  for (int64_t step = 1; step <= 25; ++step)
    ASSERT_EQ(train(runs.config("steps", with(words, {fmt::format("steps={}", step)}))), exit_done) << step;
  EXPECT_EQ(metrics(runs.run("steps")), metrics(runs.run("whole")));
  expect_same_checkpoint(checkpoint(runs.run("steps"), 25), checkpoint(runs.run("whole"), 25));
  EXPECT_EQ(list_checkpoints(runs.run("steps")).size(), 2u);
}

// GB = 8 rows of 32: batch hashes are equal for every GA, and with microbatches of 64 tokens and more so is the rest
// but gradient_accumulation_steps itself.
TEST(TrainingT35, AccumulationChangesNoBatch) {
  const Runs runs;
  for (const int ga : {1, 2, 4})
    ASSERT_EQ(train(runs.config(fmt::format("ga{}", ga),
                                {runs.book(), "steps=20", fmt::format("per_device_batch_size={}", 8 / ga),
                                 fmt::format("gradient_accumulation_steps={}", ga)})),
              exit_done);
  const auto want = metrics(runs.run("ga1"));
  EXPECT_EQ(want.size(), 20u);
  for (const int ga : {2, 4}) {
    EXPECT_EQ(metrics(runs.run(fmt::format("ga{}", ga))), want);
    for (const char* file : {"/model-00001-of-00001.safetensors", "/state/optim-00001-of-00001.safetensors"})
      EXPECT_TRUE(content_of(checkpoint(runs.run(fmt::format("ga{}", ga)), 20) + file) ==
                  content_of(checkpoint(runs.run("ga1"), 20) + file))
          << ga << file;
  }
}

TEST(TrainingT46, ThreadsAndTargetsWriteTheSameBytes) {
  const Runs runs;
  const std::vector<std::string> words = with(text_run, {runs.book(), "steps=10"});
  ASSERT_EQ(train(runs.config("one", words)), exit_done);
  const auto want = metrics(runs.run("one"));
  std::vector<std::vector<std::string>> others = {{"threads=2"}, {"threads=3"}};
  for (const CpuTarget t : cpu_targets())
    if (t != CpuTarget::avx512_bf16)
      others.push_back({std::string("cpu_target=") + name_of(t)});  // float32 needs no bfloat16
  for (size_t i = 0; i < others.size(); ++i) {
    const std::string place = fmt::format("other{}", i);
    ASSERT_EQ(train(runs.config(place, with(words, others[i]))), exit_done);
    EXPECT_EQ(metrics(runs.run(place)), want) << others[i][0];
    expect_same_checkpoint(checkpoint(runs.run(place), 10), checkpoint(runs.run("one"), 10));
  }
}

// Committed: a change of one bit anywhere between a byte of text and an updated weight is seen here.
TEST(TrainingT46, FinalWeightsHaveTheStoredHash) {
  const Runs runs;
  ASSERT_EQ(train(runs.config("a", with(text_run, {runs.book()}))), exit_done);
  Checkpoint c(checkpoint(runs.run("a"), 20));
  std::vector<uint64_t> hashes;
  for (const TensorView& t : c.tensors())
    if (!t.name.starts_with("m.") && !t.name.starts_with("v."))
      hashes.push_back(xxh3(t.data, static_cast<size_t>(t.numel()) * 4));
  EXPECT_EQ(hashes.size(), 21u);
  EXPECT_EQ(hex16(xxh3(hashes.data(), hashes.size() * sizeof(uint64_t))), "25c482b4b58521c6");
}

// ---- resuming ----

TEST(TrainingT43, AResumeRepairsACutLine) {
  const Runs runs;
  const std::vector<std::string> words = {runs.book(), "learning_rate_schedule_steps=6"};
  ASSERT_EQ(train(runs.config("a", with(words, {"steps=3"}))), exit_done);
  std::ofstream(runs.run("a") + "/metrics.jsonl", std::ios::app) << "{\"kind\":\"train\",\"step\":3,\"run_na";
  ASSERT_EQ(train(runs.config("a", with(words, {"steps=6"}))), exit_done);
  EXPECT_EQ(metrics(runs.run("a")).size(), 6u);  // and every line parses
}

TEST(TrainingT46, ACompleteRunStaysAsItIs) {
  const Runs runs;
  const std::vector<std::string> words = {runs.book(), "steps=3"};
  ASSERT_EQ(train(runs.config("a", words)), exit_done);
  const auto before = bytes_of(checkpoint(runs.run("a"), 3));
  std::string printed;
  ASSERT_EQ(train(runs.config("a", words), &printed), exit_done);
  EXPECT_NE(printed.find("already complete"), std::string::npos) << printed;
  EXPECT_EQ(printed.find("completed step"), std::string::npos);
  EXPECT_EQ(bytes_of(checkpoint(runs.run("a"), 3)), before);
}

// ---- T27 ----

Error failure(const Config& config) {
  try {
    train(config);
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {"none", ""};
}

void expect_words(const Error& e, const std::string& id, int exit, const std::vector<std::string>& words) {
  EXPECT_EQ(e.id, id) << e.message();
  EXPECT_EQ(e.exit_code(), exit) << e.message();
  for (const std::string& word : words)
    EXPECT_NE(e.message().find(word), std::string::npos) << "missing: " << word << "\n" << e.message();
}

/// Copies a checkpoint's model as a Hugging Face folder, with one value of one tensor replaced.
std::string poisoned_model(const Runs& runs, const std::string& tensor, int64_t index, float value) {
  const fs::path from = checkpoint(runs.run("good"), 3), to = runs.folder() / "poisoned";
  fs::remove_all(to);
  fs::create_directories(to);
  fs::copy_file(from / "config.json", to / "config.json");
  Checkpoint c(from);
  const TensorView& t = c.at(tensor);
  std::string bytes = content_of(from / "model-00001-of-00001.safetensors");
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.numel()) * 4));
  EXPECT_NE(at, std::string::npos);
  std::memcpy(bytes.data() + at + index * 4, &value, 4);
  std::ofstream(to / "model.safetensors", std::ios::binary) << bytes;
  return "load_parameters_path=" + to.string();
}

TEST(TrainingT27, ANaNWeightEndsTheRunBeforeItsFirstUpdate) {
  const Runs runs;
  ASSERT_EQ(train(runs.config("good", {runs.book(), "steps=3"})), exit_done);
  for (const char* tensor :
       {"model.layers.1.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight", "lm_head.weight"}) {
    const Error e =
        failure(runs.config(std::string("bad_") + tensor, {runs.book(), "steps=5", "save_checkpoint_on_completion=true",
                                                           poisoned_model(runs, tensor, 7, NAN)}));
    expect_words(e, "E701", exit_numeric,
                 {"step 0", "parameter " + std::string(tensor), "element 7", "nan", "rows 0 to 1", "batch "});
    EXPECT_TRUE(list_checkpoints(runs.run(std::string("bad_") + tensor)).empty()) << "only finite state is saved";
  }
}

TEST(TrainingT27, SkippingCountsAndEnds) {
  const Runs runs;
  ASSERT_EQ(train(runs.config("good", {runs.book(), "steps=3"})), exit_done);
  const std::string poisoned = poisoned_model(runs, "model.layers.1.mlp.up_proj.weight", 7, NAN);
  const Error e = failure(runs.config("bad", {runs.book(), "steps=30", "nonfinite_action=skip", poisoned}));
  expect_words(e, "E702", exit_numeric, {"11 ", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"});
  int64_t skips = 0;
  for (const auto& [key, text] : metrics(runs.run("bad"))) {
    const Json j = Json::parse(text);
    EXPECT_EQ(j["optim/step_skipped"], 1);
    EXPECT_EQ(j["optim/skipped_total"], ++skips);
    EXPECT_EQ(j["optim/updates"], 0);
    EXPECT_EQ(j["learning/loss"], "nan");
  }
  EXPECT_EQ(skips, 10);
  EXPECT_EQ(std::ranges::count(events(runs.run("bad")), "nonfinite"), 11);
}

// A rate that throws the weights away: the state before the step with the bad loss is finite, it is saved, and what was
// saved before is kept.
TEST(TrainingT27, AnAbsurdRateKeepsTheLastGoodState) {
  const Runs runs;
  const std::vector<std::string> words = {runs.book(), "lr_schedule_type=constant", "warmup_steps=0",
                                          "learning_rate_schedule_steps=100"};
  ASSERT_EQ(train(runs.config("a", with(words, {"steps=5"}))), exit_done);
  const auto before = bytes_of(checkpoint(runs.run("a"), 5));
  const Error e = failure(runs.config("a", with(words, {"steps=20", "learning_rate=1e30"})));
  expect_words(e, "E701", exit_numeric, {"step 6", "newest checkpoint: step 6", "learning_rate"});
  EXPECT_EQ(bytes_of(checkpoint(runs.run("a"), 5)), before);
  Checkpoint c(checkpoint(runs.run("a"), 6));
  EXPECT_TRUE(c.verify().empty());
  for (const TensorView& t : c.tensors())
    for (int64_t i = 0; i < t.numel(); ++i)
      ASSERT_TRUE(std::isfinite(reinterpret_cast<const float*>(t.data)[i])) << t.name << " " << i;
  fs::remove_all(checkpoint(runs.run("a"), 6));
  EXPECT_EQ(train(runs.config("a", with(words, {"steps=8"}))), exit_done);  // from step 5, at the old rate
}

// An update that itself overflows leaves no good state in memory: nothing of it is saved.
TEST(TrainingT27, AnUpdateThatOverflowsIsNeverSaved) {
  const Runs runs;
  for (const char* action : {"abort", "skip"}) {
    const std::string place = std::string("a") + action;
    const std::vector<std::string> words = {runs.book(), "lr_schedule_type=constant", "warmup_steps=0",
                                            "learning_rate_schedule_steps=100",
                                            std::string("nonfinite_action=") + action};
    ASSERT_EQ(train(runs.config(place, with(words, {"steps=5"}))), exit_done);
    const Error e = failure(runs.config(
        place, with(words, {"steps=20", "learning_rate=3e38", "adam_weight_decay=100", "checkpoint_period=1"})));
    expect_words(e, "E701", exit_numeric, {"step 5", "parameter ", "newest checkpoint: step 5"});
    EXPECT_EQ(list_checkpoints(runs.run(place)).size(), 1u);
  }
}

}  // namespace
}  // namespace nibble
