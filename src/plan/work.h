// What a node of a graph does: operations, bytes and format, from its op's cost rule.
#pragma once
#include "graph/graph.h"
#include "plan/machine.h"
#include "runtime/program.h"

namespace nibble {

Work work_of(const Graph& graph, const Node& node);
Work work_of(const Op& op, std::span<const Type> in, std::span<const Type> out, const Attrs& attrs);

/// Executables of the end of a run that has another recipe there: "microbatch_finish" beside "microbatch".
inline constexpr std::string_view finish_suffix = "_finish";

/// How often a training step runs an executable of its program: 0 for those of evaluation and decoding. finish: a step
/// of the end of the run.
int64_t runs_a_step(std::string_view executable, int64_t accumulation, bool finish = false);

/// The format in which most of a training program's operations multiply.
std::string_view step_format(const ProgramPlan& plan);

}  // namespace nibble
