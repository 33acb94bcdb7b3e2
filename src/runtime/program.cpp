#include "runtime/program.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/float_mode.h"
#include "core/quantized.h"
#include "graph/verify.h"
#include "numerics/bf16.h"
#include "passes/fuse.h"
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

void collect_states(const Graph& graph, ProgramPlan& plan) {
  for (const Node& n : graph.nodes) {
    if (n.op != &read_op) continue;
    const StateRole role = role_of(n);
    const std::string& name = n.attrs.get_string("name");
    const Type& type = graph.type(n.out[0]);
    const auto [known, is_new] = plan.state_index.try_emplace({role, name}, plan.states.size());
    if (is_new) {
      plan.states.push_back({role, name, type});
      continue;
    }
    const Type& before = plan.states[known->second].type;
    NIBBLE_CHECK(before == type, "state {} is {} in one graph and {} in another", name, to_string(before),
                 to_string(type));
  }
}

bool writes_gradient(const Graph& graph, const Node& n) {
  return std::ranges::any_of(n.op->in_place, [&](InPlace w) {
    const int32_t state = state_of(graph, n.in[static_cast<size_t>(w.in)]);
    return state >= 0 && role_of(graph.nodes[static_cast<size_t>(state)]) == StateRole::gradient;
  });
}

KernelShape shape_of(const Graph& g, const Node& n, Types& in, Types& out, int threads) {
  in.clear(), out.clear();
  for (const Value v : n.in) in.push_back(g.type(v));
  for (const Value v : n.out) out.push_back(g.type(v));
  return {in, out, n.attrs, threads};
}

}  // namespace

ExecutablePlan plan_executable(NamedGraph named, int threads, CpuTarget target, bool fused) {
  ExecutablePlan plan{std::move(named.name), std::move(named.graph), {}, {}};
  if (fused) {
    verify(plan.graph, "recording");  // before what fuse finds dead is gone
    fuse(plan.graph);
    verify(plan.graph, "fuse");
  }
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

const ExecutablePlan& ProgramPlan::executable(std::string_view name) const {
  for (const ExecutablePlan& e : executables)
    if (e.name == name) return e;
  internal_error(fmt::format("the program has no executable {}", name), __FILE__, __LINE__);
}

void ProgramPlan::replace(ExecutablePlan executable) {
  *std::ranges::find(executables, executable.name, &ExecutablePlan::name) = std::move(executable);
  temporary_bytes = 0;
  for (const ExecutablePlan& e : executables) temporary_bytes = std::max(temporary_bytes, e.memory.bytes);
}

ProgramPlan plan_program(std::vector<NamedGraph> graphs, int threads, CpuTarget target, bool fused) {
  ProgramPlan plan;
  plan.threads = threads, plan.target = target;
  for (NamedGraph& g : graphs) {
    plan.executables.push_back(plan_executable(std::move(g), threads, target, fused));
    collect_states(plan.executables.back().graph, plan);
    plan.temporary_bytes = std::max(plan.temporary_bytes, plan.executables.back().memory.bytes);
  }
  for (StateInfo& s : plan.states) {
    s.offset = plan.state_bytes;
    plan.state_bytes += align_up(s.type.nbytes());
  }
  return plan;
}

Tensor Executable::of(Value v) const { return tensors_[static_cast<size_t>(v.id)]; }

bool Executable::has_input(std::string_view name) const {
  return std::ranges::any_of(inputs_, [name](const auto& i) { return i.first == name; });
}

Tensor Executable::input(std::string_view name) const {
  for (const auto& [input, tensor] : inputs_)
    if (input == name) return tensor;
  internal_error(fmt::format("executable {} has no input {}", plan_->name, name), __FILE__, __LINE__);
}

Tensor Executable::output(std::string_view name) const { return of(plan_->graph.output(name)); }

// After a step: what its quantised results say of themselves. One cache line each.
void Executable::look(const Step& s) {
  if (s.quantizes)
    for (size_t k = 0; k < s.out.size(); ++k)
      if (is_quantized(s.out[k].type.dtype) && QuantizedView(s.out[k]).header().blank != 0)
        blank_.push_back({s.node, static_cast<int>(k)});
  if (observer_ != nullptr) observer_->after(*s.node, s.in, s.out);
}

void Executable::run(Gradients gradients) {
  const FloatMode mode;
  blank_.clear();
  if (!profiling_) {
    for (const Step& s : steps_) call(s, gradients), look(s);
    return;
  }
  const auto clock = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    const double start = clock();
    call(steps_[i], gradients);
    const double end = clock();
    seconds_[i] += end - start;
    look(steps_[i]);
    if (spans_ != nullptr)
      spans_->push_back({static_cast<int32_t>(steps_[i].node - plan_->graph.nodes.data()), start, end});
  }
}

