// Element and scale formats (spec/precision.md 1): every code, every listed point, every special input.
#include <gtest/gtest.h>

#include <cfloat>
#include <set>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/fp8.h"
#include "numerics/mx.h"
#include "numerics/nvfp4.h"
#include "numerics/swizzle.h"
#include "vectors.h"

namespace nibble {
namespace {

using testing::integers;
using testing::Json;
using testing::number;
using testing::numbers;
using testing::same;
using testing::vectors;
using testing::word;

constexpr float inf = __builtin_inff();
const float nan = __builtin_nanf("");

// Value of a finite code by the formula of section 1: sign, exponent field, mantissa field.
double value_by_formula(int code, int exponent_bits, int mantissa_bits, int bias) {
  const int e = code >> mantissa_bits & ((1 << exponent_bits) - 1), m = code & ((1 << mantissa_bits) - 1);
  const double a =
      e == 0 ? std::ldexp(m, 1 - bias - mantissa_bits) : std::ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits);
  return (code >> (exponent_bits + mantissa_bits) & 1) != 0 ? -a : a;
}
uint32_t bits_of(double x) { return std::bit_cast<uint32_t>(static_cast<float>(x)); }

TEST(NumericsCodecs, P1_EveryCodeDecodesAndEncodesBack) {
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(bits_of(e2m1_decode(code)), bits_of(value_by_formula(code, 2, 1, 1))) << code;
    EXPECT_EQ(e2m1_encode(e2m1_decode(code)), code);
  }
  for (int byte = 0; byte < 256; ++byte) {
    SCOPED_TRACE(byte);
    if ((byte & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(e4m3_decode(byte)));
    } else {
      EXPECT_EQ(bits_of(e4m3_decode(byte)), bits_of(value_by_formula(byte, 4, 3, 7)));
      EXPECT_EQ(e4m3_encode(e4m3_decode(byte)), byte);
    }
    if ((byte & 0x7C) == 0x7C) {
      EXPECT_TRUE(same(e5m2_decode(byte), (byte & 3) != 0 ? nan : byte < 0x80 ? inf : -inf));
    } else {
      EXPECT_EQ(bits_of(e5m2_decode(byte)), bits_of(value_by_formula(byte, 5, 2, 15)));
      EXPECT_EQ(e5m2_encode(e5m2_decode(byte)), byte);
    }
    if (byte == 0xFF) {
      EXPECT_TRUE(std::isnan(e8m0_decode(byte)) && std::isnan(e8m0_inverse(byte)));
    } else {
      EXPECT_EQ(e8m0_decode(byte), std::ldexp(1.0, byte - 127));
      EXPECT_EQ(e8m0_inverse(byte), std::ldexp(1.0, 127 - byte));
      EXPECT_EQ(e8m0_round_up(e8m0_decode(byte)), byte);
      EXPECT_EQ(e8m0_floor(e8m0_decode(byte), 0), byte);
    }
  }
  for (const Json& v : vectors("e2m1_decode")) EXPECT_EQ(e2m1_decode(v["code"]), number(v["value"]));
  const std::vector<float> e4m3 = numbers(vectors("e4m3_decode"));
  for (size_t byte = 0; byte < e4m3.size(); ++byte) EXPECT_TRUE(same(e4m3_decode(static_cast<int>(byte)), e4m3[byte]));
}

TEST(NumericsCodecs, P2_ListedPointsEncodeToTheListedCodes) {
  for (const Json& v : vectors("e2m1_rn")) EXPECT_EQ(e2m1_encode(number(v["x"])), v["code"].get<int>()) << v;
  for (const Json& v : vectors("e4m3_encode_satfinite")) {
    EXPECT_EQ(static_cast<uint32_t>(e4m3_encode(number(v["x"]))), word(v["byte"])) << v;
  }
  for (const Json& v : vectors("e5m2_encode_satfinite")) {
    EXPECT_EQ(static_cast<uint32_t>(e5m2_encode(number(v["x"]))), word(v["byte"])) << v;
  }
  for (const Json& v : vectors("e8m0_round_up")) {
    EXPECT_EQ(static_cast<uint32_t>(e8m0_round_up(number(v["x"]))), word(v["byte"])) << v;
  }
  for (const Json& v : vectors("mx")) {
    if (v["fmt"] != "mxfp8_scale_only") continue;
    EXPECT_EQ(static_cast<uint32_t>(e8m0_floor(number(v["amax"]), 8)), word(v["e8m0_ocp_floor"])) << v;
    EXPECT_EQ(static_cast<uint32_t>(mxfp8_e4m3_scale(number(v["amax"]))), word(v["e8m0"])) << v;
  }
  for (const Json& v : vectors("bf16_rne"))
    EXPECT_EQ(std::bit_cast<uint32_t>(widen(round_bf16(number(v["x"])))), std::bit_cast<uint32_t>(number(v["y"]))) << v;
}

