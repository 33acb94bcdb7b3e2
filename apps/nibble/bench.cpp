// nibble bench: speed of the matrix products and of a whole training step, as a share of this machine's FMA peak. The
// peak is measured right before every repeat, and shares are medians of these pairs: on a shared machine both see the
// same weather.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/error.h"
#include "core/version.h"
#include "io/config.h"
#include "ops/ops.h"
#include "plan/report.h"
#include "train/fits.h"
#include "train/model_setup.h"

namespace nibble {

namespace avx2 {
int64_t fma_loop(int64_t rounds, float* sink);  // kernels/cpu/fma_peak.cpp
}
namespace avx512 {
int64_t fma_loop(int64_t rounds, float* sink);
}

namespace {

using Json = nlohmann::ordered_json;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> x) {
  if (x.empty()) return 0;
  std::ranges::sort(x);
  return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
}

struct Request {
  Config config;
  int repeats = 0;
  double seconds = 0;  // no repeat starts after this long
  bool json = false;
};

// FMA operations a second of all threads together, in pieces of about 10 ms; 0 on a CPU without FMA.
class Peak {
 public:
  explicit Peak(ThreadPool& pool) : pool_(pool) {
    if (cpu_runs(CpuTarget::avx512))
      loop_ = avx512::fma_loop, name_ = "avx512";
    else if (cpu_runs(CpuTarget::avx2))
      loop_ = avx2::fma_loop, name_ = "avx2";
    sinks_.resize(static_cast<size_t>(pool.size()) * 16);
    measure();  // clocks and workers wake up
    samples_.clear();
  }
  /// Measures, remembers and returns operations a second; 0: unknown.
  double measure() {
    if (loop_ == nullptr) return 0;
    constexpr int64_t rounds = 1 << 17;
    const int64_t tasks = 8 * pool_.size();
    std::vector<int64_t> operations(static_cast<size_t>(tasks));
    const double start = now();
    pool_.run(tasks, [&](int64_t task, int thread) {
      operations[static_cast<size_t>(task)] = loop_(rounds, &sinks_[static_cast<size_t>(thread) * 16]);
    });
    const double seconds = now() - start;
    double sum = 0;
    for (const int64_t n : operations) sum += static_cast<double>(n);
    samples_.push_back(sum / seconds);
    return samples_.back();
  }
  double flops() const { return median(samples_); }
  std::string text() const {
    if (loop_ == nullptr) return "FMA peak unknown: no AVX2";
    return fmt::format("FMA peak {:.1f} GFLOP/s ({}, all threads, median of {})", flops() / 1e9, name_,
                       samples_.size());
  }

 private:
  ThreadPool& pool_;
  int64_t (*loop_)(int64_t, float*) = nullptr;
  const char* name_ = "none";
  std::vector<float> sinks_;
  std::vector<double> samples_;
};

// Repeats of one piece of work, each beside the peak of its moment.
class Timing {
 public:
  void add(double seconds, double peak, double flops) {
    seconds_.push_back(seconds);
    if (peak > 0) shares_.push_back(flops / seconds / peak);
  }
  size_t count() const { return seconds_.size(); }
  double seconds() const { return median(seconds_); }
  double fastest() const { return *std::ranges::min_element(seconds_); }
  Json share() const { return shares_.empty() ? Json() : Json(median(shares_)); }
  std::string share_text() const { return shares_.empty() ? "-" : fmt::format("{:.1f} %", 100 * median(shares_)); }

