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
/// In this order: weights, gradients, optimizer, caches, constants (the states), then the temporary part at the node of
/// the largest executable where most of it is alive: batch (inputs and results, alive throughout), activations kept
/// (alive across the loss: made by the forward pass and read by the backward pass), activations live (what the rest
/// needs beside them, gaps included), workspace of that node's kernel.
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

/// What the microbatch recomputes and what it keeps instead.
struct RematRow {
  std::string name;  // "layers.0-7/mlp/gate_proj linear"
  Type type;
  int64_t bytes = 0;  // of one, all results of the node that somebody reads
  int64_t count = 1;
  double flops = 0;  // to compute one again; 0 for what is kept
};
/// Activations that wait for the backward pass, the largest first.
std::vector<RematRow> kept_rows(const ExecutablePlan& microbatch);
/// Nodes that run again, in order of execution.
std::vector<RematRow> recomputed_rows(const ExecutablePlan& microbatch);

/// One matrix product of the microbatch: out [m, n] = sum over k.
struct GemmRow {
  std::string site;  // "layers.0-7/self_attn/q_proj"; products that share a sum: "layers.0/mlp/gate_proj+up_proj"
  std::string gemm;  // fprop, dgrad, wgrad; head (all three, logits tile by tile)
  int64_t m = 0, n = 0, k = 0;
  std::string format;  // of the operands: "f32"; quantised ones with how they were made: "nvfp4 stochastic, nvfp4_2d"
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

/// What a run needs beside the arena, checkpoints aside: the program, its libraries, stacks, buffers of the data. As
/// measured, 7 to 10 MiB; a tokenizer of 100,000 tokens adds some.
inline constexpr int64_t program_bytes = int64_t{9} << 20;

/// What the plan is of, beside the graphs.
struct PlanSubject {
  std::string model_name;
  LlamaConfig model;
  int64_t batch = 0, length = 0, accumulation = 1;  // rows and tokens of a microbatch, microbatches
  int64_t steps = 0;
  int64_t memory_limit = 0;  // bytes
  std::string remat_policy;
  std::string precision;                 // "bfloat16", "bfloat16, te_nvfp4"
  std::string recipe_note;               // why quantization=auto chose it; "" if it was not asked
  std::vector<std::string> unquantized;  // what the recipe leaves as it is, and why
  std::string finish;           // "finish_high_precision=fwd_bf16 from step 90 on"; "": the run has no such end
  int64_t checkpoint_copy = 0;  // bytes beside the arena that async_checkpointing takes
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
  std::vector<GemmRow> gemms, finish_gemms;            // of a microbatch; of one at the end of the run
  Recomputation recomputation;                         // of a microbatch
  std::vector<RematRow> kept, recomputed;              // of a microbatch; empty if nothing is recomputed
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
