// Encoding with byte-level BPE.  Source: spec/training.md 4.2.
#include "data/bpe.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>

#include "core/hash.h"

namespace nibble {
namespace {

// A piece of up to 23 bytes as three words, zeros after its end, its length in the last byte. Two loads that overlap
// instead of a copy of unknown size: this and the comparison are most of what a remembered piece costs.
struct PieceKey {
  uint64_t words[3] = {};
  bool operator==(const PieceKey&) const = default;
};
constexpr size_t cached_bytes = 23;

uint64_t load8(const char* p) {
  uint64_t w;
  std::memcpy(&w, p, 8);
  return w;
}
uint64_t load4(const char* p) {
  uint32_t w;
  std::memcpy(&w, p, 4);
  return w;
}
uint64_t load_byte(const char* p) { return static_cast<uint8_t>(*p); }

PieceKey key_of(std::string_view piece) {  // 1 to 23 bytes; little-endian
  const char* p = piece.data();
  const size_t n = piece.size();
  PieceKey key;
  auto& w = key.words;
  if (n >= 8) {
    w[0] = load8(p);
    if (n >= 16) {
      w[1] = load8(p + 8);
      if (n > 16) w[2] = load8(p + n - 8) >> 8 * (24 - n);
    } else if (n > 8) {
      w[1] = load8(p + n - 8) >> 8 * (16 - n);
    }
  } else if (n >= 4) {
    w[0] = load4(p) | load4(p + n - 4) << 8 * (n - 4);
  } else {
    w[0] = load_byte(p) | load_byte(p + n / 2) << 8 * (n / 2) | load_byte(p + n - 1) << 8 * (n - 1);
  }
  w[2] |= uint64_t{n} << 56;
  return key;
}

// A remembered piece, one cache line. Longer pieces, and pieces of more ids, are encoded anew each time.
constexpr size_t cached_ids = 9;
constexpr int cache_bits = 14;
struct alignas(64) CacheEntry {
  PieceKey key;  // all zero: empty
  int32_t count = 0;
  int32_t ids[cached_ids] = {};
};
static_assert(sizeof(CacheEntry) == 64);

struct Cache {
  uint64_t owner = 0;
  std::vector<CacheEntry> entries;
};

CacheEntry& cache_entry(uint64_t owner, const PieceKey& key) {
  thread_local Cache cache;
  if (cache.owner != owner) {
    cache.entries.assign(size_t{1} << cache_bits, CacheEntry());
    cache.owner = owner;
  }
  uint64_t h = key.words[0] * 0x9e3779b97f4a7c15u;
  h = (std::rotl(h, 29) ^ key.words[1]) * 0xbf58476d1ce4e5b9u;
  h = (std::rotl(h, 31) ^ key.words[2]) * 0x94d049bb133111ebu;
  return cache.entries[(h ^ h >> 29) * 0x9e3779b97f4a7c15u >> (64 - cache_bits)];
}

constexpr int short_piece = 32;  // up to here a scan for the lowest rank is faster than a heap

}  // namespace

size_t BytesHash::operator()(std::string_view s) const { return xxh3(s); }

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<BpeMerge>& merges, BytesMap whole)
    : byte_ids_(byte_ids), whole_(std::move(whole)), has_no_merges_(merges.empty()) {
  static std::atomic<uint64_t> next_identity{1};
  identity_ = next_identity++;
  const auto bits = static_cast<int>(std::bit_width(2 * merges.size() + 1));
  shift_ = 64 - bits;
  slots_.assign(size_t{1} << bits, Slot{no_pair, no_rank, -1});
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    size_t s = slot_of(pair);
    while (slots_[s].pair != no_pair && slots_[s].pair != pair) s = (s + 1) & (slots_.size() - 1);
    slots_[s] = {pair, static_cast<int32_t>(rank),
                 merges[rank].result};  // a pair listed twice: the later rank, as there
  }
}

