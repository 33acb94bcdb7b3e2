// Where tensor cores want the scale bytes of a quantised operand: tiles of 128 rows x 4 columns, 512 bytes each, row by
// row of tiles; a tile holds rows 0, 32, 64 and 96 side by side, then rows 1, 33, ...
// Source: spec/precision.md 2.1 (cuBLASLt VEC16_UE4M3 and VEC32_UE8M0; tcgen05).
#pragma once
#include <cstdint>

namespace nibble {

/// Offset in bytes of the scale of row r, block c, in a plane of `columns` blocks a row. The plane is padded to
/// multiples of 128 rows and 4 columns: 128 ceil(rows / 128) * 4 ceil(columns / 4) bytes.
constexpr int64_t scale_swizzle_offset(int64_t r, int64_t c, int64_t columns) {
  const int64_t tiles = (columns + 3) / 4;
  return ((r / 128 * tiles + c / 4) * 32 + r % 32) * 16 + r % 128 / 32 * 4 + c % 4;
}

}  // namespace nibble
