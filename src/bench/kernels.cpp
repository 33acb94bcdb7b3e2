// Kernels of a training step one at a time, as the program calls them, each beside the peak of its moment.
#include <algorithm>
#include <map>

#include "bench/bench.h"
#include "bench/copy_probe.h"
#include "bench/limits.h"
#include "bench/lone_kernel.h"
#include "bench/result.h"
#include "ops/ops.h"
#include "plan/report.h"
#include "plan/work.h"
#include "train/machine_file.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

struct KernelBench {
  Json row;           // what it is
  std::string label;  // the same, in columns
  Work work;
  std::unique_ptr<LoneKernel> kernel;
  Timing peak, limit;  // shares of the peak of its format, and of the roofline
  Timing copy;         // of a copy of as many bytes, timed beside it; products have none
  bool is_product = true;
  std::string name;  // in saved benchmarks
};

KernelBench make_bench(const Op& op, const Types& in, const Attrs& attrs, const ProgramPlan& plan, int32_t ids) {
  KernelBench b;
  b.kernel = std::make_unique<LoneKernel>(op, in, attrs, plan.threads, plan.target, ids);
  b.work = work_of(op, in, b.kernel->results(), attrs);
  return b;
}

class Measurement {
 public:
  Measurement(const Config& config, const ProgramPlan& plan, const BenchOptions& options)
      : config_(config),
        plan_(plan),
        options_(options),
        pool_(plan.threads),
        copy_(pool_),
        machine_(find_machine(config).machine),
        limits_(limits_for(machine_, plan.threads)) {}

  void run(std::vector<KernelBench>& benches) {
    const double start = now();
    for (int i = 0; i < options_.repeats && (i == 0 || now() - start < options_.seconds); ++i)
      for (KernelBench& b : benches) {
        if (i > 0 && now() - start >= options_.seconds) break;
        measure(b);
      }
  }
  /// Head of the result: the peak of the first bench's format.
  BenchResult begin(const char* what, const std::vector<KernelBench>& benches) {
    return begin_result(what, config_, plan_, peak_of(benches.front().work.format).summary());
  }
  /// Adds times and shares to the row; the text gets the label and three columns, `speed` in 1e9 a second.
  void append(BenchResult& r, const char* list, const KernelBench& b, double speed) const {
    const double seconds = b.peak.seconds();
    Json row = b.row;
    row["kernel"] = b.kernel->name(), row["format"] = b.work.format, row["seconds"] = seconds;
    row["repeats"] = b.peak.count(), row["flops_per_second"] = b.work.flops / seconds;
    row["bytes_per_second"] = b.work.bytes() / seconds;
    row["share"] = b.peak.has_share() ? Json(b.peak.share()) : Json();
    row["share_of_limit"] = b.limit.has_share() ? Json(b.limit.share()) : Json();
    r.json[list].push_back(std::move(row));
    const Timing& paired = b.is_product ? b.peak : b.copy;
    if (paired.has_share()) r.samples.push_back({b.name, paired.shares()});
    r.text += fmt::format("{}{:<12}{:>9.3f}{:>9.1f}", b.label, b.kernel->name(), 1e3 * seconds, speed / 1e9);
  }

 private:
  Peak& peak_of(std::string_view format) {
    const auto at = peaks_.find(format);
    return at != peaks_.end() ? at->second : peaks_.try_emplace(std::string(format), pool_, format).first->second;
  }
  void measure(KernelBench& b) {
    const double peak = peak_of(b.work.format).measure();
    const double copy = b.is_product ? 0 : copy_.measure(b.work.bytes()), from = now();
    double seconds = 0, runs = 0;
    do {
      b.kernel->run(pool_);
      seconds = now() - from, runs += 1;
    } while (seconds < 3e-4);  // of a few microseconds the clock and the start of the threads would be the most
    seconds /= runs;
    const double known = limits_.peak(b.work.format);
    b.peak.add(seconds, peak, b.work.flops);
    b.copy.add(seconds, copy, b.work.bytes());
    Limits here = limits_;
    if (known > 0) here.f32 *= peak / known, here.bf16 *= peak / known, here.int8 *= peak / known;
    b.limit.add(seconds, peak > 0 ? 1 : 0, limit_seconds(b.work, here, machine_.caches));
  }

  const Config& config_;
  const ProgramPlan& plan_;
  BenchOptions options_;
  ThreadPool pool_;
  CopyProbe copy_;
  Machine machine_;
  Limits limits_;
  std::map<std::string, Peak, std::less<>> peaks_;
};