const Bpe::Slot& Bpe::lookup(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  size_t s = slot_of(pair);
  while (slots_[s].pair != pair && slots_[s].pair != no_pair) s = (s + 1) & (slots_.size() - 1);
  return slots_[s];
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (has_no_merges_ && whole_.empty()) {  // the byte tokenizer: one piece may be a whole document
    for (const char c : piece)
      if (const int32_t id = byte_ids_[static_cast<uint8_t>(c)]; id >= 0) ids.push_back(id);
    return;
  }
  if (piece.size() > cached_bytes) return encode_uncached(piece, ids);
  const PieceKey key = key_of(piece);
  CacheEntry& entry = cache_entry(identity_, key);
  if (entry.key == key) {
    ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
    return;
  }
  const size_t before = ids.size();
  encode_uncached(piece, ids);
  const size_t count = ids.size() - before;
  if (count > cached_ids) return;
  entry.key = key;
  entry.count = static_cast<int32_t>(count);
  std::copy_n(ids.begin() + static_cast<ptrdiff_t>(before), count, entry.ids);
}

void Bpe::encode_uncached(std::string_view piece, std::vector<int32_t>& ids) const {
  if (!whole_.empty()) {
    const auto it = whole_.find(piece);
    if (it != whole_.end()) return ids.push_back(it->second);
  }
  if (piece.size() <= short_piece) {
    int32_t bytes[short_piece];
    int n = 0;
    for (const char c : piece) {
      bytes[n] = byte_ids_[static_cast<uint8_t>(c)];
      n += bytes[n] >= 0;
    }
    return encode_short(bytes, n, ids);
  }
  std::vector<int32_t> bytes;
  bytes.reserve(piece.size());
  for (const char c : piece)
    if (const int32_t id = byte_ids_[static_cast<uint8_t>(c)]; id >= 0) bytes.push_back(id);
  encode_long(bytes, ids);
}

void Bpe::encode_short(const int32_t* bytes, int n, std::vector<int32_t>& ids) const {
  int32_t id[short_piece];
  const Slot* pair[short_piece];  // of id[i] and id[i + 1]
  std::copy_n(bytes, n, id);
  for (int i = 0; i + 1 < n; ++i) pair[i] = &lookup(id[i], id[i + 1]);
  while (n > 1) {
    int best = 0;
    for (int i = 1; i + 1 < n; ++i)
      if (pair[i]->rank < pair[best]->rank) best = i;
    if (pair[best]->rank == no_rank) break;
    id[best] = pair[best]->result;
    std::move(id + best + 2, id + n, id + best + 1);
    if (best + 2 < n) std::move(pair + best + 2, pair + n - 1, pair + best + 1);
    --n;
    if (best + 1 < n) pair[best] = &lookup(id[best], id[best + 1]);
    if (best > 0) pair[best - 1] = &lookup(id[best - 1], id[best]);
  }
  ids.insert(ids.end(), id, id + n);
}

// A heap of (rank, position); an entry is stale if the pair at its position has another rank by now.
void Bpe::encode_long(const std::vector<int32_t>& bytes, std::vector<int32_t>& ids) const {
  const auto n = static_cast<int32_t>(bytes.size());
  std::vector<int32_t> id = bytes, next(n), previous(n), rank(n, no_rank);
  std::vector<uint64_t> heap;
  const auto enter = [&](int32_t at) {  // the pair that starts at this position
    const int32_t right = next[at];
    rank[at] = right < n ? lookup(id[at], id[right]).rank : no_rank;
    if (rank[at] == no_rank) return;
    heap.push_back(uint64_t{static_cast<uint32_t>(rank[at])} << 32 | static_cast<uint32_t>(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  for (int32_t i = 0; i < n; ++i) enter(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(top & UINT32_MAX);
    if (id[at] < 0 || rank[at] != static_cast<int32_t>(top >> 32)) continue;
    const int32_t gone = next[at];
    id[at] = lookup(id[at], id[gone]).result;
    id[gone] = -1;
    next[at] = next[gone];
    if (next[at] < n) previous[next[at]] = at;
    enter(at);
    if (previous[at] >= 0) enter(previous[at]);
  }
  for (int32_t i = 0; i < n; i = next[i]) ids.push_back(id[i]);
}

}  // namespace nibble
