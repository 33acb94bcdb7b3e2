// MS-EDEN: an NVFP4 quantiser whose blocks' scales, rounded stochastically, make the rotated values unbiased as a
// whole. Source: spec/precision.md 3.6; Quartet II, arXiv 2601.22813.
#pragma once
#include <algorithm>

#include "core/philox.h"
#include "numerics/nvfp4.h"

namespace nibble {

/// c = fl(255.99 v) and fl(1/v), v = 6 / (1.0625 * 0.93): room for a correction above 1, and a clip at 0.93.
inline constexpr Nvfp4Rule nvfp4_eden{.numerator = std::bit_cast<float>(0x44C24CC0u),
                                      .reciprocal_largest = std::bit_cast<float>(0x3E28A3D7u)};
inline constexpr int eden_group = 128;

/// Strides n/2, ..., 2, 1.
static inline float tree_sum16(const float* v) {
  float t[16];
  std::copy_n(v, 16, t);
  for (int h = 8; h > 0; h /= 2)
    for (int i = 0; i < h; ++i) t[i] = t[i] + t[i + h];
  return t[0];
}

struct EdenGroup {
  int bytes_before[8], bytes[8], codes[128];
  float num, den, ratio;
};
/// One group of 128 rotated values; words[k]: word 0 of the draw of block k.
static inline EdenGroup eden(const float* z, const Nvfp4Scale& s, const uint32_t* words) {
  EdenGroup g{};
  for (int k = 0; k < 8; ++k) {
    const float* x = z + 16 * k;
    float most = 0;
    for (int i = 0; i < 16; ++i) most = std::max(most, std::fabs(x[i]));
    int byte = nvfp4_block_scale(most, s);
    if (byte == 0) byte = e4m3_one;
    const float encode = nvfp4_encode_scale(byte, s);
    float squares[16], products[16];
    for (int i = 0; i < 16; ++i) {
      const float u = x[i] * encode;
      const int code = e2m1_encode(u);
      g.codes[16 * k + i] = code;
      squares[i] = u * u, products[i] = u * e2m1_decode(code);
    }
    g.bytes_before[k] = byte;
    g.num = g.num + tree_sum16(squares), g.den = g.den + tree_sum16(products);
  }
  g.ratio = g.den == 0 ? 1 : g.num / g.den;
  for (int k = 0; k < 8; ++k)
    g.bytes[k] = e4m3_encode_stochastic(std::min(e4m3_decode(g.bytes_before[k]) * g.ratio, e4m3_max), words[k]);
  return g;
}

}  // namespace nibble
