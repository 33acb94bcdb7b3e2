#include "bench/step_profile.h"

#include <algorithm>
#include <map>

#include "bench/measure.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

const Node& node_of(const StepProfile::Event& e) { return e.plan->graph.nodes[static_cast<size_t>(e.span.node)]; }

double seconds_of(const StepProfile::Event& e) { return e.span.end - e.span.start; }

// "layers.12/mlp/up_proj" -> "layers.*/mlp/up_proj".
std::string without_layer(const std::string& label) {
  constexpr std::string_view word = "layers.";
  const size_t at = label.find(word);
  if (at == std::string::npos) return label;
  size_t end = at + word.size();
  while (end < label.size() && label[end] >= '0' && label[end] <= '9') ++end;
  return label.substr(0, at + word.size()) + "*" + label.substr(end);
}

Json event_json(const std::string& name, const char* category, int track, double start, double seconds) {
  return {{"name", name}, {"cat", category},   {"ph", "X"},           {"pid", 1},
          {"tid", track}, {"ts", 1e6 * start}, {"dur", 1e6 * seconds}};
}

}  // namespace

SyntheticRows::SyntheticRows(int64_t n, int64_t length, int64_t vocab) : rows_(n) {
  const auto size = static_cast<size_t>(n * length);
  inputs_.resize(size), targets_.resize(size), positions_.resize(size);
  segments_.assign(size, 1), weights_.assign(size, 1);
  const auto draw = [&](size_t i) {
    return static_cast<int32_t>(
        (static_cast<uint64_t>(static_cast<uint32_t>(i) * 2654435761u) * static_cast<uint64_t>(vocab)) >> 32);
  };
  for (size_t i = 0; i < size; ++i) {
    inputs_[i] = draw(i), targets_[i] = draw(i + 1);
    positions_[i] = static_cast<int32_t>(i % static_cast<size_t>(length));
  }
}

Rows SyntheticRows::view() const {
  return {inputs_.data(), targets_.data(), segments_.data(), positions_.data(), weights_.data(), rows_};
}

double StepProfile::kernel_seconds() const {
  double sum = 0;
  for (const Event& e : events) sum += seconds_of(e);
  return sum;
}

std::vector<StepProfile> profile_steps(Stepper& stepper, const Rows& rows, int least, int most, double seconds,
                                       bool* finite) {
  struct Part {
    Executable* executable;
    std::vector<Span> spans;
  };
  std::vector<Part> parts;
  for (const ExecutablePlan& e : stepper.program().plan().executables) {
    const int64_t runs = runs_a_step(e.name, stepper.config().accumulation);
    if (runs == 0) continue;
    parts.push_back({&stepper.program().executable(e.name), {}});
    parts.back().spans.reserve(parts.back().executable->seconds().size() * static_cast<size_t>(runs));
  }
  for (Part& p : parts) p.executable->set_profiling(true), p.executable->record(&p.spans);
  std::vector<StepProfile> profiles;
  const double begin = now();
  while (static_cast<int>(profiles.size()) < least ||
         (static_cast<int>(profiles.size()) < most && now() - begin < seconds)) {
    for (Part& p : parts) p.spans.clear();
    StepProfile profile{.start = now()};
    *finite = stepper.run(rows, 1e-3, static_cast<int64_t>(profiles.size()) + 1).updated && *finite;
    profile.seconds = now() - profile.start;
    for (const Part& p : parts)
      for (const Span& s : p.spans) profile.events.push_back({&p.executable->plan(), s});
    std::ranges::stable_sort(profile.events, {}, [](const StepProfile::Event& e) { return e.span.start; });
    profiles.push_back(std::move(profile));
  }
  for (Part& p : parts) p.executable->set_profiling(false), p.executable->record(nullptr);
  return profiles;
}

std::vector<StepProfile> faster_half(std::vector<StepProfile> profiles) {
  std::ranges::sort(profiles, {}, &StepProfile::seconds);
  profiles.resize(std::max<size_t>(1, profiles.size() / 2));
  return profiles;
}

const StepProfile& fastest(const std::vector<StepProfile>& profiles) {
  return *std::ranges::min_element(profiles, {}, &StepProfile::seconds);
}

std::vector<ProfileRow> profile_rows(const StepProfile& profile, Grouping grouping, const Limits& limits,
                                     const CacheSizes& caches) {
  std::vector<ProfileRow> rows;
  std::map<std::string, size_t> index;
  for (const StepProfile::Event& e : profile.events) {
    const Node& n = node_of(e);
    const Work work = work_of(e.plan->graph, n);
    ProfileRow row{.op = std::string(n.op->name),
                   .site = grouping == Grouping::op ? "" : n.label,
                   .kernel = std::string(e.plan->kernels[static_cast<size_t>(e.span.node)].name),
                   .format = std::string(work.format)};
    if (grouping == Grouping::site) row.site = without_layer(row.site);
    std::string key = fmt::format("{} {} {} {}", row.op, row.site, row.kernel, row.format);
    if (grouping == Grouping::node) key = fmt::format("{} {}", e.plan->name, e.span.node);
    const auto [at, fresh] = index.try_emplace(key, rows.size());
    if (fresh) rows.push_back(std::move(row));
    ProfileRow& r = rows[at->second];
    r.nodes += 1, r.seconds += seconds_of(e), r.limit += limit_seconds(work, limits, caches);
    r.flops += work.flops, r.bytes += work.bytes();
  }
  if (grouping != Grouping::node) std::ranges::stable_sort(rows, std::greater{}, &ProfileRow::seconds);
  return rows;
}

