// metrics.jsonl to an SVG loss curve.  What and why: curve.h.  Source: spec/training.md 5.2.
#include "report/curve.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace nibble {
namespace {

using Json = nlohmann::json;
using Series = std::map<int64_t, double>;

// The picture in user units; the plot area is what the margins leave.
constexpr double width = 860, height = 440, left = 62, right = 36, top = 74, bottom = 52;
constexpr size_t most_points = 1600;  // more than a screen has columns; longer runs are drawn as ranges of buckets

constexpr const char* style = R"(<style>
  svg { font: 13px system-ui, sans-serif; }
  .paper { fill: #ffffff; } .text { fill: #24292f; } .quiet { fill: #57606a; }
  .grid { stroke: #d8dee4; } .axis { stroke: #57606a; }
  .train { stroke: #9ec5f4; } .mean { stroke: #0b63c5; } .eval { stroke: #c4432b; } circle.eval { fill: #c4432b; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; } .text { fill: #e6edf3; } .quiet { fill: #9198a1; }
    .grid { stroke: #262c36; } .axis { stroke: #9198a1; }
    .train { stroke: #2b4d75; } .mean { stroke: #6cb0ff; } .eval { stroke: #ff8a70; } circle.eval { fill: #ff8a70; }
  }
</style>
)";

// A loss of one record: the number, or nothing for "nan", "inf" and "-inf".
void take(const Json& record, const char* key, int64_t step, Series& series, int64_t* not_finite) {
  const auto it = record.find(key);
  if (it == record.end()) return;
  if (it->is_number()) {
    series[step] = it->get<double>();
  } else {
    series.erase(step);  // the last record of a step counts, also when it has no number
    if (not_finite) ++*not_finite;
  }
}

void take_record(const Json& record, RunMetrics& m) {
  if (record.contains("run_name") && record["run_name"].is_string()) m.run_name = record["run_name"];
  const auto kind = record.find("kind"), step = record.find("step");
  if (kind == record.end() || step == record.end() || !step->is_number_integer()) return;
  const int64_t n = step->get<int64_t>();
  if (*kind == "train") {
    take(record, "learning/loss", n, m.train, &m.not_finite);
    take(record, "perf/per_device_tokens_per_sec", n, m.tokens_per_second, nullptr);
  } else if (*kind == "eval") {
    take(record, "eval/avg_loss", n, m.eval, &m.not_finite);
  }
}

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

struct Frame {  // data to picture
  double x0, x1, y0, y1;
  double x(double step) const { return left + (step - x0) / (x1 - x0) * (width - left - right); }
  double y(double loss) const { return height - bottom - (loss - y0) / (y1 - y0) * (height - top - bottom); }
};

Frame frame_of(const RunMetrics& m) {
  Frame f{1e300, -1e300, 1e300, -1e300};
  for (const Series* s : {&m.train, &m.eval})
    for (const auto& [step, loss] : *s) {
      f.x0 = std::min(f.x0, static_cast<double>(step)), f.x1 = std::max(f.x1, static_cast<double>(step));
      f.y0 = std::min(f.y0, loss), f.y1 = std::max(f.y1, loss);
    }
  if (f.x1 == f.x0) f.x1 += 1;
  const double pad = f.y1 > f.y0 ? 0.04 * (f.y1 - f.y0) : std::max(1e-6, 0.04 * std::abs(f.y0));
  f.y0 -= pad, f.y1 += pad;
  return f;
}

std::string polyline(const Frame& f, const std::vector<std::pair<double, double>>& points, const char* kind,
                     double stroke) {
  std::string out = fmt::format(
      "<polyline class=\"{}\" fill=\"none\" stroke-width=\"{}\" stroke-linejoin=\"round\" points=\"", kind, stroke);
  for (const auto& [step, loss] : points) out += fmt::format("{:.1f},{:.1f} ", f.x(step), f.y(loss));
  if (!points.empty()) out.pop_back();
  return out + "\"/>\n";
}

// Every point, or lowest and highest of each bucket: peaks stay visible however long the run.
std::vector<std::pair<double, double>> thinned(const Series& s) {
  std::vector<std::pair<double, double>> all(s.begin(), s.end());
  if (all.size() <= most_points) return all;
  std::vector<std::pair<double, double>> out;
  const size_t buckets = most_points / 2;
  for (size_t b = 0; b < buckets; ++b) {
    const auto begin = all.begin() + static_cast<int64_t>(b * all.size() / buckets);
    const auto end = all.begin() + static_cast<int64_t>((b + 1) * all.size() / buckets);
    const auto [low, high] =
        std::minmax_element(begin, end, [](const auto& p, const auto& q) { return p.second < q.second; });
    out.push_back(*std::min(low, high));
    if (low != high) out.push_back(*std::max(low, high));
  }
  return out;
}

std::string training(const Frame& f, const Series& s) {
  if (s.empty()) return "";
  std::vector<double> steps, losses;
  for (const auto& [step, loss] : s) steps.push_back(static_cast<double>(step)), losses.push_back(loss);
  const std::vector<double> mean = moving_mean(losses, losses.size() / 60);
  Series smooth;
  const size_t stride = (mean.size() + most_points - 1) / most_points;
  for (size_t i = 0; i < mean.size(); i += stride) smooth[static_cast<int64_t>(steps[i])] = mean[i];
  smooth[static_cast<int64_t>(steps.back())] = mean.back();
  return polyline(f, thinned(s), "train", 1.2) + polyline(f, {smooth.begin(), smooth.end()}, "mean", 2);
}

std::string evaluation(const Frame& f, const Series& s) {
  if (s.empty()) return "";
  std::string out = polyline(f, {s.begin(), s.end()}, "eval", 1);
  for (const auto& [step, loss] : s)
    out += fmt::format("<circle class=\"eval\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"/>\n",
                       f.x(static_cast<double>(step)), f.y(loss));
  return out;
}

std::string axes(const Frame& f) {
  std::string out;
  for (const double tick : round_ticks(f.y0, f.y1, 6))
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n"
        "<text class=\"quiet\" x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        left, width - right, f.y(tick), left - 8, f.y(tick) + 4.5, tick);
  for (const double tick : round_ticks(f.x0, f.x1, 8)) {
    if (tick != std::floor(tick)) continue;  // a step is a whole number
    out += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n"
        "<text class=\"quiet\" x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:.0f}</text>\n",
        f.x(tick), height - bottom, height - bottom + 5, height - bottom + 19, tick);
  }
  out += fmt::format("<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\"/>\n", left, width - right,
                     height - bottom);
  out += fmt::format("<text class=\"quiet\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n",
                     (left + width - right) / 2, height - 12);
  out += fmt::format(
      "<text class=\"quiet\" transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">loss (nats per token)"
      "</text>\n",
      (top + height - bottom) / 2);
  return out;
}

std::string legend(const RunMetrics& m) {
  std::string out;
  double x = width - right - 120, y = top + 12;
  const auto entry = [&](const char* kind, const char* name, bool dot) {
    out += fmt::format("<line class=\"{0}\" x1=\"{1}\" x2=\"{2}\" y1=\"{3}\" y2=\"{3}\" stroke-width=\"{4}\"/>\n", kind,
                       x, x + 24, y - 4, dot ? 1 : 2);
    if (dot) out += fmt::format("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"3.2\"/>\n", kind, x + 12, y - 4);
    out += fmt::format("<text class=\"text\" x=\"{}\" y=\"{}\">{}</text>\n", x + 32, y, name);
    y += 18;
  };
  if (!m.train.empty()) entry("train", "training", false), entry("mean", "moving mean", false);
  if (!m.eval.empty()) entry("eval", "evaluation", true);
  return out;
}

std::string final_values(const RunMetrics& m) {
  std::string out;
  if (!m.train.empty())
    out = fmt::format("training {:.3f} after {} steps", *m.recent_loss(), m.train.rbegin()->first + 1);
  if (!m.eval.empty()) out += fmt::format("{}evaluation {:.3f}", out.empty() ? "" : ", ", m.eval.rbegin()->second);
  return out;
}

}  // namespace

std::optional<double> RunMetrics::first_loss() const {
  return train.empty() ? std::nullopt : std::optional(train.begin()->second);
}

std::optional<double> RunMetrics::last_loss() const {
  return train.empty() ? std::nullopt : std::optional(train.rbegin()->second);
}

std::optional<double> RunMetrics::recent_loss(size_t steps) const {
  double sum = 0;
  size_t n = 0;
  for (auto it = train.rbegin(); it != train.rend() && n < steps; ++it, ++n) sum += it->second;
  return n == 0 ? std::nullopt : std::optional(sum / static_cast<double>(n));
}

std::optional<std::pair<int64_t, double>> RunMetrics::best_eval() const {
  const auto it =
      std::min_element(eval.begin(), eval.end(), [](const auto& p, const auto& q) { return p.second < q.second; });
  return it == eval.end() ? std::nullopt : std::optional(std::pair<int64_t, double>(*it));
}

std::optional<double> RunMetrics::median_tokens_per_second() const {
  if (tokens_per_second.empty()) return std::nullopt;
  std::vector<double> v;
  for (const auto& [step, speed] : tokens_per_second) v.push_back(speed);
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

RunMetrics read_run_metrics(const std::filesystem::path& run) {
  const std::filesystem::path file = run / "metrics.jsonl";
  std::ifstream in(file);
  if (!in)
    throw Error("E204", "{} is no run: it has no metrics.jsonl", run.string())
        .where("looked for {}", file.string())
        .hint("name the folder of a run, for instance nibble_output/quickstart");
  RunMetrics m;
  for (std::string line; std::getline(in, line);) {
    const Json record = Json::parse(line, nullptr, false);
    if (record.is_object()) {
      take_record(record, m);
    } else if (!line.empty()) {
      ++m.unreadable_lines;
    }
  }
  if (m.train.empty() && m.eval.empty())
    throw Error("E203", "{} holds no loss", file.string())
        .expected(
            "records of kind train or eval with a finite loss",
            fmt::format("none; {} losses were not finite, {} lines were unreadable", m.not_finite, m.unreadable_lines))
        .hint("train for at least one step");
  return m;
}

std::vector<double> round_ticks(double low, double high, int count) {
  const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  const double step = power * (raw / power <= 1.5 ? 1 : raw / power <= 3.5 ? 2 : raw / power <= 7.5 ? 5 : 10);
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) ticks.push_back(i * step + 0.0);
  return ticks;
}

std::vector<double> moving_mean(const std::vector<double>& values, size_t half) {
  std::vector<double> prefix(values.size() + 1, 0), out(values.size());
  for (size_t i = 0; i < values.size(); ++i) prefix[i + 1] = prefix[i] + values[i];
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t begin = i - std::min(i, half), end = std::min(values.size(), i + half + 1);
    out[i] = (prefix[end] - prefix[begin]) / static_cast<double>(end - begin);
  }
  return out;
}

std::string loss_curve_svg(const RunMetrics& m, const std::string& title) {
  NIBBLE_CHECK(!m.train.empty() || !m.eval.empty(), "a loss curve without a loss");
  const Frame f = frame_of(m);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n",
      width, height);
  out += fmt::format("<title>Loss curve of {}</title>\n", escape(title));
  out += style;
  out += fmt::format("<rect class=\"paper\" width=\"{}\" height=\"{}\"/>\n", width, height);
  out += fmt::format("<text class=\"text\" x=\"{}\" y=\"30\" font-size=\"17\" font-weight=\"600\">{}</text>\n", left,
                     escape(title));
  out += fmt::format("<text class=\"quiet\" x=\"{}\" y=\"52\">{}</text>\n", left, final_values(m));
  return out + axes(f) + training(f, m.train) + evaluation(f, m.eval) + legend(m) + "</svg>\n";
}

}  // namespace nibble
