// Gradient: which nodes it makes, which states it fills, what it refuses; and the whole derivative of a Llama.
#include "passes/grad.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/verify.h"
#include "models/tiny_llama.h"

namespace nibble {
namespace {

constexpr BatchShape shape{2, 9};

std::string weight_of(const Graph& g, Value v) { return g.producer(v).attrs.get_string("name"); }

TEST(PassesGrad, ProductsOfOneInputShareOneNode) {
  const LlamaConfig c = tiny_llama();
  GradResult r;
  const Graph g = tiny_training_graph(c, shape, 0, &r);
  verify(g, "grad");
  std::vector<std::vector<std::string>> terms;
  for (const Node& n : g.nodes) {
    if (n.op != &linear_dgrad_op) continue;
    terms.emplace_back();
    for (size_t i = 1; i < n.in.size(); i += 2) terms.back().push_back(weight_of(g, n.in[i]));
  }
  std::vector<std::vector<std::string>> want;
  for (const int layer : {1, 0}) {
    const std::string p = fmt::format("model.layers.{}.", layer);
    want.push_back({p + "mlp.down_proj.weight"});
    want.push_back({p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight"});
    want.push_back({p + "self_attn.o_proj.weight"});
    want.push_back({p + "self_attn.q_proj.weight", p + "self_attn.k_proj.weight", p + "self_attn.v_proj.weight"});
  }
  EXPECT_EQ(terms, want);
}

TEST(PassesGrad, TheLossIsComputedOnce) {
  const Graph g = tiny_training_graph(tiny_llama(), shape, 0);
  EXPECT_EQ(std::ranges::count(g.nodes, &cross_entropy_op, &Node::op), 0);
  EXPECT_EQ(std::ranges::count(g.nodes, &cross_entropy_grad_op, &Node::op), 1);
  for (const char* name : {"ce", "lse"}) EXPECT_EQ(g.producer(g.output(name)).op, &cross_entropy_grad_op) << name;
  for (const Node& n : g.nodes) EXPECT_NE(n.op, &ones_op) << "the seed has no reader left";
}

TEST(PassesGrad, EachUseOfAParameterHasItsState) {
  for (const bool tied : {false, true}) {
    const LlamaConfig c = tiny_llama(tied);
    GradResult r;
    const Graph g = tiny_training_graph(c, shape, 0, &r);
    ASSERT_EQ(r.states.size(), llama_parameters(c).size());
    for (const Parameter& p : llama_parameters(c)) {
      std::vector<std::string> want{p.name};
      if (tied && p.name == llama_embedding) want.push_back(p.name + "#1");
      EXPECT_EQ(r.states.at(p.name), want);
    }
    for (const Node& n : g.nodes) {  // use 0 is the embedding, use 1 the head
      if (n.op == &cross_entropy_grad_op) {
        EXPECT_EQ(weight_of(g, n.in[0]), tied ? "model.embed_tokens.weight#1" : "lm_head.weight");
      }
      if (n.op == &embedding_grad_op) {
        EXPECT_EQ(weight_of(g, n.in[0]), "model.embed_tokens.weight");
      }
    }
  }
}

TEST(PassesGrad, TwelveUsesKeepTheirOrder) {
  Graph g;
  Builder b(g);
  const Value w = b.param("w", {4, 4});
  Value x = b.input("x", {DType::f32, {2, 4}});
  for (int i = 0; i < 12; ++i) x = linear(b, x, w);
  const GradResult r = grad(g, {{x, ones(b, g.type(x))}}, {});
  std::vector<std::string> want{"w"};
  for (int i = 1; i < 12; ++i) want.push_back(fmt::format("w#{}", i));
  EXPECT_EQ(r.states.at("w"), want);
}

TEST(PassesGrad, WhatIsNotOnTheWayHasNoGradient) {
  Graph g;
  Builder b(g);
  const Value w = b.param("w", {4, 4}), unused = b.param("unused", {4, 4}), x = b.input("x", {DType::f32, {2, 4}}),
              z = b.input("z", {DType::f32, {2, 4}});
  const Value y = linear(b, x, w);
  b.output("other", linear(b, z, unused));
  const GradResult r = grad(g, {{y, ones(b, g.type(y))}}, {x, z});
  EXPECT_EQ(r.states.size(), 1u);
  EXPECT_EQ(r.states.count("w"), 1u);
  EXPECT_TRUE(r.of_wanted[0].valid());
  EXPECT_FALSE(r.of_wanted[1].valid());
  EXPECT_EQ(g.producer(r.of_wanted[0]).op, &linear_dgrad_op);
}

TEST(PassesGrad, WhatCannotBeDifferentiatedIsNamed) {
  const Type rows{DType::f32, {3, 4}};
  {
    Graph g;
    Builder b(g);
    const Value x = linear(b, b.input("x", rows), b.param("w", {4, 4}));
    auto scope = b.scope("head");
    const Value y = take_row(b, x, b.input("i", {DType::i32, {1}}));
    EXPECT_TRUE(says(error_of([&] {
                       grad(g, {{y, ones(b, g.type(y))}}, {});
                     }),
                     "take_row (head) is not differentiable"));
  }
  {
    Graph g;
    Builder b(g);
    const Value y = add(b, b.input("x", rows), b.param("bias", {3, 4}));
    EXPECT_TRUE(says(error_of([&] {
                       grad(g, {{y, ones(b, g.type(y))}}, {});
                     }),
                     "add (): the gradient of parameter bias"));
  }
  {
    Graph g = llama_loss_graph(tiny_llama(), shape, 0);
    Builder b(g);
    const Value ce = g.output("ce"), seed = b.input("seed", g.type(ce));
    EXPECT_TRUE(says(error_of([&] { grad(g, {{ce, seed}}, {}); }), "cross_entropy must be the root of the gradient"));
  }
  {
    Graph g;
    Builder b(g);
    const Value x = b.input("x", rows);
    EXPECT_TRUE(says(error_of([&] {
                       grad(g, {{x, ones(b, {DType::f32, {4}})}}, {x});
                     }),
                     "seed f32[4] for a root f32[3, 4]"));
  }
}

// The batch's loss with parameter `name` moved along `direction` by an imaginary step.
double derivative(const LlamaConfig& c, const TinyInputs& in, double z_loss, const std::string& name,
                  const std::vector<double>& direction) {
  constexpr double h = 1e-30;
  const Graph g = llama_loss_graph(c, shape, z_loss);
  Interpreter run(g, Scalar::complex);
  fill(run, g, Scalar::complex, in);
  const Tensor w = run.state(StateRole::parameter, name);
  for (int64_t i = 0; i < w.numel(); ++i)
    w.as<std::complex<double>>()[i] += std::complex<double>(0, h * direction[static_cast<size_t>(i)]);
  run.run();
  std::complex<double> sum = 0;
  for (int64_t i = 0; i < run.output("ce").numel(); ++i) {
    const std::complex<double> lse = run.output("lse").as<std::complex<double>>()[i];
    sum += run.output("ce").as<std::complex<double>>()[i] + z_loss * lse * lse;
  }
  return (sum * static_cast<double>(in.inv_n)).imag() / h;
}

TEST(PassesGrad, GradientOfTheTinyLlamaByComplexStep) {
  for (const bool tied : {false, true}) {
    const LlamaConfig c = tiny_llama(tied);
    const double z_loss = tied ? 0.125 : 0;
    const TinyInputs in = tiny_inputs(c, shape);
    GradResult r;
    const Graph g = tiny_training_graph(c, shape, z_loss, &r);
    Interpreter run(g, Scalar::f64);
    fill(run, g, Scalar::f64, in);
    run.run();
    Random random(5);
    for (const Parameter& p : llama_parameters(c)) {
      std::vector<double> direction;
      double got = 0, size = 0;
      for (int64_t i = 0; i < p.shape.numel(); ++i) {
        direction.push_back(random.uniform(-1, 1));
        double gradient = 0;
        for (const std::string& state : r.states.at(p.name))
          gradient += run.state(StateRole::gradient, state).as<double>()[i];
        got += gradient * direction.back(), size += std::abs(gradient * direction.back());
      }
      EXPECT_GT(size, 0) << p.name;
      EXPECT_NEAR(got, derivative(c, in, z_loss, p.name, direction), 1e-12 * size) << p.name << (tied ? ", tied" : "");
    }
  }
}

TEST(PassesGrad, GradientsGoOnFromWhatTheStatesHold) {
  const LlamaConfig c = tiny_llama();
  const Graph g = tiny_training_graph(c, shape, 0);
  Interpreter run(g, Scalar::f64);
  fill(run, g, Scalar::f64, tiny_inputs(c, shape));
  run.run();
  std::map<std::string, std::vector<double>> once;
  for (const Parameter& p : llama_parameters(c)) {
    const Tensor t = run.state(StateRole::gradient, p.name);
    once[p.name].assign(t.as<double>(), t.as<double>() + t.numel());
  }
  run.run();
  for (const auto& [name, list] : once)
    for (size_t i = 0; i < list.size(); ++i)
      EXPECT_NEAR(run.state(StateRole::gradient, name).as<double>()[i], 2 * list[i], 1e-13) << name;
}

TEST(PassesRemoveDead, KeepsWritersAndOutputs) {
  Graph g;
  Builder b(g);
  const Value x = b.input("x", {DType::f32, {4, 4}}), s = b.read(StateRole::gradient, "s", {DType::f32, {4, 4}});
  const Value dead = scale(b, x, 2), used = scale(b, x, 3);
  scale(b, dead, 2);
  b.emit1(linear_wgrad_op, {s, used, x});
  b.emit1(linear_wgrad_op, {zeros(b, g.type(x)), used, x});  // writes over no state: dead
  b.output("y", add(b, x, x));
  const std::vector<Value> now = remove_dead(g);
  verify(g, "remove_dead");
  EXPECT_EQ(g.nodes.size(), 5u);  // x, s, used, the writer of s, y
  EXPECT_FALSE(now[static_cast<size_t>(dead.id)].valid());
  EXPECT_EQ(g.producer(now[static_cast<size_t>(used.id)]).attrs.get_double("factor"), 3);
}

}  // namespace
}  // namespace nibble
