// One implementation of an op on the CPU, and the ordered lists of them: fastest first. runtime/registry joins the
// lists with the table of ops and asks from the top; what accepts first runs, and every refusal has a reason.
#pragma once
#include <span>
#include <string_view>

#include "core/kernel.h"
#include "kernels/cpu/cpu_info.h"

namespace nibble {

struct Kernel {
  std::string_view name;  // printed by plan and doctor: "avx512"
  CpuTarget needs;        // instruction sets it was compiled for
  KernelRun run;
  KernelWorkspace workspace = nullptr;                   // nullptr: none
  const char* (*refuses)(const KernelShape&) = nullptr;  // nullptr: accepts all; else a reason, or nullptr to accept
};

/// The vectorised kernels of each op, kernels/cpu/lists.cpp. The reference (kernels/ref) comes after them.
extern const std::span<const Kernel> embedding_cpu, embedding_grad_cpu, linear_cpu, linear_dgrad_cpu, linear_wgrad_cpu,
    rms_norm_cpu, rms_norm_grad_cpu, rope_cpu, attention_cpu, attention_grad_cpu, swiglu_cpu, swiglu_grad_cpu, add_cpu,
    scale_cpu, cross_entropy_cpu, cross_entropy_grad_cpu, attention_cached_cpu, adamw_cpu, sgd_cpu, sum_squares_cpu,
    norm_cpu, recast_cpu, quantize_cpu, requantize_cpu, quantize_weights_cpu, qlinear_cpu, qlinear_dgrad_cpu,
    qlinear_wgrad_cpu, residual_rms_norm_cpu, residual_rms_norm_grad_cpu, rope_pair_cpu, adamw_squares_cpu,
    quest_mask_cpu, quest_back_cpu, quest_back_add_cpu, linear_w4_cpu, quantize_rows_cpu, qlinear_rows_cpu;

}  // namespace nibble