bool Executable::run_checked(NonFinite* found, Gradients gradients) {
  const FloatMode mode;
  for (const Step& s : steps_) {
    call(s, gradients);
    for (size_t k = 0; k < s.out.size(); ++k) {
      const DType dtype = s.out[k].type.dtype;
      if (is_quantized(dtype) && !std::isfinite(QuantizedView(s.out[k]).header().amax)) {
        *found = {s.node, static_cast<int>(k), 0, QuantizedView(s.out[k]).header().amax};
        return false;
      }
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
    for (size_t id = 0; id < e.graph.values.size(); ++id) {
      const Type& type = e.graph.values[id].type;
      if (const int32_t buffer = e.memory.buffer_of[id]; buffer >= 0) {
        x->tensors_.push_back({type, temporary + e.memory.buffers[static_cast<size_t>(buffer)].offset});
      } else {
        const Node& read = e.graph.nodes[static_cast<size_t>(e.memory.state_of[id])];
        x->tensors_.push_back({type, state(role_of(read), read.attrs.get_string("name")).data});
      }
    }
    size_t quantized = 0;
    for (size_t i = 0; i < e.graph.nodes.size(); ++i) {
      const Node& n = e.graph.nodes[i];
      if (n.op == &input_op) x->inputs_.emplace_back(n.attrs.get_string("name"), x->of(n.out[0]));
      if (!computes(n)) continue;
      Executable::Step step{
          e.kernels[i].run, &n, {}, {}, writes_gradient(e.graph, n), temporary + e.memory.workspaces[i].offset, false};
      for (const Value v : n.in) step.in.push_back(x->of(v));
      for (const Value v : n.out) step.out.push_back(x->of(v));
      for (const Tensor& t : step.out) step.quantizes |= is_quantized(t.type.dtype), quantized += step.quantizes;
      x->steps_.push_back(std::move(step));
    }
    x->seconds_.assign(x->steps_.size(), 0);
    x->blank_.reserve(quantized);
    executables_.push_back(std::move(x));
  }
}

Program::~Program() { munmap(arena_, static_cast<size_t>(std::max<int64_t>(plan_.arena_bytes(), 1))); }

bool Program::has_executable(std::string_view name) const {
  return std::ranges::find(plan_.executables, name, &ExecutablePlan::name) != plan_.executables.end();
}

Executable& Program::executable(std::string_view name) {
  for (auto& e : executables_)
    if (e->plan_->name == name) return *e;
  internal_error(fmt::format("the program has no executable {}", name), __FILE__, __LINE__);
}

bool Program::has_state(StateRole role, std::string_view name) const {
  return plan_.state_index.contains({role, std::string(name)});
}

Tensor Program::state(StateRole role, std::string_view name) const {
  const auto found = plan_.state_index.find({role, std::string(name)});
  NIBBLE_CHECK(found != plan_.state_index.end(), "the program has no state {} {}", name_of(role), name);
  const StateInfo& s = plan_.states[found->second];
  return {s.type, arena_ + s.offset};
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
