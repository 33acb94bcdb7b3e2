// The order of execution changes no bit, keeps writers behind readers, and needs no more memory than before.
#include "passes/schedule.h"

#include <gtest/gtest.h>

#include <cstring>

#include "models/tiny_llama.h"
#include "passes/memory.h"
#include "passes/random_graph.h"
#include "passes/results.h"

namespace nibble {
namespace {

int64_t planned(const Graph& g) {
  return plan_memory(g, [](const Node&) { return int64_t{0}; }).bytes;
}

TEST(PassesSchedule, ChangesNoBitOfATrainingStep) {
  for (const bool tied : {false, true}) {
    const LlamaConfig c = tiny_llama(tied);
    const BatchShape shape{2, 9};
    Graph g = tiny_training_graph(c, shape, 1e-3);
    const TinyInputs in = tiny_inputs(c, shape);
    const auto before = results(g, [&](Interpreter& run) { fill(run, g, Scalar::f32, in); });
    schedule(g);
    verify(g, "schedule");
    expect_equal(before, results(g, [&](Interpreter& run) { fill(run, g, Scalar::f32, in); }));
  }
}

TEST(PassesSchedule, ChangesNoBitOfRandomGraphs) {
  int moved = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Graph g = RandomGraph(seed).make(30);
    const Graph before = g;
    schedule(g);
    verify(g, "schedule");
    for (size_t i = 0; i < g.nodes.size(); ++i) moved += g.nodes[i].out != before.nodes[i].out;
    expect_equal(results(before, [&](Interpreter& run) { fill_random(run, before, Scalar::f32, seed); }),
                 results(g, [&](Interpreter& run) { fill_random(run, g, Scalar::f32, seed); }));
  }
  EXPECT_GT(moved, 300) << "the order must change for the test to mean anything";
}

TEST(PassesSchedule, AWriterWaitsForReadersOfViews) {
  Graph g;
  Builder b(g);
  const Type matrix{DType::f32, {4, 4}};
  const Value s = b.read(StateRole::gradient, "s", matrix), x = b.input("x", matrix);
  const Value heads = split_heads(b, s, 2), y = scale(b, heads, 2);
  b.emit1(linear_wgrad_op, {s, x, x});
  b.output("y", y);
  schedule(g);
  verify(g, "schedule");
  EXPECT_EQ(g.nodes.back().op, &linear_wgrad_op);  // shrinks nothing, yet must come last
}

TEST(PassesSchedule, NeedsNoMoreMemory) {
  const LlamaConfig nibble_1m{.layers = 4,
                              .width = 128,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_size = 32,
                              .hidden = 384,
                              .vocab = 1024,
                              .tied = true};
  for (const LlamaConfig& c : {tiny_llama(), tiny_llama(true), nibble_1m}) {
    Graph g = tiny_training_graph(c, {4, 64}, 0);
    const int64_t before = planned(g);
    schedule(g);
    EXPECT_LE(planned(g), before);
  }
}

TEST(PassesSchedule, ACycleIsNamed) {
  Graph g;
  Builder b(g);
  const Value x = b.input("x", {DType::f32, {4}}), y = scale(b, x, 2), z = scale(b, y, 2);
  b.output("z", z);
  g.nodes[1].in[0] = z;
  EXPECT_TRUE(says(error_of([&] { schedule(g); }), "the graph has a cycle: 1 of 3 nodes can run"));
}

}  // namespace
}  // namespace nibble
