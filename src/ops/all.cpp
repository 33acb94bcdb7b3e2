#include "ops/all.h"

#include "ops/ops.h"

namespace nibble {
namespace {
constexpr const Op* table[] = {&embedding_op,
                               &embedding_grad_op,
                               &linear_op,
                               &linear_dgrad_op,
                               &linear_wgrad_op,
                               &rms_norm_op,
                               &rms_norm_grad_op,
                               &rope_op,
                               &attention_op,
                               &attention_grad_op,
                               &swiglu_op,
                               &swiglu_grad_op,
                               &add_op,
                               &scale_op,
                               &split_heads_op,
                               &merge_heads_op,
                               &zeros_op,
                               &ones_op,
                               &cross_entropy_op,
                               &cross_entropy_grad_op,
                               &append_op,
                               &attention_cached_op,
                               &take_row_op,
                               &adamw_op,
                               &sgd_op,
                               &sum_squares_op,
                               &norm_op,
                               &recast_op,
                               &quantize_op,
                               &requantize_op,
                               &quantize_weight_op,
                               &quantize_weights_op,
                               &qlinear_op,
                               &qlinear_dgrad_op,
                               &qlinear_wgrad_op,
                               &record_amax_op,
                               &advance_scale_op,
                               &quest_mask_op,
                               &quest_back_op,
                               &quest_back_add_op,
                               &linear_w4_op,
                               &quantize_rows_op,
                               &qlinear_rows_op,
                               &embedding_w4_op,
                               &residual_rms_norm_op,
                               &residual_rms_norm_grad_op,
                               &rope_pair_op,
                               &adamw_squares_op};
}  // namespace

std::span<const Op* const> all_ops() { return table; }

const Op* find_op(std::string_view name) {
  for (const Op* op : {&input_op, &read_op})
    if (op->name == name) return op;
  for (const Op* op : table)
    if (op->name == name) return op;
  return nullptr;
}

}  // namespace nibble
