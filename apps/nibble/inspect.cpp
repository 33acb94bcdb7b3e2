// nibble inspect: which layers of a run suffer most from quantisation, by the records of numerics_period, what to do
// about the worst and what that costs.  Source: spec/precision.md 7.1; spec/training.md 1.7.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "command.h"
#include "core/error.h"
#include "io/config.h"
#include "io/json.h"
#include "plan/price.h"
#include "plan/report.h"
#include "train/fits.h"
#include "train/machine_file.h"
#include "train/model_setup.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Row {
  std::string copy, format;
  double sqnr_db = 0;
  std::vector<std::string> findings;
};
struct Site {
  std::string name;
  std::vector<Row> rows;
  double worst_db = INFINITY;  // of the copies rounded to nearest
  size_t findings = 0;
};

double number_of(const Json& j, const char* key) {
  if (!j.contains(key)) return 0;
  if (j[key].is_number()) return j[key].get<double>();
  return j[key] == "inf" ? INFINITY : j[key] == "-inf" ? -INFINITY : NAN;
}

// The column "watch" of spec/precision.md 7.1.
Row row_of(const Json& j) {
  Row r{j["copy"], j["format"], number_of(j, "sqnr_db"), {}};
  const bool drawn = r.format.find("stochastic") != r.format.npos || r.format.find("eden") != r.format.npos;
  const auto say = [&](bool found, const char* key, const char* limit) {
    if (found) r.findings.push_back(fmt::format("{} {:.3g} ({})", key, number_of(j, key), limit));
  };
  const auto above = [&](const char* key, double limit, const char* text) {
    say(number_of(j, key) > limit, key, text);
  };
  say(!drawn && r.sqnr_db < 17, "sqnr_db", "below 17");
  say(drawn && std::fabs(number_of(j, "shrink")) > 0.01, "shrink", "beyond 0.01");
  above("zero_share", 0.2, "above 0.2"), above("scale_subnormal", 0.01, "above 0.01"),
      above("dyn_range", 15, "above 15"), above("crest", 50, "above 50"), above("kurtosis", 100, "above 100"),
      above("top_channel_share", 0.1, "above 0.1"), above("mean_ratio", 0.1, "above 0.1");
  say(number_of(j, "amax_jump") >= 8, "amax_jump", "a factor of 8");
  if (j.contains("scale_hist") && std::ranges::count_if(j["scale_hist"], [](const Json& n) { return n != 0; }) > 12)
    r.findings.emplace_back("scales in more than 12 binades");
  if (j.contains("four_share") && (number_of(j, "four_share") == 0 || number_of(j, "four_share") == 1))
    r.findings.push_back(fmt::format("four_share {}", number_of(j, "four_share")));
  if (j.contains("code_hist"))
    for (size_t m = 1; m < 8; ++m)
      if (j["code_hist"][m] == 0 && j["code_hist"][m + 8] == 0) {
        r.findings.push_back(fmt::format("no element at magnitude {}", m));
        break;
      }
  return r;
}

struct Records {
  int64_t step = -1;
  std::vector<Site> sites;  // the worst first
};

// Of the last step that has records; of a step that ran again after a resume the later ones.
Records read_records(const fs::path& file) {
  std::ifstream in(file);
  if (!in)
    throw Error("E204", "no metrics in {}", file.string())
        .where("{}", file.string())
        .hint("nibble inspect nibble_output/<run_name>");
  std::map<std::pair<std::string, std::string>, Json> last;
  Records r;
  for (std::string line; std::getline(in, line);) {
    if (line.find("\"numerics\"") == line.npos) continue;
    std::string problem;
    const Json j = parse_json(line, problem);
    if (!problem.empty() || j.value("kind", "") != "numerics" || !j.contains("site")) continue;
    if (j["step"] != r.step) last.clear(), r.step = j["step"];
    last[{j["site"], j["copy"]}] = j;
  }
  if (last.empty())
    throw Error("E204", "{} has no statistics of quantisers", file.string())
        .where("{}", file.string())
        .expected("records of kind numerics", "none")
        .hint("train with quantization=te_nvfp4 numerics_period=1000, or another recipe and period");
  std::map<std::string, Site> by_name;
  for (const auto& [key, j] : last) {
    Site& s = by_name[key.first];
    s.name = key.first;
    s.rows.push_back(row_of(j));
    s.findings += s.rows.back().findings.size();
    s.worst_db = std::min(s.worst_db, s.rows.back().sqnr_db);
  }
  for (auto& [name, s] : by_name) r.sites.push_back(std::move(s));
  std::ranges::stable_sort(r.sites, [](const Site& a, const Site& b) {
    return a.findings != b.findings ? a.findings > b.findings : a.worst_db < b.worst_db;
  });
  return r;
}

