// What a ProgramPlan says before anything is allocated: memory by class, the largest tensors, every matrix product
// with its kernel, FLOPs and traffic of a step. `nibble plan` prints it, E107 quotes it.
// Source: spec/plan.md 3, 4.1, 11. The time of a step: plan/price.h.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/flops.h"
#include "runtime/program.h"

namespace nibble {

/// A part of the arena. All classes of a plan add up to ProgramPlan::arena_bytes().
struct MemoryClass {
  std::string name;
  int64_t bytes = 0;
};
/// In this order: weights, gradients, optimizer, caches, constants (the states), then the temporary part as the largest
/// executable needs it: batch (inputs and results, alive throughout), activations kept (alive across the loss: made by
/// the forward pass and read by the backward pass), activations live (what the rest needs beside them, gaps
/// included), workspace.
std::vector<MemoryClass> memory_classes(const ProgramPlan& plan);

/// Tensors that differ only in their layer, or only in their state's role, share a row.
struct TensorRow {
  std::string name;  // "model.layers.0-7.mlp.up_proj.weight"; of activations label and op, "layers.0-7/mlp swiglu"
  std::string kind;  // "weight, gradient, m, v"; "activation"
  Type type;
  int64_t bytes = 0;  // of one
  int64_t count = 1;
};
/// The `most` largest by the bytes of one, ties in order of the plan.
std::vector<TensorRow> largest_tensors(const ProgramPlan& plan, size_t most);

/// One matrix product of the microbatch: out [m, n] = sum over k.
struct GemmRow {
  std::string site;  // "layers.0-7/self_attn/q_proj"; products that share a sum: "layers.0/mlp/gate_proj+up_proj"
  std::string gemm;  // fprop, dgrad, wgrad; head (all three, logits tile by tile)
  int64_t m = 0, n = 0, k = 0;
  std::string format;  // of the operands: "f32"
  std::string kernel;  // "avx512"
  double flops = 0;    // of one
  int64_t count = 1;   // equal layers
  int32_t node = -1;   // the first of them, in the graph
};
/// In order of execution; `layers`: one row a product instead of one for all layers that agree.
std::vector<GemmRow> gemm_rows(const ExecutablePlan& plan, bool layers);

/// All computing nodes of one op with one kernel.
struct OpRow {
  std::string op, kernel;
  int64_t nodes = 0;
  double flops = 0, bytes = 0;  // as Op::cost says: executed, read plus written
};
std::vector<OpRow> op_rows(const ExecutablePlan& plan);

/// What the plan is of, beside the graphs.
struct PlanSubject {
  std::string model_name;
  LlamaConfig model;
  int64_t batch = 0, length = 0, accumulation = 1;  // rows and tokens of a microbatch, microbatches
  int64_t steps = 0;
  int64_t memory_limit = 0;  // bytes
};

struct PlanReport {
  PlanSubject subject;
  int64_t parameters = 0;
  std::string target;  // "avx512"
  int threads = 1;
  int64_t arena_bytes = 0;
  std::string largest_executable;  // whose temporary part is the arena's
  std::vector<MemoryClass> memory;
  std::vector<TensorRow> tensors;
  std::vector<GemmRow> gemms;
  std::vector<OpRow> ops;                              // of a whole step: microbatches, norm, update
  StepFlops model_flops;                               // of a step, the convention
  double executed_flops = 0, traffic_bytes = 0;        // of a step
  std::vector<std::pair<std::string, int64_t>> nodes;  // by executable
  std::vector<std::string> refusals;                   // "linear: avx512: needs avx512, cpu_target is avx2", each once
};
/// `layers`: gemms has one row a product.
PlanReport make_report(const ProgramPlan& plan, PlanSubject subject, bool layers = false);

/// At most 100 columns unless a name is longer. `verbose` adds the kernels that were passed over.
std::string plan_text(const PlanReport& report, bool verbose);
/// schema "nibble-plan-1": bytes and FLOPs without prefixes; keys in a fixed order.
nlohmann::ordered_json plan_json(const PlanReport& report);

/// "1.05 GiB"; below 1 KiB "64 B".
std::string size_text(double bytes);
/// "1,129,816,192"
std::string grouped(int64_t n);

}  // namespace nibble