 private:
  std::vector<double> seconds_, shares_;
};

Json head_of(const char* what, const Request& r, const ProgramPlan& plan, const Peak& peak) {
  return {{"bench", what},
          {"version", version},
          {"commit", commit},
          {"cpu", cpu_name()},
          {"cpu_target", name_of(plan.target)},
          {"threads", plan.threads},
          {"model_name", r.config.get_string("model_name")},
          {"fma_peak_flops", peak.flops()}};
}

void print_head(const Json& j, const Peak& peak) {
  fmt::print("bench {}   {}   {}, {}, {} thread{}   nibble {} {}\n{}\n\n", j["bench"].get<std::string>(),
             j["model_name"].get<std::string>(), cpu_name(), j["cpu_target"].get<std::string>(),
             j["threads"].get<int>(), j["threads"].get<int>() == 1 ? "" : "s", version, commit, peak.text());
}

// One kernel with operands of its own, as a program would call it.
class LoneKernel {
 public:
  LoneKernel(const Op& op, const Types& in, const Attrs& attrs, int threads, CpuTarget target) : attrs_(attrs) {
    const Types out = result_types({op, in, {}, attrs_, "bench"});
    choice_ = choose_kernel(op, {in, out, attrs_, threads}, target);
    for (const Type& t : in) in_.push_back(filled(t));
    for (size_t k = 0; k < out.size(); ++k) {
      const auto shares = std::ranges::find(op.in_place, static_cast<int>(k), &InPlace::out);
      out_.push_back(shares == op.in_place.end() ? filled(out[k]) : in_[static_cast<size_t>(shares->in)]);
    }
    if (choice_.workspace != nullptr) workspace_ = allocate(choice_.workspace({in, out, attrs_, threads}));
  }
  void run(ThreadPool& pool) { choice_.run({in_, out_, attrs_, workspace_, pool}); }

 private:
  std::byte* allocate(int64_t bytes) {
    memory_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes) + arena_alignment));
    const auto address = reinterpret_cast<uintptr_t>(memory_.back().get());
    return memory_.back().get() + (arena_alignment - address % arena_alignment) % arena_alignment;
  }
  // Numbers in [-0.5, 0.5), ids in [0, 256): values do not change the time, denormals would.
  Tensor filled(const Type& type) {
    Tensor t{type, allocate(type.nbytes())};
    for (int64_t i = 0; i < type.numel(); ++i) {
      const auto word = static_cast<uint32_t>(i) * 2654435761u;
      if (type.dtype == DType::f32) t.as<float>()[i] = static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
      if (type.dtype == DType::f64) t.as<double>()[i] = static_cast<double>(word >> 8) * 0x1p-24 - 0.5;
      if (type.dtype == DType::i32) t.as<int32_t>()[i] = static_cast<int32_t>(word >> 24);
    }
    return t;
  }
  Attrs attrs_;
  KernelChoice choice_;
  std::vector<Tensor> in_, out_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::byte* workspace_ = nullptr;
};

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

void bench_gemm(const Request& r, const ProgramPlan& plan) {
  ThreadPool pool(plan.threads);
  Peak peak(pool);
  std::vector<GemmBench> benches = gemm_benches(plan);
  const double start = now();
  for (int i = 0; i < r.repeats && (i == 0 || now() - start < r.seconds); ++i) {
    for (GemmBench& b : benches) {
      if (i > 0 && now() - start >= r.seconds) break;
      const double limit = peak.measure(), from = now();
      b.kernel->run(pool);
      b.timing.add(now() - from, limit, b.row.flops);
    }
  }
  Json j = head_of("gemm", r, plan, peak);
  if (!r.json) {
    print_head(j, peak);
    fmt::print("{:<42}{:<6}{:>20}  {:<7}{:>9}{:>9}{:>8}\n", "site", "gemm", "M x N x K", "kernel", "ms", "GFLOP/s",
               "of peak");
  }
  for (const GemmBench& b : benches) {
    const GemmRow& g = b.row;
    const double seconds = b.timing.seconds(), speed = g.flops / seconds;
    j["gemms"].push_back({{"site", g.site},
                          {"gemm", g.gemm},
                          {"m", g.m},
                          {"n", g.n},
                          {"k", g.k},
                          {"kernel", g.kernel},
                          {"seconds", seconds},
                          {"repeats", b.timing.count()},
                          {"flops_per_second", speed},
                          {"share", b.timing.share()}});
    if (!r.json)
      fmt::print("{:<42}{:<6}{:>20}  {:<7}{:>9.3f}{:>9.1f}{:>8}\n", g.site, g.gemm,
                 fmt::format("{} x {} x {}", g.m, g.n, g.k), g.kernel, 1e3 * seconds, speed / 1e9,
                 b.timing.share_text());
  }
  if (r.json) fmt::print("{}\n", j.dump(2));
}

