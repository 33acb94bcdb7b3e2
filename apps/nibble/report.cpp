// nibble report: the loss curve of a run as an SVG, and its numbers in five lines.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/error.h"
#include "report/curve.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Request {
  fs::path run, out;
  bool json = false;
};

Request read_request(const std::vector<std::string>& arguments) {
  Request r;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& a = arguments[i];
    const size_t equals = a.find('=');
    if (a == "--json") {
      r.json = true;
    } else if (a.starts_with("-")) {
      throw Error("E007", "nibble report has no option {}", a)
          .where("argument {}", i + 1)
          .hint("{}", report_command.synopsis);
    } else if (a.starts_with("out=")) {
      r.out = a.substr(equals + 1);
    } else if (equals != std::string::npos && !fs::exists(a)) {
      throw Error("E001", "unknown key {}", a.substr(0, equals))
          .where("argument {}", i + 1)
          .expected("out=FILE", a)
          .hint("{}", report_command.synopsis);
    } else if (r.run.empty()) {
      r.run = a;
    } else {
      throw Error("E004", "{} is one argument too many: a report is of one run", a)
          .where("argument {}", i + 1)
          .expected("one folder and key=value", a)
          .hint("{}", report_command.synopsis);
    }
  }
  if (r.run.empty())
    throw Error("E204", "no run given").where("arguments").hint("{}", "nibble report nibble_output/<run_name>");
  if (r.out.empty()) r.out = r.run / "curve.svg";
  return r;
}

// model_name of <run>/config.yml, empty if it has none: the metrics do not say it.
std::string model_name_of(const fs::path& run) {
  std::ifstream in(run / "config.yml");
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view key = "model_name:";
    if (!line.starts_with(key)) continue;
    std::string value = line.substr(key.size());
    value = value.substr(0, value.find(" #"));
    std::erase_if(value, [](char c) { return c == ' ' || c == '"' || c == '\''; });
    return value == "null" || value == "default" ? "" : value;
  }
  return "";
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush())
    throw Error("E803", "cannot write {}", path.string()).where("out").hint("out=FILE in a folder that can be written");
}

void print_summary(const RunMetrics& m, const std::string& title, const fs::path& curve) {
  fmt::print("run    {}\n", title);
  if (!m.train.empty())
    fmt::print("train  {} steps, loss {:.4f} -> {:.4f}, mean of the last 20 {:.4f}\n", m.train.rbegin()->first + 1,
               *m.first_loss(), *m.last_loss(), *m.recent_loss());
  if (const auto best = m.best_eval())
    fmt::print("eval   best loss {:.4f} at step {}, last {:.4f}\n", best->second, best->first, m.eval.rbegin()->second);
  if (const auto speed = m.median_tokens_per_second()) fmt::print("speed  {:.0f} tokens/s (median)\n", *speed);
  fmt::print("curve  {}\n", curve.string());
  if (m.not_finite) fmt::print(stderr, "warning: {} losses were not finite and are left out\n", m.not_finite);
  if (m.unreadable_lines)
    fmt::print(stderr, "warning: {} lines of metrics.jsonl were unreadable and are left out\n", m.unreadable_lines);
}

nlohmann::ordered_json summary_json(const RunMetrics& m, const std::string& model, const fs::path& curve) {
  nlohmann::ordered_json j = {{"run_name", m.run_name}, {"model_name", model}};
  j["steps"] = m.train.empty() ? 0 : m.train.rbegin()->first + 1;
  const auto number = [](std::optional<double> x) { return x ? nlohmann::ordered_json(*x) : nullptr; };
  j["first_loss"] = number(m.first_loss());
  j["last_loss"] = number(m.last_loss());
  j["recent_loss"] = number(m.recent_loss());
  const auto best = m.best_eval();
  j["best_eval_loss"] = best ? nlohmann::ordered_json(best->second) : nullptr;
  j["best_eval_step"] = best ? nlohmann::ordered_json(best->first) : nullptr;
  j["tokens_per_second"] = number(m.median_tokens_per_second());
  j["not_finite"] = m.not_finite;
  j["unreadable_lines"] = m.unreadable_lines;
  j["curve"] = curve.string();
  return j;
}

int run(const std::vector<std::string>& arguments) {
  const Request request = read_request(arguments);
  const RunMetrics metrics = read_run_metrics(request.run);
  const std::string model = model_name_of(request.run);
  const std::string name = metrics.run_name.empty() ? request.run.filename().string() : metrics.run_name;
  const std::string title = model.empty() ? name : name + ": " + model;
  write_file(request.out, loss_curve_svg(metrics, title));
  if (request.json) {
    fmt::print("{}\n", summary_json(metrics, model, request.out).dump(2));
  } else {
    print_summary(metrics, title, request.out);
  }
  return exit_done;
}

}  // namespace

constinit const Command report_command{
    .name = "report",
    .synopsis = "nibble report RUN [out=FILE] [--json]",
    .summary = "loss curve of a run as an SVG, and its numbers",
    .help =
        "DESCRIPTION\n"
        "  Reads RUN/metrics.jsonl, writes the loss curve to RUN/curve.svg and prints steps, first and last\n"
        "  training loss, best evaluation loss and the median speed. RUN is the folder of a run, finished or\n"
        "  not. Nothing else in it is touched.\n"
        "KEYS\n"
        "  out=FILE   where to write the SVG (default RUN/curve.svg)\n"
        "OPTIONS\n"
        "  --json     the numbers as JSON on standard output\n"
        "EXIT STATUS\n"
        "  0 done, 64 wrong argument, 66 RUN has no metrics or no loss yet, 73 FILE cannot be written\n"
        "EXAMPLES\n"
        "  nibble report nibble_output/quickstart\n"
        "  nibble report nibble_output/quickstart out=curve.svg\n",
    .run = run};

}  // namespace nibble
