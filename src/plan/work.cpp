#include "plan/work.h"

#include <algorithm>

namespace nibble {

Work work_of(const Op& op, std::span<const Type> in, std::span<const Type> out, const Attrs& attrs) {
  if (op.cost == nullptr) return {};
  const Cost cost = op.cost({op, in, out, attrs, ""});
  Work w;
  w.flops = static_cast<double>(cost.flops), w.functions = static_cast<double>(cost.functions);
  for (const Type& t : out) w.written += static_cast<double>(t.nbytes());
  w.read = std::max(0.0, static_cast<double>(cost.bytes) - w.written);
  for (const Type& t : in)
    if (t.dtype == DType::bf16) w.format = "bf16";
  return w;
}

Work work_of(const Graph& graph, const Node& n) {
  Types in, out;
  for (const Value v : n.in) in.push_back(graph.type(v));
  for (const Value v : n.out) out.push_back(graph.type(v));
  return work_of(*n.op, in, out, n.attrs);
}

int64_t runs_a_step(std::string_view executable, int64_t accumulation) {
  if (executable == "microbatch") return accumulation;
  return executable == "gradient_norm" || executable == "update" || executable == "recast" ? 1 : 0;
}

std::string_view step_format(const ProgramPlan& plan) {
  const ExecutablePlan& microbatch = plan.executable("microbatch");
  double all = 0, bf16 = 0;
  for (const Node& n : microbatch.graph.nodes) {
    const Work w = work_of(microbatch.graph, n);
    all += w.flops;
    if (w.format == "bf16") bf16 += w.flops;
  }
  return 2 * bf16 > all ? "bf16" : "f32";
}

}  // namespace nibble
