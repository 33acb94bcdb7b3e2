// BF16 storage (spec/precision.md 1): exhaustive both ways on the 16-bit side, and the rounding of f32 at its edges.
#include "numerics/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nibble {
namespace {

TEST(PrecisionBf16, WideningThenRoundingKeepsEveryValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    const bool nan = (bits & 0x7fff) > 0x7f80;
    EXPECT_EQ(round_bf16(widen(x)).bits, nan ? bits | 0x40 : bits);
    EXPECT_EQ(std::isnan(widen(x)), nan);
  }
}

// Between neighbours a < b: below the midpoint to a, above to b, at it to the one with an even last bit.
TEST(PrecisionBf16, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const uint32_t low = bits << 16;
    const auto rounded = [low](uint32_t rest) { return round_bf16(std::bit_cast<float>(low + rest)).bits; };
    EXPECT_EQ(rounded(0x0001), bits);
    EXPECT_EQ(rounded(0x7fff), bits);
    EXPECT_EQ(rounded(0x8000), bits + (bits & 1));
    EXPECT_EQ(rounded(0x8001), bits + 1);
    EXPECT_EQ(round_bf16(std::bit_cast<float>(0x80000000u | (low + 0x8001))).bits, 0x8000 | (bits + 1));
  }
}

TEST(PrecisionBf16, Edges) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(round_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);  // not saturating
  EXPECT_EQ(round_bf16(-inf).bits, 0xff80);
  EXPECT_EQ(round_bf16(0x1p-133f).bits, 1);  // subnormals are kept
  EXPECT_EQ(round_bf16(0x1p-134f).bits, 0);  // a tie to even
  EXPECT_EQ(round_bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(round_bf16(std::bit_cast<float>(0xff800001u)).bits, 0xffc0);  // a NaN whose payload lies below stays one
}

}  // namespace
}  // namespace nibble
