// Token shards, `.nbt`: the ids of many documents in one memory-mapped file, little-endian.
//
//    0 "NIBBLTOK"   8 u32 version 1   12 u32 bytes per id (2 if V <= 65536, else 4)   16 u64 tokens n   24 u64
//    documents d
//   32 u64 largest id   40 u64 source bytes   48 u64 key   56 u64 XXH3-64 of bytes 0-55 and of all after the id area
//   64 n ids, zero-filled to a multiple of 64 bytes | u64[d+1] first token of each document (last = n)
//      | u64[d] source bytes of each | u64 XXH3-64 of every 64 MiB of the id area, fill included
//
// Source: spec/training.md 4.6.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/mapped_file.h"

namespace nibble {

/// Writes one shard: append documents, then finish. The header is written last, so a file that was left half-way
/// never opens. A writer destroyed without finish() leaves such a file for its owner to remove.
/// Errors: E803 the file cannot be created, E801 a write failed.
class ShardWriter {
 public:
  ShardWriter(const std::string& path, int bytes_per_id, uint64_t key);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  /// One document: its ids (BOS and EOS included, at least one) and the bytes of text they stand for.
  void add(std::span<const int32_t> ids, int64_t source_bytes);
  int64_t tokens() const;
  /// Writes the tables and the header and makes the file durable.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One shard, mapped. Opening checks magic, version, sizes, the header's checksum and the order of the documents.
class Shard {
 public:
  /// Errors: E202 unreadable, E309 wrong magic, size or checksum (expected and found).
  explicit Shard(const std::string& path);
  const std::string& path() const { return file_.path(); }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  int64_t source_bytes() const { return source_bytes_; }
  uint64_t largest_id() const { return largest_id_; }
  uint64_t key() const { return key_; }
  int bytes_per_id() const { return bytes_per_id_; }
  /// First token of document d; d = documents() gives tokens().
  int64_t document_begin(int64_t d) const;
  int64_t document_bytes(int64_t d) const;
  /// Copies ids [first, first + out.size()).
  void read(int64_t first, std::span<int32_t> out) const;
  /// The stored bytes of ids [first, first + count), what a document of a shard is hashed by.
  std::string_view id_bytes(int64_t first, int64_t count) const;
  /// Recomputes the checksum of every 64 MiB of ids. Errors: E309 naming the file and the piece.
  void verify() const;

 private:
  int64_t word(int64_t byte) const;
  MappedFile file_;
  int64_t tokens_ = 0, documents_ = 0, source_bytes_ = 0, table_ = 0, chunks_ = 0;
  uint64_t largest_id_ = 0, key_ = 0;
  int bytes_per_id_ = 2;
};

/// Ids of V tokens fit 2 bytes up to V = 65536.
inline int shard_bytes_per_id(int64_t vocab) { return vocab <= 65536 ? 2 : 4; }
constexpr int64_t shard_max_tokens = int64_t{1} << 30;

}  // namespace nibble
