// The library as a user of it sees it: one public header, a model of one's own, gradients, a plan, a run. The same
// example stands in docs/library.md.
#include <gtest/gtest.h>
#include <nibble/nibble.h>

namespace {

using namespace nibble;

// Linear classification of 4 inputs into 3 classes: the smallest model that learns.
struct Classifier {
  Graph graph;
  std::vector<std::string> gradients;
};
Classifier classifier(int64_t rows) {
  Classifier c;
  Builder b(c.graph);
  const Value x = b.input("x", {DType::f32, {rows, 4}});
  const Value targets = b.input("targets", {DType::i32, {rows}});
  const Value inv_n = b.input("inv_n", {DType::f32, {1}});
  const CrossEntropy loss = cross_entropy(b, x, b.param("classes", {3, 4}), targets, inv_n, 0);
  b.output("loss", loss.ce);
  c.gradients = grad(c.graph, {{loss.ce, ones(b, b.type(loss.ce))}}, {}).states.at("classes");
  verify(c.graph, "grad");
  return c;
}

Graph update() {
  Graph graph;
  Builder b(graph);
  const Type type{DType::f32, {3, 4}};
  sgd(b, b.read(StateRole::parameter, "classes", type), {b.read(StateRole::gradient, "classes", type)},
      b.input("scalars", {DType::f32, {update_scalars}}));
  return graph;
}

TEST(Library, AModelOfOnesOwnLearns) {
  constexpr int64_t rows = 6;
  std::vector<NamedGraph> graphs;
  graphs.push_back({"step", classifier(rows).graph});
  graphs.push_back({"update", update()});
  Program program(plan_program(std::move(graphs), 1, cpu_targets().back()));
  Executable &step = program.executable("step"), &apply = program.executable("update");
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < 4; ++j) step.input("x").as<float>()[i * 4 + j] = j == i % 3 ? 1.0f : j == 3 ? 0.5f : 0.0f;
    step.input("targets").as<int32_t>()[i] = static_cast<int32_t>(i % 3);
  }
  step.input("inv_n").as<float>()[0] = 1.0f / rows;
  apply.input("scalars").as<float>()[update_lr] = 1.0f;
  apply.input("scalars").as<float>()[update_clip] = 1.0f;
  float first = 0, last = 0;
  for (int i = 0; i < 50; ++i) {
    step.run(Gradients::replace);
    last = step.output("loss").as<float>()[0];
    if (i == 0) first = last;
    apply.run();
  }
  EXPECT_FLOAT_EQ(first, 1.0986123f);  // ln 3: all classes alike
  EXPECT_LT(last, 0.1f);
}

TEST(Library, AGraphIsTextAndBack) {
  const Graph graph = classifier(2).graph;
  EXPECT_EQ(print(parse(print(graph), find_op)), print(graph));
}

}  // namespace
