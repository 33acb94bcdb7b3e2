// The two forms of a PlanReport: text in 100 columns, and JSON.  Source: spec/plan.md 11.
#include <algorithm>

#include "plan/report.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

void append_header(std::string& out, const PlanReport& r) {
  const PlanSubject& s = r.subject;
  const int64_t tokens = s.batch * s.length * s.accumulation;
  out += fmt::format("{}   {} parameters   {}   cpu, {} kernels, {} thread{}\n", s.model_name, grouped(r.parameters),
                     s.precision, r.target, r.threads, r.threads == 1 ? "" : "s");
  if (!s.recipe_note.empty()) out += fmt::format("recipe   {}\n", s.recipe_note);
  if (!s.finish.empty()) out += fmt::format("finish   {}\n", s.finish);
  out += fmt::format("step     {} rows x {} tokens x {} microbatch{} = {} tokens", s.batch, s.length, s.accumulation,
                     s.accumulation == 1 ? "" : "es", grouped(tokens));
  if (s.steps > 0) out += fmt::format(";   {} steps: {} tokens", grouped(s.steps), grouped(s.steps * tokens));
  const double tera = 1e12;
  out += fmt::format("\nFLOPs    model {:.4g} TFLOP a step ({:.4g} weights, {:.4g} attention), executed {:.4g} TFLOP\n",
                     r.model_flops.total() / tera, r.model_flops.weights / tera, r.model_flops.attention / tera,
                     r.executed_flops / tera);
  out += fmt::format("traffic  {} read and written a step, if every tensor goes to memory and back\n",
                     size_text(r.traffic_bytes));
  std::string nodes;
  for (const auto& [name, count] : r.nodes) nodes += fmt::format("{}{} {}", nodes.empty() ? "" : ", ", name, count);
  out += fmt::format("nodes    {}\n", nodes);
}

void append_memory(std::string& out, const PlanReport& r) {
  const int64_t limit = r.subject.memory_limit;
  out += fmt::format("\nmemory   {} = {}", grouped(r.arena_bytes), size_text(static_cast<double>(r.arena_bytes)));
  if (limit > 0) {
    const double share = static_cast<double>(r.arena_bytes) / static_cast<double>(limit);
    out += fmt::format(" of {} ({})", size_text(static_cast<double>(limit)),
                       share < 10 ? fmt::format("{:.1f} %", 100 * share) : fmt::format("{:.0f} times", share));
  }
  out += fmt::format("; the temporary part is that of {}\n", r.largest_executable);
  for (const MemoryClass& c : r.memory)
    if (c.bytes != 0)
      out += fmt::format("  {:<18}{:>20}{:>14}{:>8.1f} %\n", c.name, grouped(c.bytes),
                         size_text(static_cast<double>(c.bytes)),
                         100.0 * static_cast<double>(c.bytes) / static_cast<double>(r.arena_bytes));
}

// The arena is what the run needs to the byte; the process is a little larger.
void append_outside(std::string& out, const PlanReport& r) {
  out += fmt::format("  beside it: about {} of program", size_text(static_cast<double>(program_bytes)));
  if (r.subject.checkpoint_copy > 0)
    out += fmt::format(", {} for the copy that a checkpoint is written from",
                       size_text(static_cast<double>(r.subject.checkpoint_copy)));
  out += '\n';
}

void append_recomputation(std::string& out, const PlanReport& r) {
  const Recomputation& d = r.recomputation;
  const auto size = [](int64_t bytes) { return size_text(static_cast<double>(bytes)); };
  out += fmt::format("\nrecompute remat_policy={}: ", r.subject.remat_policy);
  if (d.nodes == 0) {
    out += fmt::format("nothing; {} wait for the backward pass\n", size(d.kept_bytes));
    return;
  }
  const double flops = d.flops * static_cast<double>(r.subject.accumulation);
  out += fmt::format("{} wait for the backward pass, not {}; {:.4g} GFLOP more a step (+{:.1f} %)\n",
                     size(d.kept_bytes), size(d.kept_before), flops / 1e9, 100 * flops / (r.executed_flops - flops));
  size_t width = 0;
  for (const std::vector<RematRow>* rows : {&r.kept, &r.recomputed})
    for (const RematRow& t : *rows) width = std::max(width, t.name.size());
  const auto append = [&](const char* what, const RematRow& t) {
    out += fmt::format("  {:<5}  {:<{}}  {:<20}{:>11}{}", what, t.name, width, to_string(t.type), size(t.bytes),
                       t.count == 1 ? "" : fmt::format(" x {:<4}", t.count));
    if (t.flops > 0) out += fmt::format("{:>10.4g} GFLOP", t.flops / 1e9);
    while (out.back() == ' ') out.pop_back();
    out += "\n";
  };
  for (const RematRow& t : r.kept) append("kept", t);
  for (const RematRow& t : r.recomputed) append("again", t);
}

void append_tensors(std::string& out, const PlanReport& r) {
  size_t width = 0;
  for (const TensorRow& t : r.tensors) width = std::max(width, t.name.size());
  out += "\nlargest tensors\n";
  for (const TensorRow& t : r.tensors)
    out += fmt::format("  {:<{}}  {:<20}{:>11}{}  {}\n", t.name, width, to_string(t.type),
                       size_text(static_cast<double>(t.bytes)),
                       t.count == 1 ? "       " : fmt::format(" x {:<4}", t.count), t.kind);
}