// The table of special inputs.
TEST(NumericsCodecs, P2_SpecialInputs) {
  struct Row {
    float x;
    int e2m1, e4m3, e5m2;
  };
  const Row rows[] = {{0.0f, 0x0, 0x00, 0x00},      {-0.0f, 0x8, 0x80, 0x80},    {-0x1p-149f, 0x8, 0x80, 0x80},
                      {-0x1p-20f, 0x8, 0x80, 0x80}, {1e9f, 0x7, 0x7E, 0x7B},     {-1e9f, 0xF, 0xFE, 0xFB},
                      {FLT_MAX, 0x7, 0x7E, 0x7B},   {-FLT_MAX, 0xF, 0xFE, 0xFB}, {inf, 0x7, 0x7E, 0x7B},
                      {-inf, 0xF, 0xFE, 0xFB},      {nan, 0x7, 0x7F, 0x7F},      {-nan, 0x7, 0x7F, 0x7F}};
  for (const Row& r : rows) {
    EXPECT_EQ(e2m1_encode(r.x), r.e2m1) << r.x;
    EXPECT_EQ(e2m1_encode_stochastic(r.x, 0), r.e2m1) << r.x;
    EXPECT_EQ(e4m3_encode(r.x), r.e4m3) << r.x;
    EXPECT_EQ(e5m2_encode(r.x), r.e5m2) << r.x;
  }
  for (const float zero : {0.0f, -0.0f}) {
    EXPECT_EQ(e8m0_round_up(zero), 0x00);
    EXPECT_EQ(e8m0_floor(zero, 2), 0x00);
  }
  EXPECT_EQ(e8m0_round_up(FLT_MAX), 0xFE);
  EXPECT_EQ(e8m0_floor(inf, 2), 0xFE);
  EXPECT_EQ(e8m0_floor(nan, 2), 0xFF);
  EXPECT_EQ(e8m0_round_up(-nan), 0xFF);
  EXPECT_EQ(e8m0_floor(0x1p-149f, 2), 0x00);
  EXPECT_EQ(round_bf16(FLT_MAX).bits, 0x7F80);
  EXPECT_EQ(round_bf16(-0x1p-140f).bits, 0x8000);
  EXPECT_EQ(round_bf16(nan).bits & 0x7FC0, 0x7FC0);
}

// Neighbouring codes, their midpoint and the floats beside it: nearest, the tie to the even code. Both signs.
TEST(NumericsCodecs, P2_RoundsToNearestEvenBetweenAllNeighbours) {
  const auto check = [](int (*encode)(float), float (*decode)(int), int codes, int sign) {
    for (int code = 0; code + 1 < codes; ++code) {
      const float low = decode(code), high = decode(code + 1), middle = (low + high) / 2;
      for (const float s : {1.0f, -1.0f}) {
        const int minus = s < 0 ? sign : 0;
        EXPECT_EQ(encode(s * middle), (code + (code & 1)) | minus);
        EXPECT_EQ(encode(s * std::nextafterf(middle, 0)), code | minus);
        EXPECT_EQ(encode(s * std::nextafterf(middle, inf)), (code + 1) | minus);
      }
    }
  };
  check(e2m1_encode, e2m1_decode, 8, 0x8);
  check(e4m3_encode, e4m3_decode, 0x7F, 0x80);
  check(e5m2_encode, e5m2_decode, 0x7C, 0x80);
}

TEST(NumericsCodecs, P5_TheSwizzleIsABijection) {
  for (const Json& v : vectors("scale_swizzle_128x4"))
    EXPECT_EQ(scale_swizzle_offset(v["row"], v["col"], v["ncols"]), v["offset"].get<int64_t>()) << v;
  struct Plane {
    int64_t rows, columns;
  };
  for (const auto& [rows, columns] : {Plane{256, 8}, Plane{128, 4}, Plane{384, 12}}) {
    std::set<int64_t> seen;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t offset = scale_swizzle_offset(r, c, columns);
        seen.insert(offset);
        // The equivalent: [R/128, 4, 32, T, 4] permuted (0, 3, 2, 1, 4).
        const int64_t tiles = columns / 4;
        EXPECT_EQ(offset, (((r / 128 * tiles + c / 4) * 32 + r % 32) * 4 + r / 32 % 4) * 4 + c % 4);
      }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), rows * columns);
    EXPECT_EQ(*seen.rbegin(), rows * columns - 1);
  }
}

// Every product of an element and a block scale fits BF16, and the sum of a block of the largest ones fits 16 bits.
TEST(NumericsCodecs, P40_ProductsOfElementAndScaleAreExactInBf16) {
  for (int code = 0; code < 8; ++code)
    for (int byte = 0; byte < 0x7F; ++byte) {
      const double exact = static_cast<double>(e2m1_decode(code)) * static_cast<double>(e4m3_decode(byte));
      EXPECT_EQ(widen(round_bf16(static_cast<float>(exact))), exact) << code << " " << byte;
    }
  int16_t sum16 = 0, sum32 = 0;
  for (int i = 0; i < 32; ++i) {
    const int product = static_cast<int>(2 * e2m1_decode(7)) * static_cast<int>(2 * e2m1_decode(15));
    if (i < 16) sum16 = static_cast<int16_t>(sum16 + product);
    sum32 = static_cast<int16_t>(sum32 + product);
  }
  EXPECT_EQ(sum16, -2304);
  EXPECT_EQ(sum32, -4608);
}

TEST(NumericsCodecs, ConstantsHaveTheListedBits) {
  const Json& c = vectors("constants");
  EXPECT_EQ(rcp_6, number(c["rcp6"]));
  EXPECT_EQ(std::bit_cast<uint32_t>(rcp_6), word(c["rcp6_bits"]));
  EXPECT_EQ(std::bit_cast<uint32_t>(rcp_2688), word(c["rcp2688_bits"]));
  EXPECT_EQ(std::bit_cast<uint32_t>(rcp_7225344), word(c["rcp7225344_bits"]));
  EXPECT_EQ(rcp_448, number(c["rcp448"]));
  EXPECT_EQ(rcp_57344, number(c["rcp57344"]));
}

}  // namespace
}  // namespace nibble
