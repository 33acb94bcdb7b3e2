// A job's executables over one arena. plan_program() decides everything that can be known before the run and allocates
// nothing; Program binds the plan to memory and threads and replays it. Nothing allocates after construction.
//   arena:  | states (parameters, gradients, moments, caches, constants) | temporary part, shared by all executables |
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/threads.h"
#include "graph/graph.h"
#include "passes/memory.h"
#include "passes/recompute.h"
#include "runtime/registry.h"

namespace nibble {

struct StateInfo {
  StateRole role;
  std::string name;
  Type type;
  int64_t offset = 0;  // in the arena
};

/// One executable before it is bound: a graph in its order of execution, where each value lies, what computes it.
struct ExecutablePlan {
  std::string name;
  Graph graph;
  MemoryPlan memory;
  std::vector<KernelChoice> kernels;  // by node; without run for sources and views
};

struct ProgramPlan {
  std::vector<ExecutablePlan> executables;
  std::vector<StateInfo> states;                                    // in order of first use
  std::map<std::pair<StateRole, std::string>, size_t> state_index;  // identity -> place in `states`
  int64_t state_bytes = 0, temporary_bytes = 0;
  int threads = 1;
  CpuTarget target = CpuTarget::ref;
  Recomputation recomputation;  // of the microbatch
  int64_t arena_bytes() const { return state_bytes + temporary_bytes; }
  /// Puts `executable` in the place of the one with its name. It must read no state that the program has not.
  void replace(ExecutablePlan executable);
  const ExecutablePlan& executable(std::string_view name) const;
};

struct NamedGraph {
  std::string name;
  Graph graph;
};

/// Fuses, schedules, verifies and places one graph. `fused` off leaves passes/fuse out, to compare: no result depends
/// on it.
ExecutablePlan plan_executable(NamedGraph named, int threads, CpuTarget target, bool fused = true);

/// plan_executable() for each, and places for their states. Executables never run at the same time: they share the
/// states and a temporary part that is as large as the largest of them needs.
ProgramPlan plan_program(std::vector<NamedGraph> graphs, int threads, CpuTarget target, bool fused = true);

/// What a run does with the sums that gradient states hold: go on with them, or start anew from +0.
enum class Gradients { add, replace };

/// When a node ran, by the steady clock.
struct Span {
  int32_t node;
  double start, end;  // seconds
};

/// Looks on while an executable runs: called after each computing node, with operands and results in place.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void after(const Node& node, std::span<const Tensor> in, std::span<const Tensor> out) = 0;
};

class Executable {
 public:
  bool has_input(std::string_view name) const;
  Tensor input(std::string_view name) const;
  Tensor output(std::string_view name) const;
  /// Runs all nodes; with profiling on, adds the time of each to seconds(). Gradients::replace: as if the gradient
  /// states that it writes were +0, without zeroing or reading them first.
  void run(Gradients gradients = Gradients::add);
  void set_profiling(bool on) { profiling_ = on; }
  /// Profiled runs also append a span per computing node, if `to` is not null. Its capacity is the caller's business.
  void record(std::vector<Span>* to) { spans_ = to; }
  /// By computing node, in order of execution.
  const std::vector<double>& seconds() const { return seconds_; }
  /// Runs all nodes and checks every result; the first non-finite element found is reported through `found`.
  struct NonFinite {
    const Node* node = nullptr;
    int output = 0;
    int64_t index = 0;
    float value = 0;
  };
  bool run_checked(NonFinite* found, Gradients gradients = Gradients::add);
  /// A quantised result of the last run() that is all zeros although its values were not (core/quantized.h).
  struct Blank {
    const Node* node;
    int output;
  };
  const std::vector<Blank>& blank() const { return blank_; }
  /// Until it is given nullptr: who looks on. Results do not change, it may only read.
  void observe(Observer* observer) { observer_ = observer; }
  const ExecutablePlan& plan() const { return *plan_; }

 private:
  friend class Program;
  struct Step {
    KernelRun run;
    const Node* node;
    std::vector<Tensor> in, out;
    bool writes_gradient;
    std::byte* workspace;
    bool quantizes;
  };
  void call(const Step& s, Gradients gradients) {
    s.run({s.in, s.out, s.node->attrs, s.workspace, *pool_, gradients == Gradients::replace && s.writes_gradient});
  }
  void look(const Step& s);
  Tensor of(Value v) const;
  const ExecutablePlan* plan_ = nullptr;
  ThreadPool* pool_ = nullptr;
  std::vector<Tensor> tensors_;  // by Value::id
  std::vector<std::pair<std::string, Tensor>> inputs_;
  std::vector<Step> steps_;
  bool profiling_ = false;
  std::vector<double> seconds_;
  std::vector<Span>* spans_ = nullptr;
  std::vector<Blank> blank_;
  Observer* observer_ = nullptr;
};

class Program {
 public:
  explicit Program(ProgramPlan plan);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  bool has_executable(std::string_view name) const;
  Executable& executable(std::string_view name);
  bool has_state(StateRole role, std::string_view name) const;
  Tensor state(StateRole role, std::string_view name) const;
  /// Sets all states of a role to +0.
  void zero(StateRole role);
  ThreadPool& pool() { return *pool_; }
  const ProgramPlan& plan() const { return plan_; }
  /// All the memory there is, states first: plan().arena_bytes().
  std::span<std::byte> arena() { return {arena_, static_cast<size_t>(plan_.arena_bytes())}; }

 private:
  ProgramPlan plan_;
  std::unique_ptr<ThreadPool> pool_;
  std::byte* arena_ = nullptr;
  std::vector<std::unique_ptr<Executable>> executables_;
};

}  // namespace nibble
