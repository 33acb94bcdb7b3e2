// The order of rows: a keyed permutation of [0, n) computed one row at a time, so the place in the data is one integer
// and nothing is stored. Eight Feistel rounds on Philox words, walked until the value is below n.
// Source: spec/training.md 4.4.  Golden: n 10, seed 0, epoch 0: 6 8 9 2 0 1 4 3 7 5.
#pragma once
#include <bit>
#include <cstdint>

#include "core/philox.h"

namespace nibble {

/// Row at place `index` of epoch `epoch`: a bijection of [0, n) for every (seed, epoch).
/// 0 <= index < n, n >= 1. The domain walked is below 4n, so fewer than 4 walks on average.
inline int64_t permuted_row(int64_t index, int64_t n, uint32_t seed, uint32_t epoch) {
  if (n <= 1) return 0;
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1))), half = (bits + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint32_t round = 0; round < 8; ++round) {
      const uint64_t word = philox4x32({static_cast<uint32_t>(right), round, epoch, stream_shuffle}, seed, 0)[0];
      const uint64_t next = left ^ (word & mask);
      left = right, right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace nibble
