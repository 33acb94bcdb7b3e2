#include "bench/compare.h"

#include <algorithm>

#include "bench/measure.h"
#include "core/error.h"
#include "core/philox.h"
#include "io/json.h"

namespace nibble {
namespace {

constexpr std::string_view schema = "nibble-bench-1";

// What two runs must agree on to be compared, in the order in which a difference is named.
constexpr std::string_view identity[] = {"bench",      "cpu",         "cpu_target", "threads",
                                         "model_name", "peak_format", "rows",       "length"};

Json identity_of(const BenchResult& result) {
  Json j = Json::object();
  for (const std::string_view key : identity)
    if (result.json.contains(key)) j[std::string(key)] = result.json[std::string(key)];
  return j;
}

double resampled_median(std::span<const double> x, uint32_t sample, uint32_t which, std::vector<double>& scratch) {
  scratch.resize(x.size());
  for (uint32_t i = 0; i < x.size(); i += 4) {
    const PhiloxWords words = philox4x32({i, sample, which, 0}, 0x6e696262, 0x6c65);
    for (uint32_t k = 0; k < 4 && i + k < x.size(); ++k)
      scratch[i + k] = x[static_cast<size_t>((uint64_t{words[k]} * x.size()) >> 32)];
  }
  return median(scratch);
}

std::vector<BenchSample> parse_samples(std::string_view text, const std::string& name, Json& of) {
  std::string problem;
  const Json j = parse_json(text, problem);
  const auto bad = [&](const std::string& why) {
    return Error("E309", "{} is no saved benchmark", name)
        .expected("a file that nibble bench NAME --save FILE wrote", why)
        .hint("nibble bench train --save {}", name);
  };
  if (!problem.empty()) throw bad(problem);
  if (!j.is_object() || j.value("schema", Json()) != Json(std::string(schema))) throw bad("another kind of JSON");
  std::vector<BenchSample> samples;
  try {
    of = j.at("of");
    for (const Json& row : j.at("rows"))
      samples.push_back({row.at("name").get<std::string>(), row.at("shares").get<std::vector<double>>()});
  } catch (const Json::exception& e) {
    throw bad(e.what());
  }
  for (const BenchSample& s : samples)
    if (s.shares.empty() || std::ranges::any_of(s.shares, [](double x) { return !(x > 0); }))
      throw bad("a share that is not positive in " + s.name);
  return samples;
}

void check_same(const Json& before, const Json& now, const std::string& name) {
  for (const std::string_view key_view : identity) {
    const std::string key(key_view);
    const Json was = before.value(key, Json()), is = now.value(key, Json());
    if (was != is)
      throw Error("E117", "{} holds a benchmark of another {}", name, key == "cpu" ? "CPU" : key)
          .where("{} of {}", key, name)
          .expected(is.dump(), was.dump())
          .hint("nibble bench {} --save FILE on this machine, with these keys, first", now["bench"].get<std::string>());
  }
}

}  // namespace

Interval ratio_interval(std::span<const double> before, std::span<const double> now) {
  constexpr uint32_t resamples = 4000;
  constexpr double outside = 0.01;
  std::vector<double> ratios(resamples), scratch;
  for (uint32_t i = 0; i < resamples; ++i)
    ratios[i] = resampled_median(now, i, 1, scratch) / resampled_median(before, i, 0, scratch);
  std::ranges::sort(ratios);
  constexpr auto cut = static_cast<size_t>(resamples * outside / 2);
  return {ratios[cut], ratios[resamples - 1 - cut]};
}

std::string_view name_of(Verdict v) {
  constexpr std::string_view names[] = {"slower", "same", "faster", "unclear"};
  return names[static_cast<size_t>(v)];
}

Verdict verdict_of(const Interval& ratio, double tolerance) {
  if (ratio.high < 1 - tolerance) return Verdict::slower;
  if (ratio.low > 1 + tolerance) return Verdict::faster;
  return ratio.low >= 1 - tolerance && ratio.high <= 1 + tolerance ? Verdict::same : Verdict::unclear;
}

std::string saved_bench(const BenchResult& result) {
  Json j = {{"schema", schema}, {"version", result.json.at("version")}, {"commit", result.json.at("commit")}};
  j["of"] = identity_of(result);
  j["rows"] = Json::array();
  for (const BenchSample& s : result.samples) j["rows"].push_back({{"name", s.name}, {"shares", s.shares}});
  return json_text(j) + "\n";
}

bool compare_bench(BenchResult& result, std::string_view saved, const std::string& name, double tolerance) {
  Json of;
  const std::vector<BenchSample> before = parse_samples(saved, name, of);
  check_same(of, identity_of(result), name);
  result.text +=
      fmt::format("\ncompared with {}, tolerance {:.1f} %: medians of shares, 99 % interval of their ratio\n", name,
                  100 * tolerance);
  result.text +=
      fmt::format("{:<64}{:>9}{:>9}{:>8}{:>17}  {}\n", "row", "before", "now", "ratio", "interval", "verdict");
  result.json["tolerance"] = tolerance;
  result.json["comparison"] = Json::array();
  bool fine = true;
  for (const BenchSample& s : result.samples) {
    const auto old = std::ranges::find(before, s.name, &BenchSample::name);
    if (old == before.end()) {
      result.warnings.push_back(s.name + " is not in " + name);
      continue;
    }
    const double was = median(old->shares), is = median(s.shares);
    const Interval interval = ratio_interval(old->shares, s.shares);
    const Verdict verdict = verdict_of(interval, tolerance);
    fine = fine && verdict != Verdict::slower;
    result.json["comparison"].push_back({{"name", s.name},
                                         {"before", was},
                                         {"now", is},
                                         {"ratio", is / was},
                                         {"low", interval.low},
                                         {"high", interval.high},
                                         {"verdict", name_of(verdict)}});
    result.text += fmt::format("{:<64}{:>7.1f} %{:>7.1f} %{:>8.3f}{:>17}  {}\n", s.name, 100 * was, 100 * is, is / was,
                               fmt::format("{:.3f} - {:.3f}", interval.low, interval.high), name_of(verdict));
  }
  for (const BenchSample& s : before)
    if (std::ranges::find(result.samples, s.name, &BenchSample::name) == result.samples.end())
      result.warnings.push_back(s.name + " of " + name + " was not measured");
  if (result.json["comparison"].empty())
    throw Error("E117", "{} and this run have no row in common", name)
        .hint("nibble bench {} --save {}", result.json["bench"].get<std::string>(), name);
  return fine;
}

}  // namespace nibble
