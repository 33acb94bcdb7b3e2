// Work counters of five key paths: FLOPs, traffic, memory, heap allocations and instructions, against committed values.
// Never wall time: counts are the same on a busy machine. One thread and AVX2 kernels, so that all machines agree.
//
//   work_counters FILE            compares with FILE; exit status 1 if something grew by more than its tolerance
//   work_counters FILE --update   writes FILE
//   work_counters --path NAME     runs one path alone: what valgrind counts
//
// Instructions are callgrind's, of measured_region() only. Without valgrind, or with a compiler other than the one the
// file names, they are left out, and a line says so.
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "bench/lone_kernel.h"
#include "core/error.h"
#include "data/tokenizer.h"
#include "plan/report.h"
#include "temporary_folder.h"
#include "train/model_setup.h"
#include "train/run_state.h"

// --- heap allocations, of all threads
// ---------------------------------------------------------------------------------

namespace {
std::atomic<int64_t> allocations{0};
}

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) { return ++allocations, __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return ++allocations, __libc_calloc(count, bytes); }
void* realloc(void* old, size_t bytes) { return ++allocations, __libc_realloc(old, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return ++allocations, __libc_memalign(alignment, bytes); }

// The name that callgrind collects in.
[[gnu::noinline]] void measured_region(const std::function<void()>& work) {
  work();
  asm volatile("");  // no tail call: the region ends after the work
}
}