void append_gemm_rows(std::string& out, const std::vector<GemmRow>& rows) {
  size_t width = 0;
  size_t format = 4;
  for (const GemmRow& g : rows) width = std::max(width, g.site.size()), format = std::max(format, g.format.size());
  for (const GemmRow& g : rows)
    out += fmt::format("  {:<{}}  {:<6} {:>22}  {:<{}} {:<11}{:>10.4g} GFLOP{}\n", g.site, width, g.gemm,
                       fmt::format("{} x {} x {}", g.m, g.n, g.k), g.format, format, g.kernel, g.flops / 1e9,
                       g.count == 1 ? "" : fmt::format(" x {}", g.count));
}

void append_gemms(std::string& out, const PlanReport& r) {
  out += "\nmatrix products of a microbatch: M x N x K, operands, kernel\n";
  append_gemm_rows(out, r.gemms);
  for (const std::string& site : r.subject.unquantized) out += fmt::format("  not quantized: {}\n", site);
  if (r.subject.finish.empty()) return;
  out += fmt::format("\nmatrix products of a microbatch, {}\n", r.subject.finish);
  append_gemm_rows(out, r.finish_gemms);
}

void append_ops(std::string& out, const PlanReport& r) {
  out += "\noperations of a step\n";
  for (const OpRow& o : r.ops)
    out += fmt::format("  {:<24}{:>8} x  {:<8}{:>12.4g} GFLOP{:>14}\n", o.op, o.nodes, o.kernel, o.flops / 1e9,
                       size_text(o.bytes));
}

}  // namespace

std::string grouped(int64_t n) {
  std::string digits = std::to_string(n < 0 ? -n : n);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return (n < 0 ? "-" : "") + digits;
}

std::string size_text(double bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : 1, units[unit]);
}

std::string plan_text(const PlanReport& report, bool verbose) {
  std::string out;
  append_header(out, report);
  append_memory(out, report);
  append_outside(out, report);
  append_recomputation(out, report);
  append_tensors(out, report);
  append_gemms(out, report);
  append_ops(out, report);
  if (verbose) {
    out += "\nkernels that were passed over\n";
    for (const std::string& refusal : report.refusals) out += "  " + refusal + "\n";
    if (report.refusals.empty()) out += "  none\n";
  }
  return out;
}

nlohmann::ordered_json plan_json(const PlanReport& r) {
  const PlanSubject& s = r.subject;
  Json j = {{"schema", "nibble-plan-1"},
            {"model_name", s.model_name},
            {"parameters", r.parameters},
            {"cpu_target", r.target},
            {"threads", r.threads},
            {"microbatch_rows", s.batch},
            {"length", s.length},
            {"accumulation", s.accumulation},
            {"step_tokens", s.batch * s.length * s.accumulation},
            {"steps", s.steps},
            {"arena_bytes", r.arena_bytes},
            {"memory_limit", s.memory_limit},
            {"program_bytes", program_bytes},
            {"checkpoint_copy_bytes", s.checkpoint_copy},
            {"largest_executable", r.largest_executable}};
  for (const MemoryClass& c : r.memory) j["memory"][c.name] = c.bytes;
  j["tensors"] = Json::array(), j["gemms"] = Json::array(), j["operations"] = Json::array();
  for (const TensorRow& t : r.tensors)
    j["tensors"].push_back(
        {{"name", t.name}, {"kind", t.kind}, {"type", to_string(t.type)}, {"bytes", t.bytes}, {"count", t.count}});
  const auto gemms = [](const std::vector<GemmRow>& list) {
    Json array = Json::array();
    for (const GemmRow& g : list)
      array.push_back({{"site", g.site},
                       {"gemm", g.gemm},
                       {"m", g.m},
                       {"n", g.n},
                       {"k", g.k},
                       {"format", g.format},
                       {"kernel", g.kernel},
                       {"flops", g.flops},
                       {"count", g.count}});
    return array;
  };
  j["gemms"] = gemms(r.gemms);
  for (const OpRow& o : r.ops)
    j["operations"].push_back(
        {{"op", o.op}, {"kernel", o.kernel}, {"nodes", o.nodes}, {"flops", o.flops}, {"bytes", o.bytes}});
  const auto rows = [](const std::vector<RematRow>& list) {
    Json array = Json::array();
    for (const RematRow& t : list)
      array.push_back(
          {{"name", t.name}, {"type", to_string(t.type)}, {"bytes", t.bytes}, {"count", t.count}, {"flops", t.flops}});
    return array;
  };
  j["recompute"] = {{"remat_policy", s.remat_policy},
                    {"kept_bytes", r.recomputation.kept_bytes},
                    {"kept_bytes_without", r.recomputation.kept_before},
                    {"nodes", r.recomputation.nodes},
                    {"flops", r.recomputation.flops * static_cast<double>(s.accumulation)},
                    {"kept", rows(r.kept)},
                    {"again", rows(r.recomputed)}};
  j["model_flops"] = {
      {"weights", r.model_flops.weights}, {"attention", r.model_flops.attention}, {"total", r.model_flops.total()}};
  j["executed_flops"] = r.executed_flops;
  j["traffic_bytes"] = r.traffic_bytes;
  for (const auto& [name, count] : r.nodes) j["nodes"][name] = count;
  if (!s.recipe_note.empty()) j["recipe_note"] = s.recipe_note;
  if (!s.finish.empty()) j["finish"] = {{"when", s.finish}, {"gemms", gemms(r.finish_gemms)}};
  j["refusals"] = r.refusals;
  return j;
}

}  // namespace nibble
