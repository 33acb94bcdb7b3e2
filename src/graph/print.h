// The text form of a graph: one line a node, exact, and read back by parse().
//   %0 = input {name="tokens"} : i32[4, 64]
//   %1 = read {role="parameter", name="model.norm.weight"} : f32[64]
//   %7, %8 = rms_norm(%3, %1) {eps=0x1.4f8b588e368f1p-17} : f32[4, 64, 64], f32[4, 64]   # layers.0
//   return loss=%9
#pragma once
#include <string>

#include "graph/graph.h"

namespace nibble {

std::string print(const Graph& graph);
/// One node's line.
std::string print(const Graph& graph, const Node& node);
/// Inverse of print: values keep their numbers. `find_op` maps a name to its op (nullptr if unknown). Throws E901 with
/// the line number on text that print could not have written.
Graph parse(std::string_view text, const Op* (*find_op)(std::string_view));

}  // namespace nibble
