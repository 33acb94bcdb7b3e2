// The program: an arena of the planned size, the interpreter's bits on every target and any number of threads,
// profiles, and the first non-finite value.
#include "runtime/program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "runtime/tiny_program.h"

namespace nibble {
namespace {

std::vector<std::pair<CpuTarget, int>> targets_and_threads() {
  std::vector<std::pair<CpuTarget, int>> list;
  for (const CpuTarget target : cpu_targets())
    for (const int threads : {1, 2, 3}) list.emplace_back(target, threads);
  return list;
}

TEST(RuntimeProgram, TheArenaHoldsTheStatesAndOneTemporaryPart) {
  const LlamaConfig c = tiny_llama();
  const ProgramPlan plan = plan_program(tiny_graphs(c), 1, CpuTarget::ref);
  int64_t states = 0, parameters = 0, temporary = 0;
  for (const StateInfo& s : plan.states) {
    EXPECT_EQ(s.offset, states) << s.name;
    states += align_up(s.type.nbytes());
    parameters += s.role == StateRole::parameter ? s.type.numel() : 0;
  }
  EXPECT_EQ(plan.state_bytes, states);
  EXPECT_EQ(parameters, parameter_count(c));
  EXPECT_EQ(plan.states.size(), 4 * llama_parameters(c).size() + 1);  // weight, gradient, two moments; rope table
  for (const ExecutablePlan& e : plan.executables) temporary = std::max(temporary, e.memory.bytes);
  EXPECT_EQ(plan.temporary_bytes, temporary);
  EXPECT_EQ(plan.arena_bytes(), states + temporary);
  const std::byte* first = nullptr;
  Program program(plan);
  for (const StateInfo& s : plan.states) {
    const auto* data = program.state(s.role, s.name).as<std::byte>();
    if (first == nullptr) first = data;
    EXPECT_EQ(data, first + s.offset);
  }
  for (const char* name : {"microbatch", "gradient_norm", "update"}) {
    const Executable& x = program.executable(name);
    for (const Node& n : x.plan().graph.nodes) {
      if (n.op != &input_op) continue;
      const Tensor t = x.input(n.attrs.get_string("name"));
      EXPECT_GE(t.as<std::byte>(), first + states);
      EXPECT_LE(t.as<std::byte>() + t.type.nbytes(), first + plan.arena_bytes());
    }
  }
}

TEST(RuntimeProgram, EqualsTheInterpreter) {
  for (const bool tied : {false, true}) {
    const LlamaConfig c = tiny_llama(tied);
    const Graph g = tiny_training_graph(c, tiny_shape, 1e-4);
    const TinyInputs in = tiny_inputs(c, tiny_shape);
    Interpreter oracle(g, Scalar::f32);
    fill(oracle, g, Scalar::f32, in);
    oracle.run();
    for (const auto& [target, threads] : targets_and_threads()) {
      Program program(plan_program(tiny_graphs(c), threads, target));
      fill(program, "microbatch", in);
      Executable& x = program.executable("microbatch");
      x.run();
      const auto expect_same = [&, t = target, n = threads](const std::string& name, const Tensor& got,
                                                            const Tensor& want) {
        EXPECT_EQ(std::memcmp(got.data, want.data, static_cast<size_t>(want.type.nbytes())), 0)
            << name << " on " << name_of(t) << " with " << n;
      };
      for (const char* name : {"ce", "lse"}) expect_same(name, x.output(name), oracle.output(name));
      for (const StateInfo& s : program.plan().states)
        if (s.role == StateRole::gradient)
          expect_same(s.name, program.state(s.role, s.name), oracle.state(s.role, s.name));
    }
  }
}

TEST(RuntimeProgram, SameWeightsOnEveryTargetAndNumberOfThreads) {
  for (const auto& [target, threads] : targets_and_threads()) {
    EXPECT_EQ(weights_after_three_steps(threads, target, false), "13c33f94a4ce0618")
        << name_of(target) << " with " << threads;
    EXPECT_EQ(weights_after_three_steps(threads, target, true), "a0a14f2bd8f3f20a")
        << name_of(target) << " with " << threads;
  }
}

TEST(RuntimeProgram, ProfileHasOneTimeANode) {
  const LlamaConfig c = tiny_llama();
  Program program(plan_program(tiny_graphs(c), 1, CpuTarget::ref));
  fill(program, "microbatch", tiny_inputs(c, tiny_shape));
  Executable& x = program.executable("microbatch");
  const auto total = [&x] {
    double sum = 0;
    for (const double s : x.seconds()) sum += s;
    return sum;
  };
  size_t computing = 0;
  for (const Node& n : x.plan().graph.nodes) computing += n.op != &input_op && n.op != &read_op && !n.op->view;
  EXPECT_EQ(x.seconds().size(), computing);
  x.run();
  EXPECT_EQ(total(), 0);
  x.set_profiling(true);
  x.run();
  const double once = total();
  EXPECT_GT(once, 0);
  for (const double s : x.seconds()) EXPECT_GE(s, 0);
  x.run();
  EXPECT_GT(total(), once);
  x.set_profiling(false);
  const double twice = total();
  x.run();
  EXPECT_EQ(total(), twice);
}

TEST(TrainingT27, TheFirstNonFiniteValueIsFound) {
  const LlamaConfig c = tiny_llama();
  Program program(plan_program(tiny_graphs(c), 2, CpuTarget::ref));
  Executable& x = program.executable("microbatch");
  Executable::NonFinite found;
  fill(program, "microbatch", tiny_inputs(c, tiny_shape));
  program.zero(StateRole::gradient);
  EXPECT_TRUE(x.run_checked(&found));
  EXPECT_EQ(found.node, nullptr);
  struct Row {
    const char *parameter, *label;
    const Op* op;
    float value;
    int64_t element, index;
  };
  // An element of a weight [N, K] meets the first token's row in column element / K.
  // clang-format off
  const Row rows[] = {{"model.layers.1.mlp.up_proj.weight", "layers.1/mlp/up_proj", &linear_op, NAN, 3 * 24 + 5, 3},
                      {"model.layers.0.self_attn.q_proj.weight", "layers.0/self_attn/q_proj", &linear_op, INFINITY, 7 * 24, 7},
                      {"model.layers.1.input_layernorm.weight", "layers.1/input_layernorm", &residual_rms_norm_op, -INFINITY, 4, 4},
                      {"lm_head.weight", "head", &cross_entropy_grad_op, NAN, 0, 0}};
  // clang-format on
  for (const Row& row : rows) {
    fill(program, "microbatch", tiny_inputs(c, tiny_shape));
    program.zero(StateRole::gradient);
    program.state(StateRole::parameter, row.parameter).as<float>()[row.element] = row.value;
    found = {};
    ASSERT_FALSE(x.run_checked(&found)) << row.parameter;
    EXPECT_EQ(found.node->label, row.label) << row.parameter;
    EXPECT_EQ(found.node->op, row.op) << row.parameter;
    EXPECT_EQ(found.output, row.op == &residual_rms_norm_op ? 1 : 0);  // 0 is the sum before the norm
    EXPECT_EQ(found.index, row.index) << row.parameter;
    EXPECT_FALSE(std::isfinite(found.value));
  }
}

TEST(RuntimeProgram, StatesAreNamedByRole) {
  const LlamaConfig c = tiny_llama();
  Program program(plan_program(tiny_graphs(c), 2, CpuTarget::ref));
  EXPECT_TRUE(program.has_state(StateRole::moment_m, "lm_head.weight"));
  EXPECT_FALSE(program.has_state(StateRole::kv_cache, "lm_head.weight"));
  const Tensor w = program.state(StateRole::parameter, "lm_head.weight"),
               g = program.state(StateRole::gradient, "lm_head.weight");
  std::fill_n(w.as<float>(), w.numel(), 1.0f), std::fill_n(g.as<float>(), g.numel(), -1.0f);
  program.zero(StateRole::gradient);
  for (int64_t i = 0; i < g.numel(); ++i) ASSERT_EQ(std::bit_cast<uint32_t>(g.as<float>()[i]), 0u);
  EXPECT_EQ(w.as<float>()[w.numel() - 1], 1.0f);
  EXPECT_TRUE(
      says(error_of([&] { program.state(StateRole::kv_cache, "k.0"); }), "the program has no state kv_cache k.0"));
  EXPECT_TRUE(says(error_of([&] { program.executable("evaluate"); }), "the program has no executable evaluate"));
  EXPECT_TRUE(
      says(error_of([&] { program.executable("update").input("tokens"); }), "executable update has no input tokens"));
  EXPECT_TRUE(says(error_of([&] { program.executable("update").output("norm"); }), "the graph has no output norm"));
}

TEST(RuntimeProgram, MistakesAreFoundWhenPlanning) {
  const auto reads = [](int64_t n) {
    Graph g;
    Builder b(g);
    b.output("y", scale(b, b.param("w", {n}), 2));
    return g;
  };
  std::vector<NamedGraph> two{{"a", reads(4)}, {"b", reads(5)}};
  EXPECT_TRUE(says(error_of([&] { plan_program(two, 1, CpuTarget::ref); }),
                   "state w is f32[4] in one graph and f32[5] in another"));
  Graph dead = reads(4);
  dead.outputs.clear();
  EXPECT_TRUE(says(error_of([&] {
                     plan_program({{"a", dead}}, 1, CpuTarget::ref);
                   }),
                   "illegal graph after recording: node 1 is dead"));
  EXPECT_EQ(plan_program({{"a", reads(int64_t{1} << 58)}}, 1, CpuTarget::ref).arena_bytes(),
            int64_t{2} << 60);  // no memory is touched
  const std::string error = error_of([&] {
    Program(plan_program({{"a", reads(int64_t{1} << 58)}}, 1, CpuTarget::ref));
  });
  EXPECT_TRUE(error.starts_with("E107: 2305843009213693952 bytes")) << error;
}

}  // namespace
}  // namespace nibble