std::string profile_text(const StepProfile& profile, const std::vector<ProfileRow>& rows) {
  size_t width = 25;
  const auto name = [](const ProfileRow& r) { return r.site.empty() ? r.op : r.op + " " + r.site; };
  for (const ProfileRow& r : rows) width = std::max(width, name(r).size());
  std::string text = fmt::format("{:<{}}{:>7}  {:<12}{:<6}{:>9}{:>8}{:>9}{:>8}{:>9}{:>10}\n", "op", width, "nodes",
                                 "kernel", "format", "ms", "of step", "GFLOP/s", "GB/s", "of limit", "ms above");
  const auto share = [&](double seconds) { return fmt::format("{:.1f} %", 100 * seconds / profile.seconds); };
  double limit = 0;
  for (const ProfileRow& r : rows) {
    limit += r.limit;
    text += fmt::format(
        "{:<{}}{:>7}  {:<12}{:<6}{:>9.3f}{:>8}{:>9.1f}{:>8.1f}{:>9}{:>10.3f}\n", name(r), width, r.nodes, r.kernel,
        r.format, 1e3 * r.seconds, share(r.seconds), r.flops / r.seconds / 1e9, r.bytes / r.seconds / 1e9,
        r.limit > 0 ? fmt::format("{:.1f} %", 100 * r.limit / r.seconds) : "-", 1e3 * (r.seconds - r.limit));
  }
  const auto last = [&](const char* what, double seconds, double least) {
    text += fmt::format("{:<{}}{:>7}  {:<12}{:<6}{:>9.3f}{:>8}{:>9}{:>8}{:>9}{:>10.3f}\n", what, width, "", "", "",
                        1e3 * seconds, share(seconds), "", "",
                        least > 0 ? fmt::format("{:.1f} %", 100 * least / seconds) : "", 1e3 * (seconds - least));
  };
  last("outside the kernels", profile.outside_seconds(), 0);
  last("step", profile.seconds, limit);
  return text;
}

Json profile_json(const std::vector<ProfileRow>& rows) {
  Json list = Json::array();
  for (const ProfileRow& r : rows) {
    Json j = {{"op", r.op}};
    if (!r.site.empty()) j["site"] = r.site;
    j["kernel"] = r.kernel, j["format"] = r.format, j["nodes"] = r.nodes, j["seconds"] = r.seconds;
    j["flops"] = r.flops, j["bytes"] = r.bytes, j["limit_seconds"] = r.limit;
    list.push_back(std::move(j));
  }
  return list;
}

std::string trace_text(const StepProfile& profile, const Limits& limits, const CacheSizes& caches) {
  Json events = Json::array();
  const std::pair<int, const char*> tracks[] = {{1, "step"}, {2, "kernels"}};
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "nibble"}}}});
  for (const auto& [track, name] : tracks)
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", track}, {"args", {{"name", name}}}});
  events.push_back(event_json("step", "step", 1, 0, profile.seconds));
  // A run of an executable: its nodes come in ascending order.
  for (size_t i = 0, first = 0; i < profile.events.size(); ++i) {
    const bool ends = i + 1 == profile.events.size() || profile.events[i + 1].plan != profile.events[i].plan ||
                      profile.events[i + 1].span.node <= profile.events[i].span.node;
    if (!ends) continue;
    const double start = profile.events[first].span.start;
    events.push_back(event_json(profile.events[i].plan->name, "executable", 1, start - profile.start,
                                profile.events[i].span.end - start));
    first = i + 1;
  }
  for (const StepProfile::Event& e : profile.events) {
    const Node& n = node_of(e);
    const Work work = work_of(e.plan->graph, n);
    const std::string name = n.label.empty() ? std::string(n.op->name) : fmt::format("{} {}", n.op->name, n.label);
    Json j = event_json(name, "kernel", 2, e.span.start - profile.start, seconds_of(e));
    j["args"] = {{"kernel", e.plan->kernels[static_cast<size_t>(e.span.node)].name},
                 {"format", work.format},
                 {"flops", work.flops},
                 {"bytes", work.bytes()},
                 {"limit_us", 1e6 * limit_seconds(work, limits, caches)}};
    for (const Value v : n.out) j["args"]["results"].push_back(to_string(e.plan->graph.type(v)));
    events.push_back(std::move(j));
  }
  std::string text = "[";
  for (const Json& e : events) text += (text.size() > 1 ? ",\n" : "\n") + e.dump();
  return text + "\n]\n";
}

}  // namespace nibble
