// The reference kernel of every op, for three scalars: the definition (f32), an oracle (f64), derivatives (complex).
#pragma once
#include "core/kernel.h"

namespace nibble {

/// nullptr where the op is not differentiable and defined in f32 (optimizer) or does no arithmetic on reals.
struct RefKernel {
  KernelRun f32 = nullptr, f64 = nullptr, complex = nullptr;
  /// For float elements; double takes twice, complex<double> four times as much. nullptr: none.
  KernelWorkspace workspace = nullptr;
  /// With any operand or result in bf16 (kernels/widened.h).
  KernelRun bf16 = nullptr;
  KernelWorkspace bf16_workspace = nullptr;
};

extern const RefKernel embedding_ref, embedding_grad_ref, linear_ref, linear_dgrad_ref, linear_wgrad_ref, rms_norm_ref,
    rms_norm_grad_ref, rope_ref, attention_ref, attention_grad_ref, swiglu_ref, swiglu_grad_ref, add_ref, scale_ref,
    zeros_ref, ones_ref, cross_entropy_ref, cross_entropy_grad_ref, append_ref, attention_cached_ref, take_row_ref,
    adamw_ref, sgd_ref, sum_squares_ref, norm_ref, recast_ref, residual_rms_norm_ref, residual_rms_norm_grad_ref,
    rope_pair_ref, adamw_squares_ref, quantize_ref, requantize_ref, quantize_weights_ref, qlinear_ref,
    qlinear_dgrad_ref, qlinear_wgrad_ref, record_amax_ref, advance_scale_ref, quest_mask_ref, quest_back_ref,
    quest_back_add_ref, linear_w4_ref, embedding_w4_ref, quantize_rows_ref, qlinear_rows_ref;

}  // namespace nibble