// The program of a run as `nibble plan` sees it.
struct Planned {
  explicit Planned(const Config& c) {
    const ProgramPlan plan =
        plan_run(c, resolve_threads(c.get_int("threads")), resolve_target(c.get_string("cpu_target")));
    bytes = plan.arena_bytes();
    if (const auto f = forecast_step(plan, c.get_int("gradient_accumulation_steps"), find_machine(c).machine))
      seconds = f->seconds;
    gemms = gemm_rows(plan.executable("microbatch"), true);
    layers = c.get_int("base_num_decoder_layers");
  }
  int64_t bytes = 0, layers = 0;
  std::optional<double> seconds;  // nothing on a machine that was not measured
  std::vector<GemmRow> gemms;
};

Config config_of(const fs::path& file, const std::vector<std::string>& more) {
  std::vector<std::string> words = {file.string()};
  words.insert(words.end(), more.begin(), more.end());
  return resolve(words, {.command = "plan"}).config;
}

// "layers.0/mlp/up_proj" of "layers.0/mlp/gate_proj+up_proj".
bool is_of(const GemmRow& row, const std::string& site) {
  const size_t cut = site.rfind('/') + 1;
  return row.site.starts_with(site.substr(0, cut)) &&
         ("+" + row.site.substr(std::min(cut, row.site.size())) + "+").find("+" + site.substr(cut) + "+") !=
             std::string::npos;
}

// The key with which the layer of a site stays in the run's dtype: layers are kept from one end.
std::string key_for(const std::string& site, int64_t layers) {
  const int64_t layer = std::stoll(site.substr(site.find("layers.") + 7));
  return 2 * layer >= layers ? fmt::format("high_precision_last_layers={}", layers - layer)
                             : fmt::format("high_precision_first_layers={}", layer + 1);
}

std::string seconds_text(const Planned& before, const Planned& after) {
  if (!before.seconds || !after.seconds) return "time unknown: nibble bench --calibrate measures this machine";
  return fmt::format("{:.4f} -> {:.4f} s a step", *before.seconds, *after.seconds);
}

void print_json(const Records& records, const std::optional<Planned>& planned, const std::optional<Planned>& after,
                const std::string& key) {
  Json j = {{"schema", "nibble-inspect-1"}, {"step", records.step}, {"sites", Json::array()}};
  for (const Site& s : records.sites) {
    Json copies = Json::array(), products = Json::array();
    for (const Row& r : s.rows) {
      Json c = Json::object();
      c["copy"] = r.copy, c["format"] = r.format, c["findings"] = r.findings;
      c["sqnr_db"] = std::isfinite(r.sqnr_db) ? Json(r.sqnr_db) : Json(nullptr);
      copies.push_back(c);
    }
    if (planned)
      for (const GemmRow& g : planned->gemms)
        if (is_of(g, s.name)) {
          Json p = Json::object();
          p["gemm"] = g.gemm, p["format"] = g.format, p["kernel"] = g.kernel;
          products.push_back(p);
        }
    Json site = Json::object();
    site["site"] = s.name, site["findings"] = s.findings, site["copies"] = copies, site["products"] = products;
    j["sites"].push_back(site);
  }
  if (after) {
    const auto number = [](const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); };
    Json a = Json::object();
    a["key"] = key, a["bytes_before"] = planned->bytes, a["bytes_after"] = after->bytes;
    a["seconds_before"] = number(planned->seconds), a["seconds_after"] = number(after->seconds);
    j["advice"] = a;
  }
  fmt::print("{}\n", j.dump(2));
}

