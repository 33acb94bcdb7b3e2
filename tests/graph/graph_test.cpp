// The builder: scopes, labels, one source for each input and state; what a cost sees.
#include "graph/graph.h"

#include <gtest/gtest.h>

#include "ops/ops.h"
#include "ops/values.h"

namespace nibble {
namespace {

const Type vector{DType::f32, {4}}, matrix{DType::f32, {3, 4}};

TEST(GraphBuilder, ScopesGiveLabels) {
  Graph g;
  Builder b(g);
  const Value x = b.input("x", vector);
  {
    auto layer = b.scope("layers", 3);
    add(b, x, x);
    {
      auto mlp = b.scope("mlp");
      scale(b, x, 2);
      EXPECT_EQ(b.label(), "layers.3/mlp");
    }
    scale(b, x, 3);
  }
  add(b, x, x);
  const char* labels[] = {"", "layers.3", "layers.3/mlp", "layers.3", ""};
  ASSERT_EQ(g.nodes.size(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(g.nodes[i].label, labels[i]) << i;
}

TEST(GraphBuilder, ASourceIsReadOnce) {
  Graph g;
  Builder b(g);
  const Value w = b.param("w", {4});
  EXPECT_EQ(b.param("w", {4}), w);
  EXPECT_EQ(b.read(StateRole::parameter, "w", vector), w);
  EXPECT_NE(b.read(StateRole::moment_m, "w", vector), w);  // (role, name) is the identity
  const Value x = b.input("w", vector);
  EXPECT_NE(x, w);
  EXPECT_EQ(b.input("w", vector), x);
  EXPECT_EQ(g.nodes.size(), 3u);
  EXPECT_TRUE(says(error_of([&] { b.param("w", {5}); }), "has two types, f32[4] and f32[5]"));
  EXPECT_TRUE(says(error_of([&] { b.input("w", matrix); }), "has two types, f32[4] and f32[3, 4]"));
}

TEST(GraphBuilder, MistakesAreNamed) {
  Graph g;
  Builder b(g);
  const Value x = b.input("x", matrix);
  auto scope = b.scope("block");
  EXPECT_TRUE(says(error_of([&] { b.emit(add_op, {x, Value{}}); }), "add: operand without a value"));
  EXPECT_TRUE(says(error_of([&] { b.emit(add_op, {x}); }), "takes 2 operands, got 1; block of (f32[3, 4])"));
  EXPECT_TRUE(says(error_of([&] { b.emit(add_op, {x, x, x}); }), "takes 2 operands, got 3"));
  EXPECT_TRUE(says(error_of([&] { b.emit(linear_dgrad_op, {x}); }), "takes 2 or more operands, got 1"));
  EXPECT_TRUE(says(error_of([&] { split_heads(b, x, 3); }), "3 heads must divide the last axis of f32[3, 4]"));
  EXPECT_TRUE(says(error_of([&] { b.emit(input_op, {}); }), "input is made by Builder::input"));
  b.output("y", x);
  EXPECT_TRUE(says(error_of([&] { b.output("y", x); }), "output y is given twice"));
  EXPECT_TRUE(says(error_of([&] { g.output("z"); }), "the graph has no output z"));
  EXPECT_EQ(g.nodes.size(), 1u) << "a refused node must not be recorded";
}

TEST(GraphBuilder, RolesHaveNames) {
  for (const StateRole role : {StateRole::parameter, StateRole::weight, StateRole::gradient, StateRole::moment_m,
                               StateRole::moment_v, StateRole::kv_cache, StateRole::constant}) {
    StateRole back{};
    EXPECT_TRUE(parse_state_role(name_of(role), &back)) << name_of(role);
    EXPECT_EQ(back, role);
  }
  StateRole role{};
  EXPECT_FALSE(parse_state_role("moment", &role));
}

TEST(GraphBuilder, ViewsLeadToTheirSource) {
  Graph g;
  Builder b(g);
  const Value x = b.input("x", matrix), heads = split_heads(b, x, 2), back = merge_heads(b, heads),
              y = scale(b, back, 2);
  EXPECT_EQ(g.behind_views(back), x);
  EXPECT_EQ(g.behind_views(x), x);
  EXPECT_EQ(g.behind_views(y), y);
}

}  // namespace
}  // namespace nibble
