// Places of buffers: nothing that is alive at the same time overlaps, what shares memory shares it, and the plan's size
// is what it uses.
#include "passes/memory.h"

#include <gtest/gtest.h>

#include "models/tiny_llama.h"
#include "passes/random_graph.h"
#include "passes/schedule.h"

namespace nibble {
namespace {

struct Life {
  int64_t offset, bytes;
  int32_t first, last;
};

// The life of each value from the graph alone: from its node to its last reader; inputs and outputs always.
std::vector<Life> lives(const Graph& g, const MemoryPlan& plan) {
  std::vector<Life> list;
  const auto end = static_cast<int32_t>(g.nodes.size());
  for (int32_t id = 0; id < static_cast<int32_t>(g.values.size()); ++id) {
    const int32_t buffer = plan.buffer_of[static_cast<size_t>(id)];
    EXPECT_EQ(buffer < 0, state_of(g, {id}) >= 0) << id;
    if (buffer < 0) continue;
    const int32_t from = g.values[static_cast<size_t>(id)].node;
    Life life{plan.buffers[static_cast<size_t>(buffer)].offset, g.type({id}).nbytes(), from, from};
    for (int32_t i = 0; i < end; ++i)
      if (std::ranges::count(g.nodes[static_cast<size_t>(i)].in, Value{id}) > 0) life.last = i;
    const bool kept = g.producer({id}).op == &input_op ||
                      std::ranges::any_of(g.outputs, [id](const Output& o) { return o.value.id == id; });
    if (kept) life.first = 0, life.last = end;
    list.push_back(life);
  }
  return list;
}

// Values of one buffer are one memory on purpose; all others must lie apart while both live, and a workspace from all
// that live while its node runs.
void expect_apart(const Graph& g) {
  const MemoryPlan plan = plan_memory(g, [](const Node& n) { return static_cast<int64_t>(n.in.size()) * 100; });
  const std::vector<Life> all = lives(g, plan);
  std::vector<int32_t> buffers;  // of `all`
  for (const int32_t b : plan.buffer_of)
    if (b >= 0) buffers.push_back(b);
  int64_t largest = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].offset % arena_alignment, 0);
    largest = std::max(largest, align_up(all[i].offset + all[i].bytes));
    for (size_t k = 0; k < i; ++k) {
      const bool together = all[i].first <= all[k].last && all[k].first <= all[i].last;
      const bool overlap = all[i].offset < all[k].offset + all[k].bytes && all[k].offset < all[i].offset + all[i].bytes;
      EXPECT_TRUE(!together || !overlap || buffers[i] == buffers[k])
          << "buffers " << buffers[i] << " and " << buffers[k];
    }
  }
  ASSERT_EQ(plan.workspaces.size(), g.nodes.size());
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    const Placement& w = plan.workspaces[i];
    const bool runs = n.op != &input_op && n.op != &read_op && !n.op->view;
    EXPECT_EQ(w.bytes, runs ? align_up(static_cast<int64_t>(n.in.size()) * 100) : 0);
    EXPECT_EQ(w.offset % arena_alignment, 0);
    largest = std::max(largest, w.bytes == 0 ? 0 : w.offset + w.bytes);
    for (const Life& life : all)
      if (life.first <= static_cast<int32_t>(i) && static_cast<int32_t>(i) <= life.last) {
        EXPECT_TRUE(w.bytes == 0 || w.offset + w.bytes <= life.offset || life.offset + life.bytes <= w.offset) << i;
      }
  }
  EXPECT_EQ(plan.bytes, largest);
}

TEST(PassesMemory, NothingThatLivesTogetherOverlaps) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Graph g = RandomGraph(seed).make(40);
    expect_apart(g);
    schedule(g);
    expect_apart(g);
  }
  for (const bool tied : {false, true}) {
    Graph g = tiny_training_graph(tiny_llama(tied), {2, 9}, 0);
    schedule(g);
    expect_apart(g);
  }
  expect_apart(llama_decode_graph(tiny_llama(), 3, 9));
}

TEST(PassesMemory, ViewsAndWritesInPlaceShare) {
  Graph g;
  Builder b(g);
  const Type matrix{DType::f32, {4, 4}};
  const Value x = b.input("x", matrix), s = b.read(StateRole::gradient, "s", matrix);
  const Value y = scale(b, x, 2), heads = split_heads(b, y, 2), back = merge_heads(b, heads);
  const Value sum = b.emit1(linear_wgrad_op, {back, x, x}), state = b.emit1(linear_wgrad_op, {s, sum, x});
  b.output("sum", sum);
  const MemoryPlan plan = plan_memory(g, [](const Node&) { return int64_t{0}; });
  const auto buffer = [&](Value v) { return plan.buffer_of[static_cast<size_t>(v.id)]; };
  for (const Value v : {heads, back, sum}) EXPECT_EQ(buffer(v), buffer(y));
  EXPECT_NE(buffer(x), buffer(y));
  EXPECT_EQ(plan.buffers.size(), 2u);
  for (const Placement& p : plan.buffers) EXPECT_TRUE(p.keeps) << "an input and an output";
  EXPECT_EQ(plan.bytes, 128);
  for (const Value v : {s, state}) EXPECT_EQ(plan.state_of[static_cast<size_t>(v.id)], 1);
  EXPECT_EQ(plan.state_of[static_cast<size_t>(y.id)], -1);
}

TEST(PassesMemory, AChainNeedsTwoBuffers) {
  Graph g;
  Builder b(g);
  Value x = b.input("x", {DType::f32, {100}});
  for (int i = 0; i < 10; ++i) x = scale(b, x, 2);
  b.output("y", x);
  // input and output are kept; the nine between are written over each other
  EXPECT_EQ(plan_memory(g, [](const Node&) { return int64_t{0}; }).bytes, 3 * align_up(400));
}

TEST(PassesMemory, AResultTakesTheMemoryOfAnOperandThatDies) {
  Graph g;
  Builder b(g);
  const Type type{DType::f32, {4, 8}};
  const Value x = b.input("x", type);
  const Value gate = scale(b, x, 2), up = scale(b, x, 3), heads = split_heads(b, up, 2);
  const Values d = b.emit(swiglu_grad_op, {x, gate, up});
  const Value late = scale(b, heads, 1), sum = add(b, d[0], d[1]), twice = add(b, sum, sum);
  b.output("late", late), b.output("twice", twice);
  const MemoryPlan plan = plan_memory(g, [](const Node&) { return int64_t{0}; });
  const auto buffer = [&](Value v) { return plan.buffer_of[static_cast<size_t>(v.id)]; };
  EXPECT_EQ(buffer(d[0]), buffer(gate)) << "nobody reads gate again";
  EXPECT_NE(buffer(d[1]), buffer(up)) << "up is read through a view";
  EXPECT_NE(buffer(d[1]), buffer(x)) << "an input is the caller's";
  EXPECT_NE(buffer(d[1]), buffer(gate)) << "taken by the first result";
  EXPECT_TRUE(buffer(sum) == buffer(d[0]) || buffer(sum) == buffer(d[1]));
  EXPECT_NE(buffer(twice), buffer(sum)) << "an output is alive from the start";
  EXPECT_NE(buffer(late), buffer(up));
}

}  // namespace
}  // namespace nibble
