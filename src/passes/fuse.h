// Fusion (the `fuse` pass): groups of nodes that read each other's results from memory become one node that visits
// memory once. At most ten patterns, each an op of ops/fused.cpp, which carries its plain form.
#pragma once
#include "graph/graph.h"

namespace nibble {

/// Comes after differentiation and recomputation, before schedule. Never changes a result; sources move to the front.
///   residual_rms_norm       add, then rms_norm of the sum
///   residual_rms_norm_grad  rms_norm_grad, then add of another gradient of the norm's input
///   rope_pair               two ropes by the same angles, of values that nobody else reads: in place
///   adamw_squares           adamw, then sum_squares of the new weight
void fuse(Graph& graph);

}  // namespace nibble
