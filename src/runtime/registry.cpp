#include "runtime/registry.h"

#include <algorithm>

#include "ops/ops.h"

namespace nibble {
namespace {

constexpr std::span<const Kernel> none{};

}  // namespace

std::span<const KernelRow> kernel_table() {
  static const KernelRow table[] = {
      {&embedding_op, embedding_cpu, &embedding_ref},
      {&embedding_grad_op, embedding_grad_cpu, &embedding_grad_ref},
      {&linear_op, linear_cpu, &linear_ref},
      {&linear_dgrad_op, linear_dgrad_cpu, &linear_dgrad_ref},
      {&linear_wgrad_op, linear_wgrad_cpu, &linear_wgrad_ref},
      {&rms_norm_op, rms_norm_cpu, &rms_norm_ref},
      {&rms_norm_grad_op, rms_norm_grad_cpu, &rms_norm_grad_ref},
      {&rope_op, rope_cpu, &rope_ref},
      {&attention_op, attention_cpu, &attention_ref},
      {&attention_grad_op, attention_grad_cpu, &attention_grad_ref},
      {&swiglu_op, swiglu_cpu, &swiglu_ref},
      {&swiglu_grad_op, swiglu_grad_cpu, &swiglu_grad_ref},
      {&add_op, add_cpu, &add_ref},
      {&scale_op, scale_cpu, &scale_ref},
      {&zeros_op, none, &zeros_ref},
      {&ones_op, none, &ones_ref},
      {&cross_entropy_op, cross_entropy_cpu, &cross_entropy_ref},
      {&cross_entropy_grad_op, cross_entropy_grad_cpu, &cross_entropy_grad_ref},
      {&append_op, none, &append_ref},
      {&attention_cached_op, attention_cached_cpu, &attention_cached_ref},
      {&take_row_op, none, &take_row_ref},
      {&adamw_op, adamw_cpu, &adamw_ref},
      {&sgd_op, sgd_cpu, &sgd_ref},
      {&sum_squares_op, sum_squares_cpu, &sum_squares_ref},
      {&norm_op, norm_cpu, &norm_ref},
      {&recast_op, recast_cpu, &recast_ref},
      {&quantize_op, quantize_cpu, &quantize_ref},
      {&requantize_op, requantize_cpu, &requantize_ref},
      {&quantize_weight_op, quantize_weights_cpu, &quantize_weights_ref},
      {&quantize_weights_op, quantize_weights_cpu, &quantize_weights_ref},
      {&qlinear_op, qlinear_cpu, &qlinear_ref},
      {&qlinear_dgrad_op, qlinear_dgrad_cpu, &qlinear_dgrad_ref},
      {&qlinear_wgrad_op, qlinear_wgrad_cpu, &qlinear_wgrad_ref},
      {&record_amax_op, none, &record_amax_ref},
      {&advance_scale_op, none, &advance_scale_ref},
      {&quest_mask_op, quest_mask_cpu, &quest_mask_ref},
      {&quest_back_op, quest_back_cpu, &quest_back_ref},
      {&quest_back_add_op, quest_back_add_cpu, &quest_back_add_ref},
      {&quantize_rows_op, quantize_rows_cpu, &quantize_rows_ref},
      {&qlinear_rows_op, qlinear_rows_cpu, &qlinear_rows_ref},
      {&linear_w4_op, linear_w4_cpu, &linear_w4_ref},
      {&embedding_w4_op, none, &embedding_w4_ref},
      {&residual_rms_norm_op, residual_rms_norm_cpu, &residual_rms_norm_ref},
      {&residual_rms_norm_grad_op, residual_rms_norm_grad_cpu, &residual_rms_norm_grad_ref},
      {&rope_pair_op, rope_pair_cpu, &rope_pair_ref},
      {&adamw_squares_op, adamw_squares_cpu, &adamw_squares_ref}};
  return table;
}

const KernelRow& kernels_of(const Op& op) {
  for (const KernelRow& row : kernel_table())
    if (row.op == &op) return row;
  internal_error(fmt::format("op {} has no row in the kernel table", op.name), __FILE__, __LINE__);
}

KernelChoice choose_kernel(const Op& op, const KernelShape& shape, CpuTarget target) {
  const KernelRow& row = kernels_of(op);
  KernelChoice choice;
  for (const Kernel& k : row.cpu) {
    const char* reason = k.refuses != nullptr ? k.refuses(shape) : nullptr;
    if (reason != nullptr) {
      choice.refusals += fmt::format("{}{}: {}", choice.refusals.empty() ? "" : "; ", k.name, reason);
    } else if (k.needs > target) {
      choice.refusals += fmt::format("{}{}: needs {}, cpu_target is {}", choice.refusals.empty() ? "" : "; ", k.name,
                                     name_of(k.needs), name_of(target));
    } else {
      choice.name = k.name, choice.run = k.run, choice.workspace = k.workspace;
      return choice;
    }
  }
  choice.name = "ref", choice.run = row.ref->f32, choice.workspace = row.ref->workspace;
  const auto half = [](std::span<const Type> types) {
    return std::ranges::find(types, DType::bf16, &Type::dtype) != types.end();
  };
  if (half(shape.in) || half(shape.out)) {
    NIBBLE_CHECK(row.ref->bf16 != nullptr, "{} has no form in bf16", op.name);
    choice.run = row.ref->bf16, choice.workspace = row.ref->bf16_workspace;
  }
  return choice;
}

}  // namespace nibble
