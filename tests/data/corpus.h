// What the tests of src/data share: a folder that goes away, a tokenizer of bytes, and a check of error rows.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/threads.h"
#include "data/dataset.h"
#include "data/encoder.h"
#include "data/shards.h"
#include "temporary_folder.h"

namespace nibble {

/// The byte tokenizer: id = byte, BOS 256, EOS 257, PAD 258.  Source: spec/training.md 4.2.
inline TextEncoder byte_encoder() {
  TextEncoder e;
  e.encode = [](std::string_view text, std::vector<int32_t>& ids) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  };
  e.bos = 256, e.eos = 257, e.pad = 258, e.vocab = 259, e.hash = 1, e.name = "byte";
  return e;
}

/// A shard with one document per list, one source byte a token.
inline std::string write_shard(const std::string& path, const std::vector<std::vector<int32_t>>& documents,
                               int bytes_per_id = 2) {
  ShardWriter writer(path, bytes_per_id, 7);
  for (const auto& ids : documents) writer.add(ids, static_cast<int64_t>(ids.size()));
  writer.finish();
  return path;
}

/// Runs f, which must throw Error `id` with exit code `exit` whose message contains every word.
template <class F>
void expect_error(F f, const std::string& id, int exit, const std::vector<std::string>& words) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.id, id) << error.message();
    EXPECT_EQ(error.exit_code(), exit) << error.message();
    for (const std::string& word : words)
      EXPECT_NE(error.message().find(word), std::string::npos) << "missing: " << word << "\n" << error.message();
    return;
  }
  ADD_FAILURE() << "expected " << id << ", nothing was thrown";
}

}  // namespace nibble
