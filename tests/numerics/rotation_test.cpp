// Random Hadamard transforms and MS-EDEN (spec/precision.md 3.6, 4.1).
#include <gtest/gtest.h>

#include <set>

#include "blocks.h"
#include "numerics/eden.h"
#include "numerics/hadamard.h"
#include "vectors.h"

namespace nibble {
namespace {

using testing::amax_of;
using testing::integers;
using testing::Json;
using testing::normal;
using testing::number;
using testing::numbers;
using testing::vectors;
using testing::word;

std::vector<float> turned16(const std::vector<float>& x) {
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); i += 16) {
    BFloat16 t[16];
    rht16(x.data() + i, t);
    for (const BFloat16 v : t) y.push_back(widen(v));
  }
  return y;
}
std::vector<float> unit(size_t n, size_t i, float size = 1) {
  std::vector<float> x(n);
  x[i] = size;
  return x;
}

TEST(NumericsRotation, P24_Rht16AsListed) {
  const Json& v = vectors("rht");
  EXPECT_EQ(word(v["mask_bits_set_where_minus"]), rht16_signs);
  std::vector<float> signs;
  for (int i = 0; i < 16; ++i) {
    signs.push_back(v["sign"][static_cast<size_t>(i)].get<float>());
    EXPECT_EQ((rht16_signs >> i & 1) != 0 ? -1 : 1, signs.back());
  }
  for (const Json& impulse : v["impulses"])
    EXPECT_EQ(turned16(unit(16, impulse["x_index"])), numbers(impulse["y"])) << impulse["x_index"];
  EXPECT_EQ(turned16(std::vector<float>(16, 1)), numbers(v["constant_one"]));
  EXPECT_EQ(turned16(signs), numbers(v["input_equal_to_sign_vector"]));
  EXPECT_EQ(turned16(numbers(v["random_in"])), numbers(v["random_out_bf16"]));

  for (const float y : turned16(signs)) EXPECT_FALSE(std::signbit(y));  // an exact zero is +0
  for (const float y : turned16(std::vector<float>(16, -0.0f))) EXPECT_FALSE(std::signbit(y));
}

TEST(NumericsRotation, P24_RowsAreOrthonormal) {
  for (size_t i = 0; i < 16; ++i)
    for (size_t j = 0; j < 16; ++j) {
      const std::vector<float> a = turned16(unit(16, i)), b = turned16(unit(16, j));
      float dot = 0;
      for (size_t k = 0; k < 16; ++k) dot += a[k] * b[k];
      EXPECT_EQ(dot, i == j ? 1 : 0);
    }
}

// Larger groups, in f64: each result is the sum over the matrix times the scale, rounded once; the sixteen signs
// repeat.
TEST(NumericsRotation, P24_GroupsOf32And64) {
  for (const int n : {32, 64}) {
    const std::vector<float> x = normal(static_cast<size_t>(n), "p24");
    BFloat16 y[64];
    hadamard_to_bf16(x.data(), n, rht16_signs, y);
    for (int c = 0; c < n; ++c) {
      double sum = 0;
      for (int r = 0; r < n; ++r) {
        const bool minus =
            ((rht16_signs >> (r % 16) & 1) != 0) != (std::popcount(static_cast<unsigned>(r & c)) % 2 != 0);
        sum += minus ? -static_cast<double>(x[static_cast<size_t>(r)]) : x[static_cast<size_t>(r)];
      }
      EXPECT_EQ(y[c].bits, round_bf16(sum * (n == 32 ? std::sqrt(1.0 / 32) : 0.125)).bits) << c;
    }
  }
}

