// A token stream of documents: the shards of a data set one after the other, memory-mapped, or the documents of them
// that an evaluation split means.  Source: spec/training.md 4.1, 4.5 and 4.6.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/shards.h"
#include "data/source.h"

namespace nibble {

/// Positions count tokens of the stream from 0; documents are contiguous and never empty. Reading is thread-safe.
class TokenDataset {
 public:
  /// vocab: V, every id must be below it. split: none or hash (over the ids' stored bytes); `tail` is for text files.
  /// Errors: E303 an id >= V (id, V, file, offset, document), E309 damaged shards, E010 tail.
  TokenDataset(const std::vector<std::string>& shard_files, int64_t vocab, const Split& split = {});

  int64_t tokens() const { return starts_.back(); }
  int64_t documents() const { return static_cast<int64_t>(places_.size()); }
  int64_t source_bytes() const { return source_bytes_; }
  int64_t longest_document() const { return longest_; }
  int64_t empty_documents() const { return empty_; }  // found in the shards and dropped
  int64_t vocab() const { return vocab_; }
  int64_t files() const { return static_cast<int64_t>(shards_.size()); }

  /// Document that holds the token at `position`; its first position; one past its last; its source bytes.
  int64_t document_at(int64_t position) const;
  int64_t document_begin(int64_t d) const { return starts_[static_cast<size_t>(d)]; }
  int64_t document_end(int64_t d) const { return starts_[static_cast<size_t>(d) + 1]; }
  int64_t document_bytes(int64_t d) const;

  /// Copies the tokens [position, position + out.size()), which lie within the stream; `document` holds position.
  /// Errors: E303.
  void read(int64_t position, std::span<int32_t> out, int64_t document) const;
  void read(int64_t position, std::span<int32_t> out) const { read(position, out, document_at(position)); }

 private:
  struct Place {
    int32_t shard;
    int64_t document;  // within the shard
  };
  void check_ids() const;
  [[noreturn]] void bad_id(const Shard& shard, int64_t token, int64_t id) const;

  std::vector<Shard> shards_;
  std::vector<Place> places_;    // of each document
  std::vector<int64_t> starts_;  // [documents + 1] positions in the stream
  int64_t vocab_, source_bytes_ = 0, longest_ = 0, empty_ = 0;
};

}  // namespace nibble
