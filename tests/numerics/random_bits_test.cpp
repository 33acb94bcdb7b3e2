// Random bits and stochastic rounding (spec/precision.md 4.2, 4.3). Seeds are fixed, so what is statistical here has
// one outcome; the bounds are those by which chance would fail rarely.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "blocks.h"
#include "core/philox.h"
#include "vectors.h"

namespace nibble {
namespace {

using testing::amax_of;
using testing::errors_of;
using testing::integers;
using testing::Json;
using testing::normal;
using testing::number;
using testing::numbers;
using testing::vectors;
using testing::word;

// Byte e of the draw of a block: the low one of a word first.
int byte_of(const PhiloxWords& words, size_t e) { return static_cast<int>(words[e / 4] >> (e % 4 * 8) & 255); }
PhiloxWords draw(uint64_t block, uint32_t step, uint32_t stream, uint32_t site = 7, uint32_t seed = 1234) {
  return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), step, stream}, seed, site);
}
std::vector<int> round_block(const std::vector<float>& x, const Nvfp4Scale& s, int byte, const PhiloxWords& words) {
  std::vector<int> codes;
  for (size_t e = 0; e < x.size(); ++e)
    codes.push_back(
        e2m1_encode_stochastic(x[e] * nvfp4_encode_scale(byte, s), static_cast<uint32_t>(byte_of(words, e))));
  return codes;
}

TEST(NumericsRandomBits, P29_PhiloxKnownAnswers) {
  for (const Json& v : vectors("philox4x32_10")) {
    PhiloxWords counter{}, want{};
    for (size_t i = 0; i < 4; ++i) counter[i] = word(v["ctr"][i]), want[i] = word(v["out"][i]);
    EXPECT_EQ(philox4x32(counter, word(v["key"][0]), word(v["key"][1])), want);
  }
}

TEST(NumericsRandomBits, P29_StreamsAsListed) {
  for (const Json& v : vectors("sr_streams")) {
    const PhiloxWords words = draw(v["block"].get<uint64_t>(), v["step"], v["stream"], v["site"], v["seed"]);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(words[i], word(v["words"][i]));
    const std::vector<float> x = numbers(v["input"]);
    const Nvfp4Scale s = nvfp4_scale(number(v["amax"]));
    const int byte = nvfp4_block_scale(amax_of(x), s);
    EXPECT_EQ(static_cast<uint32_t>(byte), word(v["scale_byte"]));
    EXPECT_EQ(round_block(x, s, byte, words), integers(v["codes"]));
  }
  const Json& v = vectors("sr_block_with_philox");
  const PhiloxWords words = philox4x32({0, 0, 0, 0}, 0, 0);
  for (size_t e = 0; e < 16; ++e) EXPECT_EQ(byte_of(words, e), v["random_bytes"][e].get<int>());
  const Nvfp4Scale s = nvfp4_scale(number(v["amax"]));
  const std::vector<float> x = numbers(v["input"]);
  EXPECT_EQ(round_block(x, s, 0x7E, words), integers(v["codes"]));
  EXPECT_EQ(testing::encode_block(x, 0x7E, s).codes, integers(v["codes_rn"]));
}

TEST(NumericsStochasticRounding, P30_AllBytesGiveTheListedHistogram) {
  for (const Json& v : vectors("stochastic_rounding_8bit")) {
    const float x = number(v["x"]);
    std::map<std::string, int> count, first;
    double mean = 0;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const int code = e2m1_encode_stochastic(x, byte);
      ++count[std::to_string(code)], first.emplace(std::to_string(code), byte);
      mean += static_cast<double>(e2m1_decode(code)) / 256;
    }
    EXPECT_EQ(Json(count), v["counts_of_256"]) << v["x"];
    EXPECT_EQ(Json(first), v["first_byte_giving"]) << v["x"];
    EXPECT_EQ(mean, static_cast<double>(number(v["mean"])));
  }
  for (int code = 0; code < 16; ++code)
    for (uint32_t byte = 0; byte < 256; ++byte) EXPECT_EQ(e2m1_encode_stochastic(e2m1_decode(code), byte), code);
}

TEST(NumericsStochasticRounding, P31_ProbabilitiesInEveryInterval) {
  constexpr int n = 1 << 20;
  uint32_t site = 0;
  for (int lo = 0; lo < 7; ++lo)
    for (const double f : {0.125, 0.375, 0.5, 0.625, 0.875}) {
      const double low = e2m1_decode(lo), high = e2m1_decode(lo + 1);
      const auto x = static_cast<float>(low + f * (high - low));
      int up = 0;
      for (uint64_t block = 0; block < n / 16; ++block) {
        const PhiloxWords words = draw(block, 0, 0, site);
        for (size_t e = 0; e < 16; ++e) {
          const int code = e2m1_encode_stochastic(x, static_cast<uint32_t>(byte_of(words, e)));
          ASSERT_TRUE(code == lo || code == lo + 1);
          up += code == lo + 1;
        }
      }
      EXPECT_LE(std::fabs(up / static_cast<double>(n) - f), 5 * std::sqrt(f * (1 - f) / n)) << lo << " " << f;
      ++site;
    }
}

