// The legal graph: each rule is broken once.
#include "graph/verify.h"

#include <gtest/gtest.h>

#include "graph/print.h"
#include "models/tiny_llama.h"
#include "ops/all.h"

namespace nibble {
namespace {

TEST(GraphVerify, BrokenGraphsAreRefused) {
  struct Row {
    const char *why, *text, *what;
  };
  const std::string sources =
      "%0 = input {name=\"x\"} : f32[2, 4]\n"
      "%1 = read {role=\"gradient\", name=\"w\"} : f32[3, 4]\n"
      "%2 = input {name=\"dy\"} : f32[2, 3]\n"
      "%3 = read {role=\"parameter\", name=\"w\"} : f32[3, 4]\n";
  const char* write = "%4 = linear_wgrad(%1, %2, %0) : f32[3, 4]\n";
  // clang-format off
  const Row rows[] = {
      {"read before definition", "%4 = scale(%5) {factor=0x1p+1} : f32[2, 4]\n%5 = add(%0, %0) : f32[2, 4]\nreturn y=%4\n", "node 4 reads %5 before it is computed"},
      {"a value that nobody defines", "%5 = add(%0, %0) : f32[2, 4]\nreturn y=%5\n", "value %4 has no node"},
      {"wrong type", "%4 = add(%0, %0) : f32[2, 5]\nreturn y=%4\n", "%4 is recorded as f32[2, 5], the shape rule says f32[2, 4]"},
      {"operands that do not fit", "%4 = add(%0, %2) : f32[2, 4]\nreturn y=%4\n", "all inputs must have the type of the first"},
      {"too few operands", "%4 = add(%0) : f32[2, 4]\nreturn y=%4\n", "takes 2 operands, got 1"},
      {"too many results", "%4, %5 = add(%0, %0) : f32[2, 4], f32[2, 4]\nreturn y=%4\n", "has 2 results, its op makes 1"},
      {"one state written by two nodes", "%4 = linear_wgrad(%1, %2, %0) : f32[3, 4]\n%5 = linear_wgrad(%1, %2, %0) : f32[3, 4]\n", "node 5 reads %1 after node 4 wrote over it"},
      {"one state written twice in turn", "%4 = linear_wgrad(%1, %2, %0) : f32[3, 4]\n%5 = linear_wgrad(%4, %2, %0) : f32[3, 4]\n", "node 5 writes a state that node 4 wrote already"},
      {"old value read after the write", "%4 = linear_wgrad(%1, %2, %0) : f32[3, 4]\n%5 = scale(%1) {factor=0x1p+1} : f32[3, 4]\nreturn y=%5\n", "node 5 reads %1 after node 4 wrote over it"},
      {"a view of the old value read after the write",
       "%4 = split_heads(%1) {head_size=2} : f32[3, 2, 2]\n%5 = linear_wgrad(%1, %2, %0) : f32[3, 4]\n%6 = scale(%4) {factor=0x1p+1} : f32[3, 2, 2]\nreturn y=%6\n",
       "node 6 reads %4 after node 5 wrote over it"},
      {"the old value is an output", "%4 = linear_wgrad(%1, %2, %0) : f32[3, 4]\nreturn y=%1\n", "output y is %1, which node 4 wrote over"},
      {"write over an input", "%4 = input {name=\"g\"} : f32[3, 4]\n%5 = linear_wgrad(%4, %2, %0) : f32[3, 4]\nreturn y=%5\n", "node 5 writes %4 in place, which is the caller's"},
      {"write over a view of an input",
       "%4 = input {name=\"g\"} : f32[3, 2, 2]\n%5 = merge_heads(%4) : f32[3, 4]\n%6 = linear_wgrad(%5, %2, %0) : f32[3, 4]\nreturn y=%6\n", "node 6 writes %5 in place, which is the caller's"},
      {"the written operand is read too", "%4 = read {role=\"gradient\", name=\"s\"} : f32[2, 2]\n%5 = linear_wgrad(%4, %4, %4) : f32[2, 2]\n", "writes %4 in place and reads it as another operand"},
      {"dead node", "%4 = add(%0, %0) : f32[2, 4]\n", "node 4 is dead"},
      {"dead write over no state", "%4 = zeros {type=\"f32[3, 4]\"} : f32[3, 4]\n%5 = linear_wgrad(%4, %2, %0) : f32[3, 4]\n", "node 5 is dead"},
      {"output never computed", "return y=%4\n", "output y has no value"},
      {"operand far outside", "%4 = add(%0, %77) : f32[2, 4]\nreturn y=%4\n", "operand %77 has no value"},
      {"one state read twice", "%4 = read {role=\"gradient\", name=\"w\"} : f32[3, 4]\n", "node 4 is the same source as node 1"},
      {"one input twice", "%4 = input {name=\"x\"} : f32[2, 4]\n", "node 4 is the same source as node 0"}};
  // clang-format on
  for (const Row& row : rows) {
    const Graph g = parse(sources + row.text, find_op);
    const std::string error = error_of([&] { verify(g, "the test"); });
    EXPECT_TRUE(error.starts_with("E901: ") && says(error, row.what)) << row.why << "\n  " << error;
  }
  EXPECT_EQ(error_of([&] { verify(parse(sources + write + "return g=%4\n", find_op), "the test"); }), "nothing thrown");
  EXPECT_EQ(error_of([&] { verify(parse(sources + "%4 = add(%0, %0) : f32[2, 4]\n", find_op), "the test", true); }),
            "nothing thrown");
}

TEST(GraphVerify, MessageNamesThePassAndShowsTheNodesAround) {
  const Graph g =
      parse("%0 = input {name=\"x\"} : f32[4]\n%1 = add(%0, %0) : f32[4]\n%2 = add(%1, %1) : f32[4]   # layers.7/mlp\n",
            find_op);
  const std::string error = error_of([&] { verify(g, "fuse"); });
  EXPECT_TRUE(says(error, "illegal graph after fuse: node 2 is dead"));
  EXPECT_TRUE(says(error, "\n      %1 = add(%0, %0) : f32[4]\n    > %2 = add(%1, %1) : f32[4]   # layers.7/mlp"));
}

TEST(GraphVerify, DefinedTwice) {  // no text says this: parse refuses it
  Graph g = parse("%0 = input {name=\"x\"} : f32[4]\n%1 = add(%0, %0) : f32[4]\nreturn y=%1\n", find_op);
  g.nodes.push_back(g.nodes[1]);
  EXPECT_TRUE(says(error_of([&] { verify(g, "the test"); }), "node 2 %1 is defined twice"));
  g.nodes.pop_back();
  g.values[1].node = 0;
  EXPECT_TRUE(says(error_of([&] { verify(g, "the test"); }), "%1 does not know its node"));
}

TEST(GraphVerify, ModelGraphsAreLegal) {
  for (const bool tied : {false, true}) {
    verify(tiny_training_graph(tiny_llama(tied), {2, 5}, 1e-4), "grad");
    verify(llama_logits_graph(tiny_llama(tied), {2, 5}), "logits");
    verify(llama_decode_graph(tiny_llama(tied), 3, 9), "decode");
  }
}

TEST(GraphVerify, StateBehindAValue) {
  const Graph g = parse(
      "%0 = input {name=\"x\"} : f32[2, 4]\n%1 = read {role=\"gradient\", name=\"w\"} : f32[3, 4]\n%2 = input "
      "{name=\"dy\"} : f32[2, 3]\n"
      "%3 = linear_wgrad(%1, %2, %0) : f32[3, 4]\n%4 = split_heads(%3) {head_size=2} : f32[3, 2, 2]\n%5 = scale(%4) "
      "{factor=0x1p+0} : f32[3, 2, 2]\n",
      find_op);
  for (const int32_t id : {1, 3, 4}) EXPECT_EQ(state_of(g, {id}), 1) << id;
  for (const int32_t id : {0, 2, 5}) EXPECT_EQ(state_of(g, {id}), -1) << id;
}

}  // namespace
}  // namespace nibble
