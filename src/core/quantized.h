// Quantised tensors in memory: a header, the codes of each row, the scale bytes. A tensor of any rank is the matrix of
// its last axis, R rows of C elements; scales run along that axis, which is the one a product contracts.
// Source: spec/precision.md 2.1 (the header, one cache line, stands for the f32 scale counted there).
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/type.h"

namespace nibble {

/// What belongs to the tensor as a whole. Written by the quantiser, read by products.
struct alignas(64) QuantizedHeader {
  float amax;        // of what was quantised, after a rotation; a quiet NaN poisons the tensor
  float decode;      // S_dec of NVFP4, scale_inv of FP8, 1 for MX
  float saved;       // S_dec of the 4-bit operand that these values were made from; 1: made from numbers
  uint32_t by_amax;  // 1: a product's factor comes from both amaxes (spec/precision.md 5.1), 0: from both `decode`
  uint32_t blank;    // 1: the values were not all zero, the quantised ones are
  uint32_t unused[11] = {};  // 0: equal tensors are equal bytes
};
static_assert(sizeof(QuantizedHeader) == 64);

/// Where the parts lie, in bytes from the start.
struct QuantizedLayout {
  explicit QuantizedLayout(const Type& type) {
    const BlockFormat f = block_format(type.dtype);
    rows = type.rows(), columns = type.dim(-1);
    blocks = (columns + f.columns - 1) / f.columns;
    code_pitch = blocks * f.columns * f.bits / 8;
    scale_pitch = f.scales ? blocks : 0;
    scale_rows = (rows + f.rows - 1) / f.rows;
    scales = codes + rows * code_pitch;
    bytes = scales + scale_rows * scale_pitch;
  }
  int64_t rows, columns;
  int64_t blocks;       // of a row
  int64_t code_pitch;   // bytes of a row's codes, pad included: element 2i in the low half of byte i
  int64_t scale_pitch;  // bytes of a row's scales; of a row of tiles in a 2d format
  int64_t scale_rows;
  int64_t codes = sizeof(QuantizedHeader), scales, bytes;
};

/// The parts of a tensor of a quantised type.
struct QuantizedView {
  explicit QuantizedView(const Tensor& t)
      : layout(t.type), format(block_format(t.type.dtype)), base(static_cast<std::byte*>(t.data)) {}
  QuantizedHeader& header() const { return *reinterpret_cast<QuantizedHeader*>(base); }
  uint8_t* codes(int64_t row) const {
    return reinterpret_cast<uint8_t*>(base + layout.codes + row * layout.code_pitch);
  }
  /// Of the blocks of a row (of the row's tiles).
  uint8_t* scales(int64_t row) const {
    return reinterpret_cast<uint8_t*>(base + layout.scales + row / format.rows * layout.scale_pitch);
  }
  QuantizedLayout layout;
  BlockFormat format;
  std::byte* base;
};

}  // namespace nibble