TEST(NumericsRandomBits, P32_BytesAreUniform) {
  constexpr int n = 1 << 22;
  double count[256] = {}, chi2 = 0;
  for (uint64_t block = 0; block < n / 16; ++block) {
    const PhiloxWords words = draw(block, 3, 0);
    for (size_t e = 0; e < 16; ++e) ++count[byte_of(words, e)];
  }
  for (const double c : count) chi2 += (c - n / 256.0) * (c - n / 256.0) / (n / 256.0);
  EXPECT_GE(chi2, 142);
  EXPECT_LE(chi2, 368);
}

TEST(NumericsRandomBits, P33_StreamsStepsBlocksAndSitesAreUncorrelated) {
  constexpr int n = 1 << 20;
  using Pick = PhiloxWords (*)(uint64_t);
  const std::pair<const char*, Pick> others[] = {{"column copy", [](uint64_t b) { return draw(b, 3, 1); }},
                                                 {"next step", [](uint64_t b) { return draw(b, 4, 0); }},
                                                 {"next block", [](uint64_t b) { return draw(b + 1, 3, 0); }},
                                                 {"next site", [](uint64_t b) { return draw(b, 3, 0, 8); }},
                                                 {"next seed", [](uint64_t b) { return draw(b, 3, 0, 7, 1235); }}};
  for (const auto& [name, other] : others) {
    double xx = 0, yy = 0, xy = 0;
    for (uint64_t block = 0; block < n / 16; ++block) {
      const PhiloxWords a = draw(block, 3, 0), b = other(block);
      for (size_t e = 0; e < 16; ++e) {
        const double x = byte_of(a, e) - 127.5, y = byte_of(b, e) - 127.5;
        xx += x * x, yy += y * y, xy += x * y;
      }
    }
    EXPECT_LE(std::fabs(xy / std::sqrt(xx * yy)), 0.0049) << name;
  }
}

// Means of 1, 64 and 256 draws. 128 x 1024 values instead of 512 x 1024: chance moves the mean square of 131,072
// errors by half a per cent, and their shrink by 2e-5 after 256 draws.
struct Means {
  double one, many, all;  // relative squared errors of the means of 1, 64 and 256 draws
  double shrink;          // of that of 256
};
Means means_of(const Nvfp4Rule& rule) {
  const std::vector<float> x = normal(size_t{128} * 1024, "p34");
  const Nvfp4Scale s = nvfp4_scale(amax_of(x), rule);
  std::vector<float> sum(x.size());
  const auto error = [&](float draws) {
    std::vector<float> mean = sum;
    for (float& v : mean) v /= draws;
    return errors_of(x, mean, 1024);
  };
  Means m{};
  for (uint32_t step = 0; step < 256; ++step) {
    for (size_t i = 0; i < x.size(); i += 16) {
      const int byte = nvfp4_block_scale(amax_of(std::span(x).subspan(i, 16)), s);
      const float encode = nvfp4_encode_scale(byte, s), decode = e4m3_decode(byte) * s.decode;
      const PhiloxWords words = draw(i / 16, step, 0);
      for (size_t e = 0; e < 16; ++e)
        sum[i + e] +=
            decode * e2m1_decode(e2m1_encode_stochastic(x[i + e] * encode, static_cast<uint32_t>(byte_of(words, e))));
    }
    if (step == 0) m.one = error(1).mse;
    if (step == 63) m.many = error(64).mse;
  }
  m.all = error(256).mse, m.shrink = error(256).shrink;
  return m;
}

TEST(NumericsStochasticRounding, P34_P35_MeansOverTheWiderRange) {
  constexpr float v = 6.0f * 16 / 17;
  const Means m = means_of({.numerator = 448 * v, .reciprocal_largest = 17.0f / 96});
  EXPECT_NEAR(m.all, 0.0927e-3, 0.05 * 0.0927e-3);
  EXPECT_NEAR(m.one / m.many, 64, 2);
  EXPECT_NEAR(m.shrink, 0.0007, 0.0003);
  EXPECT_NEAR(m.one, 23.53e-3, 0.02 * 23.53e-3);  // P50
}
TEST(NumericsStochasticRounding, P34_P35_MeansOverTheRangeOfTheRecipe) {
  const Means m = means_of({});
  EXPECT_NEAR(m.all, 0.176e-3, 0.15 * 0.176e-3);
  EXPECT_NEAR(m.shrink, 0.0040, 0.0006);
}

TEST(NumericsStochasticRounding, P38_E4m3AsListed) {
  for (const Json& v : vectors("e4m3_stochastic"))
    EXPECT_EQ(static_cast<uint32_t>(e4m3_encode_stochastic(number(v["t"]), word(v["word"]))), word(v["byte"])) << v;
}
TEST(NumericsStochasticRounding, P38_E4m3MeanOfManyDraws) {
  constexpr int n = 1 << 20;
  double sum = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const int byte = e4m3_encode_stochastic(17.0f / 16, draw(i, 0, 0)[0]);
    ASSERT_TRUE(byte == 0x38 || byte == 0x39);
    sum += e4m3_decode(byte);
  }
  EXPECT_NEAR(sum / n, 17.0 / 16, 3.1e-4);
}

}  // namespace
}  // namespace nibble
