// What a run says about itself: obligations T41 and T43 of spec/training.md.
#include "train/metrics.h"

#include <cmath>
#include <regex>
#include <set>

#include "tiny.h"

namespace nibble {
namespace {

StepRecord golden_record() {
  StepRecord r;
  r.step = 7, r.updates = 8, r.tokens = 524288, r.samples = 64, r.epoch = 1, r.targets = 65536, r.batch_hash = 0xabc;
  r.loss = r.ce = 8.123, r.grad_norm = 1.234, r.raw_grad_norm = 2.5, r.param_norm = 100, r.lr = 3e-4;
  r.seconds = 0.512, r.flops = 123.456e12 * 0.512, r.step_tokens = 8192, r.memory_peak_bytes = 65712999219,
  r.eta_seconds = 3720;
  return r;
}

TEST(TrainingT41, GoldenStepLine) {
  StepRecord r = golden_record();
  EXPECT_EQ(step_line(r, false),
            "completed step: 7, seconds: 0.512, TFLOP/s/device: 123.456, Tokens/s/device: 16000.000, total_weights: "
            "65536, loss: 8.123, "
            "lm_loss: 8.123, perplexity: 3371.119");
  EXPECT_EQ(step_line(r, true),
            step_line(r, false) + ", grad_norm: 1.234, lr: 3.000e-04, mfu: n/a, mem: 61.2GiB, eta: 1h02m");
  r.peak_flops = 1e15;
  EXPECT_NE(step_line(r, true).find(", mfu: 12.3%, "), std::string::npos);
}

TEST(TrainingT41, GoldenEvaluationLines) {
  EXPECT_EQ(running_evaluation_line(0, 0.101, 3.21, 8192),
            "Completed eval step: 0, seconds: 0.101, running loss=3.210, running perplexity=24.779, running "
            "total_weights=8192.0");
  EvaluationRecord e;
  e.after_step = 100, e.loss = 3.21, e.targets = 65536;
  EXPECT_EQ(
      evaluation_line(e),
      "Completed eval after train step 100, loss=3.210, perplexity=24.779, total_weights=65536.0, avg_z_loss=0.000");
  e.bits_per_byte = 1.5;
  EXPECT_TRUE(evaluation_line(e).ends_with("avg_z_loss=0.000, bits_per_byte=1.5000"));
}

// The expressions with which MaxText's own tools read a log; they search, so what follows does not matter.
TEST(TrainingT41, ParsersOfMaxText) {
  const std::string line = step_line(golden_record(), true);
  std::smatch m;
  ASSERT_TRUE(std::regex_search(
      line, m,
      std::regex(
          R"(completed step: (\d+), seconds: ([\d.]+), TFLOP/s/device: ([\d.]+), Tokens/s/device: ([\d.]+), total_weights: (\d+), loss: ([\d.]+))")));
  EXPECT_EQ(m[1], "7");
  EXPECT_EQ(m[2], "0.512");
  EXPECT_EQ(m[3], "123.456");
  EXPECT_EQ(m[4], "16000.000");
  EXPECT_EQ(m[5], "65536");
  EXPECT_EQ(m[6], "8.123");
  ASSERT_TRUE(std::regex_search(line, m, std::regex(R"(completed step:\s*(\d+),.*\bloss:\s*([\d.]+))")));
  EXPECT_EQ(m[1], "7");
  ASSERT_TRUE(std::regex_search(line, m, std::regex(R"(completed step: (\d+))")));
  EvaluationRecord e;
  e.after_step = 100, e.loss = 3.21, e.targets = 65536;
  const std::string evaluation = evaluation_line(e);
  ASSERT_TRUE(std::regex_search(
      evaluation, m,
      std::regex(
          R"(Completed eval after train step (\d+), loss=([\d.]+), perplexity=([\d.]+), total_weights=([\d.]+))")));
  EXPECT_EQ(m[2], "3.210");
}

TEST(TrainingT41, DurationsAndSizes) {
  EXPECT_EQ(duration(12.4), "12s");
  EXPECT_EQ(duration(59.6), "1m00s");
  EXPECT_EQ(duration(200), "3m20s");
  EXPECT_EQ(duration(3720), "1h02m");
  EXPECT_EQ(bytes_text(1536), "1.5KiB");
  EXPECT_EQ(bytes_text(963'326'771), "918.7MiB");
  EXPECT_EQ(bytes_text(65'712'999'219), "61.2GiB");
}

std::vector<Json> records_of(const std::string& file) {
  std::vector<Json> list;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) list.push_back(Json::parse(line));
  return list;
}

std::set<std::string> keys_of(const Json& j) {
  std::set<std::string> keys;
  for (const auto& [key, value] : j.items()) keys.insert(key);
  return keys;
}

TEST(TrainingT43, RecordsHaveTheKeysOfTheSchema) {
  const TemporaryFolder folder;
  {
    MetricsLog log(folder / "metrics.jsonl", folder / "copy.jsonl", "a run");
    log.event(0, "start", "detail \"quoted\"\n");
    StepRecord r = golden_record();
    r.peak_flops = 1e15;
    log.step(r);
    r.peak_flops = 0, r.loss = NAN, r.raw_grad_norm = INFINITY, r.skipped = true;
    log.step(r);
    EvaluationRecord e;
    e.after_step = 9, e.loss = 2, e.bits_per_byte = 1.25, e.targets = 77;
    log.evaluation(e);
  }
  const std::vector<Json> list = records_of(folder / "metrics.jsonl");
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(content_of(folder / "copy.jsonl"), content_of(folder / "metrics.jsonl"));
  EXPECT_EQ(keys_of(list[0]), (std::set<std::string>{"kind", "step", "run_name", "time", "name", "detail"}));
  EXPECT_EQ(list[0]["detail"], "detail \"quoted\"\n");
  std::set<std::string> train = {"kind",
                                 "step",
                                 "run_name",
                                 "time",
                                 "perf/step_time_seconds",
                                 "perf/per_device_tflops",
                                 "perf/per_device_tflops_per_sec",
                                 "perf/per_device_tokens",
                                 "perf/per_device_tokens_per_sec",
                                 "perf/data_wait_seconds",
                                 "perf/memory_peak_bytes",
                                 "perf/mfu",
                                 "perf/sol"};
  for (const char* key : {"loss", "lm_loss", "ce_loss", "perplexity", "z_loss", "total_weights", "grad_norm",
                          "raw_grad_norm", "param_norm", "current_learning_rate"})
    train.insert(std::string("learning/") + key);
  for (const char* key : {"samples", "tokens", "epoch", "batch_hash", "padding_share"})
    train.insert(std::string("data/") + key);
  for (const char* key : {"step_skipped", "skipped_total", "updates"}) train.insert(std::string("optim/") + key);
  EXPECT_EQ(keys_of(list[1]), train);
  train.erase("perf/mfu"), train.erase("perf/sol");  // no peak is known
  EXPECT_EQ(keys_of(list[2]), train);
  EXPECT_EQ(list[1]["learning/loss"], 8.123);
  EXPECT_EQ(list[1]["learning/total_weights"], 65536);
  EXPECT_EQ(list[1]["data/batch_hash"], "0000000000000abc");
  EXPECT_EQ(list[2]["learning/loss"], "nan");
  EXPECT_EQ(list[2]["learning/raw_grad_norm"], "inf");
  EXPECT_EQ(list[2]["optim/step_skipped"], 1);
  EXPECT_EQ(keys_of(list[3]), (std::set<std::string>{"kind", "step", "run_name", "time", "eval/avg_loss",
                                                     "eval/avg_perplexity", "eval/total_weights", "eval/avg_z_loss",
                                                     "eval/bits_per_byte", "eval/step_time_seconds"}));
  for (const Json& j : list)
    EXPECT_TRUE(std::regex_match(j["time"].get<std::string>(), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")));
}

TEST(TrainingT43, ALineCutShortIsRemoved) {
  const TemporaryFolder folder;
  const std::string file = folder / "metrics.jsonl";
  const std::string whole = "{\"kind\":\"event\",\"step\":1}\n";
  for (const std::string& cut :
       {std::string("{\"kind\":\"tra"), std::string("{"), std::string(5000, 'x'), std::string()}) {
    std::ofstream(file, std::ios::binary) << whole << cut;
    MetricsLog(file, "", "r").event(2, "resume", "");
    const std::vector<Json> list = records_of(file);
    ASSERT_EQ(list.size(), 2u);
    EXPECT_EQ(list[0]["step"], 1);
    EXPECT_EQ(list[1]["name"], "resume");
  }
  std::ofstream(file, std::ios::binary) << "no line end at all";
  MetricsLog(file, "", "r").event(3, "start", "");
  EXPECT_EQ(records_of(file).size(), 1u);
}

TEST(TrainingT43, AFileThatCannotBeOpened) { EXPECT_THROW(MetricsLog("/nonexistent/metrics.jsonl", "", "r"), Error); }

}  // namespace
}  // namespace nibble
