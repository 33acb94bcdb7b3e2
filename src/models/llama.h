// The Llama family: Llama 2, 3, 3.1, 3.2, SmolLM2, Mistral, nibble's own sizes
// (spec/training.md 3; Touvron et al., arXiv 2302.13971). The forward pass and the parameter table; gradients,
// placement and kernels are passes.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "models/rope.h"
#include "ops/ops.h"

namespace nibble {

struct LlamaConfig {
  int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, head_size = 0, hidden = 0, vocab = 0;
  int64_t max_positions = 2048;
  int64_t window = 0;  // keys that a query sees, its own included; 0: all up to its own
  double eps = 1e-5;
  bool tied = false;       // the head is the embedding table
  double score_scale = 0;  // on attention scores; 0 = 1/sqrt(head_size)
  double head_scale = 1;   // on the hidden states before the head: 1/sqrt(E) for normalize_embedding_logits
  RopeConfig rope;
  double attention_scale() const;
};

enum class InitMethod { fan_in, normal, depth_scaled };

/// One weight: identity, shape, and how it starts (spec/training.md 2.2).
struct Parameter {
  std::string name;  // Hugging Face name: identity
  Shape shape;
  enum class Init { ones, normal, truncated } init;
  double std = 0;
};
/// In the order of the file: embedding, layers, norm, head. `fold_scores`: q starts divided by sqrt(head_size)
/// (numerics=maxtext).
std::vector<Parameter> llama_parameters(const LlamaConfig& c, InitMethod method = InitMethod::fan_in,
                                        double init_std = 0.02, bool fold_scores = false);
int64_t parameter_count(const LlamaConfig& c);
inline constexpr const char* llama_embedding = "model.embed_tokens.weight";
inline constexpr const char* llama_head = "lm_head.weight";
/// The matrix of the head: lm_head, or the embedding where tied.
Value llama_head_weight(Builder& b, const LlamaConfig& c);

/// What the attention of a layer does with q [.., H, D], k and v [.., K, D] (rotated): over the rows of the batch in
/// training, over a cache in decoding.
using Attend = std::function<Value(Builder& b, int64_t layer, Value q, Value k, Value v)>;

/// tokens i32 [...] at positions i32 [...] -> hidden states [..., E] after the last norm; the head belongs to the loss
/// or to the logits. table: rope_table() as a constant state [P, D].
Value llama_hidden(Builder& b, const LlamaConfig& c, const Attend& attend, Value tokens, Value positions,
                   Value table_PD);

/// The constant state that holds the rope table of `positions` rows.
Value llama_rope_table(Builder& b, const LlamaConfig& c, int64_t positions);

}  // namespace nibble
