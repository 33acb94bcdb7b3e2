// The matrix products of a training step, each with the kernel that training uses.
#include <algorithm>

#include "bench/bench.h"
#include "bench/lone_kernel.h"
#include "bench/measure.h"
#include "bench/result.h"
#include "ops/ops.h"
#include "plan/report.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

struct GemmBench {
  GemmRow row;
  std::unique_ptr<LoneKernel> kernel;
  Timing timing;
};

// The matrix products of a microbatch, each shape once, and a square one that other libraries quote.
std::vector<GemmBench> gemm_benches(const ProgramPlan& plan) {
  const ExecutablePlan& microbatch = plan.executable("microbatch");
  std::vector<GemmBench> benches;
  std::vector<std::string> seen;
  for (GemmRow& row : gemm_rows(microbatch, false)) {
    const std::string key = fmt::format("{} {} {} {}", row.gemm, row.m, row.n, row.k);
    if (std::ranges::find(seen, key) != seen.end()) continue;
    seen.push_back(key);
    const Node& n = microbatch.graph.nodes[static_cast<size_t>(row.node)];
    Types in;
    for (const Value v : n.in) in.push_back(microbatch.graph.type(v));
    benches.push_back(
        {std::move(row), std::make_unique<LoneKernel>(*n.op, in, n.attrs, plan.threads, plan.target), {}});
  }
  constexpr int64_t side = 2048;
  const Types square = {{DType::f32, {side, side}}, {DType::f32, {side, side}}};
  const KernelChoice choice =
      choose_kernel(linear_op, {square, {square.data(), 1}, Attrs{}, plan.threads}, plan.target);
  benches.push_back({{.site = "square",
                      .gemm = "fprop",
                      .m = side,
                      .n = side,
                      .k = side,
                      .format = "f32",
                      .kernel = std::string(choice.name),
                      .flops = 2.0 * side * side * side},
                     std::make_unique<LoneKernel>(linear_op, square, Attrs{}, plan.threads, plan.target),
                     {}});
  return benches;
}

}  // namespace

BenchResult bench_gemm(const Config& config, const ProgramPlan& plan, const BenchOptions& options) {
  ThreadPool pool(plan.threads);
  Peak peak(pool);
  std::vector<GemmBench> benches = gemm_benches(plan);
  const double start = now();
  for (int i = 0; i < options.repeats && (i == 0 || now() - start < options.seconds); ++i) {
    for (GemmBench& b : benches) {
      if (i > 0 && now() - start >= options.seconds) break;
      const double limit = peak.measure(), from = now();
      b.kernel->run(pool);
      b.timing.add(now() - from, limit, b.row.flops);
    }
  }
  BenchResult result = begin_result("gemm", config, plan, peak);
  result.text += fmt::format("{:<42}{:<6}{:>20}  {:<7}{:>9}{:>9}{:>8}\n", "site", "gemm", "M x N x K", "kernel", "ms",
                             "GFLOP/s", "of peak");
  for (const GemmBench& b : benches) {
    const GemmRow& g = b.row;
    const double seconds = b.timing.seconds(), speed = g.flops / seconds;
    result.json["gemms"].push_back({{"site", g.site},
                                    {"gemm", g.gemm},
                                    {"m", g.m},
                                    {"n", g.n},
                                    {"k", g.k},
                                    {"kernel", g.kernel},
                                    {"seconds", seconds},
                                    {"repeats", b.timing.count()},
                                    {"flops_per_second", speed},
                                    {"share", b.timing.has_share() ? Json(b.timing.share()) : Json()}});
    result.text += fmt::format("{:<42}{:<6}{:>20}  {:<7}{:>9.3f}{:>9.1f}{:>8}\n", g.site, g.gemm,
                               fmt::format("{} x {} x {}", g.m, g.n, g.k), g.kernel, 1e3 * seconds, speed / 1e9,
                               b.timing.share_text());
  }
  return result;
}

}  // namespace nibble
