// QuEST's scale and mask, and the way back of a gradient (spec/precision.md 3.4, mxfp4_quartet). The spec lists no
// vectors: each is compared with its definition in other words.
#include "numerics/quest.h"

#include <gtest/gtest.h>

#include <cmath>

#include "numerics/blocks.h"

namespace nibble {
namespace {

// Deviations of all pairs: sum (a - b)^2 over pairs is n times n variances.
int byte_by_pairs(const float* v) {
  long double pairs = 0;
  for (int i = 0; i < 32; ++i)
    for (int j = 0; j < i; ++j)
      pairs += (static_cast<long double>(v[i]) - static_cast<long double>(v[j])) *
               (static_cast<long double>(v[i]) - static_cast<long double>(v[j]));
  const long double sigma = std::sqrt(pairs) / 32;
  return 127 + static_cast<int>(std::floor(std::log2(2.92247856L * sigma / 6 + 1e-8L)));
}

TEST(NumericsQuest, TheScaleIsThatOfTheStandardDeviation) {
  int differ = 0;
  for (const double size : {1e-30, 1e-6, 0.03, 1.0, 7.0, 1e20}) {
    std::vector<float> x = testing::normal(32 * 500, "quest", size);
    for (size_t b = 0; b < 500; ++b) {
      if (b % 5 == 0)  // with a mean that counts
        for (size_t i = 0; i < 32; ++i) x[32 * b + i] += static_cast<float>(3 * size);
      differ += mxfp4_quest_scale(x.data() + 32 * b, 32) != byte_by_pairs(x.data() + 32 * b);
    }
  }
  EXPECT_EQ(differ, 0);
}

TEST(NumericsQuest, EdgesOfTheScale) {
  float v[32] = {};
  EXPECT_EQ(mxfp4_quest_scale(v, 32), 127 - 27);  // of 1e-8 alone
  std::fill_n(v, 32, 5.0f);
  EXPECT_EQ(mxfp4_quest_scale(v, 32), 127 - 27) << "equal values have no deviation";
  for (int i = 0; i < 32; ++i) v[i] = i % 2 == 0 ? 6.0f : -6.0f;  // sigma 6
  EXPECT_EQ(mxfp4_quest_scale(v, 32), 127 + 1);
  std::fill_n(v, 32, 0.0f);
  v[0] = 6;  // missing values are 0
  EXPECT_EQ(mxfp4_quest_scale(v, 1), mxfp4_quest_scale(v, 32));
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    v[7] = bad;
    EXPECT_EQ(mxfp4_quest_scale(v, 32), e8m0_nan);
  }
  for (int i = 0; i < 32; ++i) v[i] = i % 2 == 0 ? 3e38f : -3e38f;
  EXPECT_EQ(mxfp4_quest_scale(v, 32), 127 + 126);
}

// What the mask names is what saturates, and nothing else is more than half a step from its value.
TEST(NumericsQuest, TheMaskIsWhatIsCutOff) {
  std::vector<float> x = testing::normal(32 * 2000, "mask");
  int64_t cut = 0;
  for (size_t b = 0; b < 2000; ++b) {
    float* const v = x.data() + 32 * b;
    for (int i = 0; i < 32; ++i) v[i] = widen(round_bf16(v[i]));
    BFloat16 turned[32];
    hadamard_to_bf16(v, 32, rht16_signs, turned);
    for (const bool rotated : {false, true}) {
      float values[32];
      for (int i = 0; i < 32; ++i) values[i] = rotated ? widen(turned[i]) : v[i];
      const float scale = e8m0_decode(mxfp4_quest_scale(values, 32));
      const uint32_t mask = quest_mask(v, 32, rotated);
      for (int i = 0; i < 32; ++i) {
        const bool is_cut = (mask >> i & 1u) != 0;
        const float back = e2m1_decode(e2m1_encode(values[i] / scale)) * scale;
        EXPECT_EQ(is_cut, std::fabs(values[i]) > 6 * scale);
        EXPECT_LE(std::fabs(back - values[i]), is_cut ? std::fabs(values[i]) - 6 * scale : scale);
        cut += static_cast<int64_t>(is_cut && rotated);
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(cut) / (32 * 2000), 0.073, 0.003);  // of normal numbers, as measured
}

TEST(NumericsQuest, TheWayBackUndoesTheRotation) {
  const std::vector<float> x = testing::normal(32 * 200, "back");
  for (size_t b = 0; b < 200; ++b) {
    double v[32];
    float turned[32];
    for (int i = 0; i < 32; ++i) v[i] = static_cast<double>(x[32 * b + static_cast<size_t>(i)]);
    double forth[32];
    for (int i = 0; i < 32; ++i) forth[i] = (rht16_signs >> (i % 16) & 1u) != 0 ? -v[i] : v[i];
    butterfly(forth, 32);
    for (int i = 0; i < 32; ++i) turned[i] = static_cast<float>(forth[i] / std::sqrt(32.0));
    double back[32];
    quest_back(turned, 0, true, back);
    for (int i = 0; i < 32; ++i) EXPECT_NEAR(back[i], v[i], 2e-6);
    quest_back(turned, ~0u, true, back);
    for (const double y : back) EXPECT_EQ(y, 0.0);
    quest_back(turned, 0xF0F0F0F0u, false, back);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(back[i], i / 4 % 2 == 0 ? static_cast<double>(turned[i]) : 0.0);
    // Linear: what the mask takes away is what the rest has not.
    double kept[32], lost[32], all[32];
    quest_back(turned, 0x13579BDFu, true, kept), quest_back(turned, ~0x13579BDFu, true, lost);
    quest_back(turned, 0, true, all);
    for (int i = 0; i < 32; ++i) EXPECT_NEAR(kept[i] + lost[i], all[i], 1e-14);
  }
}

}  // namespace
}  // namespace nibble
