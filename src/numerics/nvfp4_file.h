// NVFP4 as files of other programs hold it: the codes and E4M3 bytes of numerics/nvfp4.h, and one f32 that multiplies
// (ModelOpt, GGUF) or divides (compressed-tensors). GGUF has an order of its own within 64 values.
// Source: spec/precision.md 9; NVIDIA/Model-Optimizer; vllm-project/compressed-tensors; ggml-org/ggml (type 40).
#pragma once
#include <cstdint>
#include <cstring>

#include "numerics/nvfp4_rule.h"

namespace nibble {

/// The f32 of a tensor in a file.
struct Nvfp4FileScale {
  float multiplier;  // G: weight_scale_2, .scale
  float divisor;     // S: weight_global_scale
};
/// A tensor of zeros has 1 and 1.
static inline Nvfp4FileScale nvfp4_file_scale(const Nvfp4Scale& s, const Nvfp4Rule& rule) {
  if (!s.exact || s.amax == 0) return {s.decode, s.encode};
  return {s.amax / rule.numerator, s.encode};
}

/// out[i] = fl(q_i fl(s G)) of n values, a multiple of 16. codes: 2i in the low half of byte i.
static inline void nvfp4_file_decode(const uint8_t* codes, const uint8_t* scales, int64_t n, float multiplier,
                                     float* out) {
  for (int64_t b = 0; b < n / nvfp4_block; ++b) {
    const float scale = e4m3_decode(scales[b]) * multiplier;
    for (int64_t i = b * nvfp4_block; i < (b + 1) * nvfp4_block; ++i)
      out[i] = e2m1_decode(codes[i / 2] >> (i % 2 * 4) & 15) * scale;
  }
}

inline constexpr int gguf_nvfp4_values = 64, gguf_nvfp4_bytes = 36;

/// 32 bytes of codes and 4 scales -> a block of GGUF: the scales, then for each 16 values 8 bytes with value j in the
/// low half of byte j and value 8 + j in the high half.
static inline void gguf_nvfp4_block(const uint8_t* codes, const uint8_t* scales, uint8_t* block) {
  std::memcpy(block, scales, 4);
  const auto code = [&](int i) { return codes[i / 2] >> (i % 2 * 4) & 15; };
  for (int s = 0; s < 4; ++s)
    for (int j = 0; j < 8; ++j)
      block[4 + 8 * s + j] = static_cast<uint8_t>(code(16 * s + j) | code(16 * s + 8 + j) << 4);
}
/// The way back. GGUF knows no NaN and no negative scale: 0x7F means 0, the sign does not count.
static inline void gguf_nvfp4_unpack(const uint8_t* block, uint8_t* codes, uint8_t* scales) {
  for (int s = 0; s < 4; ++s) {
    const int magnitude = block[s] & 0x7F;
    scales[s] = static_cast<uint8_t>(magnitude == e4m3_nan ? 0 : magnitude);
    for (int j = 0; j < 16; j += 2) {
      const auto code = [&](int i) { return block[4 + 8 * s + i % 8] >> (i / 8 * 4) & 15; };
      codes[8 * s + j / 2] = static_cast<uint8_t>(code(j) | code(j + 1) << 4);
    }
  }
}

}  // namespace nibble
