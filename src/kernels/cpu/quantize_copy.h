// What the quantisers of quantize.cpp know of a copy that they make: where its parts lie, and the scale of its blocks.
#pragma once
#include "core/kernel.h"
#include "core/quantized.h"
#include "kernels/cpu/gemm_pack.h"  // ceil_div
#include "kernels/cpu/quantize_words.h"
#include "kernels/tensor_scale.h"
#include "numerics/mx.h"

namespace nibble::NIBBLE_TARGET {

constexpr int64_t group = 16, segment = group * lanes;  // elements
constexpr int64_t item_tokens = 128, item_columns = 256;
constexpr int segment_words = 16;  // of a segment: one or two words a group

enum class Scheme { nvfp4, mx, fp8_block, tensor };  // where a block's scale comes from; tensor: there is none
enum class Element { e2m1, e2m1_stochastic, e4m3, e5m2 };

constexpr int64_t block_of(Scheme s) { return s == Scheme::mx ? 32 : s == Scheme::fp8_block ? 128 : 16; }
/// Elements that are made together: whole blocks and whole rotations.
constexpr int64_t unit_of(Scheme s, int rotation) { return rotation > block_of(s) ? rotation : block_of(s); }
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
  bool found = false;    // an element that is not zero
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
  PhiloxKey key_of(const Attrs& attrs, const int32_t* random, int64_t stride) const {
    return {static_cast<uint32_t>(random[0]), static_cast<uint32_t>(attrs.get_int("site")),
            static_cast<uint32_t>(random[1]), spec.stream, stride};
  }
  bool square() const { return format.rows > 1; }
  bool nvfp4() const { return is_nvfp4(spec); }
  bool mx() const { return is_mx(spec); }
  /// The header and what follows from the largest magnitude. false: the tensor is poisoned, and all of it written.
  bool begin(float delayed) {
    const TensorScales s = write_header(spec, most, delayed, header);
    tensor = s.nvfp4, element_scale = s.element;
    if (!s.poisoned) return true;
    std::memset(codes, 0, static_cast<size_t>(rows * code_pitch));
    std::memset(scales, poison_byte(spec), static_cast<size_t>(scale_rows * scale_pitch));
    return false;
  }
};

/// The row copy of rows of `width` numbers, the first of them random[2] of the whole batch; inactive if `spec` is.
inline Copy row_copy(const KernelCall& c, const QuantSpec& spec, const Tensor* to, int64_t width,
                     const int32_t* random) {
  Copy q;
  q.spec = spec;
  if (!spec.active()) return q;
  q.open(*to);
  q.per_vector = ceil_div(spec.hadamard > 0 ? filled(spec, width) : width, group), q.per_block = 1;
  q.first = random[2] * q.per_vector;
  // Lanes are groups of a row, or rows that were turned.
  const bool turned = spec.hadamard != 0 || spec.four_six != FourSix::off;
  q.key = q.key_of(c.attrs, random, turned ? q.per_vector : 1);
  return q;
}
/// The same of its columns.
inline Copy column_copy(const KernelCall& c, const QuantSpec& spec, const Tensor* to, int64_t width,
                        const int32_t* random) {
  Copy q;
  q.spec = spec;
  if (!spec.active()) return q;
  q.open(*to);
  const int64_t tokens = c.attrs.get_int("tokens");
  q.sequence = filled(spec, tokens);
  q.per_vector = 1, q.per_block = width;
  q.first = random[2] / tokens * q.sequence / group * width;
  q.key = q.key_of(c.attrs, random, 1);
  return q;
}

inline void raise(uint32_t& most, uint32_t bits) {
  uint32_t old = __atomic_load_n(&most, __ATOMIC_RELAXED);
  while (bits > old && !__atomic_compare_exchange_n(&most, &old, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// ---- scales ----

struct BlockScales {
  IntWord bytes;
  Word encode;  // what elements are multiplied with
};

inline Word encode_scales(const Copy& q, IntWord e4m3) {  // of NVFP4
  return least(div(all(1.0f), mul(e4m3_values(e4m3), all(q.tensor.decode))), all(FLT_MAX));
}

inline BlockScales known_scales(const Copy& q, IntWord e4m3) { return {e4m3, encode_scales(q, e4m3)}; }

// Of blocks with these maxima (rounded to BF16), one a lane.
template <Scheme scheme>
BlockScales scales_of(const Copy& q, Word amax) {
  const Word most = all(FLT_MAX);
  if constexpr (scheme == Scheme::nvfp4) {
    const IntWord bytes = e4m3_bytes(least(mul(amax, all(q.tensor.multiplier)), most));
    return known_scales(q, bytes);
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
