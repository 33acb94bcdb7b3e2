// The order of execution (the `schedule` pass). Nodes are moved to where they shorten lifetimes: a node that only
// reads values which stay alive anyway runs as late as possible, a weight gradient runs as soon as its dy exists.
#pragma once
#include "graph/graph.h"

namespace nibble {

/// Reorders nodes; never changes a result. Sources stay in front.
void schedule(Graph& graph);

}  // namespace nibble
