// Counter-based random bits: Philox4x32-10 (Salmon et al., SC'11). No state: key and counter name every word, so
// threads, tiles, ranks and resume cannot change a draw.  Layout of key and counter: spec/precision.md 4.3.
#pragma once
#include <array>
#include <cstdint>

namespace nibble {

using PhiloxWords = std::array<uint32_t, 4>;

/// Ten rounds. counter = (block low, block high, step, stream), key = (seed, site).
constexpr PhiloxWords philox4x32(PhiloxWords c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  return c;
}

/// Streams of spec/training.md; 0x200-0x2ff belong to generation.
enum PhiloxStream : uint32_t {
  stream_init = 0x100,
  stream_synthetic = 0x101,
  stream_shuffle = 0x102,
  stream_dropout = 0x103,
  stream_generation = 0x200,  // + purpose, spec/generation.md 1.5
};

}  // namespace nibble
