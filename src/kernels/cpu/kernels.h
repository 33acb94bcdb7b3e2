// The vectorised kernels that lists.cpp puts in order, in each target's namespace: bit-equal to kernels/ref in f32 for
// any number of threads. Shapes and operands: src/ops. A workspace function depends on types, attributes and threads
// only; an op without one needs none. x calls x_bf16 where its operands are bf16.
#pragma once
#include "core/kernel.h"

namespace nibble {

using CpuKernel = void(const KernelCall&);
using CpuWorkspace = int64_t(const KernelShape&);

namespace avx2 {
CpuKernel embedding, embedding_grad, linear, linear_dgrad, linear_wgrad, rms_norm, rms_norm_grad, rope, attention,
    attention_grad, swiglu, swiglu_grad, add, scale, cross_entropy, cross_entropy_grad, attention_cached, adamw, sgd,
    sum_squares, norm, recast, residual_rms_norm, residual_rms_norm_grad, rope_pair, adamw_squares, quantize,
    quantize_weights, requantize, quest_mask, quest_back, quest_back_add;
CpuWorkspace linear_workspace, linear_dgrad_workspace, linear_wgrad_workspace, rms_norm_grad_workspace,
    attention_workspace, attention_grad_workspace, attention_cached_workspace, cross_entropy_workspace,
    cross_entropy_grad_workspace, quantize_workspace;
CpuKernel linear_bf16, linear_dgrad_bf16, linear_wgrad_bf16, cross_entropy_bf16, cross_entropy_grad_bf16;
CpuWorkspace linear_bf16_workspace, linear_dgrad_bf16_workspace, linear_wgrad_bf16_workspace,
    cross_entropy_bf16_workspace, cross_entropy_grad_bf16_workspace;
CpuKernel qlinear, qlinear_dgrad, qlinear_wgrad;
CpuWorkspace qlinear_workspace, qlinear_dgrad_workspace, qlinear_wgrad_workspace;
CpuKernel linear_w4, quantize_rows, qlinear_rows;
CpuWorkspace linear_w4_workspace, quantize_rows_workspace, qlinear_rows_workspace;
}  // namespace avx2

namespace avx512 {
CpuKernel embedding, embedding_grad, linear, linear_dgrad, linear_wgrad, rms_norm, rms_norm_grad, rope, attention,
    attention_grad, swiglu, swiglu_grad, add, scale, cross_entropy, cross_entropy_grad, attention_cached, adamw, sgd,
    sum_squares, norm, recast, residual_rms_norm, residual_rms_norm_grad, rope_pair, adamw_squares, quantize,
    quantize_weights, requantize, quest_mask, quest_back, quest_back_add;
CpuWorkspace linear_workspace, linear_dgrad_workspace, linear_wgrad_workspace, rms_norm_grad_workspace,
    attention_workspace, attention_grad_workspace, attention_cached_workspace, cross_entropy_workspace,
    cross_entropy_grad_workspace, quantize_workspace;
CpuKernel linear_bf16, linear_dgrad_bf16, linear_wgrad_bf16, cross_entropy_bf16, cross_entropy_grad_bf16;
CpuWorkspace linear_bf16_workspace, linear_dgrad_bf16_workspace, linear_wgrad_bf16_workspace,
    cross_entropy_bf16_workspace, cross_entropy_grad_bf16_workspace;
CpuKernel qlinear, qlinear_dgrad, qlinear_wgrad;
CpuWorkspace qlinear_workspace, qlinear_dgrad_workspace, qlinear_wgrad_workspace;
CpuKernel linear_w4, quantize_rows, qlinear_rows;
CpuWorkspace linear_w4_workspace, quantize_rows_workspace, qlinear_rows_workspace;
}  // namespace avx512

namespace avx512_bf16 {  // kernels of bf16 operands through vdpbf16ps (gemm_bf16.h): within a bound, not bit-equal
CpuKernel linear_bf16, linear_dgrad_bf16, linear_wgrad_bf16, cross_entropy_bf16, cross_entropy_grad_bf16,
    attention_bf16, attention_grad_bf16;
CpuWorkspace linear_bf16_workspace, linear_dgrad_bf16_workspace, linear_wgrad_bf16_workspace,
    cross_entropy_bf16_workspace, cross_entropy_grad_bf16_workspace, attention_bf16_workspace,
    attention_grad_bf16_workspace;
CpuKernel qlinear, qlinear_dgrad, qlinear_wgrad, qlinear_rows;
CpuWorkspace qlinear_workspace, qlinear_dgrad_workspace, qlinear_wgrad_workspace, qlinear_rows_workspace;
}  // namespace avx512_bf16

}  // namespace nibble
