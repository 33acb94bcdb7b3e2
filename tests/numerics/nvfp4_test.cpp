// The NVFP4 quantiser (spec/precision.md 2.4 to 2.8), element by element: the vectors, then what follows from the
// rules.
#include <gtest/gtest.h>

#include "blocks.h"
#include "numerics/eden.h"
#include "vectors.h"

namespace nibble {
namespace {

using testing::amax_of;
using testing::Block;
using testing::encode_block;
using testing::errors_of;
using testing::four_six_choice;
using testing::integers;
using testing::Json;
using testing::normal;
using testing::number;
using testing::numbers;
using testing::quantize_block;
using testing::quantize_blocks;
using testing::same;
using testing::vectors;
using testing::word;

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

TEST(NumericsNvfp4, P7_TheTwelveListedTensors) {
  int cases = 0;
  for (const auto& [name, v] : vectors("nvfp4_1d").items()) {
    SCOPED_TRACE(name);
    ++cases;
    const float amax = number(v["amax"]);
    if (name != "given_amax_larger") {
      EXPECT_EQ(amax_of(numbers(v["input"])), amax);
    }
    const Nvfp4Scale s = nvfp4_scale(amax);
    EXPECT_EQ(bits_of(s.encode), word(v["S_enc_bits"]));
    EXPECT_EQ(s.encode, number(v["S_enc"]));
    EXPECT_EQ(s.decode, number(v["S_dec"]));
    EXPECT_EQ(s.multiplier, number(v["block_mult"]));
    for (size_t r = 0; r < v["rows"].size(); ++r) {
      const std::vector<float> x = numbers(v["input"][r]);
      const std::vector<Block> blocks = quantize_blocks(x, s);
      ASSERT_EQ(blocks.size(), v["rows"][r].size());
      for (size_t b = 0; b < blocks.size(); ++b) {
        SCOPED_TRACE("row " + std::to_string(r) + ", block " + std::to_string(b));
        const Json& want = v["rows"][r][b];
        EXPECT_EQ(static_cast<uint32_t>(blocks[b].byte), word(want["scale_byte"]));
        EXPECT_EQ(e4m3_decode(blocks[b].byte), number(want["scale"]));
        EXPECT_EQ(blocks[b].encode, number(want["encode"]));
        EXPECT_EQ(blocks[b].codes, integers(want["codes"]));
        const std::vector<float> values = numbers(want["dequant"]);
        for (size_t i = 0; i < values.size(); ++i)
          EXPECT_TRUE(same(nvfp4_value(blocks[b].codes[i], blocks[b].byte, amax), values[i])) << i;
      }
    }
  }
  EXPECT_EQ(cases, 12);
}

TEST(NumericsNvfp4, P8_OneMultiplierNotADivisionFirst) {
  for (const Json& v : vectors("block_scale_formula_disagreement")) {
    const Nvfp4Scale s = nvfp4_scale(number(v["amax"]));
    const float block = number(v["amax_b"]);
    EXPECT_EQ(s.encode, number(v["S_enc"]));
    EXPECT_EQ(block * s.multiplier, number(v["scaled_mult"]));
    EXPECT_EQ(static_cast<uint32_t>(nvfp4_block_scale(block, s)), word(v["byte_multiplier"]));
    EXPECT_EQ((block / 6) * s.encode, number(v["scaled_div"]));  // what 4/6 takes
    EXPECT_EQ(static_cast<uint32_t>(four_six_bytes(block, s).six), word(v["byte_division_first"]));
  }
}

// Blocks of 16, and of 256 as in a tile: quantising the values again gives the same bytes and codes.
TEST(NumericsNvfp4, P12_QuantisingTheValuesAgainChangesNothing) {
  for (const size_t size : {size_t{16}, size_t{256}}) {
    const std::vector<float> x = normal(size_t{256} * 1024, "p12");
    const Nvfp4Scale s = nvfp4_scale(amax_of(x));
    const std::vector<Block> blocks = quantize_blocks(x, s, size);
    std::vector<float> values;
    for (const Block& b : blocks)
      for (const int code : b.codes) values.push_back(nvfp4_value(code, b.byte, s.amax));
    const std::vector<Block> again = quantize_blocks(values, nvfp4_scale(amax_of(values)), size);
    for (size_t b = 0; b < blocks.size(); ++b) {
      ASSERT_GE(blocks[b].byte, 0x08);  // normal
      EXPECT_EQ(again[b].byte, blocks[b].byte) << b;
      EXPECT_EQ(again[b].codes, blocks[b].codes) << b;
    }
  }
}

TEST(NumericsNvfp4, P12_FourOverSixReproducesItsValues) {
  const auto run = [](std::span<const float> x, std::vector<float>& values) {
    const Nvfp4Scale s = nvfp4_scale(amax_of(x), {.numerator = 1536, .pow2 = true});  // all values exact
    for (size_t i = 0; i < x.size(); i += 16) {
      const Block b = encode_block(x.subspan(i, 16), four_six_choice(x.subspan(i, 16), s, FourSixError::mse), s);
      for (const int code : b.codes) values.push_back(nvfp4_value_by_decode(code, b.byte, s));
    }
  };
  std::vector<float> once, twice;
  run(normal(size_t{256} * 1024, "p12"), once);
  run(once, twice);
  EXPECT_EQ(once, twice);
}

TEST(NumericsNvfp4, P13_ZeroUnderflowAndTheEndsOfTheRange) {
  const Nvfp4Scale zero = nvfp4_scale(0);
  EXPECT_EQ(zero.encode, 1);
  const std::vector<float> zeros(16);
  EXPECT_EQ(quantize_block(zeros, zero).byte, 0);
  EXPECT_EQ(quantize_block(zeros, zero).codes, std::vector<int>(16, 0));
  EXPECT_EQ(quantize_block(std::vector<float>(16, -0.0f), zero).codes, std::vector<int>(16, 8));

  // A block survives if and only if its amax exceeds amax/458752 (up to the rounding of the multiplier).
  const Nvfp4Scale s = nvfp4_scale(458752);
  EXPECT_EQ(nvfp4_block_scale(0.999f, s), 0);
  EXPECT_EQ(nvfp4_block_scale(1.001f, s), 1);
  EXPECT_EQ(nvfp4_encode_scale(0, s), FLT_MAX);
  const Block lost = quantize_block(std::vector<float>{0.5f, -0.25f, 0, -0.0f}, s);
  EXPECT_EQ(lost.codes, (std::vector<int>{7, 15, 0, 8}));
  for (const int code : lost.codes) EXPECT_EQ(nvfp4_value(code, lost.byte, s.amax), 0);

  const Nvfp4Scale tiny = nvfp4_scale(7.8e-36f);
  EXPECT_EQ(tiny.encode, FLT_MAX);
  EXPECT_GT(tiny.decode, 0);
  EXPECT_LT(tiny.decode, FLT_MIN);  // subnormal, and not flushed
  EXPECT_LT(nvfp4_scale(8.0e-36f).encode, FLT_MAX);

  EXPECT_TRUE(std::isinf(nvfp4_value(7, 0x7E, 7.7e35f)));
  EXPECT_FALSE(std::isinf(nvfp4_value(7, 0x7E, 7.5e35f)));
  EXPECT_TRUE(std::isnan(nvfp4_value(0, 0x7E, 7.7e35f)));

  const Nvfp4Scale poisoned = nvfp4_scale(stored_amax(0x7f800001u));
  EXPECT_EQ(bits_of(poisoned.amax), 0x7fc00000u);
  EXPECT_TRUE(std::isnan(poisoned.decode));
  EXPECT_EQ(bits_of(stored_amax(0x7f800000u)), 0x7fc00000u);  // Inf too
  EXPECT_EQ(bits_of(stored_amax(0x7f7fffffu)), 0x7f7fffffu);
}

TEST(NumericsNvfp4, P14_SmallMagnitudesKeepTheRelativeError) {
  const std::vector<float> z = normal(size_t{512} * 1024, "p14");
  for (const float size : {1.0f, 1e-20f, 1e-30f}) {
    std::vector<float> x = z, y;
    for (float& v : x) v = widen(round_bf16(v * size));
    const Nvfp4Scale s = nvfp4_scale(amax_of(x));
    for (const Block& b : quantize_blocks(x, s))
      for (const int code : b.codes) y.push_back(nvfp4_value(code, b.byte, s.amax));
    EXPECT_NEAR(errors_of(x, y, 1024).mse, 9.056e-3, 0.02 * 9.056e-3) << size;
  }
}

TEST(NumericsNvfp4, P16_PowerOfTwoScalesDoNotDependOnTheAmax) {
  constexpr Nvfp4Rule pow2{.pow2 = true};
  const Json& v = vectors("nvfp4_pow2_tensor_scale");
  const std::vector<float> x = numbers(v["input"]), want = numbers(v["dequant"]);
  for (const Json& c : v["cases"]) {
    const Nvfp4Scale s = nvfp4_scale(number(c["amax"]), pow2);
    const Block b = quantize_block(x, s);
    EXPECT_EQ(s.encode, number(c["S_enc"]));
    EXPECT_EQ(static_cast<uint32_t>(b.byte), word(c["scale_byte"]));
    EXPECT_EQ(b.codes, integers(c["codes"]));
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(nvfp4_value_by_decode(b.codes[i], b.byte, s), want[i]);
  }
  const std::vector<float> z = normal(size_t{64} * 1024, "p16");
  const float amax = amax_of(z);
  std::vector<std::vector<float>> values;
  std::vector<std::vector<int>> codes;
  for (const float factor : {1.0f, 1.9f, 37.0f}) {
    const Nvfp4Scale s = nvfp4_scale(factor * amax, pow2);
    values.emplace_back(), codes.emplace_back();
    for (const Block& b : quantize_blocks(z, s)) {
      ASSERT_GE(b.byte, 0x08);
      codes.back().insert(codes.back().end(), b.codes.begin(), b.codes.end());
      for (const int code : b.codes) values.back().push_back(nvfp4_value_by_decode(code, b.byte, s));
    }
    for (const float value : values.back()) ASSERT_EQ(widen(round_bf16(value)), value);
  }
  for (size_t i = 1; i < values.size(); ++i) {
    EXPECT_EQ(codes[i], codes[0]);
    EXPECT_EQ(values[i], values[0]);
  }
}

TEST(NumericsNvfp4, P18_FourOverSixAsListed) {
  const Json& v = vectors("nvfp4_4over6");
  const Nvfp4Scale s = nvfp4_scale(number(v["amax"]), nvfp4_four_six);
  EXPECT_EQ(s.encode, number(v["S_enc"]));
  for (const Json& block : v["blocks"]) {
    const std::vector<float> x = numbers(block["input"]);
    const auto [six, four] = four_six_bytes(number(block["amax_b"]), s);
    EXPECT_EQ((std::vector<int>{six, four}), integers(block["bytes_6_4"]));
    for (const char* kind : {"mse", "mae"}) {
      const auto measure = std::string(kind) == "mse" ? FourSixError::mse : FourSixError::mae;
      const float error6 = four_six_error(x.data(), 16, six, s, measure);
      const float error4 = four_six_error(x.data(), 16, four, s, measure);
      EXPECT_EQ(error6, number(block[kind]["err_6"])) << kind;
      EXPECT_EQ(error4, number(block[kind]["err_4"])) << kind;
      const int chosen = four_six_choice(x, s, measure);
      EXPECT_EQ(chosen, block[kind]["chosen"] == 4 ? four : six) << kind;
      EXPECT_EQ(encode_block(x, chosen, s).codes, integers(block[kind]["codes"])) << kind;
    }
  }
  // A tile: the errors of its rows, added by the tree.
  const Json& tile = v["tile_of_nvfp4_2d_columns_16_31"];
  std::vector<float> x;
  for (const Json& row : vectors("nvfp4_2d")["input"]) {
    const std::vector<float> r = numbers(row);
    x.insert(x.end(), r.begin() + 16, r.end());
  }
  const Nvfp4Scale of_tile = nvfp4_scale(number(vectors("nvfp4_2d")["amax"]), nvfp4_four_six);
  const auto [six, four] = four_six_bytes(amax_of(x), of_tile);
  EXPECT_EQ((std::vector<int>{six, four}), integers(tile["bytes_6_4"]));
  float error6[16], error4[16];
  for (int r = 0; r < 16; ++r) {
    error6[r] = four_six_error(x.data() + 16 * r, 16, six, of_tile, FourSixError::mse);
    error4[r] = four_six_error(x.data() + 16 * r, 16, four, of_tile, FourSixError::mse);
  }
  EXPECT_EQ(tree_sum16(error6), number(tile["err_6"]));
  EXPECT_EQ(tree_sum16(error4), number(tile["err_4"]));
  EXPECT_EQ(tree_sum16(error4) < tree_sum16(error6) ? 4 : 6, tile["chosen"].get<int>());

  const std::vector<float> zeros(16);
  EXPECT_EQ(four_six_choice(zeros, s, FourSixError::mse), four_six_bytes(0, s).six);
  EXPECT_EQ(four_six_error(zeros.data(), 16, 0, s, FourSixError::mae), 0);
}

// Where S is rounded down, or 1, S_dec decodes: the error that is compared is that of the values in use.
TEST(NumericsNvfp4, P18_FourOverSixComparesTheValuesInUse) {
  const std::vector<float> x = normal(size_t{16} * 256, "p18");
  for (const Nvfp4Rule& rule :
       {Nvfp4Rule{.numerator = 1536, .pow2 = true}, Nvfp4Rule{.numerator = 1536, .unit = true}}) {
    const Nvfp4Scale s = nvfp4_scale(amax_of(x), rule);
    for (size_t i = 0; i < x.size(); i += 16)
      for (const int byte : {four_six_bytes(amax_of(std::span(x).subspan(i, 16)), s).six, 0x38}) {
        const Block b = encode_block(std::span(x).subspan(i, 16), byte, s);
        float sum = 0;
        for (size_t k = 0; k < 16; ++k) sum += std::fabs(nvfp4_value_by_decode(b.codes[k], byte, s) - x[i + k]);
        EXPECT_EQ(four_six_error(x.data() + i, 16, byte, s, FourSixError::mae), sum);
      }
  }
}

TEST(NumericsNvfp4, P19_ShareOfBlocksThatTakeFour) {
  const std::vector<float> x = normal(size_t{512} * 1024, "p19");
  const Nvfp4Scale s = nvfp4_scale(amax_of(x), nvfp4_four_six);
  for (const auto& [kind, share] : {std::pair{FourSixError::mse, 0.45}, std::pair{FourSixError::mae, 0.34}}) {
    int four = 0;
    for (size_t i = 0; i < x.size(); i += 16) {
      const std::span<const float> block(x.data() + i, 16);
      four += four_six_choice(block, s, kind) != four_six_bytes(amax_of(block), s).six;
    }
    EXPECT_NEAR(four / (static_cast<double>(x.size()) / 16), share, 0.01);
  }
}

// Rows of section 8.1 that no recipe makes with a tensor: scalar, at 512 x 1024.
TEST(NumericsNvfp4, P50_RangeOfEdenWithNearestRounding) {
  const std::vector<float> x = normal(size_t{512} * 1024, "p50");
  constexpr float v = 6.0721f;
  const Nvfp4Scale s = nvfp4_scale(amax_of(x), {.numerator = 448 * v, .reciprocal_largest = 1 / v});
  std::vector<float> y;
  for (const Block& b : quantize_blocks(x, s))
    for (const int code : b.codes) y.push_back(nvfp4_value_by_decode(code, b.byte, s));
  const auto e = errors_of(x, y, 1024);
  EXPECT_NEAR(e.mse, 8.989e-3, 0.02 * 8.989e-3);
  EXPECT_NEAR(e.db(), 20.46, 0.1);
  EXPECT_NEAR(e.shrink, 0.0079, 0.001);
  EXPECT_NEAR(e.zeros, 6.73, 0.2);
}

}  // namespace
}  // namespace nibble
