#include "core/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace nibble {
uint64_t xxh3(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }
std::string hex16(uint64_t hash) { return fmt::format("{:016x}", hash); }
}  // namespace nibble
