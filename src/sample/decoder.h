// encode(): causal rows over a key/value cache, next-token logits of the last one (spec/generation.md 1.1, 1.2).
// One sequence; its cache is contiguous. Rows run in executables for fixed row counts ("buckets"), planned before the
// run; the result does not depend on how a prompt is cut.
#pragma once
#include <span>
#include <vector>

#include "models/graphs.h"
#include "runtime/program.h"

namespace nibble {

/// 1, 2, 4, ... up to `most`, and `most` itself.
std::vector<int64_t> row_buckets(int64_t most);
/// The decoding executables "decode_<rows>" over a cache of `positions` positions.
std::vector<NamedGraph> decode_graphs(const LlamaConfig& c, const std::vector<int64_t>& buckets, int64_t positions);
/// Bytes of the cache.
int64_t cache_bytes(const LlamaConfig& c, int64_t positions);

class Decoder {
 public:
  /// `program` holds decode_graphs of these buckets; parameters and rope table are the caller's to fill.
  Decoder(Program& program, std::vector<int64_t> buckets, int64_t positions);
  /// Appends ids at positions length(), length() + 1, ...; returns the logits [V] after the last one, valid until the
  /// next call of anything in the program. Chunks of at most `chunk` rows (0: the largest bucket).
  /// Allocates nothing. Fails with E901 if they do not fit: callers check the context first.
  std::span<const float> encode(std::span<const int32_t> ids, int64_t chunk = 0);
  /// Forgets positions >= n.
  void truncate(int64_t n);
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }

 private:
  struct Bucket {
    int64_t rows;
    Executable* run;
  };
  std::vector<Bucket> buckets_;  // ascending
  int64_t capacity_, length_ = 0;
};

}  // namespace nibble
