// The legal graph, stated in one place and checked after every pass.
#pragma once
#include "graph/graph.h"

namespace nibble {

/// Throws E901 naming the culprit and printing the nodes around it, unless:
///   every value has one definition, and nodes only read values defined before them;
///   the shape rule of each op, applied again, gives the types that are recorded;
///   each state and each input has one source node; an in-place operand is a state or an intermediate value, never an
///   input; each state is written at most once, and neither a node after the writer nor an output reads the old value
///   or a view of it;
///   nothing is dead: each node writes a state, is a source, or has a used value (skipped if `allow_dead`).
/// `after`: the pass that made the graph, for the message.
void verify(const Graph& graph, std::string_view after, bool allow_dead = false);

/// The read node of the state whose memory a value is: through views and every in-place write since; -1 if it is no
/// state.
int32_t state_of(const Graph& graph, Value v);

}  // namespace nibble