namespace nibble {
namespace {

// Counters in the order of the columns. Instructions 0: not counted.
struct Counters {
  double flops = 0, traffic = 0, memory = 0, allocations = 0, instructions = 0;
};

struct Column {
  const char* name;
  double Counters::*value;
  double tolerance;  // relative growth that passes
};
constexpr Column columns[] = {{"flops", &Counters::flops, 0.001},
                              {"traffic", &Counters::traffic, 0.005},
                              {"memory", &Counters::memory, 0.005},
                              {"allocations", &Counters::allocations, 0.05},
                              {"instructions", &Counters::instructions, 0.05}};

bool alone = false;  // under valgrind, where an FMA takes a hundred times as long

/// Counts the allocations of a piece of work, which ran once before: what is allocated once is not in it.
void measure(Counters& c, const std::function<void()>& work) {
  if (!alone) work();
  const int64_t before = allocations;
  measured_region(work);
  c.allocations = static_cast<double>(allocations - before);
}

Config small_config() {
  static const std::vector<std::string> no_environment;
  ResolveOptions options;
  options.environment = &no_environment;
  return resolve({"model_name=nibble-1m", "per_device_batch_size=1", "max_target_length=64", "dataset_type=synthetic",
                  "threads=1", "cpu_target=avx2"},
                 options)
      .config;
}

ProgramPlan small_plan() { return plan_training(step_of(small_config()), 1, CpuTarget::avx2); }

struct SmallRows {
  std::vector<int32_t> tokens = std::vector<int32_t>(64), ones = std::vector<int32_t>(64, 1),
                       positions = std::vector<int32_t>(64);
  std::vector<float> weights = std::vector<float>(64, 1);
  SmallRows() {
    for (int i = 0; i < 64; ++i) tokens[i] = i * 37 % 1024, positions[i] = i;
  }
  Rows view() const { return {tokens.data(), tokens.data(), ones.data(), positions.data(), weights.data(), 1}; }
};

Counters train_step() {
  const StepConfig config = step_of(small_config());
  ProgramPlan plan = small_plan();
  const PlanReport report = make_report(plan, {.model = config.model, .batch = 1, .length = 64});
  Counters c{report.executed_flops, report.traffic_bytes, static_cast<double>(report.arena_bytes), 0, 0};
  Stepper stepper(config, std::move(plan));
  initialize_parameters(stepper.program(), stepper.parameters(), 0);
  const SmallRows rows;
  int64_t t = 1;
  measure(c, [&] { stepper.run(rows.view(), 1e-3, t++); });
  return c;
}

/// The first node of each of these ops in the small model's microbatch, each with operands of its own.
Counters kernels_of(const std::vector<std::string_view>& names) {
  const ProgramPlan plan = small_plan();
  const ExecutablePlan& microbatch = plan.executable("microbatch");
  Counters c;
  ThreadPool pool(1);
  std::vector<std::unique_ptr<LoneKernel>> kernels;
  for (const std::string_view name : names) {
    const auto at = std::ranges::find_if(microbatch.graph.nodes, [&](const Node& n) { return n.op->name == name; });
    if (at == microbatch.graph.nodes.end()) throw Error("E901", "the step of nibble-1m holds no {}", name);
    Types in, out;
    for (const Value v : at->in) in.push_back(microbatch.graph.type(v));
    out = result_types({*at->op, in, {}, at->attrs, "counters"});
    const Cost cost = at->op->cost({*at->op, in, out, at->attrs, "counters"});
    c.flops += static_cast<double>(cost.flops), c.traffic += static_cast<double>(cost.bytes);
    for (const Types* types : {&in, &out})
      for (const Type& t : *types) c.memory += static_cast<double>(t.nbytes());
    kernels.push_back(std::make_unique<LoneKernel>(*at->op, in, at->attrs, 1, CpuTarget::avx2, 0));
  }
  measure(c, [&] {
    for (const auto& kernel : kernels) kernel->run(pool);
  });
  return c;
}

Counters gemm() { return kernels_of({"linear", "linear_dgrad", "linear_wgrad"}); }
Counters attention() { return kernels_of({"attention", "attention_grad"}); }

Counters tokenizer_encode() {
  const Tokenizer tokenizer = Tokenizer::load(NIBBLE_GOLDEN_DIR "/tokenizers/gpt2_bpe/tokenizer.json");
  std::string text;
  for (int i = 0; text.size() < 32 << 10; ++i)
    text +=
        fmt::format("In chapter {} the people of the town, {} of them, went home; it's late.\n", i, i * 7919 % 1000);
  std::vector<int32_t> ids;
  Counters c;
  measure(c, [&] {
    ids.clear();
    tokenizer.encode(text, false, ids);
  });
  c.traffic = static_cast<double>(text.size()), c.memory = static_cast<double>(ids.size() * sizeof(int32_t));
  return c;
}

Counters checkpoint_save() {
  const Config config = small_config();
  Stepper stepper(step_of(config), small_plan());
  initialize_parameters(stepper.program(), stepper.parameters(), 0);
  const TemporaryFolder folder;
  const TrainingData data;
  Counters c;
  std::filesystem::path saved;
  measure(c, [&] {
    saved =
        save_checkpoint(std::filesystem::path(folder / "run"), checkpoint_content(config, stepper, data, {.step = 1}));
  });
  c.traffic = static_cast<double>(Checkpoint(saved).bytes());
  return c;
}

struct Path {
  const char* name;
  Counters (*run)();
};
constexpr Path paths[] = {{"train_step", train_step},
                          {"gemm", gemm},
                          {"attention", attention},
                          {"tokenizer_encode", tokenizer_encode},
                          {"checkpoint_save", checkpoint_save}};

// --- instructions
// -----------------------------------------------------------------------------------------------------

std::string compiler() {
#if defined(__clang__) || !defined(__OPTIMIZE__) || !defined(__GNUC__)
  return "not an optimised build by GCC";
#else
  return fmt::format("GCC {}, optimised", __GNUC__);
#endif
}

bool have_valgrind() { return std::system("valgrind --version > /dev/null 2>&1") == 0; }

double count_instructions(const std::string& program, const std::string& path) {
  const TemporaryFolder folder;
  const std::string out = folder / "callgrind.out", log = folder / "log";
  const std::string command = fmt::format(
      "valgrind --tool=callgrind --toggle-collect=measured_region --callgrind-out-file='{}' '{}' --path {} > '{}' 2>&1",
      out, program, path, log);
  const int status = std::system(command.c_str());
  std::ifstream file(out);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("totals: ")) return std::strtod(line.c_str() + 8, nullptr);
  std::ostringstream text;
  text << std::ifstream(log).rdbuf();
  throw Error("E901", "callgrind counted nothing, status {}: {}", status, text.str());
}

// --- the file of expected values
// --------------------------------------------------------------------------------------

using Table = std::map<std::string, Counters>;

constexpr const char* heading =
    "# What five paths may cost; tests/counters/work_counters.cpp compares. After a change that is meant: "
    "work_counters FILE --update\n";

Table read_table(const std::string& file, std::string& made_by) {
  std::ifstream in(file);
  Table table;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("# instructions by ")) made_by = line.substr(18);
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    Counters c;
    words >> name;
    for (const Column& column : columns) words >> c.*column.value;
    if (!words) throw Error("E309", "{}: a line that is not a name and five numbers: {}", file, line);
    table[name] = c;
  }
  return table;
}