int run(const std::vector<std::string>& arguments) {
  bool json = false;
  fs::path run;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--json" || word == "json=true") {
      json = true;
    } else if (word.starts_with("-") || !run.empty()) {
      throw Error("E007", "nibble inspect has no argument {}", word)
          .where("argument {}", i + 1)
          .hint("{}", inspect_command.synopsis);
    } else {
      run = word;
    }
  }
  if (run.empty())
    throw Error("E204", "no run given").where("arguments").hint("nibble inspect nibble_output/<run_name>");
  const fs::path file = fs::is_directory(run) ? run / "metrics.jsonl" : run;
  const Records records = read_records(file);
  const fs::path config = file.parent_path() / "config.yml";
  std::optional<Planned> planned, after;
  std::string key;
  if (fs::exists(config)) planned.emplace(config_of(config, {}));
  if (planned && records.sites.front().findings > 0) {
    key = key_for(records.sites.front().name, planned->layers);
    try {
      after.emplace(config_of(config, {key}));
    } catch (const Error& e) {
      if (e.id != "E502") throw;
      key = "quantization=te_mxfp8";  // no layer would be left
      after.emplace(config_of(config, {key}));
    }
  }
  if (json) {
    print_json(records, planned, after, key);
    return exit_done;
  }
  fmt::print("quantisers at step {}, the worst layer first\n", records.step);
  for (const Site& s : records.sites) {
    fmt::print("\n{}: {} to watch, least sqnr {:.1f} dB\n", s.name, s.findings, s.worst_db);
    for (const Row& r : s.rows)
      fmt::print("  {:<4}{:>6.1f} dB  {}{}{}\n", r.copy, r.sqnr_db, r.format, r.findings.empty() ? "" : "; ",
                 fmt::join(r.findings, ", "));
    if (planned)
      for (const GemmRow& g : planned->gemms)
        if (is_of(g, s.name)) fmt::print("  {:<6}{}, kernel {}\n", g.gemm, g.format, g.kernel);
  }
  if (records.sites.front().findings == 0)
    fmt::print("\nnothing to do: no value is beyond what to watch\n");
  else if (!after)
    fmt::print("\nno config.yml beside {}: no advice\n", file.string());
  else
    fmt::print("\nadvice: more precision for the layer of {}: {}\n  costs: memory {} -> {}, {}\n",
               records.sites.front().name, key, size_text(static_cast<double>(planned->bytes)),
               size_text(static_cast<double>(after->bytes)), seconds_text(*planned, *after));
  return exit_done;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    Reads the statistics of quantisers that a run with numerics_period=n wrote
    to metrics.jsonl and lists its linear layers, the worst first: by the number
    of values beyond what docs/quantization.md says to watch, then by the least
    ratio of signal to error. For each layer the copies of x, w and dy with
    their format, and its three products with operands and kernel. For the
    worst layer the key that keeps it in high precision, and what that changes
    in memory and, on a machine that was measured, in the time of a step.
    RUN is the folder of a run, or its metrics.jsonl.

OPTIONS
    --json   one JSON object, schema nibble-inspect-1

EXIT STATUS
    0 done   64 wrong argument   66 RUN has no metrics or no such records

EXAMPLES
    nibble inspect nibble_output/run
    nibble inspect nibble_output/run --json
)";

}  // namespace

constinit const Command inspect_command{"inspect", "nibble inspect RUN [--json]",
                                        "layers that suffer most from quantisation, and what to do", help, run};

}  // namespace nibble
