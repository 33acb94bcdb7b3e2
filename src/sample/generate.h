// The generation loop of mode ar: encode, filter and draw, stop, and stream text (spec/generation.md 1.3 to 1.8).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "sample/decoder.h"
#include "sample/sampling.h"

namespace nibble {

struct GenerateOptions {
  SamplingParams sampling;
  uint32_t seed = 0, sample = 0;  // sample: index 0 .. n-1 of several continuations
  int64_t max_new_tokens = 256, min_new_tokens = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;  // beside the tokenizer's EOS
  bool ignore_eos = false;
  std::vector<int32_t> forbid_ids;
  bool special = false;  // show special tokens
};

enum class FinishReason { stop, length, cancelled };
std::string_view name_of(FinishReason reason);

/// Called on the generating thread.
struct GenerateEvents {
  std::function<void(int32_t id, double log_probability)> token;
  std::function<void(std::string_view delta)> text;
  std::function<bool()> cancelled;  // asked before each token
};

struct Generated {
  std::vector<int32_t> ids;  // the new ones, a final EOS included
  std::string text;
  FinishReason reason = FinishReason::length;
  double prompt_seconds = 0, decode_seconds = 0;
};

/// Continues `prompt` (at least one id) from an empty cache.
/// Errors: E311 prompt longer than the context - 1, E705 logits that are not numbers, E002 options out of range.
Generated generate(Decoder& decoder, const Tokenizer& tokenizer, const std::vector<int32_t>& eos,
                   std::span<const int32_t> prompt, int64_t vocab, const GenerateOptions& options,
                   const GenerateEvents& events);

}  // namespace nibble