// Rows of tokens drawn uniformly, one segment each, as dataset_type=synthetic has them.
struct SyntheticRows {
  std::vector<int32_t> inputs, targets, segments, positions;
  std::vector<float> weights;
  int64_t rows;
  SyntheticRows(int64_t n, int64_t length, int64_t vocab) : rows(n) {
    const auto size = static_cast<size_t>(n * length);
    inputs.resize(size), targets.resize(size), positions.resize(size);
    segments.assign(size, 1), weights.assign(size, 1);
    const auto draw = [&](size_t i) {
      return static_cast<int32_t>(
          (static_cast<uint64_t>(static_cast<uint32_t>(i) * 2654435761u) * static_cast<uint64_t>(vocab)) >> 32);
    };
    for (size_t i = 0; i < size; ++i) {
      inputs[i] = draw(i), targets[i] = draw(i + 1);
      positions[i] = static_cast<int32_t>(i % static_cast<size_t>(length));
    }
  }
  Rows view() const { return {inputs.data(), targets.data(), segments.data(), positions.data(), weights.data(), rows}; }
};

struct OpTime {
  OpRow row;  // of one step
  double seconds = 0;
};

// Adds the times of one executable, run `runs` times with profiling on, to the table by op and kernel.
void add_times(const Executable& x, double runs, double runs_a_step, std::vector<OpTime>& table) {
  const ExecutablePlan& plan = x.plan();
  const auto find = [&](std::string_view op, std::string_view kernel) {
    return std::ranges::find_if(table, [&](const OpTime& t) { return t.row.op == op && t.row.kernel == kernel; });
  };
  for (OpRow row : op_rows(plan)) {
    row.flops *= runs_a_step, row.bytes *= runs_a_step, row.nodes *= static_cast<int64_t>(runs_a_step);
    const auto at = find(row.op, row.kernel);
    if (at == table.end())
      table.push_back({row, 0});
    else
      at->row.nodes += row.nodes, at->row.flops += row.flops, at->row.bytes += row.bytes;
  }
  size_t step = 0;
  for (size_t i = 0; i < plan.graph.nodes.size(); ++i)
    if (plan.kernels[i].run != nullptr)
      find(plan.graph.nodes[i].op->name, plan.kernels[i].name)->seconds += x.seconds()[step++] * runs_a_step / runs;
}

struct TrainBench {
  Timing timing;                // of unprofiled steps
  double profiled_seconds = 0;  // mean
  std::vector<OpTime> ops;
  bool finite = true;
};

TrainBench run_steps(const Request& r, Stepper& stepper, Peak& peak, const Rows& rows, double flops) {
  TrainBench b;
  int64_t t = 1;
  const auto step = [&] {
    const double from = now();
    b.finite = stepper.run(rows, 1e-3, t++).updated && b.finite;
    return now() - from;
  };
  const double start = now();
  const double first_limit = peak.measure(), first = step();  // touches the memory
  for (int i = 0; i < r.repeats && now() - start < r.seconds; ++i) {
    const double limit = peak.measure();
    b.timing.add(step(), limit, flops);
  }
  if (b.timing.count() == 0) b.timing.add(first, first_limit, flops);  // one step takes longer than the whole budget
  const char* names[] = {"microbatch", "gradient_norm", "update"};
  for (const char* name : names) stepper.program().executable(name).set_profiling(true);
  int profiled = 0;
  do b.profiled_seconds += step(), ++profiled;
  while (profiled < 3 && now() - start < 1.3 * r.seconds);
  b.profiled_seconds /= profiled;
  for (const char* name : names) {
    const double a_step = name == names[0] ? static_cast<double>(stepper.config().accumulation) : 1;
    add_times(stepper.program().executable(name), profiled * a_step, a_step, b.ops);
  }
  std::ranges::stable_sort(b.ops, std::greater{}, &OpTime::seconds);
  return b;
}

