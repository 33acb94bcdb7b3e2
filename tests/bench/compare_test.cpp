// The regression guard: intervals that hold what they promise, verdicts by hand, and refusals.
#include "bench/compare.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace nibble {
namespace {

std::vector<double> around(double center, double spread, int count, uint32_t seed) {
  std::vector<double> x;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x.push_back(center + spread * (static_cast<double>(seed >> 8) * 0x1p-24 - 0.5));
  }
  return x;
}

TEST(BenchCompare, AConstantRatioIsExact) {
  const std::vector<double> before(10, 0.8), now(7, 0.6);
  const Interval i = ratio_interval(before, now);
  EXPECT_DOUBLE_EQ(i.low, 0.75);
  EXPECT_DOUBLE_EQ(i.high, 0.75);
}

TEST(BenchCompare, TheIntervalHoldsTheRatioAndNarrows) {
  double width[2] = {};
  for (const int large : {0, 1}) {
    int missed = 0;
    for (uint32_t seed = 1; seed <= 40; ++seed) {
      const int n = large ? 160 : 10;
      const Interval i = ratio_interval(around(0.8, 0.1, n, seed), around(0.72, 0.1, n, 1000 * seed + 7));
      missed += i.low > 0.9 || i.high < 0.9;
      width[large] += (i.high - i.low) / 40;
    }
    EXPECT_LE(missed, 2) << "of 40 intervals at 99 %";
  }
  EXPECT_LT(width[1], 0.5 * width[0]);
}

TEST(BenchCompare, TheSameSamplesGiveTheSameInterval) {
  const auto a = around(0.8, 0.1, 9, 3), b = around(0.8, 0.1, 11, 4);
  const Interval i = ratio_interval(a, b), j = ratio_interval(a, b);
  EXPECT_EQ(i.low, j.low);
  EXPECT_EQ(i.high, j.high);
}

TEST(BenchCompare, VerdictsByHand) {
  struct Row {
    const char* why;
    Interval ratio;
    Verdict want;
  };
  const Row rows[] = {{"all below", {0.90, 0.94}, Verdict::slower},
                      {"touches the tolerance", {0.90, 0.95}, Verdict::unclear},
                      {"inside", {0.95, 1.05}, Verdict::same},
                      {"all above", {1.06, 1.2}, Verdict::faster},
                      {"too wide to say", {0.8, 1.2}, Verdict::unclear}};
  for (const Row& r : rows) EXPECT_EQ(verdict_of(r.ratio, 0.05), r.want) << r.why;
}

BenchResult result_with(std::vector<BenchSample> samples) {
  BenchResult r;
  r.json = {{"bench", "train"}, {"version", "0.1.0"}, {"commit", "abc"},          {"cpu", "Test CPU"},
            {"threads", 2},     {"rows", 4},          {"model_name", "nibble-1m"}};
  r.samples = std::move(samples);
  return r;
}

TEST(BenchCompare, FindsTheRowThatGotSlower) {
  const std::string saved = saved_bench(result_with({{"step", {0.8, 0.81, 0.79}}, {"norm", {0.5, 0.5, 0.5}}}));
  BenchResult same = result_with({{"step", {0.8, 0.8, 0.8}}, {"norm", {0.5, 0.5, 0.5}}});
  EXPECT_TRUE(compare_bench(same, saved, "old.json", 0.05));
  EXPECT_EQ(same.json["comparison"][0]["verdict"], "same");
  EXPECT_TRUE(same.warnings.empty());

  BenchResult slower = result_with({{"step", {0.8, 0.8, 0.8}}, {"norm", {0.4, 0.4, 0.4}}});
  EXPECT_FALSE(compare_bench(slower, saved, "old.json", 0.05));
  EXPECT_EQ(slower.json["comparison"][1]["verdict"], "slower");
  EXPECT_DOUBLE_EQ(slower.json["comparison"][1]["ratio"].get<double>(), 0.8);
  EXPECT_NE(slower.text.find("slower"), std::string::npos);
  EXPECT_TRUE(compare_bench(slower, saved, "old.json", 0.25)) << "within a tolerance of 25 %";

  BenchResult faster = result_with({{"step", {0.9, 0.9, 0.9}}, {"rope", {0.1}}});
  EXPECT_TRUE(compare_bench(faster, saved, "old.json", 0.05));
  EXPECT_EQ(faster.json["comparison"].size(), 1u);
  EXPECT_EQ(faster.warnings,
            (std::vector<std::string>{"rope is not in old.json", "norm of old.json was not measured"}));
}

std::string id_of(BenchResult now, const std::string& saved, std::string* message = nullptr) {
  try {
    compare_bench(now, saved, "old.json", 0.05);
  } catch (const Error& e) {
    if (message != nullptr) *message = e.message();
    return e.id;
  }
  return "";
}

TEST(BenchCompare, RefusesWhatDoesNotCompare) {
  const BenchResult now = result_with({{"step", {0.8}}});
  for (const char* key : {"cpu", "threads", "model_name", "peak_format", "rows", "bench"}) {
    BenchResult other = result_with({{"step", {0.8}}});
    other.json[key] = "another";
    std::string message;
    EXPECT_EQ(id_of(now, saved_bench(other), &message), "E117") << key;
    EXPECT_NE(message.find("another"), std::string::npos) << message;
    EXPECT_NE(message.find("--save"), std::string::npos) << message;
  }
  EXPECT_EQ(id_of(now, saved_bench(result_with({{"norm", {0.8}}}))), "E117");
}

TEST(BenchCompare, RefusesOtherFiles) {
  const BenchResult now = result_with({{"step", {0.8}}});
  const std::string good = saved_bench(now);
  EXPECT_EQ(id_of(now, good), "");
  for (size_t cut = 0; cut + 2 < good.size(); ++cut) EXPECT_EQ(id_of(now, good.substr(0, cut)), "E309") << cut;
  for (const char* text : {"[]", "{}", "null", R"({"schema":"nibble-bench-1"})", R"({"schema":"x","of":{},"rows":[]})",
                           R"({"schema":"nibble-bench-1","of":{},"rows":[{"name":"step","shares":[]}]})",
                           R"({"schema":"nibble-bench-1","of":{},"rows":[{"name":"step","shares":[0]}]})",
                           R"({"schema":"nibble-bench-1","of":{},"rows":[{"name":"step","shares":["x"]}]})"})
    EXPECT_EQ(id_of(now, text), "E309") << text;
}

}  // namespace
}  // namespace nibble
