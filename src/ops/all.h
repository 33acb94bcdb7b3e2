// The table of all ops: nothing registers itself.
#pragma once
#include <span>

#include "graph/graph.h"

namespace nibble {
std::span<const Op* const> all_ops();
/// By name, for parse(); nullptr if there is none. `input` and `read` are found too.
const Op* find_op(std::string_view name);
}  // namespace nibble
