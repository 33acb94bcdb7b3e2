// The fuse pass: which nodes become one, that no bit changes (rule 6 of the design), and when it must keep its hands
// off.
#include "passes/fuse.h"

#include <gtest/gtest.h>

#include <cstring>

#include "models/tiny_llama.h"
#include "passes/random_graph.h"
#include "passes/results.h"
#include "passes/schedule.h"

namespace nibble {
namespace {

int64_t count(const Graph& g, const Op& op) {
  return std::ranges::count_if(g.nodes, [&](const Node& n) { return n.op == &op; });
}

Graph fused(Graph g) {
  fuse(g);
  verify(g, "fuse");
  schedule(g);
  verify(g, "schedule");
  return g;
}

TEST(DesignRule6, TrainingStepIsFusedAndKeepsItsBits) {
  for (const bool tied : {false, true}) {
    const LlamaConfig c = tiny_llama(tied);
    const BatchShape shape{2, 9};
    const Graph before = tiny_training_graph(c, shape, 1e-3), after = fused(before);
    EXPECT_EQ(count(after, residual_rms_norm_op), 2 * c.layers);  // all but the first norm
    EXPECT_EQ(count(after, rms_norm_op), 1);
    EXPECT_EQ(count(after, residual_rms_norm_grad_op), 2 * c.layers);  // all but the last norm's
    EXPECT_EQ(count(after, rms_norm_grad_op), 1);
    EXPECT_EQ(count(after, add_op), 0);
    EXPECT_EQ(count(after, rope_pair_op), 2 * c.layers);  // forward and backward
    EXPECT_EQ(count(after, rope_op), 0);
    const TinyInputs in = tiny_inputs(c, shape);
    const auto want = results(before, [&](Interpreter& run) { fill(run, before, Scalar::f32, in); });
    const auto got = results(after, [&](Interpreter& run) { fill(run, after, Scalar::f32, in); });
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, list] : want)
      EXPECT_EQ(std::memcmp(got.at(name).data(), list.data(), list.size() * 4), 0) << name;
  }
}

TEST(DesignRule6, DecodingIsFused) {
  const LlamaConfig c = tiny_llama(true);
  const Graph g = fused(llama_decode_graph(c, 1, 40));
  EXPECT_EQ(count(g, rope_pair_op), c.layers);
  EXPECT_EQ(count(g, residual_rms_norm_op), 2 * c.layers);
}

struct Recorder {
  Graph graph;
  Builder b{graph};
  Value x(std::initializer_list<int64_t> dims) {
    return b.input(fmt::format("x{}", graph.values.size()), {DType::f32, Shape(dims)});
  }
};

TEST(DesignRule6, UpdateAndWeightNormAreOneVisit) {
  Recorder r;
  const Type type{DType::f32, {20, 40}};
  const Value w = r.b.read(StateRole::parameter, "w", type), m = r.b.read(StateRole::moment_m, "w", type),
              v = r.b.read(StateRole::moment_v, "w", type), g = r.b.read(StateRole::gradient, "w", type);
  const Value now = adamw(r.b, w, m, v, {g}, r.x({update_scalars}), 1e-8, 0, 0.1);
  r.b.output("norm", norm(r.b, {sum_squares(r.b, {now}), sum_squares(r.b, {g})}));
  const Graph after = fused(r.graph);
  EXPECT_EQ(count(after, adamw_squares_op), 1);
  EXPECT_EQ(count(after, adamw_op), 0);
  EXPECT_EQ(count(after, sum_squares_op), 1);  // the gradient's
}

// A value that somebody else reads cannot be rotated in place, and one that the caller owns never.
TEST(DesignRule6, RopeInPlaceNeedsValuesOfItsOwn) {
  const auto record = [](bool q_is_input, bool q_is_output, bool k_has_reader) {
    Recorder r;
    const Value table = r.x({9, 6}), positions = r.b.input("positions", {DType::i32, {2, 5}});
    const Value in = r.x({2, 5, 4, 6});
    const Value q = q_is_input ? in : scale(r.b, in, 2), k = scale(r.b, r.x({2, 5, 2, 6}), 3);
    const Value rq = rope(r.b, q, table, positions), rk = rope(r.b, k, table, positions);
    r.b.output("q", rq), r.b.output("k", rk);
    if (q_is_output) r.b.output("plain q", q);
    if (k_has_reader) r.b.output("plain k", scale(r.b, k, 0.5));
    return count(fused(r.graph), rope_pair_op);
  };
  EXPECT_EQ(record(false, false, false), 1);
  EXPECT_EQ(record(true, false, false), 0);
  EXPECT_EQ(record(false, true, false), 0);
  EXPECT_EQ(record(false, false, true), 0);
}

// The gradient of a norm's input is summed elsewhere only if nobody wants it alone.
TEST(DesignRule6, NormGradientIsFusedOnlyIntoItsOneSum) {
  for (const bool wanted : {false, true}) {
    Recorder r;
    const Value acc = r.b.read(StateRole::gradient, "w", {DType::f32, {6}});
    const Values d = r.b.emit(rms_norm_grad_op, {acc, r.x({4, 6}), r.x({4, 6}), r.x({6}), r.x({4})});
    r.b.output("sum", add(r.b, d[1], r.x({4, 6})));
    if (wanted) r.b.output("alone", d[1]);
    EXPECT_EQ(count(fused(r.graph), residual_rms_norm_grad_op), wanted ? 0 : 1);
  }
}

TEST(DesignRule6, RandomGraphsKeepTheirBits) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Graph before = RandomGraph(seed).make(40), after = fused(before);
    const auto want = results(before, [&](Interpreter& run) { fill_random(run, before, Scalar::f32, seed); });
    const auto got = results(after, [&](Interpreter& run) { fill_random(run, after, Scalar::f32, seed); });
    for (const auto& [name, list] : want)
      ASSERT_EQ(std::memcmp(got.at(name).data(), list.data(), list.size() * 4), 0) << name << " of seed " << seed;
  }
}

}  // namespace
}  // namespace nibble
