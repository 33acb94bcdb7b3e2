#include "plan/machine.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hash.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<const char*, double Limits::*> limit_fields[] = {{"f32_flops", &Limits::f32},
                                                                     {"bf16_flops", &Limits::bf16},
                                                                     {"int8_ops", &Limits::int8},
                                                                     {"l1_load", &Limits::l1},
                                                                     {"l2_load", &Limits::l2},
                                                                     {"l3_load", &Limits::l3},
                                                                     {"memory_read", &Limits::read},
                                                                     {"memory_copy", &Limits::copy},
                                                                     {"stream_copy", &Limits::stream_copy},
                                                                     {"stream_fill", &Limits::stream_fill}};
constexpr std::pair<const char*, double OpPrice::*> price_fields[] = {
    {"fixed", &OpPrice::fixed},       {"flop", &OpPrice::flop},         {"byte", &OpPrice::byte},
    {"far_byte", &OpPrice::far_byte}, {"function", &OpPrice::function}, {"error", &OpPrice::error}};

template <class T>
void erase_and_append(std::vector<T>& old, const std::vector<T>& newer, const auto& same) {
  std::erase_if(old, [&](const T& a) { return std::ranges::any_of(newer, [&](const T& b) { return same(a, b); }); });
  old.insert(old.end(), newer.begin(), newer.end());
}

}  // namespace

double Limits::peak(std::string_view format) const {
  if (format == "bf16" && bf16 > 0) return bf16;
  if ((format == "int8" || format == "4bit") && int8 > 0) return int8;
  if (format == "8bit" && bf16 > 0) return bf16;  // elements are widened
  return f32;
}

double bandwidth(const Work& work, const Limits& limits, const CacheSizes& caches) {
  const std::pair<int64_t, double> levels[] = {
      {caches.l1 * limits.threads, limits.l1}, {caches.l2 * limits.threads, limits.l2}, {caches.l3, limits.l3}};
  for (const auto& [bytes, speed] : levels)
    if (work.bytes() <= static_cast<double>(bytes) && speed > 0) return speed;
  if (work.written < work.read / 8) return limits.read;
  return std::max({limits.read, limits.copy, limits.stream_copy});
}

double limit_seconds(const Work& work, const Limits& limits, const CacheSizes& caches) {
  const double peak = limits.peak(work.format), speed = bandwidth(work, limits, caches);
  return std::max(peak > 0 ? work.flops / peak : 0, speed > 0 ? work.bytes() / speed : 0);
}

double OpPrice::seconds(const Work& work, double far_share) const {
  return fixed + flop * work.flops + byte * work.bytes() + far_byte * far_share * work.bytes() +
         function * work.functions;
}

const Limits* Machine::limits_of(int threads) const {
  const auto at = std::ranges::find(limits, threads, &Limits::threads);
  return at == limits.end() ? nullptr : &*at;
}

const OpPrice* Machine::price_of(std::string_view op, std::string_view kernel, std::string_view format,
                                 int threads) const {
  const auto at = std::ranges::find_if(prices, [&](const OpPrice& p) {
    return p.op == op && p.kernel == kernel && p.format == format && p.threads == threads;
  });
  return at == prices.end() ? nullptr : &*at;
}

void Machine::merge(const Machine& newer) {
  if (cpu != newer.cpu || features != newer.features) *this = {};  // a file of another machine is written anew
  cpu = newer.cpu, features = newer.features, caches = newer.caches;
  erase_and_append(limits, newer.limits, [](const Limits& a, const Limits& b) { return a.threads == b.threads; });
  erase_and_append(prices, newer.prices, [](const OpPrice& a, const OpPrice& b) {
    return a.op == b.op && a.threads == b.threads && a.kernel == b.kernel && a.format == b.format;
  });
  erase_and_append(checks, newer.checks,
                   [](const Check& a, const Check& b) { return a.threads == b.threads && a.format == b.format; });
  std::ranges::sort(limits, {}, &Limits::threads);
  date = newer.date, version = newer.version;
}

Machine this_machine() {
  Machine m;
  m.cpu = cpu_name(), m.features = cpu_features(), m.caches = cache_sizes();
  return m;
}

std::string machine_file_name(const Machine& m) {
  std::string slug;
  for (const char c : m.cpu) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      slug += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!slug.empty() && slug.back() != '-')
      slug += '-';
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  const std::string identity = fmt::format("{}|{}|{}|{}|{}", m.cpu, m.features, m.caches.l1, m.caches.l2, m.caches.l3);
  return fmt::format("machine-{}-{}.json", slug, hex16(xxh3(identity)).substr(0, 8));
}

std::string machine_text(const Machine& m) {
  Json j = {{"schema", "nibble-machine-1"},
            {"cpu", m.cpu},
            {"features", m.features},
            {"cache_bytes", {{"l1", m.caches.l1}, {"l2", m.caches.l2}, {"l3", m.caches.l3}}},
            {"date", m.date},
            {"version", m.version},
            {"limits", Json::array()},
            {"prices", Json::array()},
            {"checks", Json::array()}};
  for (const Limits& l : m.limits) {
    Json row = {{"threads", l.threads}};
    for (const auto& [name, field] : limit_fields) row[name] = l.*field;
    j["limits"].push_back(row);
  }
  for (const OpPrice& p : m.prices) {
    Json row = {{"op", p.op}, {"kernel", p.kernel}, {"format", p.format}, {"threads", p.threads}};
    for (const auto& [name, field] : price_fields) row[name] = p.*field;
    row["samples"] = p.samples;
    j["prices"].push_back(row);
  }
  for (const Check& c : m.checks)
    j["checks"].push_back({{"what", c.what},
                           {"format", c.format},
                           {"threads", c.threads},
                           {"predicted", c.predicted},
                           {"measured", c.measured}});
  return j.dump(1) + "\n";
}

Machine parse_machine(const std::string& text, const std::string& origin) {
  try {
    const Json j = Json::parse(text);
    if (j.at("schema") != "nibble-machine-1")
      throw Error("E114", "{} is no machine file of this version", origin)
          .expected("schema nibble-machine-1", j.at("schema").dump())
          .hint("nibble bench --calibrate");
    Machine m;
    m.cpu = j.at("cpu"), m.features = j.at("features"), m.date = j.at("date"), m.version = j.at("version");
    m.caches = {j.at("cache_bytes").at("l1"), j.at("cache_bytes").at("l2"), j.at("cache_bytes").at("l3")};
    for (const Json& row : j.at("limits")) {
      Limits l{.threads = row.at("threads")};
      for (const auto& [name, field] : limit_fields) l.*field = row.at(name).get<double>();
      m.limits.push_back(l);
    }
    for (const Json& row : j.at("prices")) {
      OpPrice p{.op = row.at("op"), .kernel = row.at("kernel"), .format = row.at("format")};
      p.threads = row.at("threads"), p.samples = row.at("samples");
      for (const auto& [name, field] : price_fields) p.*field = row.at(name).get<double>();
      m.prices.push_back(std::move(p));
    }
    for (const Json& row : j.at("checks"))
      m.checks.push_back({.what = row.at("what"),
                          .format = row.at("format"),
                          .threads = row.at("threads"),
                          .predicted = row.at("predicted"),
                          .measured = row.at("measured")});
    return m;
  } catch (const nlohmann::json::exception& e) {
    throw Error("E114", "{} is no machine file: {}", origin, e.what()).hint("nibble bench --calibrate");
  }
}

}  // namespace nibble