void write_table(const std::string& file, const Table& table) {
  std::ofstream out(file);
  out << heading << "# instructions by " << compiler() << "\n#";
  for (const Column& column : columns) out << ' ' << column.name;
  out << '\n';
  for (const Path& path : paths) {
    out << path.name;
    for (const Column& column : columns) out << fmt::format(" {:.0f}", table.at(path.name).*column.value);
    out << '\n';
  }
}

/// Prints a line a counter that moved; the number of those that grew too much.
int compare(const std::string& path, const Counters& expected, const Counters& now) {
  int grown = 0;
  for (const Column& column : columns) {
    const double was = expected.*column.value, is = now.*column.value;
    if (column.value == &Counters::instructions && is == 0) continue;
    const bool grew = is > was * (1 + column.tolerance), fell = is < was * (1 - column.tolerance);
    fmt::print("{:<18}{:<14}{:>16.0f}{:>16.0f}{:>9}  {}\n", path, column.name, was, is,
               was > 0 ? fmt::format("{:+.2f} %", 100 * (is / was - 1)) : "-",
               grew   ? fmt::format("GREW by more than {:g} %", 100 * column.tolerance)
               : fell ? "fell: --update keeps the gain"
                      : "as committed");
    grown += grew;
  }
  return grown;
}

int check(const std::string& program, const std::string& file, bool update) {
  std::string made_by;
  const Table expected = update ? Table() : read_table(file, made_by);
  const bool valgrind = have_valgrind(), comparable = update || made_by == compiler();
  if (!valgrind) fmt::print("instructions are not counted: valgrind is not installed\n");
  if (!comparable) fmt::print("instructions are not compared: the file's are by {}, this is {}\n", made_by, compiler());
  Table table;
  int grown = 0;
  for (const Path& path : paths) {
    Counters c = path.run();
    if (valgrind && comparable) c.instructions = count_instructions(program, path.name);
    table[path.name] = c;
    if (update) continue;
    if (!expected.contains(path.name)) throw Error("E309", "{} has no line {}", file, path.name);
    grown += compare(path.name, expected.at(path.name), c);
  }
  if (update && !valgrind) throw Error("E503", "--update needs valgrind: the file would lose its instructions");
  if (update) write_table(file, table);
  if (grown > 0)
    fmt::print("{} counters grew. If that is meant: {} {} --update, and say why in the commit\n", grown, program, file);
  return grown == 0 ? 0 : 1;
}

int run(const std::vector<std::string>& arguments) {
  if (!cpu_runs(CpuTarget::avx2)) return fmt::print("skipped: this CPU has no AVX2\n"), 77;
  if (arguments.size() == 3 && arguments[1] == "--path") {
    for (const Path& path : paths)
      if (path.name == arguments[2]) return alone = true, path.run(), 0;
  }
  const bool update = arguments.size() == 3 && arguments[2] == "--update";
  if (arguments.size() == 2 || update) return check(arguments[0], arguments[1], update);
  fmt::print(stderr, "usage: work_counters FILE [--update] | --path NAME\n");
  return 64;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  try {
    return nibble::run({argv, argv + argc});
  } catch (const nibble::Error& e) {
    fmt::print(stderr, "{}\n", e.message());
    return e.exit_code();
  }
}
