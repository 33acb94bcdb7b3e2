// Reverse-mode differentiation, graph to graph: walks the nodes backward and asks each op's vjp for its inputs'
// gradients (spec/training.md 2.3 for the sums). Parameters end in their gradient states, in place.
#pragma once
#include <map>
#include <string>

#include "graph/graph.h"

namespace nibble {

/// Appends the gradient of sum over all elements of seed * root to `graph`, for each (root, seed) of `roots`.
/// `wanted`: values whose gradient the caller reads; returned in that order (an invalid Value where the roots do not
/// depend on it). Every parameter read by the graph is differentiated too: the sum is written into the state
/// (gradient, name), or (gradient, name + "#head" ...) when the parameter has several uses: use i > 0 gets "#i".
/// Forward nodes that a gradient kernel replaces are removed. Throws E901 if a node on the way is not differentiable.
struct GradResult {
  Values of_wanted;
  /// Gradient states of each parameter, in the order of their uses; to be added in reverse order (head + embedding).
  std::map<std::string, std::vector<std::string>> states;
};
GradResult grad(Graph& graph, const std::vector<std::pair<Value, Value>>& roots, const Values& wanted);

/// Removes nodes whose results nobody reads and that write no state, and renumbers the values; returns the new number
/// of each old value (-1: gone).
std::vector<Value> remove_dead(Graph& graph);

}  // namespace nibble