TEST(NumericsRotation, RoundsOnceFromF64ToBf16) {
  EXPECT_EQ(round_bf16(1 + 0x1p-8 + 0x1p-40).bits, 0x3F81);  // through f32 this would be a tie
  EXPECT_EQ(round_bf16(1 + 0x1p-8 - 0x1p-40).bits, 0x3F80);
  EXPECT_EQ(round_bf16(1 + 0x3p-8 - 0x1p-40).bits, 0x3F81);
  EXPECT_EQ(round_bf16(-(1 + 0x1p-8 + 0x1p-40)).bits, 0xBF81);
  EXPECT_EQ(round_bf16(1 + 0x1p-8).bits, 0x3F80);
  EXPECT_EQ(round_bf16(0x1p-134 + 0x1p-180).bits, 0x0001);
  EXPECT_EQ(round_bf16(1e300).bits, 0x7F80);
}

// 16 BF16 numbers whose largest and smallest exponents differ by 12 at most: 8 + 12 + 4 bits fit an f32, so the
// butterfly is exact in it.
TEST(NumericsRotation, P25_TheF32ButterflyIsExactUpTo12Binades) {
  int wider_differs = 0;
  for (uint32_t g = 0; g < 1000000; ++g) {
    float single[16];
    double exact[16];
    const bool wide = g % 16 == 0;
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t bits = philox4x32({g, i / 4, 0, 0}, 25, 0)[i % 4];
      const uint32_t exponent = 100 + (bits >> 16) % (wide ? 41 : 13);
      single[i] = std::bit_cast<float>((bits & 0x80000000u) | exponent << 23 | (bits & 0x7Fu) << 16);
      if ((bits >> 8 & 15u) == 0) single[i] = 0;
      exact[i] = single[i];
    }
    butterfly(single, 16);
    butterfly(exact, 16);
    bool equal = true;
    for (int i = 0; i < 16; ++i) equal = equal && static_cast<double>(single[i]) == exact[i];
    ASSERT_TRUE(equal || wide) << g;
    wider_differs += !equal;
  }
  EXPECT_GT(wider_differs, 10000);  // the bound is one
}

// The product of turned operands, rounded to BF16, against that of the operands themselves.
TEST(NumericsRotation, P26_TheRotationCancelsInTheWeightGradient) {
  constexpr size_t tokens = 256, rows = 48, columns = 64;
  const std::vector<float> dy = normal(rows * tokens, "dy", 1e-3), x = normal(columns * tokens, "x");  // transposed
  const std::vector<float> turned_dy = turned16(dy), turned_x = turned16(x);
  double error = 0, size = 0;
  for (size_t n = 0; n < rows; ++n)
    for (size_t k = 0; k < columns; ++k) {
      double plain = 0, turned = 0;
      for (size_t m = 0; m < tokens; ++m) {
        plain += static_cast<double>(dy[n * tokens + m]) * static_cast<double>(x[k * tokens + m]);
        turned += static_cast<double>(turned_dy[n * tokens + m]) * static_cast<double>(turned_x[k * tokens + m]);
      }
      error += (plain - turned) * (plain - turned), size += plain * plain;
    }
  EXPECT_LT(std::sqrt(error / size), 0x1p-8);
  EXPECT_GT(error, 0);
}

TEST(NumericsRotation, P27_Rht128AsListed) {
  const Json& v = vectors("rht128");
  const PhiloxWords words = philox4x32(
      {v["group"].get<uint32_t>(), 0, v["step"].get<uint32_t>(), v["stream"].get<uint32_t>()}, v["seed"], v["site"]);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(words[i], word(v["sign_words"][i]));
  EXPECT_EQ(rht128_scale, number(v["scale"]));
  std::vector<float> x = numbers(v["input"]);
  rht128(x.data(), words);
  EXPECT_EQ(x, numbers(v["output"]));
}

TEST(NumericsRotation, P27_SignsDifferBetweenStepsSitesGroupsAndGemms) {
  std::set<PhiloxWords> seen;
  for (const uint32_t step : {0u, 1u})
    for (const uint32_t site : {0u, 1u})
      for (const uint32_t group : {0u, 1u})
        for (const uint32_t stream : {16u, 17u}) seen.insert(philox4x32({group, 0, step, stream}, 1234, site));
  EXPECT_EQ(seen.size(), 16u);
}

