// Training a byte-level BPE: count distinct pieces, then merge in linked lists of symbols with an index from each pair
// to its positions, so that a merge costs its occurrences and nothing is recounted.  Source: spec/training.md 4.2.
#include "data/bpe_train.h"

#include <algorithm>
#include <queue>
#include <set>

#include "core/error.h"
#include "core/threads.h"
#include "data/split.h"
#include "data/utf8.h"

namespace nibble {
namespace {

using PieceCounts = std::unordered_map<std::string_view, int64_t, BytesHash, std::equal_to<>>;

// Cuts a document into parts of about 1 MB that split alone exactly as they do together: between "\n" after a visible
// ASCII character and an ASCII letter, where every rule ends a piece and none looks further.
void cut_document(std::string_view document, std::vector<std::string_view>& parts) {
  constexpr size_t part_bytes = 1 << 20;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  while (document.size() > part_bytes) {
    size_t at = part_bytes;
    while (at < document.size() &&
           !(document[at - 1] == '\n' && document[at - 2] > ' ' && document[at - 2] < 0x7f && letter(document[at])))
      ++at;
    parts.push_back(document.substr(0, at));
    document.remove_prefix(at);
  }
  if (!document.empty()) parts.push_back(document);
}

// Counts the pieces of one part. Ill-formed bytes are pieces of their own, so no merge contains one.
void count_pieces(std::string_view text, const Splitter& splitter, PieceCounts& counts) {
  while (!text.empty()) {
    const size_t valid = utf8_valid_prefix(text);
    splitter.split(text.substr(0, valid), [&](std::string_view piece) { ++counts[piece]; });
    text.remove_prefix(valid);
    if (!text.empty()) text.remove_prefix(utf8_step(text).bytes);
  }
}

// Distinct pieces of two bytes and more, in byte order, so that the lists below are the same for any thread count.
std::vector<std::pair<std::string_view, int64_t>> distinct_pieces(std::span<const std::string_view> documents,
                                                                  const BpeTrainOptions& options) {
  const Splitter splitter(split_pattern(options.split));
  std::vector<std::string_view> parts;
  for (const std::string_view document : documents) cut_document(document, parts);
  const int threads = options.pool ? options.pool->size() : 1;
  std::vector<PieceCounts> counts(threads);
  if (options.pool) {
    options.pool->run(static_cast<int64_t>(parts.size()),
                      [&](int64_t part, int thread) { count_pieces(parts[part], splitter, counts[thread]); });
  } else {
    for (const std::string_view part : parts) count_pieces(part, splitter, counts[0]);
  }
  for (int t = 1; t < threads; ++t)
    for (const auto& [piece, count] : counts[t]) counts[0][piece] += count;
  std::vector<std::pair<std::string_view, int64_t>> pieces;
  for (const auto& entry : counts[0])
    if (entry.first.size() > 1) pieces.push_back(entry);
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

class Trainer {
 public:
  Trainer(const std::vector<std::pair<std::string_view, int64_t>>& pieces, const BpeTrainOptions& options);
  TrainedBpe run();

 private:
  struct Pair {
    int32_t left, right;
    int64_t count = 0;
    int32_t rank = -1;               // of its merge; -1: not merged yet
    std::vector<int32_t> positions;  // where it may start: a superset of where it does
  };
  struct Candidate {
    int64_t count;
    int32_t left, right, pair;
    bool operator<(const Candidate& b) const {  // the greatest is merged next
      if (count != b.count) return count < b.count;
      return left != b.left ? left > b.left : right > b.right;
    }
  };

  void add_piece(std::string_view piece, int64_t weight);
  int32_t pair_index(int32_t left, int32_t right);
  void adjust(int32_t left, int32_t right, int64_t weight, int32_t position);
  void remove(int32_t left, int32_t right, int64_t weight) { pairs_[pair_index(left, right)].count -= weight; }
  void push(int32_t pair);
  int32_t best();
  int32_t token_of(const Pair& pair);
  void merge(int32_t pair);

  const BpeTrainOptions& options_;
  TrainedBpe out_;
  BytesMap ids_;                                    // of the tokens so far
  std::vector<int32_t> symbol_, next_, previous_;   // by position; symbol -1: merged into an earlier position
  std::vector<int64_t> weight_;                     // by position: how often its piece occurs
  std::vector<Pair> pairs_;                         // in order of first appearance
  std::unordered_map<uint64_t, int32_t> pair_ids_;  // left << 32 | right -> index in pairs_
  std::vector<int32_t> touched_;                    // pairs that the current merge made or found again
  std::priority_queue<Candidate> heap_;             // an entry may promise too much; see best()
  std::set<std::pair<int32_t, int32_t>> again_;     // rank and index of merged pairs that stand in the text again
};

Trainer::Trainer(const std::vector<std::pair<std::string_view, int64_t>>& pieces, const BpeTrainOptions& options)
    : options_(options) {
  size_t symbols = 0;
  for (const auto& entry : pieces) symbols += entry.first.size();
  if (symbols > INT32_MAX)
    throw Error("E010", "{} bytes of distinct pieces: training a BPE on more than {} is not in this version", symbols,
                INT32_MAX)
        .where("train_files")
        .hint("train the tokenizer on fewer files and use it for all of them");
  for (auto* list : {&symbol_, &next_, &previous_}) list->reserve(symbols);
  weight_.reserve(symbols);
  out_.split = options.split;
  out_.requested_size = options.vocab_size;
  for (int b = 0; b < 256; ++b) {
    out_.tokens.emplace_back(1, static_cast<char>(b));
    ids_[out_.tokens.back()] = b;
  }
  for (const auto& [piece, weight] : pieces) add_piece(piece, weight);
  touched_.clear();
  for (size_t p = 0; p < pairs_.size(); ++p) push(static_cast<int32_t>(p));
}

void Trainer::add_piece(std::string_view piece, int64_t weight) {
  const auto first = static_cast<int32_t>(symbol_.size()), last = first + static_cast<int32_t>(piece.size()) - 1;
  for (int32_t at = first; at <= last; ++at) {
    symbol_.push_back(static_cast<uint8_t>(piece[at - first]));
    next_.push_back(at < last ? at + 1 : -1);
    previous_.push_back(at > first ? at - 1 : -1);
    weight_.push_back(weight);
    if (at > first) adjust(symbol_[at - 1], symbol_[at], weight, at - 1);
  }
}

int32_t Trainer::pair_index(int32_t left, int32_t right) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  const auto [it, is_new] = pair_ids_.try_emplace(key, static_cast<int32_t>(pairs_.size()));
  if (is_new) pairs_.push_back({left, right, 0, -1, {}});
  return it->second;
}

void Trainer::adjust(int32_t left, int32_t right, int64_t weight, int32_t position) {
  const int32_t index = pair_index(left, right);
  pairs_[index].count += weight;
  pairs_[index].positions.push_back(position);
  touched_.push_back(index);
}

void Trainer::push(int32_t pair) {
  const Pair& p = pairs_[pair];
  if (p.count <= 0) return;
  if (p.rank >= 0) {
    again_.emplace(p.rank, pair);
  } else {
    heap_.push({p.count, p.left, p.right, pair});
  }
}

// Counts mostly fall, so entries are corrected when they come up; where a count rises, merge() pushes a new entry.
int32_t Trainer::best() {
  while (!heap_.empty()) {
    const Candidate top = heap_.top();
    const Pair& pair = pairs_[top.pair];
    if (pair.count == top.count && pair.count > 0) return pair.count >= options_.min_frequency ? top.pair : -1;
    heap_.pop();
    if (pair.count < top.count) push(top.pair);
  }
  return -1;
}

int32_t Trainer::token_of(const Pair& pair) {
  std::string bytes = out_.tokens[pair.left] + out_.tokens[pair.right];
  const auto [it, is_new] = ids_.try_emplace(bytes, static_cast<int32_t>(out_.tokens.size()));
  if (is_new) out_.tokens.push_back(std::move(bytes));
  return it->second;
}

void Trainer::merge(int32_t index) {
  const int32_t left = pairs_[index].left, right = pairs_[index].right;
  const int32_t result = out_.merges[pairs_[index].rank].result;
  std::vector<int32_t> positions = std::move(pairs_[index].positions);
  pairs_[index].positions.clear();
  std::sort(positions.begin(), positions.end());  // left to right: decides "aaa"
  touched_.clear();
  for (const int32_t at : positions) {
    const int32_t gone = next_[at];
    if (symbol_[at] != left || gone < 0 || symbol_[gone] != right) continue;
    const int32_t before = previous_[at], after = next_[gone];
    const int64_t weight = weight_[at];
    pairs_[index].count -= weight;
    if (before >= 0) {
      remove(symbol_[before], left, weight);
      adjust(symbol_[before], result, weight, before);
    }
    if (after >= 0) {
      remove(right, symbol_[after], weight);
      adjust(result, symbol_[after], weight, at);
      previous_[after] = at;
    }
    symbol_[at] = result;
    symbol_[gone] = -1;
    next_[at] = after;
  }
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  for (const int32_t t : touched_) push(t);
}

TrainedBpe Trainer::run() {
  const auto limit = static_cast<size_t>(options_.vocab_size - 3);
  while (out_.tokens.size() < limit) {
    const int32_t index = best();
    if (index < 0) break;
    heap_.pop();
    const int32_t result = token_of(pairs_[index]);
    pairs_[index].rank = static_cast<int32_t>(out_.merges.size());
    out_.merges.push_back({pairs_[index].left, pairs_[index].right, result});
    merge(index);
    while (!again_.empty()) {  // a token made twice meets an older merge: encoding would make that merge, so it is made
      const int32_t older = again_.begin()->second;
      again_.erase(again_.begin());
      merge(older);
    }
  }
  out_.vocab_size = static_cast<int64_t>(out_.tokens.size()) + 3;
  return std::move(out_);
}

}  // namespace

TrainedBpe train_bpe(std::span<const std::string_view> documents, const BpeTrainOptions& options) {
  if (options.vocab_size < 259)
    throw Error("E002", "vocab_size={} is too small for a byte-level BPE", options.vocab_size)
        .expected("at least 259: 256 bytes and 3 special tokens", fmt::to_string(options.vocab_size))
        .hint("vocab_size=1024");
  if (std::all_of(documents.begin(), documents.end(), [](std::string_view d) { return d.empty(); }))
    throw Error("E203", "no text to train a tokenizer on: {} documents, 0 bytes", documents.size())
        .where("train_files")
        .hint("give a file that holds text");
  return Trainer(distinct_pieces(documents, options), options).run();
}

}  // namespace nibble