Types operands_of(const Graph& graph, const Node& n) {
  Types in;
  for (const Value v : n.in) in.push_back(graph.type(v));
  return in;
}

void describe_gemm(KernelBench& b, const GemmRow& g, std::string_view operands) {
  b.row = {{"site", g.site}, {"gemm", g.gemm}, {"operands", operands}, {"m", g.m}, {"n", g.n}, {"k", g.k}};
  b.name = fmt::format("{} {} {} x {} x {}", g.site, g.gemm, g.m, g.n, g.k);
  if (operands == "nvfp4") b.name += " nvfp4";
  b.label =
      fmt::format("{:<42}{:<6}{:<6}{:>20}  ", g.site, g.gemm, operands, fmt::format("{} x {} x {}", g.m, g.n, g.k));
}

// The same product of 4-bit operands, packing counted and quantising not; weights under scales of tiles.
void add_four_bit(const GemmRow& g, const ProgramPlan& plan, std::vector<KernelBench>& benches) {
  const bool wgrad = g.gemm == "wgrad";
  const Type a{DType::nvfp4, {g.m, g.k}}, b{wgrad ? DType::nvfp4 : DType::nvfp4_2d, {g.n, g.k}};
  if (wgrad)
    benches.push_back(make_bench(qlinear_wgrad_op, {{DType::f32, {g.m, g.n}}, a, b}, Attrs{}, plan, 0));
  else
    benches.push_back(make_bench(qlinear_op, {a, b}, Attrs{{"dtype", std::string("bf16")}}, plan, 0));
  describe_gemm(benches.back(), g, "nvfp4");
  if (benches.back().kernel->name() == "ref") benches.pop_back();
}

// The matrix products of a microbatch, each shape once, and a square one that other libraries quote.
std::vector<KernelBench> gemm_benches(const ProgramPlan& plan) {
  const ExecutablePlan& microbatch = plan.executable("microbatch");
  std::vector<KernelBench> benches;
  std::vector<std::string> seen;
  DType dtype = DType::f32;
  for (const GemmRow& g : gemm_rows(microbatch, false)) {
    const Node& n = microbatch.graph.nodes[static_cast<size_t>(g.node)];
    if (n.op == &linear_op) dtype = microbatch.graph.type(n.in[0]).dtype;
    const std::string key = fmt::format("{} {} {} {}", g.gemm, g.m, g.n, g.k);
    if (std::ranges::find(seen, key) != seen.end()) continue;
    seen.push_back(key);
    benches.push_back(make_bench(*n.op, operands_of(microbatch.graph, n), n.attrs, plan, 256));
    describe_gemm(benches.back(), g, g.format);
    if (g.gemm != "head") add_four_bit(g, plan, benches);
  }
  constexpr int64_t side = 2048;
  const GemmRow square{.site = "square", .gemm = "fprop", .m = side, .n = side, .k = side};
  benches.push_back(make_bench(linear_op, {{dtype, {side, side}}, {dtype, {side, side}}}, Attrs{}, plan, 0));
  describe_gemm(benches.back(), square, name_of(dtype));
  add_four_bit(square, plan, benches);
  return benches;
}

// Attention of the model at several lengths, as many tokens as a microbatch has, or one row.
std::vector<KernelBench> attention_benches(const ProgramPlan& plan) {
  const Graph& graph = plan.executable("microbatch").graph;
  std::vector<KernelBench> benches;
  for (const int64_t length : {128, 512, 2048, 8192})
    for (const Op* op : {&attention_op, &attention_grad_op}) {
      const auto n = std::ranges::find(graph.nodes, op, &Node::op);
      if (n == graph.nodes.end()) continue;
      Types in = operands_of(graph, *n);
      const Type q = in[op == &attention_op ? 0 : 1], k = in[op == &attention_op ? 1 : 2];
      const int64_t rows = std::max<int64_t>(1, q.dim(0) * q.dim(1) / length);
      for (Type& t : in) {  // [B, T, ...] of another B and T
        std::vector<int64_t> dims(t.shape.dims().begin(), t.shape.dims().end());
        dims[0] = rows, dims[1] = length;
        t.shape = Shape(dims);
      }
      benches.push_back(make_bench(*op, in, n->attrs, plan, 0));
      KernelBench& b = benches.back();
      const char* pass = op == &attention_op ? "forward" : "backward";
      b.row = {{"pass", pass},      {"rows", rows},         {"length", length},
               {"heads", q.dim(2)}, {"kv_heads", k.dim(2)}, {"head_size", q.dim(3)}};
      const std::string shape = fmt::format("{} x {} x {}/{} x {}", rows, length, q.dim(2), k.dim(2), q.dim(3));
      b.name = fmt::format("{} {}", pass, shape);
      b.label = fmt::format("{:<10}{:>24}  ", pass, shape);
    }
  return benches;
}

