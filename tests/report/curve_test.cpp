// The loss curve: what is read of metrics.jsonl (spec/training.md 5.2) and what is drawn.
#include "report/curve.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "core/error.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// A folder of this test that is gone afterwards.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("nibble_curve_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  void metrics(const std::string& text) const { std::ofstream(path / "metrics.jsonl") << text; }
};

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(ReportCurve, ReadsTheLastRecordOfAStep) {
  const Folder folder;
  folder.metrics(R"({"kind":"event","step":0,"run_name":"tiny","name":"start"}
{"kind":"train","step":0,"run_name":"tiny","learning/loss":6.5,"perf/per_device_tokens_per_sec":100}
{"kind":"train","step":1,"run_name":"tiny","learning/loss":9.0,"perf/per_device_tokens_per_sec":900}
{"kind":"eval","step":1,"run_name":"tiny","eval/avg_loss":5.25}
{"kind":"event","step":1,"name":"resume"}
{"kind":"train","step":1,"run_name":"tiny","learning/loss":5.5,"perf/per_device_tokens_per_sec":200}
{"kind":"train","step":2,"run_name":"tiny","learning/loss":"nan","perf/per_device_tokens_per_sec":300}
{"kind":"train","step":3,"run_name":"tiny","learning/loss":4.5,"perf/per_device_tokens_per_sec":400}
{"kind":"eval","step":3,"run_name":"tiny","eval/avg_loss":5.75}
{"kind":"train","step":4,"learni)");
  const RunMetrics m = read_run_metrics(folder.path);
  EXPECT_EQ(m.run_name, "tiny");
  EXPECT_EQ(m.train, (std::map<int64_t, double>{{0, 6.5}, {1, 5.5}, {3, 4.5}}));
  EXPECT_EQ(m.eval, (std::map<int64_t, double>{{1, 5.25}, {3, 5.75}}));
  EXPECT_EQ(m.not_finite, 1);
  EXPECT_EQ(m.unreadable_lines, 1);
  EXPECT_EQ(m.first_loss(), 6.5);
  EXPECT_EQ(m.last_loss(), 4.5);
  EXPECT_EQ(m.recent_loss(2), 5.0);
  EXPECT_EQ(m.best_eval(), (std::pair<int64_t, double>{1, 5.25}));
  EXPECT_EQ(m.median_tokens_per_second(), 300);  // of 100 200 300 400: the upper middle
}

std::string id_of(const fs::path& run) {
  try {
    read_run_metrics(run);
  } catch (const Error& e) {
    return e.id;
  }
  return "no error";
}

TEST(ReportCurve, SaysWhatIsMissing) {
  const Folder folder;
  EXPECT_EQ(id_of(folder.path), "E204");
  folder.metrics("{\"kind\":\"train\",\"step\":0,\"learning/loss\":\"inf\"}\n");
  EXPECT_EQ(id_of(folder.path), "E203");
  folder.metrics("{\"kind\":\"eval\",\"step\":0,\"eval/avg_loss\":2}\n");
  EXPECT_EQ(id_of(folder.path), "no error");
}

TEST(ReportCurve, Ticks) {
  EXPECT_EQ(round_ticks(0, 1000, 8), (std::vector<double>{0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000}));
  EXPECT_EQ(round_ticks(2.9, 7.1, 4), (std::vector<double>{3, 4, 5, 6, 7}));
  EXPECT_EQ(round_ticks(-3, 3, 3), (std::vector<double>{-2, 0, 2}));
}

TEST(ReportCurve, MovingMean) {
  EXPECT_EQ(moving_mean({1, 2, 6, 3, 8}, 0), (std::vector<double>{1, 2, 6, 3, 8}));
  EXPECT_EQ(moving_mean({1, 2, 6, 3, 8}, 1), (std::vector<double>{1.5, 3, 11. / 3, 17. / 3, 5.5}));
  EXPECT_EQ(moving_mean({1, 3}, 9), (std::vector<double>{2, 2}));
}

TEST(ReportCurve, DrawsWhatWasMeasured) {
  RunMetrics m;
  m.train = {{0, 7}, {50, 5}, {100, 3}};
  m.eval = {{0, 7}, {100, 3}};
  const std::string svg = loss_curve_svg(m, "a <tiny> & \"small\" run");
  // Steps 0..100 fill 62..824; losses 2.84..7.16 (4 % of air each side) fill 388..74.
  EXPECT_NE(svg.find("class=\"train\" fill=\"none\" stroke-width=\"1.2\" stroke-linejoin=\"round\" "
                     "points=\"62.0,85.6 443.0,231.0 824.0,376.4\""),
            std::string::npos)
      << svg;
  EXPECT_NE(svg.find("cx=\"824.0\" cy=\"376.4\""), std::string::npos);
  EXPECT_EQ(count(svg, "<circle"), 3u);  // two points and the legend
  EXPECT_NE(svg.find(">a &lt;tiny&gt; &amp; &quot;small&quot; run</text>"), std::string::npos);
  EXPECT_NE(svg.find("training 5.000 after 101 steps, evaluation 3.000"), std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(count(svg, "href"), 0u);  // self-contained
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(count(svg, " .eval { stroke: #c4432b; }"), 1u);  // a style with fill would win over fill="none" of the line
}

TEST(ReportCurve, LongRunsKeepTheirPeaks) {
  RunMetrics m;
  for (int64_t step = 0; step < 100'000; ++step) m.train[step] = 2;
  m.train[43'210] = 10;
  const std::string svg = loss_curve_svg(m, "long");
  EXPECT_LT(svg.size(), 60'000u);
  EXPECT_NE(svg.find(",85.6"), std::string::npos);  // the height of the largest loss
}

TEST(ReportCurve, OnePointIsDrawn) {
  RunMetrics m;
  m.train = {{7, 3.5}};
  const std::string svg = loss_curve_svg(m, "one");
  EXPECT_NE(svg.find("points=\"62.0,231.0\""), std::string::npos) << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace nibble
