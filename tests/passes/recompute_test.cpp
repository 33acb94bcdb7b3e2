// Recomputation changes no bit, whatever is recomputed, and leaves alive what it says.
#include "passes/recompute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "graph/verify.h"
#include "models/tiny_llama.h"
#include "passes/memory.h"
#include "passes/results.h"
#include "passes/schedule.h"

namespace nibble {
namespace {

constexpr BatchShape shape{2, 9};

bool may_run_again(const Node& n) { return n.op != &input_op && n.op != &read_op; }

TEST(PassesRecompute, ChangesNoBitWhateverIsRecomputed) {
  for (const bool tied : {false, true}) {
    const LlamaConfig c = tiny_llama(tied);
    const Graph plain = tiny_training_graph(c, shape, 1e-3);
    const TinyInputs in = tiny_inputs(c, shape);
    const auto want = results(plain, [&](Interpreter& run) { fill(run, plain, Scalar::f32, in); });
    Random random(tied ? 1 : 2);
    for (int round = 0; round < 40; ++round) {
      std::vector<bool> again(forward_nodes(plain));
      const int64_t in_ten = round == 0 ? 10 : random.below(11);
      for (size_t i = 0; i < again.size(); ++i) again[i] = may_run_again(plain.nodes[i]) && random.below(10) < in_ten;
      Graph g = plain;
      const Recomputation done = recompute(g, again);
      verify(g, "recompute");
      const auto copies = std::ranges::count_if(g.nodes, [](const Node& n) { return is_recomputed(n) && !n.op->view; });
      EXPECT_EQ(done.nodes, copies);
      EXPECT_EQ(done.kept_before, kept_bytes(plain));
      schedule(g);
      verify(g, "schedule");
      expect_equal(want, results(g, [&](Interpreter& run) { fill(run, g, Scalar::f32, in); }));
    }
  }
}

TEST(PassesRecompute, NothingStaysNothing) {
  Graph g = tiny_training_graph(tiny_llama(), shape, 0);
  const size_t nodes = g.nodes.size();
  const Recomputation done = recompute(g, std::vector<bool>(forward_nodes(g)));
  EXPECT_EQ(g.nodes.size(), nodes);
  EXPECT_EQ(done.nodes, 0);
  EXPECT_EQ(done.flops, 0);
  EXPECT_EQ(done.kept_bytes, done.kept_before);
}

// swiglu's result in layer 0: one copy, right before the weight gradient that reads it.
TEST(PassesRecompute, ACopyStandsBeforeItsFirstReader) {
  Graph g = tiny_training_graph(tiny_llama(), shape, 0);
  std::vector<bool> again(forward_nodes(g));
  const auto at = static_cast<size_t>(std::ranges::find(g.nodes, &swiglu_op, &Node::op) - g.nodes.begin());
  again[at] = true;
  const std::string label = g.nodes[at].label;
  const Type type = g.type(g.nodes[at].out[0]);
  const Cost cost = cost_of(g, g.nodes[at]);
  const Recomputation done = recompute(g, again);
  EXPECT_EQ(done.nodes, 1);
  EXPECT_EQ(done.kept_before - done.kept_bytes, type.nbytes());
  EXPECT_EQ(done.flops, static_cast<double>(cost.flops));
  EXPECT_EQ(done.bytes, static_cast<double>(cost.bytes));
  const auto copy = std::ranges::find_if(g.nodes, is_recomputed);
  ASSERT_NE(copy, g.nodes.end());
  EXPECT_EQ(copy->label, "recompute/" + label);
  EXPECT_EQ(copy->op, &swiglu_op);
  EXPECT_EQ((copy + 1)->op, &linear_wgrad_op);
  EXPECT_EQ((copy + 1)->in[2], copy->out[0]);
  EXPECT_EQ(std::ranges::count_if(g.nodes, is_recomputed), 1);
}

// All of a layer but its input: the sums of the residual stream, the norms of the loss, and nothing else wait.
TEST(PassesRecompute, WhatIsNotRecomputedIsKept) {
  const LlamaConfig c = tiny_llama();
  Graph g = tiny_training_graph(c, shape, 0);
  std::vector<bool> again(forward_nodes(g));
  for (size_t i = 0; i < again.size(); ++i)
    again[i] = may_run_again(g.nodes[i]) && g.nodes[i].label.starts_with("layers.") && g.nodes[i].op != &add_op;
  const Recomputation done = recompute(g, again);
  const int64_t stream = shape.rows * shape.length * c.width * 4;
  // two sums a layer and the embedding; the last norm's result and r
  EXPECT_EQ(done.kept_bytes, (2 * c.layers + 1) * stream + stream + shape.rows * shape.length * 4);
  for (const Node& n : g.nodes)
    if (is_recomputed(n)) {
      EXPECT_TRUE(n.label.starts_with("recompute/layers.")) << n.label;
    }
}

TEST(PassesRecompute, AWriteInPlaceDoesNotRunTwice) {
  Graph g;
  Builder b(g);
  const Type matrix{DType::f32, {4, 4}};
  const Value s = b.read(StateRole::gradient, "s", matrix), x = b.input("x", matrix);
  const Value sum = b.emit1(linear_wgrad_op, {s, x, x});
  b.output("y", scale(b, sum, 2));
  EXPECT_TRUE(says(error_of([&] { recompute(g, {false, false, true}); }), "writes in place: it cannot run twice"));
}

}  // namespace
}  // namespace nibble
