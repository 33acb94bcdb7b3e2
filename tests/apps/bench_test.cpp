// nibble bench on tiny shapes: every figure is there, consistent, and of the kernels that were asked for.
#include "../../apps/nibble/bench.cpp"  // the command is no library

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "apps/outcome.h"
#include "temporary_folder.h"

namespace nibble {
namespace {

TEST(Bench, GemmMeasuresEveryProduct) {
  const Outcome r =
      outcome_of(bench_command, {"gemm", "model_name=nibble-1m", "per_device_batch_size=1", "max_target_length=64",
                                 "--repeats", "1", "--json", "threads=1", "cpu_target=auto"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["cpu_target"], name_of(cpu_targets().back()));
  std::set<std::string> gemms;
  for (const auto& g : j["gemms"]) {
    gemms.insert(g["gemm"]);
    EXPECT_GT(g["seconds"].get<double>(), 0) << g;
    const double flops =
        (g["gemm"] == "head" ? 6.0 : 2.0) * g["m"].get<double>() * g["n"].get<double>() * g["k"].get<double>();
    EXPECT_NEAR(g["flops_per_second"].get<double>() * g["seconds"].get<double>() / flops, 1, 1e-9) << g;
    if (cpu_runs(CpuTarget::avx2)) {
      EXPECT_GT(g["share"].get<double>(), 0) << g;
    }
  }
  EXPECT_EQ(gemms, (std::set<std::string>{"fprop", "dgrad", "wgrad", "head"}));
  EXPECT_EQ(j["gemms"].back()["site"], "square");
}

TEST(Bench, TrainMeasuresAStepAndItsOperations) {
  const Outcome r = outcome_of(
      bench_command, {"train", "model_name=nibble-1m", "per_device_batch_size=1", "max_target_length=16",
                      "gradient_accumulation_steps=2", "--repeats=2", "--json", "threads=2", "cpu_target=auto"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["repeats"], 2);
  EXPECT_EQ(j["rows"], 2);
  EXPECT_NEAR(j["tokens_per_second"].get<double>() * j["step_seconds"].get<double>(), 32, 1e-6);
  double flops = 0, seconds = 0;
  for (const auto& o : j["operations"]) flops += o["flops"].get<double>(), seconds += o["seconds"].get<double>();
  EXPECT_EQ(flops, j["executed_flops"].get<double>());
  EXPECT_GT(seconds, 0);
  EXPECT_GT(j["arena_bytes"].get<int64_t>(), 4 * 4 * 918656);
}

TEST(Bench, GenerateTimesEveryPrecisionOfTheWeights) {
  const Outcome r =
      outcome_of(bench_command, {"generate", "model_name=nibble-1m", "--repeats", "1", "--json", "threads=1"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  std::map<std::string, nlohmann::json> rows;
  for (const auto& row : j["rows"]) {
    rows[row["gen_recipe"]] = row;
    EXPECT_GT(row["decode_tokens_per_second"].get<double>(), 0) << row;
    EXPECT_GT(row["prompt_tokens_per_second"].get<double>(), 0) << row;
    EXPECT_NEAR(row["decode_bytes_per_second"].get<double>() / row["decode_tokens_per_second"].get<double>() /
                    row["weight_bytes_a_token"].get<double>(),
                1, 1e-9);
  }
  ASSERT_EQ(rows.size(), 4u);
  const auto bytes = [&](const char* name) { return rows[name]["weight_bytes_a_token"].get<double>(); };
  EXPECT_EQ(bytes("fp32"), 4.0 * (918656 - 9 * 128));  // all but the norms; the table is the head
  EXPECT_NEAR(bytes("fp32") / bytes("weight_only_all"), 32 / 4.5, 0.1);
  EXPECT_GT(bytes("weight_only"), bytes("te_nvfp4"));  // a scale for 16 weights, and for 256
  EXPECT_GT(rows["weight_only"]["weight_bytes"].get<double>(), bytes("weight_only_all"));
}

TEST(Bench, TextHasTheTable) {
  const Outcome r = outcome_of(bench_command, {"train", "model_name=nibble-1m", "per_device_batch_size=1",
                                               "max_target_length=16", "--repeats=1"});
  EXPECT_EQ(r.exit, 0);
  for (const char* part : {"tokens/s", "linear_wgrad", "outside the kernels", "FMA peak"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " in\n" << r.out;
}

TEST(Bench, AttentionAtSeveralLengths) {
  const Outcome r = outcome_of(bench_command, {"attention", "model_name=nibble-1m", "per_device_batch_size=1",
                                               "max_target_length=256", "--repeats", "1", "--json", "threads=2"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  ASSERT_EQ(j["attentions"].size(), 8u);
  for (size_t i = 0; i < 8; i += 2) {
    const auto &forward = j["attentions"][i], &backward = j["attentions"][i + 1];
    EXPECT_EQ(forward["pass"], "forward");
    EXPECT_EQ(backward["pass"], "backward");
    const int64_t length = forward["length"], rows = forward["rows"];
    EXPECT_EQ(rows, std::max<int64_t>(1, 256 / length));
    const double pairs = static_cast<double>(rows * length * (length + 1) / 2), of = 4.0 * 4 * 32;  // 4 D, 4 heads
    EXPECT_NEAR(forward["flops_per_second"].get<double>() * forward["seconds"].get<double>() / (of * pairs), 1, 1e-9);
    EXPECT_NEAR(backward["flops_per_second"].get<double>() * backward["seconds"].get<double>() / (2.5 * of * pairs), 1,
                1e-9);
  }
}

TEST(Bench, OpsThatMoveBytes) {
  const Outcome r = outcome_of(bench_command, {"ops", "model_name=nibble-1m", "per_device_batch_size=2",
                                               "max_target_length=64", "--repeats", "1", "json=true", "threads=1"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  std::set<std::string> ops;
  for (const auto& o : j["ops"]) {
    EXPECT_TRUE(ops.insert(o["op"]).second) << o;
    EXPECT_NEAR(o["bytes_per_second"].get<double>() * o["seconds"].get<double>() / o["bytes"].get<double>(), 1, 1e-9);
    if (cpu_runs(CpuTarget::avx2)) {
      EXPECT_GT(o["share_of_limit"].get<double>(), 0) << o;
    }
  }
  EXPECT_TRUE(ops.contains("adamw") || ops.contains("adamw_squares"));
  EXPECT_FALSE(ops.contains("linear"));
}

TEST(Bench, QuantizersForEveryThreadCount) {
  const Outcome r = outcome_of(bench_command, {"quantize", "model_name=nibble-1m", "per_device_batch_size=2",
                                               "max_target_length=64", "--repeats", "1", "--json", "threads=2"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  std::set<std::pair<int, std::string>> rows;
  for (const auto& q : j["quantizers"]) {
    EXPECT_TRUE(rows.insert({q["threads"].get<int>(), q["copies"].get<std::string>()}).second) << q;
    EXPECT_GT(q["bytes_per_second"].get<double>(), 0) << q;
    if (cpu_runs(CpuTarget::avx2)) {
      EXPECT_NE(q["kernel"], "ref") << q;
    }
  }
  EXPECT_TRUE(rows.contains({1, "row, nearest"}) && rows.contains({2, "column, RHT, stochastic"}));
}

TEST(Bench, LimitsAreKeptInAFile) {
  const TemporaryFolder folder;
  const std::string file = folder / "sub/machine.json";
  const Outcome r = outcome_of(bench_command, {"limits", "threads=1", "--seconds", "1", "--out", file});
  ASSERT_EQ(r.exit, 0) << r.message;
  EXPECT_NE(r.out.find("kept in " + file), std::string::npos) << r.out;
  const Machine m = parse_machine(content_of(file), file);
  EXPECT_EQ(m.cpu, cpu_name());
  ASSERT_EQ(m.limits.size(), 1u);
  if (cpu_runs(CpuTarget::avx2)) {
    EXPECT_GT(m.limits[0].f32, 0);
  }
  // The file serves the other benchmarks, and two threads are added to it.
  EXPECT_EQ(outcome_of(bench_command, {"ops", "model_name=nibble-1m", "threads=1", "max_target_length=16",
                                       "--repeats=1", "machine=" + file})
                .exit,
            0);
  const Outcome two = outcome_of(bench_command, {"limits", "threads=2", "--seconds=1", "--json", "--out=" + file});
  ASSERT_EQ(two.exit, 0) << two.message;
  EXPECT_EQ(nlohmann::json::parse(two.out)["limits"].size(), 2u);
  EXPECT_EQ(parse_machine(content_of(file), file).limits.size(), 2u);
  EXPECT_EQ(outcome_of(bench_command, {"limits", "--out", folder.write("bad.json", "[]")}).id, "E114");
}

TEST(Bench, TrainSaysHowLongTheFirstLossTook) {  // T62
  const Outcome r = outcome_of(bench_command, {"train", "model_name=nibble-1m", "per_device_batch_size=1",
                                               "max_target_length=16", "--repeats=1", "--json"});
  ASSERT_EQ(r.exit, 0) << r.message;
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_GT(j["first_step_begins_seconds"].get<double>(), 0);
  EXPECT_GE(j["first_loss_seconds"].get<double>(), j["first_step_begins_seconds"].get<double>());
  double rows = j["outside_seconds"];
  for (const auto& o : j["operations"]) rows += o["seconds"].get<double>();
  EXPECT_NEAR(rows / j["profiled_seconds"].get<double>(), 1, 0.02);
}

TEST(Bench, SavesAndComparesWithWhatWasSaved) {
  const TemporaryFolder folder;
  const std::string file = folder / "before.json";
  const std::vector<std::string> words = {"model_name=nibble-1m", "per_device_batch_size=1", "max_target_length=16",
                                          "threads=1", "--repeats=2"};
  const auto bench = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.begin(), name), all.insert(all.end(), more.begin(), more.end());
    return outcome_of(bench_command, all);
  };
  if (!cpu_runs(CpuTarget::avx2)) {
    EXPECT_EQ(bench("ops", {"--save", file}).id, "E503");
    return;
  }
  for (const char* name : {"ops", "train"}) {
    ASSERT_EQ(bench(name, {"--save", file}).exit, 0) << name;  // over what another name saved
    auto saved = nlohmann::json::parse(content_of(file));
    for (auto& row : saved["rows"])
      for (auto& share : row["shares"]) EXPECT_GT(share.get<double>(), 0) << row;

    for (auto& row : saved["rows"]) row["shares"] = {1e-9};  // everything is faster than that, and slower than 1e9
    folder.write("slow.json", saved.dump());
    const Outcome faster = bench(name, {"--compare", folder / "slow.json", "--json"});
    ASSERT_EQ(faster.exit, 0) << faster.message;
    const auto compared = nlohmann::json::parse(faster.out);
    EXPECT_GT(compared["comparison"].size(), 0u);
    for (const auto& row : compared["comparison"]) EXPECT_EQ(row["verdict"], "faster") << row;
    for (auto& row : saved["rows"]) row["shares"] = {1e9};
    folder.write("fast.json", saved.dump());
    const Outcome slower = bench(name, {"--compare=" + (folder / "fast.json"), "--tolerance", "50"});
    EXPECT_EQ(slower.exit, 1) << slower.message;
    EXPECT_NE(slower.out.find("tolerance 50.0 %"), std::string::npos) << slower.out;
    EXPECT_NE(slower.out.find("slower"), std::string::npos) << slower.out;

    saved["of"]["cpu"] = "Zilog Z80";
    folder.write("other.json", saved.dump());
    const Outcome other = bench(name, {"--compare", folder / "other.json"});
    EXPECT_EQ(other.id, "E117");
    EXPECT_NE(other.message.find("another CPU"), std::string::npos) << other.message;
    EXPECT_NE(other.message.find("Zilog Z80"), std::string::npos) << other.message;
  }
  EXPECT_EQ(bench("ops", {"--compare", file}).id, "E117");  // that is of train
  EXPECT_EQ(bench("ops", {"--compare", folder / "nowhere.json"}).id, "E202");
  EXPECT_EQ(bench("ops", {"--compare", folder.write("text.json", "hello")}).id, "E309");
  EXPECT_EQ(bench("ops", {"--tolerance", "3"}).id, "E102");
}

TEST(Bench, WhatIsNotThereIsNamed) {
  for (const char* name : {"data", "all"}) {
    const Outcome r = outcome_of(bench_command, {name});
    EXPECT_EQ(r.id, "E010") << name;
    EXPECT_NE(r.message.find("not in this version"), std::string::npos) << r.message;
  }
  EXPECT_EQ(outcome_of(bench_command, {"gemm", "--layers=2"}).id, "E010");
  EXPECT_EQ(outcome_of(bench_command, {}).id, "E007");
  EXPECT_EQ(outcome_of(bench_command, {"gemmm"}).id, "E007");
  EXPECT_EQ(outcome_of(bench_command, {"gemm", "--repeats", "0"}).id, "E002");
  EXPECT_EQ(outcome_of(bench_command, {"train", "model_name=llama3-8b", "memory_limit=1G"}).id, "E107");
}

}  // namespace
}  // namespace nibble
