// Small models for the tests of decoding and generation: one with random weights, and one that is a table of
// successors, so that its greedy text is known beforehand.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_info.h"
#include "numerics/normal.h"
#include "sample/decoder.h"

namespace nibble {

/// V is larger than the byte tokenizer (259 ids): the last rows are padding and must never be drawn.
inline LlamaConfig small_llama() {
  return {.layers = 2,
          .width = 32,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 8,
          .hidden = 48,
          .vocab = 272,
          .max_positions = 512};
}

/// Every parameter from its name and the seed, 1 where the table says so; the rope table.
inline void fill_weights(Program& program, const LlamaConfig& c, uint32_t seed) {
  for (const Parameter& p : llama_parameters(c)) {
    const Tensor w = program.state(StateRole::parameter, p.name);
    if (p.init == Parameter::Init::ones)
      std::fill_n(w.as<float>(), w.numel(), 1.0f);
    else
      fill_normal(w.as<float>(), 0, w.numel(), seed, p.name, p.std, p.init == Parameter::Init::truncated);
  }
  const Tensor table = program.state(StateRole::constant, "rope_table");
  fill_rope_table(c.rope, c.head_size, 0, table.dim(0), table.as<float>());
}

/// A program that only decodes, with its decoder.
struct SmallModel {
  LlamaConfig config;
  std::unique_ptr<Program> program;
  std::unique_ptr<Decoder> decoder;

  SmallModel(const LlamaConfig& c, int64_t positions, std::vector<int64_t> buckets, int threads = 1,
             CpuTarget target = CpuTarget::ref)
      : config(c),
        program(std::make_unique<Program>(plan_program(decode_graphs(c, buckets, positions), threads, target))) {
    fill_weights(*program, c, 11);
    decoder = std::make_unique<Decoder>(*program, std::move(buckets), positions);
  }
  float* weight(const std::string& name) const { return program->state(StateRole::parameter, name).as<float>(); }
};

inline std::vector<float> copied(std::span<const float> values) { return {values.begin(), values.end()}; }

/// Makes `model` greedy-predictable: after id a comes next[a] (a + 1 where the map is silent). Attention and MLP add
/// nothing, so the hidden state is the embedding of the last id, and the head's row next[a] is that embedding.
inline void make_successor(const SmallModel& model, const std::map<int32_t, int32_t>& next) {
  const LlamaConfig& c = model.config;
  for (int64_t i = 0; i < c.layers; ++i) {
    std::fill_n(model.weight(fmt::format("model.layers.{}.self_attn.o_proj.weight", i)),
                c.width * c.heads * c.head_size, 0.0f);
    std::fill_n(model.weight(fmt::format("model.layers.{}.mlp.down_proj.weight", i)), c.width * c.hidden, 0.0f);
  }
  float *embedding = model.weight(llama_embedding), *head = model.weight(llama_head);
  fill_normal(embedding, 0, c.vocab * c.width, 5, "successor", 1, false);
  std::fill_n(head, c.vocab * c.width, 0.0f);
  for (int32_t a = 0; a < c.vocab; ++a) {
    const auto found = next.find(a);
    const int64_t to = found != next.end() ? found->second : (a + 1) % c.vocab;
    for (int64_t k = 0; k < c.width; ++k) head[to * c.width + k] += embedding[a * c.width + k];
  }
}

}  // namespace nibble
