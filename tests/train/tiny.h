// What the tests of src/train share: a folder that goes away, a model of 35,000 weights, rows of random tokens.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/philox.h"
#include "temporary_folder.h"
#include "train/model_setup.h"
#include "train/step.h"

namespace nibble {

inline LlamaConfig tiny_model(bool tied = false) {
  return {
      .layers = 2, .width = 32, .heads = 2, .kv_heads = 1, .head_size = 16, .hidden = 64, .vocab = 260, .tied = tied};
}

/// Words of a configuration of tiny_model() that trains on text with the byte tokenizer.
inline std::vector<std::string> tiny_words() {
  return {"model_name=default",
          "override_model_config=true",
          "base_emb_dim=32",
          "base_mlp_dim=64",
          "base_num_query_heads=2",
          "base_num_kv_heads=1",
          "head_dim=16",
          "base_num_decoder_layers=2",
          "vocab_size=260",
          "tokenizer_type=byte",
          "max_target_length=32",
          "per_device_batch_size=2",
          "learning_rate=1e-2",
          "threads=1"};
}

inline Config tiny_config(const std::vector<std::string>& more) {
  std::vector<std::string> words = tiny_words();
  words.insert(words.end(), more.begin(), more.end());
  const std::vector<std::string> no_environment;
  ResolveOptions options;
  options.environment = &no_environment;
  return resolve(words, options).config;
}

/// 400 numbered lines, 26 kB.
inline std::string write_book(const TemporaryFolder& folder) {
  std::ofstream out(folder / "book.txt");
  for (int i = 1; i <= 400; ++i)
    out << "line " << i << " of the little book about the number " << i * 7 % 13 << " and its friends\n";
  return folder / "book.txt";
}

/// Random tokens in documents of random length, some padding at the end of each row.
struct RandomRows {
  RandomRows(int64_t rows, int64_t length, int64_t vocab, uint32_t seed, int64_t padding = 0) : count(rows) {
    const auto n = static_cast<size_t>(rows * length);
    inputs.resize(n), targets.resize(n), segments.resize(n), positions.resize(n), weights.resize(n);
    const auto word = [&](int64_t i, uint32_t stream) {
      return philox4x32({static_cast<uint32_t>(i), 0, 0, 0x1f8}, seed, stream)[0];
    };
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t t = 0, segment = 1, position = 0; t < length; ++t, ++position) {
        const int64_t i = r * length + t;
        const auto at = static_cast<size_t>(i);
        if (t > 0 && word(i, 0) % 11 == 0) ++segment, position = 0;
        const bool pad = t >= length - padding;
        inputs[at] = pad ? 0 : static_cast<int32_t>(word(i, 1) % vocab),
        targets[at] = static_cast<int32_t>(word(i, 2) % vocab);
        segments[at] = pad ? 0 : static_cast<int32_t>(segment),
        positions[at] = pad ? 0 : static_cast<int32_t>(position);
        weights[at] = pad || word(i, 3) % 9 == 0 ? 0.0f : 1.0f;
      }
  }
  Rows rows() const {
    return {inputs.data(), targets.data(), segments.data(), positions.data(), weights.data(), count};
  }
  std::vector<int32_t> inputs, targets, segments, positions;
  std::vector<float> weights;
  int64_t count;
};

/// XXH3 of all states of a role, in the order of the parameter table.
inline uint64_t hash_of_states(Stepper& s, StateRole role) {
  std::vector<uint64_t> hashes;
  for (const Parameter& p : s.parameters())
    if (s.program().has_state(role, p.name)) {
      const Tensor t = s.program().state(role, p.name);
      hashes.push_back(xxh3(t.data, static_cast<size_t>(t.numel()) * 4));
    }
  return xxh3(hashes.data(), hashes.size() * sizeof(uint64_t));
}

}  // namespace nibble
