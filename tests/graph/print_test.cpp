// The text form: exact, and read back; errors carry the line.
#include "graph/print.h"

#include <gtest/gtest.h>

#include "graph/verify.h"
#include "models/tiny_llama.h"
#include "ops/all.h"

namespace nibble {
namespace {

TEST(GraphPrint, ByHand) {
  Graph g;
  Builder b(g);
  const Value x = b.input("x", {DType::f32, {2, 4}});
  auto scope = b.scope("layers", 0);
  b.output("y", rms_norm(b, x, b.param("model.norm.weight", {4}), 1e-5));
  EXPECT_EQ(print(g),
            "%0 = input {name=\"x\"} : f32[2, 4]\n"
            "%1 = read {role=\"parameter\", name=\"model.norm.weight\"} : f32[4]\n"
            "%2, %3 = rms_norm(%0, %1) {eps=0x1.4f8b588e368f1p-17} : f32[2, 4], f32[2]   # layers.0\n"
            "return y=%2\n");
}

TEST(GraphPrint, ATrainingGraphSurvivesTheRoundTrip) {
  for (const bool tied : {false, true}) {
    const Graph g = tiny_training_graph(tiny_llama(tied), {2, 5}, 1e-4);
    const std::string text = print(g);
    const Graph back = parse(text, find_op);
    verify(back, "parse");
    EXPECT_EQ(print(back), text);
    ASSERT_EQ(back.nodes.size(), g.nodes.size());
    for (size_t i = 0; i < g.nodes.size(); ++i) {
      EXPECT_EQ(back.nodes[i].op, g.nodes[i].op);
      EXPECT_EQ(back.nodes[i].attrs, g.nodes[i].attrs);
      EXPECT_EQ(back.nodes[i].label, g.nodes[i].label);
    }
  }
}

TEST(GraphPrint, NumbersAreExact) {
  for (const double value :
       {0.1, -1.0 / 3, 5e-324, 1.7976931348623157e308, 0.0, -0.0, 1.0, 3e10, double(INFINITY), -double(INFINITY)}) {
    Graph g;
    Builder b(g);
    b.output("y", scale(b, b.input("x", {DType::f32, {1}}), value));
    const double back = parse(print(g), find_op).nodes[1].attrs.get_double("factor");
    EXPECT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(value)) << value;
  }
  Graph g;
  Builder b(g);
  b.output("y", rope(b, b.input("x", {DType::f32, {1, 1, 2}}), b.input("t", {DType::f32, {1, 2}}),
                     b.input("p", {DType::i32, {1}})));
  EXPECT_EQ(parse(print(g), find_op).nodes[3].attrs, g.nodes[3].attrs);  // an integer stays one
}

TEST(GraphPrint, WrongTextIsRefusedWithItsLine) {
  struct Row {
    const char *text, *what;
  };
  const std::string first = "%0 = input {name=\"x\"} : f32[4]\n";
  // clang-format off
  const Row rows[] = {{"x0 = input", "expected \"%\"; line 2"},
                      {"%1 is add(%0, %0) : f32[4]", "expected \" = \"; line 2"},
                      {"%1 = plus(%0, %0) : f32[4]", "expected the name of an op; line 2"},
                      {"%1 = add(%0, 0) : f32[4]", "expected \"%\"; line 2"},
                      {"%1 = add(%0, %0 : f32[4]", "expected \")\"; line 2"},
                      {"%1 = add(%0, %0)", "expected \" : \"; line 2"},
                      {"%1 = add(%0, %0) : f31[4]", "expected a type; line 2"},
                      {"%1 = scale(%0) {factor=} : f32[4]", "expected attributes; line 2"},
                      {"%1 = scale(%0) {factor=1x} : f32[4]", "expected attributes; line 2"},
                      {"%1 = scale(%0) {factor : f32[4]", "expected attributes; line 2"},
                      {"%1 = scale(%0) {factor=0x1p+0 : f32[4]", "expected attributes; line 2"},
                      {"%1, %2 = add(%0, %0) : f32[4]", "expected \", \"; line 2"},
                      {"%0 = add(%0, %0) : f32[4]", "expected a value that was not defined before; line 2"},
                      {"%1 = add(%0, %0) : f32[4] and more", "expected the end of the line; line 2"},
                      {"%99999999999 = add(%0, %0) : f32[4]", "expected a value number; line 2"},
                      {"%-1 = add(%0, %0) : f32[4]", "expected a value number; line 2"},
                      {"%900 = add(%0, %0) : f32[4]", "expected a value number; line 2"},
                      {"return y", "expected \"=\"; line 2"},
                      {"return y=%0 %1", "expected the end of the line; line 2"}};
  // clang-format on
  for (const Row& row : rows) {
    const std::string error = error_of([&] { parse(first + row.text + "\n", find_op); });
    EXPECT_TRUE(error.starts_with("E901") && says(error, row.what)) << row.text << "\n  " << error;
  }
}

}  // namespace
}  // namespace nibble
