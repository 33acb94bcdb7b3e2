// NVFP4 in the bytes of other programs: spec/precision.md 9, golden section `export`.
#include "numerics/nvfp4_file.h"

#include <cmath>

#include "blocks.h"
#include "vectors.h"

namespace nibble {
namespace {

using testing::Json;

std::vector<uint8_t> bytes_of(const Json& hex) {
  const std::string text = testing::text(hex);
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < text.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

/// Row r of the golden weight, quantised: 32 bytes of codes and 4 scales.
struct Row {
  std::vector<uint8_t> codes, scales;
};
Row quantized_row(size_t r, const Nvfp4Scale& s) {
  const std::vector<float> w = testing::numbers(testing::vectors("export")["weight"]);
  Row row;
  for (size_t i = 64 * r; i < 64 * (r + 1); i += 16) {
    const testing::Block b = testing::quantize_block({w.data() + i, 16}, s);
    row.scales.push_back(static_cast<uint8_t>(b.byte));
    for (size_t k = 0; k < 16; k += 2) row.codes.push_back(static_cast<uint8_t>(b.codes[k] | b.codes[k + 1] << 4));
  }
  return row;
}

TEST(PrecisionP63, CodesScalesAndBothGlobalScalesAreTheGoldenOnes) {
  const Json& golden = testing::vectors("export");
  const std::vector<float> w = testing::numbers(golden["weight"]), decoded = testing::numbers(golden["decoded"]);
  const float amax = testing::amax_of(w);
  EXPECT_EQ(amax, testing::number(golden["amax"]));
  const Nvfp4Scale s = nvfp4_scale(amax);
  const Nvfp4FileScale file = nvfp4_file_scale(s, nvfp4_standard);
  EXPECT_EQ(file.multiplier, testing::number(golden["weight_scale_2"]));
  EXPECT_EQ(file.divisor, testing::number(golden["weight_global_scale"]));
  for (size_t r = 0; r < 2; ++r) {
    const Row row = quantized_row(r, s);
    EXPECT_EQ(row.codes, bytes_of(golden["packed_rows"][r]));
    const std::vector<int> scales = testing::integers(golden["scale_rows"][r]);
    EXPECT_EQ(std::vector<int>(row.scales.begin(), row.scales.end()), scales);
    for (const float multiplier : {file.multiplier, 1 / file.divisor}) {
      std::vector<float> x(64);
      nvfp4_file_decode(row.codes.data(), row.scales.data(), 64, multiplier, x.data());
      for (size_t i = 0; i < 64; ++i) EXPECT_EQ(x[i], decoded[64 * r + i]) << r << ", " << i;
    }
  }
}

TEST(PrecisionP63, TheTwoGlobalScalesAreReciprocalsWithinOneUlp) {
  for (const float amax : testing::normal(20000, "amax")) {
    const float a = std::fabs(amax);
    for (const Nvfp4Rule& rule : {nvfp4_standard, nvfp4_four_six, Nvfp4Rule{.pow2 = true}, Nvfp4Rule{.unit = true}}) {
      const Nvfp4FileScale f = nvfp4_file_scale(nvfp4_scale(a, rule), rule);
      EXPECT_LE(std::fabs(f.multiplier * f.divisor - 1), 0x1p-23f) << a;
      if (rule.pow2 || rule.unit) {
        EXPECT_EQ(f.multiplier * f.divisor, 1) << a;
      }
    }
  }
  const Nvfp4FileScale zero = nvfp4_file_scale(nvfp4_scale(0), nvfp4_standard);
  EXPECT_EQ(zero.multiplier, 1) << "a tensor of zeros has no infinite divisor";
  EXPECT_EQ(zero.divisor, 1);
}

// Section 9: the value in a file is x^ for pow2, within 2 ulp otherwise.
TEST(PrecisionP63, AFileDecodesToTheValuesOfTraining) {
  const std::vector<float> w = testing::normal(64 * 16, "weights", 0.02);
  QuantSpec exact{.format = DType::nvfp4}, pow2 = exact, four_six = exact;
  pow2.tensor_scale = TensorScale::pow2, four_six.four_six = FourSix::mse;
  for (const QuantSpec& spec : {exact, pow2, four_six}) {
    const Nvfp4Rule rule = nvfp4_rule(spec);
    const Nvfp4Scale s = nvfp4_scale(testing::amax_of(w), rule);
    const Nvfp4FileScale file = nvfp4_file_scale(s, rule);
    int differing = 0;
    for (size_t i = 0; i < w.size(); i += 16) {
      const std::span<const float> x(w.data() + i, 16);
      const int byte = spec.four_six == FourSix::off ? nvfp4_block_scale(testing::amax_of(x), s)
                                                     : testing::four_six_choice(x, s, FourSixError::mse);
      const testing::Block b = testing::encode_block(x, byte, s);
      for (const int code : b.codes) {
        const float in_file = e2m1_decode(code) * (e4m3_decode(byte) * file.multiplier);
        const float value = s.exact && spec.four_six == FourSix::off ? nvfp4_value(code, byte, s.amax)
                                                                     : nvfp4_value_by_decode(code, byte, s);
        differing += in_file != value;
        EXPECT_LE(std::fabs(in_file - value), 2 * 0x1p-23f * std::fabs(value));
      }
    }
    if (spec.tensor_scale == TensorScale::pow2) {
      EXPECT_EQ(differing, 0);
    }
  }
}

TEST(PrecisionP64, GgufRowsAreTheGoldenOnes) {
  const Json& golden = testing::vectors("export");
  const Nvfp4Scale s = nvfp4_scale(testing::number(golden["amax"]));
  for (size_t r = 0; r < 2; ++r) {
    const Row row = quantized_row(r, s);
    std::vector<uint8_t> block(gguf_nvfp4_bytes), codes(32), scales(4);
    gguf_nvfp4_block(row.codes.data(), row.scales.data(), block.data());
    EXPECT_EQ(block, bytes_of(golden["gguf_rows"][r]));
    gguf_nvfp4_unpack(block.data(), codes.data(), scales.data());
    EXPECT_EQ(codes, row.codes);
    EXPECT_EQ(scales, row.scales);
  }
}

TEST(PrecisionP64, TheRampShowsTheOrderWithinABlock) {
  uint8_t codes[32], scales[4] = {0x38, 0x40, 0x48, 0x50};
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(2 * i % 16 | (2 * i + 1) % 16 << 4);
  std::vector<uint8_t> block(gguf_nvfp4_bytes);
  gguf_nvfp4_block(codes, scales, block.data());
  EXPECT_EQ(block, bytes_of(testing::vectors("export")["gguf_ramp"]));
}

TEST(PrecisionP64, EveryCodeAndScaleComesBackButNaNAndSigns) {
  for (int byte = 0; byte < 256; ++byte) {
    uint8_t codes[32], scales[4], block[gguf_nvfp4_bytes], again[32], bytes[4];
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(byte + 37 * i);
    for (int i = 0; i < 4; ++i) scales[i] = static_cast<uint8_t>(byte);
    gguf_nvfp4_block(codes, scales, block);
    gguf_nvfp4_unpack(block, again, bytes);
    EXPECT_TRUE(std::equal(codes, codes + 32, again)) << byte;
    for (const uint8_t b : bytes) EXPECT_EQ(b, (byte & 0x7F) == 0x7F ? 0 : byte & 0x7F);
  }
}

}  // namespace
}  // namespace nibble
