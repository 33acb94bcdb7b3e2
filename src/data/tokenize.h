// Text and JSON lines to token shards, once: documents are encoded in parallel, written in order into a folder under a
// temporary name, made durable and renamed, so an interrupted run never leaves a folder that looks usable. A folder in
// the cache is found again by a key of the sources' content, the options and the tokenizer.
// Source: spec/training.md 4.1, 4.5 and 4.6.
//
// meta.json: {"key", "tokenizer": {"name", "hash"}, "options", "sources": [{"name", "bytes", "XXH3-64"}], "shards":
// [{"name", "tokens", "documents"}], "tokens", "documents", "source_bytes", "empty_documents", "bad_records"}. options
// holds add_bos, add_eos, text_document, column and tokenizer_split; with an evaluation split also eval_fraction,
// eval_holdout and part ("train" or "eval": the two parts are two folders); parse_special when true.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/threads.h"
#include "data/encoder.h"
#include "data/shards.h"
#include "data/source.h"

namespace nibble {

struct TokenizeOptions {
  TextOptions text;
  DataKind kind = DataKind::detect;
  bool add_bos = true, add_eos = true;  // act where the tokenizer has the token
  std::string tokenizer_split;          // part of the key only
  int64_t max_shard_tokens = shard_max_tokens;
  /// Called between blocks of documents; may throw to stop (a signal). Nothing is left behind then.
  std::function<void()> poll;
};

/// A folder of shards.
struct TokenFolder {
  std::string folder;
  std::vector<std::string> shards;  // paths, in order
  uint64_t key = 0;
  int64_t tokens = 0, documents = 0, source_bytes = 0, empty_documents = 0, bad_records = 0;
  bool built = false;  // false: found in the cache
  std::string notice;  // one line for the log, or empty
};

/// The key of tokenising these files (not globs) in this way: reads every byte of them.
uint64_t token_folder_key(const std::vector<std::string>& files, const TextEncoder& encoder,
                          const TokenizeOptions& options);

/// The folder if it is complete and, with `key`, made for that key; else nothing. Reads headers and tables only.
std::optional<TokenFolder> open_token_folder(const std::string& folder, std::optional<uint64_t> key = {});

/// Tokenises into `folder`, which must not exist or be empty (or `overwrite`).
/// Errors: E307 bad input, E802 folder not empty, E803 and E801 it cannot be written; those of expand_files' files.
TokenFolder tokenize_to(const std::vector<std::string>& files, const TextEncoder& encoder,
                        const TokenizeOptions& options, const std::string& folder, ThreadPool& pool,
                        bool overwrite = false);

/// The same in <cache_directory>/nibble-<key>/ (empty: beside the first file), built only if not there yet. When that
/// cannot be written, in `fallback` (empty: E803), with a notice.
TokenFolder tokenize_cached(const std::vector<std::string>& files, const TextEncoder& encoder,
                            const TokenizeOptions& options, const std::string& cache_directory,
                            const std::string& fallback, ThreadPool& pool);

}  // namespace nibble
