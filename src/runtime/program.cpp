#include "runtime/program.h"

#include <sys/mman.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "graph/verify.h"
#include "numerics/bf16.h"
#include "passes/schedule.h"

namespace nibble {
namespace {

bool computes(const Node& n) { return n.op != &input_op && n.op != &read_op && !n.op->view; }

StateRole role_of(const Node& read) {
  StateRole role{};
  NIBBLE_CHECK(parse_state_role(read.attrs.get_string("role"), &role), "unknown role of a state: {}",
               to_string(read.attrs));
  return role;
}

void collect_states(const Graph& graph, std::vector<StateInfo>& states) {
  for (const Node& n : graph.nodes) {
    if (n.op != &read_op) continue;
    const StateRole role = role_of(n);
    const std::string& name = n.attrs.get_string("name");
    const Type& type = graph.type(n.out[0]);
    bool known = false;
    for (const StateInfo& s : states)
      if (s.role == role && s.name == name) {
        NIBBLE_CHECK(s.type == type, "state {} is {} in one graph and {} in another", name, to_string(s.type),
                     to_string(type));
        known = true;
      }
    if (!known) states.push_back({role, name, type});
  }
}

KernelShape shape_of(const Graph& g, const Node& n, Types& in, Types& out, int threads) {
  in.clear(), out.clear();
  for (const Value v : n.in) in.push_back(g.type(v));
  for (const Value v : n.out) out.push_back(g.type(v));
  return {in, out, n.attrs, threads};
}

ExecutablePlan plan_executable(NamedGraph named, int threads, CpuTarget target) {
  ExecutablePlan plan{std::move(named.name), std::move(named.graph), {}, {}};
  schedule(plan.graph);
  verify(plan.graph, "schedule");
  Types in, out;
  for (const Node& n : plan.graph.nodes)
    plan.kernels.push_back(computes(n) ? choose_kernel(*n.op, shape_of(plan.graph, n, in, out, threads), target)
                                       : KernelChoice{});
  plan.memory = plan_memory(plan.graph, [&](const Node& n) -> int64_t {
    const KernelChoice& k = plan.kernels[static_cast<size_t>(&n - plan.graph.nodes.data())];
    return k.workspace != nullptr ? k.workspace(shape_of(plan.graph, n, in, out, threads)) : 0;
  });
  return plan;
}

}  // namespace

const ExecutablePlan& ProgramPlan::executable(std::string_view name) const {
  for (const ExecutablePlan& e : executables)
    if (e.name == name) return e;
  internal_error(fmt::format("the program has no executable {}", name), __FILE__, __LINE__);
}

ProgramPlan plan_program(std::vector<NamedGraph> graphs, int threads, CpuTarget target) {
  ProgramPlan plan;
  plan.threads = threads, plan.target = target;
  for (NamedGraph& g : graphs) {
    plan.executables.push_back(plan_executable(std::move(g), threads, target));
    collect_states(plan.executables.back().graph, plan.states);
    plan.temporary_bytes = std::max(plan.temporary_bytes, plan.executables.back().memory.bytes);
  }
  for (StateInfo& s : plan.states) {
    s.offset = plan.state_bytes;
    plan.state_bytes += align_up(s.type.nbytes());
  }
  return plan;
}

Tensor Executable::of(Value v) const { return tensors_[static_cast<size_t>(v.id)]; }

Tensor Executable::input(std::string_view name) const {
  for (const Node& n : plan_->graph.nodes)
    if (n.op == &input_op && n.attrs.get_string("name") == name) return of(n.out[0]);
  internal_error(fmt::format("executable {} has no input {}", plan_->name, name), __FILE__, __LINE__);
}

Tensor Executable::output(std::string_view name) const { return of(plan_->graph.output(name)); }

void Executable::run() {
  if (!profiling_) {
    for (const Step& s : steps_) s.run({s.in, s.out, s.node->attrs, workspace_, *pool_});
    return;
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    steps_[i].run({steps_[i].in, steps_[i].out, steps_[i].node->attrs, workspace_, *pool_});
    seconds_[i] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

bool Executable::run_checked(NonFinite* found) {
  for (const Step& s : steps_) {
    s.run({s.in, s.out, s.node->attrs, workspace_, *pool_});
    for (size_t k = 0; k < s.out.size(); ++k) {
      const DType dtype = s.out[k].type.dtype;
      if (dtype != DType::f32 && dtype != DType::bf16) continue;
      for (int64_t i = 0; i < s.out[k].numel(); ++i)
        if (const float x = dtype == DType::f32 ? s.out[k].as<float>()[i] : widen(s.out[k].as<BFloat16>()[i]);
            !std::isfinite(x)) {
          *found = {s.node, static_cast<int>(k), i, x};
          return false;
        }
    }
  }
  return true;
}

Program::Program(ProgramPlan plan) : plan_(std::move(plan)), pool_(std::make_unique<ThreadPool>(plan_.threads)) {
  const auto bytes = static_cast<size_t>(std::max<int64_t>(plan_.arena_bytes(), 1));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error("E107", "{} bytes of memory for the arena are not to be had", bytes)
        .where("{}", std::strerror(errno))
        .hint("a smaller per_device_batch_size or max_target_length");
  madvise(memory, bytes, MADV_HUGEPAGE);  // panels walk many small pages
  arena_ = static_cast<std::byte*>(memory);
  for (const ExecutablePlan& e : plan_.executables) {
    auto x = std::make_unique<Executable>();
    x->plan_ = &e, x->pool_ = pool_.get();
    std::byte* temporary = arena_ + plan_.state_bytes;
    x->workspace_ = temporary + e.memory.workspace_offset;
    for (size_t id = 0; id < e.graph.values.size(); ++id) {
      const Type& type = e.graph.values[id].type;
      if (const int32_t buffer = e.memory.buffer_of[id]; buffer >= 0) {
        x->tensors_.push_back({type, temporary + e.memory.buffers[static_cast<size_t>(buffer)].offset});
      } else {
        const Node& read = e.graph.nodes[static_cast<size_t>(e.memory.state_of[id])];
        x->tensors_.push_back({type, state(role_of(read), read.attrs.get_string("name")).data});
      }
    }
    for (size_t i = 0; i < e.graph.nodes.size(); ++i) {
      const Node& n = e.graph.nodes[i];
      if (!computes(n)) continue;
      Executable::Step step{e.kernels[i].run, &n, {}, {}};
      for (const Value v : n.in) step.in.push_back(x->of(v));
      for (const Value v : n.out) step.out.push_back(x->of(v));
      x->steps_.push_back(std::move(step));
    }
    x->seconds_.assign(x->steps_.size(), 0);
    executables_.push_back(std::move(x));
  }
}

Program::~Program() { munmap(arena_, static_cast<size_t>(std::max<int64_t>(plan_.arena_bytes(), 1))); }

Executable& Program::executable(std::string_view name) {
  for (auto& e : executables_)
    if (e->plan_->name == name) return *e;
  internal_error(fmt::format("the program has no executable {}", name), __FILE__, __LINE__);
}

bool Program::has_state(StateRole role, std::string_view name) const {
  for (const StateInfo& s : plan_.states)
    if (s.role == role && s.name == name) return true;
  return false;
}

Tensor Program::state(StateRole role, std::string_view name) const {
  for (const StateInfo& s : plan_.states)
    if (s.role == role && s.name == name) return {s.type, arena_ + s.offset};
  internal_error(fmt::format("the program has no state {} {}", name_of(role), name), __FILE__, __LINE__);
}

void Program::zero(StateRole role) {
  constexpr int64_t piece = 1 << 20;
  for (const StateInfo& s : plan_.states) {
    if (s.role != role) continue;
    std::byte* data = arena_ + s.offset;
    const int64_t bytes = s.type.nbytes();
    pool_->run((bytes + piece - 1) / piece, [=](int64_t task, int) {
      std::memset(data + task * piece, 0, static_cast<size_t>(std::min(piece, bytes - task * piece)));
    });
  }
}

}  // namespace nibble
