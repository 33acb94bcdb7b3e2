#include "data/dataset.h"

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"

namespace nibble {

TokenDataset::TokenDataset(const std::vector<std::string>& shard_files, int64_t vocab, const Split& split)
    : vocab_(vocab) {
  if (split.holdout == Holdout::tail)
    throw Error("E010", "eval_holdout=tail with token shards is not in this version")
        .where("eval_holdout=tail")
        .hint("eval_holdout=hash, or eval_files=");
  for (const std::string& path : shard_files) shards_.emplace_back(path);
  check_ids();
  starts_.push_back(0);
  for (size_t s = 0; s < shards_.size(); ++s) {
    const Shard& shard = shards_[s];
    for (int64_t d = 0; d < shard.documents(); ++d) {
      const int64_t begin = shard.document_begin(d), length = shard.document_begin(d + 1) - begin;
      if (length == 0) {
        ++empty_;
        continue;
      }
      if (split.holdout == Holdout::hash && !in_part(split, xxh3(shard.id_bytes(begin, length)))) continue;
      places_.push_back({static_cast<int32_t>(s), d});
      starts_.push_back(starts_.back() + length);
      source_bytes_ += shard.document_bytes(d);
      longest_ = std::max(longest_, length);
    }
  }
}

// The recorded largest id decides; only a shard that fails is searched for the place.
void TokenDataset::check_ids() const {
  std::vector<int32_t> ids(1 << 16);
  for (const Shard& shard : shards_) {
    if (shard.tokens() == 0 || static_cast<int64_t>(shard.largest_id()) < vocab_) continue;
    for (int64_t at = 0; at < shard.tokens(); at += static_cast<int64_t>(ids.size())) {
      const int64_t count = std::min(static_cast<int64_t>(ids.size()), shard.tokens() - at);
      shard.read(at, {ids.data(), static_cast<size_t>(count)});
      for (int64_t i = 0; i < count; ++i) {
        const int64_t id = static_cast<uint32_t>(ids[static_cast<size_t>(i)]);
        if (id >= vocab_) bad_id(shard, at + i, id);
      }
    }
    bad_id(shard, shard.tokens(), static_cast<int64_t>(shard.largest_id()));  // recorded but not there
  }
}

void TokenDataset::bad_id(const Shard& shard, int64_t token, int64_t id) const {
  int64_t low = 0, high = shard.documents();
  while (high - low > 1) (shard.document_begin((low + high) / 2) <= token ? low : high) = (low + high) / 2;
  throw Error("E303", "token id {} is not below the vocabulary of {} in {}", id, vocab_, shard.path())
      .where("{}, token offset {}, document {}", shard.path(), token, low)
      .expected(fmt::format("ids below V = {}", vocab_), std::to_string(id))
      .hint("vocab_size={} or larger, or shards made with the tokenizer of this model", (id / 128 + 1) * 128);
}

int64_t TokenDataset::document_at(int64_t position) const {
  return std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin() - 1;
}

int64_t TokenDataset::document_bytes(int64_t d) const {
  const Place& place = places_[static_cast<size_t>(d)];
  return shards_[static_cast<size_t>(place.shard)].document_bytes(place.document);
}

void TokenDataset::read(int64_t position, std::span<int32_t> out, int64_t document) const {
  while (!out.empty()) {
    const Place& place = places_[static_cast<size_t>(document)];
    const Shard& shard = shards_[static_cast<size_t>(place.shard)];
    const int64_t first = shard.document_begin(place.document) + position - document_begin(document);
    const int64_t count = std::min(static_cast<int64_t>(out.size()), document_end(document) - position);
    const std::span<int32_t> piece = out.first(static_cast<size_t>(count));
    shard.read(first, piece);
    for (size_t i = 0; i < piece.size(); ++i) {  // a file may change under a running program
      const int64_t id = static_cast<uint32_t>(piece[i]);
      if (id >= vocab_) bad_id(shard, first + static_cast<int64_t>(i), id);
    }
    out = out.subspan(static_cast<size_t>(count)), position += count, ++document;
  }
}

}  // namespace nibble