// Every other op of a step, at the node of it that moves most.
std::vector<KernelBench> op_benches(const ProgramPlan& plan) {
  const Op* const products[] = {&linear_op,    &linear_dgrad_op,   &linear_wgrad_op,      &cross_entropy_op,
                                &attention_op, &attention_grad_op, &cross_entropy_grad_op};
  struct Largest {
    const Graph* graph;
    const Node* node;
    double bytes;
  };
  std::vector<Largest> largest;
  for (const ExecutablePlan& e : plan.executables) {
    if (runs_a_step(e.name, 1) == 0) continue;
    for (size_t i = 0; i < e.graph.nodes.size(); ++i) {
      const Node& n = e.graph.nodes[i];
      const double bytes = work_of(e.graph, n).bytes();
      if (e.kernels[i].run == nullptr || n.in.empty() || std::ranges::find(products, n.op) != std::end(products))
        continue;
      const auto at = std::ranges::find_if(largest, [&](const Largest& l) { return l.node->op == n.op; });
      if (at == largest.end())
        largest.push_back({&e.graph, &n, bytes});
      else if (bytes > at->bytes)
        *at = {&e.graph, &n, bytes};
    }
  }
  std::vector<KernelBench> benches;
  for (const Largest& l : largest) {
    const Types in = operands_of(*l.graph, *l.node);
    benches.push_back(make_bench(*l.node->op, in, l.node->attrs, plan, 0));
    const Type& first = std::ranges::max(in, {}, [](const Type& t) { return t.nbytes(); });
    benches.back().row = {{"op", l.node->op->name}, {"type", to_string(first)}, {"bytes", l.bytes}};
    benches.back().is_product = false;
    benches.back().name = fmt::format("{} {}", l.node->op->name, to_string(first));
    benches.back().label = fmt::format("{:<24}{:<26}{:>11}  ", l.node->op->name, to_string(first), size_text(l.bytes));
  }
  return benches;
}

}  // namespace

BenchResult bench_gemm(const Config& config, const ProgramPlan& plan, const BenchOptions& options) {
  std::vector<KernelBench> benches = gemm_benches(plan);
  Measurement m(config, plan, options);
  m.run(benches);
  BenchResult r = m.begin("gemm", benches);
  r.text += fmt::format("{:<42}{:<6}{:<6}{:>20}  {:<12}{:>9}{:>9}{:>9}\n", "site", "gemm", "", "M x N x K", "kernel",
                        "ms", "GFLOP/s", "of peak");
  for (const KernelBench& b : benches) {
    m.append(r, "gemms", b, b.work.flops / b.peak.seconds());
    r.text += fmt::format("{:>9}\n", b.peak.share_text());
  }
  return r;
}

BenchResult bench_attention(const Config& config, const ProgramPlan& plan, const BenchOptions& options) {
  std::vector<KernelBench> benches = attention_benches(plan);
  Measurement m(config, plan, options);
  m.run(benches);
  BenchResult r = m.begin("attention", benches);
  r.text += fmt::format("{:<10}{:>24}  {:<12}{:>9}{:>9}{:>9}\n", "pass", "rows x T x H/K x D", "kernel", "ms",
                        "GFLOP/s", "of peak");
  for (const KernelBench& b : benches) {
    m.append(r, "attentions", b, b.work.flops / b.peak.seconds());
    r.text += fmt::format("{:>9}\n", b.peak.share_text());
  }
  r.text += "\nflops: 4 D a pair of query and key that the causal mask allows forward, 10 D backward\n";
  return r;
}

BenchResult bench_ops(const Config& config, const ProgramPlan& plan, const BenchOptions& options) {
  std::vector<KernelBench> benches = op_benches(plan);
  Measurement m(config, plan, options);
  m.run(benches);
  BenchResult r = m.begin("ops", benches);
  r.text += fmt::format("{:<24}{:<26}{:>11}  {:<12}{:>9}{:>9}{:>9}\n", "op", "largest operand", "bytes", "kernel", "ms",
                        "GB/s", "of limit");
  for (const KernelBench& b : benches) {
    m.append(r, "ops", b, b.work.bytes() / b.peak.seconds());
    r.text += fmt::format("{:>9}\n", b.limit.share_text());
  }
  r.text += "\nlimit: bytes over the bandwidth of the smallest cache that holds them all, or of memory\n";
  return r;
}

}  // namespace nibble
