// The order of execution (the `schedule` pass). A node that frees memory or needs none runs as soon as it can: a weight
// gradient runs when its dy exists, while dy is in the cache. All others keep their order.
#pragma once
#include "graph/graph.h"

namespace nibble {

/// Reorders nodes; never changes a result. Sources stay in front.
void schedule(Graph& graph);

}  // namespace nibble
