// Byte-level byte-pair encoding of one piece: the merge of lowest rank first, of equal ranks the leftmost.
// Source: spec/training.md 4.2; Sennrich et al., arXiv 1508.07909; equal to Hugging Face tokenizers' BPE.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

/// Tokens `left` and `right`, where adjacent, become `result`. Rank: the place in the list.
struct BpeMerge {
  int32_t left, right, result;
  bool operator==(const BpeMerge&) const = default;
};

/// Hash and equality for maps keyed by bytes that are looked up by string_view.
struct BytesHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const;
};
using BytesMap = std::unordered_map<std::string, int32_t, BytesHash, std::equal_to<>>;

/// The merges of a vocabulary, ready to encode. Const calls are safe from several threads: results of frequent pieces
/// are remembered per thread, in a table of fixed size (about 1 MB) that never changes a result.
class Bpe {
 public:
  /// byte_ids: id of each byte, -1 for a byte without one (dropped from pieces). whole: if not empty, a piece found
  /// in it gets that id before any merge (`ignore_merges`).
  Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<BpeMerge>& merges, BytesMap whole);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  /// Appends the ids of a piece. O(n log n) for n bytes.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint64_t pair;
    int32_t rank, result;
  };
  static constexpr uint64_t no_pair = ~uint64_t{0};
  static constexpr int32_t no_rank = INT32_MAX;
  static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t pair) const { return (pair * 0x9e3779b97f4a7c15u) >> shift_; }
  const Slot& lookup(int32_t left, int32_t right) const;
  void encode_uncached(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_short(const int32_t* bytes, int n, std::vector<int32_t>& ids) const;
  void encode_long(const std::vector<int32_t>& bytes, std::vector<int32_t>& ids) const;

  uint64_t identity_;  // of this object, for the tables of the threads
  std::array<int32_t, 256> byte_ids_;
  BytesMap whole_;
  bool has_no_merges_;
  int shift_ = 0;
  std::vector<Slot> slots_;  // open addressing, at most half full
};

}  // namespace nibble
