// What the quantisers of quantize.cpp know of a copy that they make: where its parts lie, and the scale of its blocks.
#pragma once
#include "core/quant_spec.h"
#include "core/quantized.h"
#include "kernels/cpu/quantize_words.h"
#include "numerics/fp8_scaling.h"
#include "numerics/mx.h"
#include "numerics/nvfp4_rule.h"

namespace nibble::NIBBLE_TARGET {

constexpr int64_t group = 16, segment = group * lanes;  // elements
constexpr int64_t item_tokens = 128, item_columns = 256;
constexpr int segment_words = 16;  // of a segment: one or two words a group

enum class Scheme { nvfp4, mx, fp8_block, tensor };  // where a block's scale comes from; tensor: there is none
enum class Element { e2m1, e2m1_stochastic, e4m3, e5m2 };

constexpr int64_t block_of(Scheme s) { return s == Scheme::mx ? 32 : s == Scheme::fp8_block ? 128 : 16; }
constexpr int code_bits(Element e) { return e == Element::e2m1 || e == Element::e2m1_stochastic ? 4 : 8; }

// One copy being made.
struct Copy {
  bool active = false;
  QuantSpec spec;
  BlockFormat format;
  QuantizedHeader* header = nullptr;
  uint8_t *codes = nullptr, *scales = nullptr;
  int64_t code_pitch = 0, scale_pitch = 0, scale_rows = 0, rows = 0;
  int64_t sequence = 0;  // column copies: tokens of a sequence with the fill
  uint32_t most = 0;     // bits of the largest magnitude
  Sums* sums = nullptr;  // of columns rotated by 16, found in the first visit
  Nvfp4Scale tensor{};
  float element_scale = 1;
  // Random bits: block j of vector i has the index first + i * per_vector + j * per_block.
  PhiloxKey key{};
  int64_t first = 0, per_vector = 0, per_block = 0;

  void open(const Tensor& t) {
    const QuantizedLayout layout(t.type);
    auto* base = static_cast<std::byte*>(t.data);
    header = reinterpret_cast<QuantizedHeader*>(base);
    codes = reinterpret_cast<uint8_t*>(base + layout.codes), scales = reinterpret_cast<uint8_t*>(base + layout.scales);
    code_pitch = layout.code_pitch, scale_pitch = layout.scale_pitch, scale_rows = layout.scale_rows;
    rows = layout.rows, format = block_format(t.type.dtype);
    active = true;
  }
  bool square() const { return format.rows > 1; }
  bool nvfp4() const { return spec.format == DType::nvfp4 || spec.format == DType::nvfp4_2d; }
  bool mx() const {
    return spec.format == DType::mxfp4 || spec.format == DType::mxfp4_2d || spec.format == DType::mxfp8;
  }
};

void raise(uint32_t& most, uint32_t bits) {
  uint32_t old = __atomic_load_n(&most, __ATOMIC_RELAXED);
  while (bits > old && !__atomic_compare_exchange_n(&most, &old, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// ---- scales ----

struct BlockScales {
  IntWord bytes;
  Word encode;  // what elements are multiplied with
};

Word encode_scales(const Copy& q, IntWord e4m3) {  // of NVFP4
  return least(div(all(1.0f), mul(e4m3_values(e4m3), all(q.tensor.decode))), all(FLT_MAX));
}

// Of blocks with these maxima (rounded to BF16), one a lane.
template <Scheme scheme>
BlockScales scales_of(const Copy& q, Word amax) {
  const Word most = all(FLT_MAX);
  if constexpr (scheme == Scheme::nvfp4) {
    const IntWord bytes = e4m3_bytes(least(mul(amax, all(q.tensor.multiplier)), most));
    return {bytes, encode_scales(q, bytes)};
  } else if constexpr (scheme == Scheme::mx) {
    const bool eight = q.format.bits == 8;
    const IntWord bytes =
        q.spec.floor_scale ? e8m0_floor_bytes(amax) : e8m0_bytes(amax, eight ? rcp_448 : 0x1.555556p-3f);
    const bool three_quarters = q.spec.floor_scale && q.spec.rounding == Rounding::stochastic;
    return {bytes, mul(e8m0_inverses(bytes), all(three_quarters ? 0.75f : 1.0f))};
  } else if constexpr (scheme == Scheme::fp8_block) {
    const Word quotient = least(div(all(e4m3_max), amax), most);
    const Word scale = select(equal(amax, zero()), all(1.0f), of_bits(bit_and(bits_of(quotient), exponent_bits())));
    return {sub(all_int(254), shift_right<23>(bits_of(scale))), scale};
  } else {
    return {all_int(0), all(q.element_scale)};
  }
}

// Codes of magnitudes, with the signs of `sign`.
template <Element element>
IntWord nearest_codes(Word magnitude, Word sign) {
  if constexpr (element == Element::e2m1) return e2m1_codes(magnitude, sign);
  const Word x = of_bits(bit_or(bits_of(magnitude), bit_and(bits_of(sign), all_int(INT32_MIN))));
  if constexpr (element == Element::e5m2) return minifloat_codes<2, 15, 0x7B>(x);
  return minifloat_codes<3, 7, 0x7E>(x);
}

}  // namespace nibble::NIBBLE_TARGET