TEST(NumericsEden, P39_AsListed) {
  const Json& v = vectors("ms_eden");
  EXPECT_EQ(nvfp4_eden.numerator, number(v["numerator"]));
  EXPECT_EQ(nvfp4_eden.reciprocal_largest, number(v["reciprocal_v"]));
  const std::vector<float> z = numbers(vectors("rht128")["output"]);
  const Nvfp4Scale s = nvfp4_scale(amax_of(z), nvfp4_eden);
  EXPECT_EQ(s.amax, number(v["amax"]));
  EXPECT_EQ(s.encode, number(v["S_enc"]));
  uint32_t words[8];
  for (uint32_t k = 0; k < 8; ++k) {
    words[k] = philox4x32({k, 0, 3, 0}, 1234, 7)[0];
    EXPECT_EQ(words[k], word(v["words"][k]));
  }
  const EdenGroup g = eden(z.data(), s, words);
  EXPECT_EQ((std::vector<int>(g.bytes_before, g.bytes_before + 8)), integers(v["bytes_before"]));
  EXPECT_EQ((std::vector<int>(g.codes, g.codes + 128)), integers(v["codes"]));
  EXPECT_EQ(g.num, number(v["num"]));
  EXPECT_EQ(g.den, number(v["den"]));
  EXPECT_EQ(g.ratio, number(v["ratio"]));
  EXPECT_EQ((std::vector<int>(g.bytes, g.bytes + 8)), integers(v["bytes_after"]));
}

TEST(NumericsEden, P39_ZeroGroup) {
  const std::vector<float> z(128);
  const uint32_t words[8] = {};
  const EdenGroup g = eden(z.data(), nvfp4_scale(0, nvfp4_eden), words);
  EXPECT_EQ(g.ratio, 1);
  for (const int byte : g.bytes) EXPECT_EQ(byte, e4m3_one);
  for (const int code : g.codes) EXPECT_EQ(code & 7, 0);
}

// The mean of 1024 draws, each with its own rotation, turned back. 32 x 1024 values instead of 256 x 1024: the share of
// chance in the mean square of 32,768 errors is below 1 %, far inside the 10 %.
TEST(NumericsEden, P39_DrawsAverageOut) {
  constexpr int64_t n = int64_t{32} * 1024, groups = n / 128;
  const std::vector<float> x = normal(n, "p39");
  std::vector<double> sum(n);
  std::vector<float> z(n);
  for (uint32_t draw = 0; draw < 1024; ++draw) {
    z = x;
    const auto signs = [draw](int64_t g) { return philox4x32({static_cast<uint32_t>(g), 0, draw, 16}, 39, 0); };
    for (int64_t g = 0; g < groups; ++g) rht128(z.data() + 128 * g, signs(g));
    const Nvfp4Scale s = nvfp4_scale(amax_of(z), nvfp4_eden);
    for (int64_t g = 0; g < groups; ++g) {
      uint32_t words[8];
      for (uint32_t k = 0; k < 8; ++k) words[k] = philox4x32({static_cast<uint32_t>(8 * g) + k, 0, draw, 0}, 39, 0)[0];
      const EdenGroup e = eden(z.data() + 128 * g, s, words);
      float v[128];
      for (int i = 0; i < 128; ++i) v[i] = nvfp4_value_by_decode(e.codes[i], e.bytes[i / 16], s);
      butterfly(v, 128);
      const PhiloxWords words_of = signs(g);
      for (int i = 0; i < 128; ++i) {
        const bool minus = (words_of[static_cast<size_t>(i / 32)] >> (i % 32) & 1u) != 0;
        sum[static_cast<size_t>(128 * g + i)] += (minus ? -v[i] : v[i]) * rht128_scale;
      }
    }
  }
  std::vector<float> mean;
  for (const double v : sum) mean.push_back(static_cast<float>(v / 1024));
  EXPECT_NEAR(testing::errors_of(x, mean, 1024).mse, 0.0099e-3, 0.1 * 0.0099e-3);
}

}  // namespace
}  // namespace nibble
