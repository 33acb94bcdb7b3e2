// Recomputation of forward values in the backward pass (the `recompute` pass): memory for time. What a gradient reads
// and is not kept is computed again, from what is kept, right before the gradient that reads it first. The copies are
// the same ops on the same bits, so no result changes.  Source: arXiv 1604.06174.
#pragma once
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace nibble {

/// Before the label of every copy: "recompute/layers.3/mlp/gate_proj".
inline constexpr std::string_view recompute_label = "recompute/";
inline bool is_recomputed(const Node& n) { return n.label.starts_with(recompute_label); }

/// What the pass did.
struct Recomputation {
  int64_t kept_bytes = 0, kept_before = 0;  // kept_bytes() after and before
  int64_t nodes = 0;                        // copies
  double flops = 0, bytes = 0;              // of these, as Op::cost says
};

/// How many of the nodes, from the front, are the forward pass: those before the loss's gradient. The order must be
/// that of passes/grad. All of them if there is no gradient.
size_t forward_nodes(const Graph& graph);

/// Of forward values that a later node reads. What is behind views counts, sources do not.
int64_t kept_bytes(const Graph& graph);

/// `again[i]`: the results of node i, one of the first again.size() nodes, are not kept for the later ones: these read
/// copies. A node without results that anybody reads later has no copy. Sources and views are never kept for
/// themselves; what they stand for says `again`. Throws E901 if such a node writes in place.
Recomputation recompute(Graph& graph, const std::vector<bool>& again);

}  // namespace nibble
