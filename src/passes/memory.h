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
  Value value;         // the first value that lives in the buffer; views and in-place results share it
  int64_t offset = 0;  // from the start of the temporary part
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // nodes between which it is alive, inclusive
  bool keeps = false;           // input or output: alive from start to end
};

struct MemoryPlan {
  std::vector<Placement> buffers;
  std::vector<int32_t> buffer_of;  // by Value::id: index into buffers; -1 for states
  std::vector<int32_t> state_of;   // by Value::id: the read node whose state it lives in; -1 for the others
  int64_t workspace_offset = 0, workspace_bytes = 0;  // largest need of any kernel, one piece after all buffers
  int64_t bytes = 0;                                  // the temporary part, workspace included
};

/// Offsets by first fit in order of decreasing size; a buffer is alive from the node that makes it to the last that
/// reads it. `workspace` answers the workspace bytes of a node's kernel.
MemoryPlan plan_memory(const Graph& graph, const std::function<int64_t(const Node&)>& workspace);

}  // namespace nibble
