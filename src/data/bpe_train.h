// Training a byte-level BPE.  Source: spec/training.md 4.2; Sennrich et al., arXiv 1508.07909.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"

namespace nibble {

class ThreadPool;

struct BpeTrainOptions {
  int64_t vocab_size = 8192;   // V, the 256 bytes and the 3 special tokens included
  std::string split = "gpt2";  // gpt2, llama3 or qwen2
  int64_t min_frequency = 2;   // a pair seen less often is not merged
  ThreadPool* pool = nullptr;  // counts pieces on its threads; the result does not depend on it
};

/// A trained vocabulary. Ids 0-255 are the bytes, then come the merged tokens in order of creation, and last
/// <|bos|>, <|eos|>, <|pad|>.
struct TrainedBpe {
  std::vector<std::string> tokens;  // bytes of every id below bos
  std::vector<BpeMerge> merges;     // in order of creation; two merges may make the same token, which is listed once
  std::string split;
  int64_t vocab_size = 0;      // reached: tokens and the 3 special ones; below requested_size if it stopped early
  int64_t requested_size = 0;  // options.vocab_size
  int32_t bos() const { return static_cast<int32_t>(vocab_size - 3); }
  int32_t eos() const { return static_cast<int32_t>(vocab_size - 2); }
  int32_t pad() const { return static_cast<int32_t>(vocab_size - 1); }
};

/// Learns merges from documents. Each merge takes the adjacent pair with the highest count (overlapping occurrences of
/// a pair such as "aaa" count each), ties to the smaller left id, then the smaller right id, and is made everywhere,
/// from left to right. Documents need not be well-formed UTF-8. Same result for any number of threads.
/// A pair that joins to a token that exists already (a+bc after ab+c) is merged into that token without a new id.
/// Errors: E002 for vocab_size < 259 and an unknown split rule; E203 for no text at all.
/// Cost: one pass over the text, then time by occurrences in distinct pieces; memory about 60 bytes for each byte of
/// distinct pieces.
TrainedBpe train_bpe(std::span<const std::string_view> documents, const BpeTrainOptions& options);

}  // namespace nibble