void print_ops(const TrainBench& b) {
  fmt::print("\n{:<24}{:>8}  {:<8}{:>10}{:>9}{:>11}{:>9}\n", "op", "nodes", "kernel", "ms", "of step", "GFLOP/s",
             "GB/s");
  double sum = 0;
  for (const OpTime& t : b.ops) {
    sum += t.seconds;
    fmt::print("{:<24}{:>8}  {:<8}{:>10.2f}{:>7.1f} %{:>11.1f}{:>9.1f}\n", t.row.op, t.row.nodes, t.row.kernel,
               1e3 * t.seconds, 100 * t.seconds / b.profiled_seconds, t.row.flops / t.seconds / 1e9,
               t.row.bytes / t.seconds / 1e9);
  }
  const double rest = std::max(0.0, b.profiled_seconds - sum);
  fmt::print("{:<24}{:>8}  {:<8}{:>10.2f}{:>7.1f} %\n", "outside the kernels", "", "", 1e3 * rest,
             100 * rest / b.profiled_seconds);
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

void bench_train(const Request& r, ProgramPlan plan) {
  const StepConfig c = step_of(r.config);
  const PlanReport report = make_report(plan, {.model_name = r.config.get_string("model_name"),
                                               .model = c.model,
                                               .batch = c.microbatch.rows,
                                               .length = c.microbatch.length,
                                               .accumulation = c.accumulation});
  const SyntheticRows rows(c.microbatch.rows * c.accumulation, c.microbatch.length, c.model.vocab);
  Stepper stepper(c, std::move(plan));
  initialize_parameters(stepper.program(), stepper.parameters(), 0);
  Peak peak(stepper.program().pool());
  const TrainBench b = run_steps(r, stepper, peak, rows.view(), report.executed_flops);
  const double seconds = b.timing.seconds(), tokens = static_cast<double>(rows.rows * c.microbatch.length),
               speed = report.executed_flops / seconds;
  Json j = head_of("train", r, stepper.program().plan(), peak);
  j["rows"] = rows.rows, j["length"] = c.microbatch.length, j["parameters"] = report.parameters;
  j["step_seconds"] = seconds, j["repeats"] = b.timing.count(), j["tokens_per_second"] = tokens / seconds;
  j["executed_flops"] = report.executed_flops, j["flops_per_second"] = speed,
  j["model_flops_per_second"] = report.model_flops.total() / seconds;
  j["share"] = b.timing.share();
  j["arena_bytes"] = report.arena_bytes, j["peak_resident_bytes"] = peak_resident_bytes();
  for (const OpTime& t : b.ops)
    j["operations"].push_back({{"op", t.row.op},
                               {"kernel", t.row.kernel},
                               {"nodes", t.row.nodes},
                               {"seconds", t.seconds},
                               {"flops", t.row.flops},
                               {"bytes", t.row.bytes}});
  if (!b.finite) fmt::print(stderr, "warning: a step was not finite\n");
  if (r.json) return fmt::print("{}\n", j.dump(2));
  print_head(j, peak);
  fmt::print("{} parameters, {} rows x {} tokens; median of {} steps {:.1f} ms (fastest {:.1f})\n",
             grouped(report.parameters), rows.rows, c.microbatch.length, b.timing.count(), 1e3 * seconds,
             1e3 * b.timing.fastest());
  fmt::print("{:.0f} tokens/s   {:.1f} GFLOP/s executed, {} of peak   {:.1f} GFLOP/s by MaxText's formula\n",
             tokens / seconds, speed / 1e9, b.timing.share_text(), report.model_flops.total() / seconds / 1e9);
  fmt::print("memory {} planned, {} resident at most\n", size_text(static_cast<double>(report.arena_bytes)),
             size_text(static_cast<double>(peak_resident_bytes())));
  print_ops(b);
}

int parse_count(const std::string& option, const std::string& word) {
  int n = 0;
  for (const char c : word) n = c >= '0' && c <= '9' && n < 100000 ? 10 * n + (c - '0') : -1000000;
  if (n < 1 || word.empty())
    throw Error("E002", "--{} {}", option, word).expected("an integer from 1 on", word).hint("--{} 5", option);
  return n;
}

int run(const std::vector<std::string>& arguments) {
  const std::string name = arguments.empty() ? "" : arguments[0];
  for (const std::string_view later : {"attention", "quantize", "generate", "data", "all", "--calibrate"})
    if (name == later)
      throw Error("E010", "nibble bench {} is not in this version", name)
          .where("argument 1")
          .expected("gemm or train", name)
          .hint("nibble bench train");
  if (name != "gemm" && name != "train")
    throw Error("E007", "{}", name.empty() ? "nibble bench needs a name" : "nibble bench has no " + name)
        .where("argument 1")
        .expected("gemm or train", name)
        .hint("nibble bench train");
  std::vector<std::string> words(arguments.begin() + 1, arguments.end());
  for (const std::string& w : words)
    for (const std::string_view later : {"--save", "--compare", "--layers", "--calibrate"})
      if (w == later || w.starts_with(std::string(later) + "="))
        throw Error("E010", "nibble bench {} is not in this version", later)
            .hint("nibble bench {} --json > file", name);
  ResolveOptions options{.command = "bench"};
  options.flags = {"json"};
  options.word_options = {"repeats", "seconds"};
  Resolved resolved = resolve(words, options);
  if (!resolved.config.is_set("model_name")) {
    words.insert(words.begin(), "model_name=nibble-34m");
    resolved = resolve(words, options);
  }
  for (const std::string& notice : resolved.notices) fmt::print(stderr, "{}\n", notice);
  const auto count = [&](const std::string& option, int otherwise) {
    return resolved.options.contains(option) ? parse_count(option, resolved.options.at(option)) : otherwise;
  };
  const Request r{resolved.config, count("repeats", name == "gemm" ? 15 : 10),
                  static_cast<double>(count("seconds", 15)), resolved.options.contains("json")};
  ProgramPlan plan = plan_training(step_of(r.config), resolve_threads(r.config.get_int("threads")),
                                   resolve_target(r.config.get_string("cpu_target")));
  check_fits(r.config, plan);
  if (name == "gemm")
    bench_gemm(r, plan);
  else
    bench_train(r, std::move(plan));
  return exit_done;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    gemm    the matrix products of a training step, each with the kernel that
            training uses, and one of 2048 x 2048 x 2048
    train   whole optimizer steps on synthetic tokens: tokens/s, and where the
            time goes by operation

    Speeds are medians, also given as a share of the machine's FMA peak, which is
    measured in between on all threads. GB/s counts every operand once.

KEYS
    those of nibble train; model_name=nibble-34m if none is given. threads,
    cpu_target, per_device_batch_size, max_target_length matter most.

OPTIONS
    --repeats N   at most N repeats (gemm 15, train 10)
    --seconds N   no repeat starts after N seconds (15); one always runs
    --json        one JSON object

EXIT STATUS
    0 done   64 usage, not in this version   69 cpu_target is not on this CPU
    78 it does not fit (E107)

EXAMPLES
    nibble bench gemm
    nibble bench train threads=1 cpu_target=avx2
    nibble bench train model_name=smollm2-135m max_target_length=256 --json
)";

}  // namespace

constinit const Command bench_command{"bench",
                                      "nibble bench gemm|train [key=value ...] [--repeats N] [--seconds N] [--json]",
                                      "speed as a share of this machine's peak", help, run};

}  // namespace nibble
