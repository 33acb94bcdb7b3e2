// What a graph computes, for tests that a pass changes none of it.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/interpreter.h"

namespace nibble {

/// Contents of all outputs and states after a run, by name.
inline std::map<std::string, std::vector<float>> results(const Graph& g,
                                                         const std::function<void(Interpreter&)>& fill_inputs) {
  Interpreter run(g, Scalar::f32);
  fill_inputs(run);
  run.run();
  std::map<std::string, std::vector<float>> all;
  const auto keep = [&all](const std::string& name, const Tensor& t) {
    all[name].assign(t.as<float>(), t.as<float>() + t.numel());
  };
  for (const Output& o : g.outputs) keep(o.name, run.value(o.value));
  for (const Node& n : g.nodes)
    if (n.op == &read_op) keep(to_string(n.attrs), run.value(n.out[0]));
  return all;
}

/// Bit for bit.
inline void expect_equal(const std::map<std::string, std::vector<float>>& a,
                         const std::map<std::string, std::vector<float>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, list] : a) EXPECT_EQ(std::memcmp(list.data(), b.at(name).data(), list.size() * 4), 0) << name;
}

}  // namespace nibble
