// The operations and how model code and gradients record them. One op's facts stand together in one file of this
// folder; ops/all.cpp lists every op. Letters: B batch, T tokens, E width, H query heads, K key/value heads, D head
// size, F hidden, V vocabulary, N positions of a cache, R rows of a decoding step.  f32 unless marked.
#pragma once
#include "graph/builder.h"
#include "graph/vjp.h"

namespace nibble {

/// Rows of the table [V, E] for i32 tokens [...] -> [..., E].
Value embedding(Builder& b, Value tokens, Value table_VE);
/// x [..., K] times weight [N, K] transposed -> [..., N].
Value linear(Builder& b, Value x, Value weight_NK);
/// (x * r) * w over the last axis, r = 1/sqrt(mean(x^2) + eps).
Value rms_norm(Builder& b, Value x, Value w, double eps);
/// Rotates pairs (i, i + D/2) of x [..., H, D] by the table's angles. table [P, D]: row p holds D/2 cosines, then D/2
/// sines of position p; positions i32 [...] in [0, P).  Source: spec/training.md 2.5.
Value rope(Builder& b, Value x, Value table_PD, Value positions);
/// Causal softmax attention within segments (spec/training.md 2.6). q [B, T, H, D]; k, v [B, T, K, D]; segments
/// i32 [B, T], 0 = padding; window 0 = all earlier keys, else the last `window` ones, self included -> [B, T, H, D].
Value attention(Builder& b, Value q, Value k, Value v, Value segments, double scale, int64_t window);
/// silu(gate) * up, elementwise; silu(g) = g / (1 + exp(-g)).
Value swiglu(Builder& b, Value gate, Value up);
Value add(Builder& b, Value x, Value y);
/// x * factor.
Value scale(Builder& b, Value x, double factor);
/// [..., heads * D] seen as [..., heads, D], and back. Views: no copy.
Value split_heads(Builder& b, Value x, int64_t heads);
Value merge_heads(Builder& b, Value x);
Value zeros(Builder& b, const Type& type);
Value ones(Builder& b, const Type& type);

/// Cross entropy of the logits h W^T against i32 targets (< 0: no target, loss 0), per token: ce = lse - logit.
/// h [..., E], W [V, E], inv_n [1] = 1/N. The op's gradient is that of inv_n * sum(ce + z * lse^2).
/// Logits are never stored whole.  Source: spec/training.md 2.7.
struct CrossEntropy {
  Value ce, lse;  // [...]
};
/// tiles: the least number of tiles of tokens; any number gives the same bits, more need less memory.
CrossEntropy cross_entropy(Builder& b, Value h, Value weight_VE, Value targets, Value inv_n, double z_loss,
                           int64_t tiles = 1);

/// Writes the first span[1] rows of x [R, K, D] to cache [N, K, D] from position span[0]; span i32 [2] = {start,
/// count}.
Value append(Builder& b, Value cache_NKD, Value x_RKD, Value span);
/// Attention of rows at positions start.. over the cache, which holds their own keys already. q [R, H, D] -> [R, H, D];
/// rows from count on are 0. Sums in the order of `attention`, so a step's result equals the training graph's.
Value attention_cached(Builder& b, Value q_RHD, Value k_NKD, Value v_NKD, Value span, double scale, int64_t window);
/// Row index[0] of x [R, E] -> [1, E].
Value take_row(Builder& b, Value x_RE, Value index);

/// Numbers of one update that change from step to step: f32 [8].
enum UpdateScalar {
  update_lr,
  update_b1,
  update_1mb1,
  update_b2,
  update_1mb2,
  update_c1,
  update_c2,
  update_clip,
  update_scalars
};
/// AdamW (and adam_pax, by its scalars) as in spec/training.md 2.9, in place. The gradient is the sum of `gradients`
/// in order, times the clip factor. Returns the new weight.
Value adamw(Builder& b, Value w, Value m, Value v, const Values& gradients, Value scalars, double eps, double eps_root,
            double weight_decay);
Value sgd(Builder& b, Value w, const Values& gradients, Value scalars);
/// Writes the parameter, rounded, over the weight, in place; returns the new weight.
Value recast(Builder& b, Value weight, Value parameter);
/// Sums of squares per 16x16 tile (2-D) or 256 elements (1-D) of the sum of `parts`, in f64 (spec/training.md 2.11).
Value sum_squares(Builder& b, const Values& parts);
/// sqrt of the sum of all tile sums: f64 [1]; order-free (spec/scale.md 5.2), NaN or Inf if any tile is.
Value norm(Builder& b, const Values& tiles);

/// Random bits and place of a quantised tensor, i32: {seed, step, first row of the tensor in the whole batch, 0}.
inline constexpr int64_t quantize_words = 4;
/// Amaxes that a delayed scale looks back on, the running step's included.
inline constexpr int64_t fp8_history_length = 1024;

extern const Op embedding_op, embedding_grad_op, linear_op, linear_dgrad_op, linear_wgrad_op, rms_norm_op,
    rms_norm_grad_op, rope_op, attention_op, attention_grad_op, swiglu_op, swiglu_grad_op, add_op, scale_op,
    split_heads_op, merge_heads_op, zeros_op, ones_op, cross_entropy_op, cross_entropy_grad_op, append_op,
    attention_cached_op, take_row_op, adamw_op, sgd_op, sum_squares_op, norm_op, recast_op;
/// Made by passes/quantize, by no model.
extern const Op quantize_op, requantize_op, quantize_weight_op, quantize_weights_op, qlinear_op, qlinear_dgrad_op,
    qlinear_wgrad_op, record_amax_op, advance_scale_op, quest_mask_op, quest_back_op, quest_back_add_op;
/// Made by passes/weight_only, by no model.
extern const Op linear_w4_op, embedding_w4_op;
/// Made by passes/quantize for evaluation and generation.
extern const Op quantize_rows_op, qlinear_rows_op;
/// Made by passes/fuse, by no model.
extern const Op residual_rms_norm_op, residual_rms_norm_grad_op, rope_pair_op, adamw_squares_op;

}  // namespace nibble
