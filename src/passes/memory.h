// Memory planning: from the lifetimes of a graph's values to offsets in an arena (the `memory` pass). States live in
// the arena's fixed part for the whole program; everything else shares the rest, where lifetimes allow it.
#pragma once
#include <functional>
#include <vector>

#include "graph/graph.h"

namespace nibble {

inline constexpr int64_t arena_alignment = 64;
constexpr int64_t align_up(int64_t bytes) { return (bytes + arena_alignment - 1) / arena_alignment * arena_alignment; }

/// Where one buffer of an executable's temporary part lies.
struct Placement {
  Value value;         // the first value that lives in the buffer; views, in-place and reusing results share it
  int64_t offset = 0;  // from the start of the temporary part
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // nodes between which it is alive, inclusive
  bool keeps = false;           // input or output: alive from start to end
};

struct MemoryPlan {
  std::vector<Placement> buffers;
  std::vector<int32_t> buffer_of;     // by Value::id: index into buffers; -1 for states
  std::vector<int32_t> state_of;      // by Value::id: the read node whose state it lives in; -1 for the others
  std::vector<Placement> workspaces;  // by node: what its kernel works in, alive while it runs; 0 bytes: none
  int64_t bytes = 0;                  // the temporary part: where the last of all these ends
};

/// Offsets by first fit in order of decreasing size, then the workspaces between them; a buffer is alive from the node
/// that makes it to the last that reads it. A result takes the memory of an operand that dies with its node where the
/// op allows it (Op::reuses). `workspace` answers the workspace bytes of a node's kernel.
MemoryPlan plan_memory(const Graph& graph, const std::function<int64_t(const Node&)>& workspace);

}  // namespace nibble
