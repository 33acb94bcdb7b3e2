// The quantisers by themselves, on the widest input and the widest weight of the model's linear layers, for 1 to all
// threads: bytes of numbers read a second, each number counted once although two visits read it.
#include <algorithm>

#include "bench/bench.h"
#include "bench/copy_probe.h"
#include "bench/limits.h"
#include "bench/lone_kernel.h"
#include "bench/result.h"
#include "ops/ops.h"
#include "train/machine_file.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

struct QuantizerRow {
  const char* what;
  const char *row, *column;  // nullptr: no such copy
  bool weight = false;
};
constexpr QuantizerRow quantizer_rows[] = {
    {"row, nearest", "nvfp4", nullptr},
    {"row, stochastic", "nvfp4 stochastic", nullptr},
    {"column, RHT", nullptr, "nvfp4 hadamard=16 stream=3"},
    {"column, RHT, stochastic", nullptr, "nvfp4 stochastic hadamard=16 stream=1"},
    {"row + column, RHT", "nvfp4", "nvfp4 hadamard=16 stream=3"},
    {"both stochastic, RHT", "nvfp4 stochastic", "nvfp4 stochastic hadamard=16 stream=1"},
    {"weight, both, 16 x 16", "nvfp4_2d", "nvfp4_2d", true},
    {"row, mxfp8", "mxfp8", nullptr},
    {"row + column, e4m3", "e4m3", "e4m3"}};

struct QuantizerBench {
  const QuantizerRow* row;
  Type x;
  std::unique_ptr<LoneKernel> kernel;
  Timing copy;  // beside a copy of as many bytes
  double bytes() const { return static_cast<double>(x.nbytes()); }
};

// The widest operand of the products forward: 0 the input, 1 the weight; a matrix.
Type widest(const ProgramPlan& plan, size_t operand) {
  const Graph& graph = plan.executable("microbatch").graph;
  Type most;
  int64_t columns = 0;
  for (const Node& n : graph.nodes) {
    if (n.op != &linear_op || graph.type(n.in[operand]).dim(-1) <= columns) continue;
    const Type& t = graph.type(n.in[operand]);
    columns = t.dim(-1), most = {t.dtype, {t.rows(), columns}};
  }
  return most;
}

QuantizerBench make_bench(const QuantizerRow& row, const ProgramPlan& plan, int64_t length, int threads) {
  QuantizerBench b{.row = &row, .x = widest(plan, row.weight ? 1 : 0), .kernel = nullptr, .copy = {}};
  Attrs attrs{{"tokens", row.weight ? b.x.dim(0) : length}, {"site", int64_t{0}}};
  if (row.row != nullptr) attrs.set("row", row.row);
  if (row.column != nullptr) attrs.set("column", row.column);
  const Types in = {b.x, {DType::i32, {quantize_words}}};
  b.kernel = std::make_unique<LoneKernel>(quantize_op, in, attrs, threads, plan.target, 0);
  return b;
}

void measure(QuantizerBench& b, ThreadPool& pool, CopyProbe& probe) {
  const double copy = probe.measure(2 * b.bytes()), from = now();
  double seconds = 0, runs = 0;
  do {
    b.kernel->run(pool);
    seconds = now() - from, runs += 1;
  } while (seconds < 3e-4);
  b.copy.add(seconds / runs, copy, b.bytes());
}

}  // namespace

BenchResult bench_quantize(const Config& config, const ProgramPlan& plan, const BenchOptions& options) {
  const Machine machine = find_machine(config).machine;
  const int64_t length = config.get_int("max_target_length");
  BenchResult r;
  for (const int threads : thread_counts(plan.threads)) {
    ThreadPool pool(threads);
    CopyProbe probe(pool);
    const Limits limits = limits_for(machine, threads);
    if (r.json.empty()) {
      Peak peak(pool);
      peak.measure();
      r = begin_result("quantize", config, plan, peak.summary());
      r.text += fmt::format("{:>7}  {:<26}{:<22}{:<12}{:>9}{:>9}{:>9}\n", "threads", "copies", "of", "kernel", "ms",
                            "GB/s", "of read");
    }
    std::vector<QuantizerBench> benches;
    for (const QuantizerRow& row : quantizer_rows) benches.push_back(make_bench(row, plan, length, threads));
    const double start = now(), limit = options.seconds / static_cast<double>(thread_counts(plan.threads).size());
    for (int i = 0; i < options.repeats && (i == 0 || now() - start < limit); ++i)
      for (QuantizerBench& b : benches) measure(b, pool, probe);
    for (const QuantizerBench& b : benches) {
      const double seconds = b.copy.seconds(), speed = b.bytes() / seconds;
      const Json share = limits.read > 0 ? Json(speed / limits.read) : Json();
      r.json["quantizers"].push_back({{"threads", threads},
                                      {"copies", b.row->what},
                                      {"type", to_string(b.x)},
                                      {"kernel", b.kernel->name()},
                                      {"seconds", seconds},
                                      {"repeats", b.copy.count()},
                                      {"bytes_per_second", speed},
                                      {"share_of_read", share}});
      if (b.copy.has_share())
        r.samples.push_back({fmt::format("{} {} threads {}", b.row->what, to_string(b.x), threads), b.copy.shares()});
      r.text += fmt::format("{:>7}  {:<26}{:<22}{:<12}{:>9.3f}{:>9.2f}{:>9}\n", threads, b.row->what, to_string(b.x),
                            b.kernel->name(), 1e3 * seconds, speed / 1e9,
                            limits.read > 0 ? fmt::format("{:.1f} %", 100 * speed / limits.read) : "-");
    }
  }
  r.text += "\nGB/s: the numbers once, though two visits read them; of read: of what memory gives to reading alone\n";
  return r;
}

}  // namespace nibble
