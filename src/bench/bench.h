// The benchmarks of `nibble bench`, one function each. A result is data for --json and text for people, made from it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/config.h"
#include "runtime/program.h"

namespace nibble {

struct BenchOptions {
  int repeats = 10;
  double seconds = 15;  // no repeat starts after this long
};

/// The shares of a row's repeats, each of a limit that was timed right beside it: what --save keeps (bench/compare.h).
struct BenchSample {
  std::string name;
  std::vector<double> shares;
};

struct BenchResult {
  nlohmann::ordered_json json;
  std::string text;
  std::vector<BenchSample> samples;
  std::vector<std::string> warnings;
};

/// The matrix products of a microbatch, each shape once, and one of 2048 x 2048 x 2048; `plan` is a training program.
BenchResult bench_gemm(const Config& config, const ProgramPlan& plan, const BenchOptions& options);

/// Attention of the model, forward and backward, at lengths from 128 to 8192.
BenchResult bench_attention(const Config& config, const ProgramPlan& plan, const BenchOptions& options);

/// Every other op of a step, at the node of it that moves most bytes.
BenchResult bench_ops(const Config& config, const ProgramPlan& plan, const BenchOptions& options);

/// The quantisers on the widest input and weight of the linear layers, for 1 to all threads.
BenchResult bench_quantize(const Config& config, const ProgramPlan& plan, const BenchOptions& options);

/// Text from random weights of the model, decoding and prompts, for 1 to all threads and in each precision of the
/// weights: tokens/s, and for decoding the share of what reading the weights alone takes (spec/generation.md 4).
BenchResult bench_generate(const Config& config, const BenchOptions& options);

/// Whole optimizer steps on synthetic tokens: tokens/s and where the time goes by op.
BenchResult bench_train(const Config& config, ProgramPlan plan, const BenchOptions& options);

}  // namespace nibble
