#include "plan/work.h"

#include <algorithm>
#include <map>

namespace nibble {

Work work_of(const Op& op, std::span<const Type> in, std::span<const Type> out, const Attrs& attrs) {
  if (op.cost == nullptr) return {};
  const Cost cost = op.cost({op, in, out, attrs, ""});
  Work w;
  w.flops = static_cast<double>(cost.flops), w.functions = static_cast<double>(cost.functions);
  for (const Type& t : out) w.written += static_cast<double>(t.nbytes());
  w.read = std::max(0.0, static_cast<double>(cost.bytes) - w.written);
  for (const Type& t : in) {
    if (t.dtype == DType::bf16) w.format = "bf16";
    if (const int bits = block_format(t.dtype).bits; bits > 0) w.format = bits == 4 ? "4bit" : "8bit";
  }
  return w;
}

Work work_of(const Graph& graph, const Node& n) {
  Types in, out;
  for (const Value v : n.in) in.push_back(graph.type(v));
  for (const Value v : n.out) out.push_back(graph.type(v));
  return work_of(*n.op, in, out, n.attrs);
}

int64_t runs_a_step(std::string_view executable, int64_t accumulation, bool finish) {
  if (executable == "gradient_norm" || executable == "update") return 1;
  if (finish != executable.ends_with(finish_suffix)) return 0;
  if (finish) executable.remove_suffix(finish_suffix.size());
  if (executable == "microbatch") return accumulation;
  return executable == "recast" || executable == "advance_scales" ? 1 : 0;
}

std::string_view step_format(const ProgramPlan& plan) {
  const ExecutablePlan& microbatch = plan.executable("microbatch");
  std::map<std::string_view, double> flops;
  for (const Node& n : microbatch.graph.nodes) {
    const Work w = work_of(microbatch.graph, n);
    flops[w.format] += w.flops;
  }
  const auto most = std::ranges::max_element(flops, {}, [](const auto& f) { return f.second; });
  return most == flops.end() ? "f32" : most->first;
}

}  // namespace nibble
