// A program that trains the tiny Llama: microbatch, gradient norm, update; and three steps of it.
#pragma once
#include "core/hash.h"
#include "models/tiny_llama.h"

namespace nibble {

inline constexpr BatchShape tiny_shape{2, 70};

inline std::vector<NamedGraph> tiny_graphs(const LlamaConfig& c) {
  GradResult r;
  std::vector<NamedGraph> graphs;
  graphs.push_back({"microbatch", tiny_training_graph(c, tiny_shape, 1e-4, &r)});
  Graph norm_graph, update_graph;
  Builder n(norm_graph), u(update_graph);
  Values tiles;
  const Value scalars = u.input("scalars", {DType::f32, {update_scalars}});
  for (const Parameter& p : llama_parameters(c)) {
    const Type type{DType::f32, p.shape};
    Values parts, gradients;
    for (const std::string& state : r.states.at(p.name)) {
      parts.insert(parts.begin(), n.read(StateRole::gradient, state, type));
      gradients.insert(gradients.begin(), u.read(StateRole::gradient, state, type));
    }
    tiles.push_back(sum_squares(n, parts));
    const Value w = u.read(StateRole::parameter, p.name, type), m = u.read(StateRole::moment_m, p.name, type),
                v = u.read(StateRole::moment_v, p.name, type);
    adamw(u, w, m, v, gradients, scalars, 1e-8, 0, 0.1);
  }
  n.output("norm", norm(n, tiles));
  graphs.push_back({"gradient_norm", std::move(norm_graph)});
  graphs.push_back({"update", std::move(update_graph)});
  return graphs;
}

inline void tiny_step(Program& program, const LlamaConfig& c, int step) {
  fill(program, "microbatch", [&] {
    TinyInputs in = tiny_inputs(c, tiny_shape, static_cast<uint64_t>(step));
    if (step > 0)
      for (auto& [name, list] : in.weights) {
        const Tensor w = program.state(StateRole::parameter, name);
        list.assign(w.as<float>(), w.as<float>() + w.numel());
      }
    return in;
  }());
  program.zero(StateRole::gradient);
  program.executable("microbatch").run();
  program.executable("gradient_norm").run();
  const double norm = program.executable("gradient_norm").output("norm").as<double>()[0];
  const float scalars[update_scalars] = {1e-2f, 0.9f, 0.1f, 0.95f, 0.05f, 0.5f, 0.5f, static_cast<float>(1 / norm)};
  Executable& update = program.executable("update");
  std::copy_n(scalars, update_scalars, update.input("scalars").as<float>());
  update.run();
}

/// One hash of all weights after three steps.
inline std::string weights_after_three_steps(int threads, CpuTarget target, bool tied) {
  const LlamaConfig c = tiny_llama(tied);
  Program program(plan_program(tiny_graphs(c), threads, target));
  for (int step = 0; step < 3; ++step) tiny_step(program, c, step);
  std::string hashes;
  for (const Parameter& p : llama_parameters(c)) {
    const Tensor w = program.state(StateRole::parameter, p.name);
    hashes += hex16(xxh3(w.data, static_cast<size_t>(w.type.nbytes())));
  }
  return hex16(xxh3(hashes));
}

}  // namespace nibble
