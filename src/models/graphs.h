// The graphs of a job around a model: a training microbatch, evaluation, logits, decoding over a cache.
// Each reads the same states; runtime/program puts them over one arena.
#pragma once
#include "models/llama.h"

namespace nibble {

/// Inputs of the graphs over rows of a batch: tokens, positions, segments i32 [B, T]; with loss: targets i32 [B, T]
/// (< 0: no target) and inv_n f32 [1] = 1/N.
struct BatchShape {
  int64_t rows, length;
};

/// "ce" and "lse" [B, T], not differentiated yet (passes/grad). dtype: of activations and products; with bf16 the graph
/// reads weights, which weights_graph (passes/quantize) rounds from the parameters. loss_tiles: as of cross_entropy.
Graph llama_loss_graph(const LlamaConfig& c, BatchShape shape, double z_loss, DType dtype = DType::f32,
                       int64_t loss_tiles = 1);
/// "logits" [B, T, V].
Graph llama_logits_graph(const LlamaConfig& c, BatchShape shape);
/// One decoding step of up to `rows` rows over a cache of `positions`: inputs tokens, positions i32 [R], span i32 [2],
/// last i32 [1]; output "logits" [1, V] of row `last`. Appends keys and values to the caches k.<layer>, v.<layer>,
/// states [positions, K, D].
Graph llama_decode_graph(const LlamaConfig& c, int64_t rows, int64_t positions);

}  // namespace nibble
