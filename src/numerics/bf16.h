// BF16 storage: the upper half of an f32 (1 sign, 8 exponent, 7 mantissa bits). Widening is exact; rounding is to
// nearest even, keeps subnormals, overflows to Inf, and quiets a NaN, keeping its sign and upper payload.
// Source: spec/precision.md 1 (not x86's VCVTNEPS2BF16, which flushes subnormals).
#pragma once
#include <bit>
#include <cstdint>

namespace nibble {

struct BFloat16 {
  uint16_t bits = 0;
};

inline float widen(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline BFloat16 round_bf16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace nibble
