// XXH3-64 (libxxhash) and its 16-digit hexadecimal spelling, used for data fingerprints, checkpoints and seeds.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace nibble {
uint64_t xxh3(const void* data, size_t bytes);
inline uint64_t xxh3(std::string_view s) { return xxh3(s.data(), s.size()); }
/// 16 lower-case hexadecimal digits.
std::string hex16(uint64_t hash);
}  // namespace nibble
