// MX formats and FP8 under one scale (spec/precision.md 2.9, 2.10), element by element.
#include <gtest/gtest.h>

#include "numerics/e2m1.h"
#include "numerics/fp8_scaling.h"
#include "numerics/mx.h"
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

const Json& mx(const char* format) {
  for (const Json& v : vectors("mx"))
    if (v["fmt"] == format) return v;
  throw std::runtime_error(format);
}
template <class Encode>
std::vector<int> encode_all(const std::vector<float>& x, float factor, const Encode& encode) {
  std::vector<int> codes;
  for (const float v : x) codes.push_back(encode(v * factor));
  return codes;
}

TEST(NumericsMx, P20_Mxfp8) {
  const std::vector<float> x = numbers(mx("mxfp8_e4m3")["input"]);
  const float amax = number(mx("mxfp8_e4m3")["amax"]);
  const int e4m3 = mxfp8_e4m3_scale(amax), e5m2 = mxfp8_e5m2_scale(amax);
  EXPECT_EQ(static_cast<uint32_t>(e4m3), word(mx("mxfp8_e4m3")["e8m0"]));
  EXPECT_EQ(static_cast<uint32_t>(e5m2), word(mx("mxfp8_e5m2")["e8m0"]));
  const std::vector<int> codes = encode_all(x, e8m0_inverse(e4m3), e4m3_encode);
  EXPECT_EQ(codes, integers(mx("mxfp8_e4m3")["bytes"]));
  EXPECT_EQ(encode_all(x, e8m0_inverse(e5m2), e5m2_encode), integers(mx("mxfp8_e5m2")["bytes"]));
  const std::vector<float> values = numbers(mx("mxfp8_e4m3")["dequant"]);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(e4m3_decode(codes[i]) * e8m0_decode(e4m3), values[i]);
}

TEST(NumericsMx, P20_Mxfp4WithThreeRules) {
  const std::vector<float> x = numbers(mx("mxfp4_input")["input"]);
  const float amax = number(mx("mxfp4_input")["amax"]);
  const int up = mxfp4_scale(amax), down = mxfp4_floor_scale(amax);
  EXPECT_EQ(static_cast<uint32_t>(up), word(mx("mxfp4_roundup_rn")["e8m0"]));
  EXPECT_EQ(static_cast<uint32_t>(down), word(mx("mxfp4_ocp_floor_rn")["e8m0"]));
  EXPECT_EQ(encode_all(x, e8m0_inverse(up), e2m1_encode), integers(mx("mxfp4_roundup_rn")["codes"]));
  EXPECT_EQ(encode_all(x, e8m0_inverse(down), e2m1_encode), integers(mx("mxfp4_ocp_floor_rn")["codes"]));
  EXPECT_EQ(encode_all(x, 0.75f * e8m0_inverse(down), [](float t) { return e2m1_encode_stochastic(t, 128); }),
            integers(mx("mxfp4_tseng_sr_3_4_byte128")["codes"]));
}

TEST(NumericsMx, P20_ScalesOfZeroAndOfWhatIsNotFinite) {
  EXPECT_EQ(word(vectors("mx_nonfinite")["e8m0"]), 0xFFu);
  for (const float x : {inf, nan})
    for (int (*scale)(float) : {mxfp4_scale, mxfp4_floor_scale, mxfp8_e4m3_scale, mxfp8_e5m2_scale}) {
      EXPECT_EQ(scale(x), 0xFF);
      EXPECT_EQ(scale(0), 0x00);
    }
}

TEST(NumericsFp8, P21_CurrentScaling) {
  const std::vector<float> x = numbers(mx("mxfp8_e4m3")["input"]);
  for (const Json& v : vectors("fp8_current_and_block")) {
    SCOPED_TRACE(v["fmt"]);
    const std::string format = v["fmt"];
    const float amax = number(v["amax"]);
    if (format == "fp8_current_scale_edge") {
      // TransformerEngine's scale of a non-finite amax is 1; here its stored form, a NaN, poisons.
      if (std::isfinite(amax)) {
        EXPECT_EQ(fp8_scale(amax, e4m3_max), number(v["scale"]));
      }
      continue;
    }
    const bool e5m2 = format.find("e5m2") != std::string::npos, pow2 = format.find("pow2") != std::string::npos;
    const float scale = fp8_scale(amax, e5m2 ? e5m2_max : e4m3_max, pow2);
    EXPECT_EQ(scale, number(v["scale"]));
    EXPECT_EQ(1 / scale, number(v["scale_inv"]));
    EXPECT_EQ(encode_all(x, scale, e5m2 ? e5m2_encode : e4m3_encode), integers(v["bytes"]));
  }
  EXPECT_TRUE(std::isnan(fp8_scale(nan, e4m3_max)));
}

TEST(NumericsFp8, P21_PowerOfTwoBlockScales) {
  for (const Json& v : vectors("fp8_block_scale")) {
    const float scale = fp8_scale(number(v["amax"]), e4m3_max, true);
    EXPECT_EQ(scale, number(v["scale"])) << v;
    EXPECT_EQ(1 / scale, number(v["scale_inv"])) << v;
  }
}

TEST(NumericsFp8, P22_DelayedScalingStepByStep) {
  std::vector<float> history(4);
  float scale = 1;
  for (const Json& v : vectors("delayed_scaling_history4")["te_update_after_use"]) {
    EXPECT_EQ(scale, number(v["scale_used"]));
    history[0] = std::max(history[0], number(v["amax"]));  // the running maximum of the step
    scale = fp8_delayed_update(history, scale, 448);
    EXPECT_EQ(history, numbers(v["history_after"]));
    EXPECT_EQ(scale, number(v["next_scale"]));
  }
}

TEST(NumericsFp8, P22_ZeroAndNonFiniteMaximaKeepTheScale) {
  for (const float amax : {0.0f, inf, nan}) {
    std::vector<float> history(3);
    history[0] = amax;
    EXPECT_EQ(fp8_delayed_update(history, 7, 448), 7);
    EXPECT_EQ(history[0], 0);
    EXPECT_TRUE(same(history[2], amax));
    history[0] = 2;
    const float next = fp8_delayed_update(history, 7, 448);
    EXPECT_EQ(next, amax == 0 ? 224 : 7);  // as long as it is in the history
    history[0] = 2;
    fp8_delayed_update(history, 7, 448);  // the slot that held it is the one that was just taken
    history[0] = 2;
    EXPECT_EQ(fp8_delayed_update(history, 7, 448), 224);
  }
  std::vector<float> history{2, 0, 0};
  EXPECT_EQ(fp8_delayed_update(history, 1, e5m2_max, 3), 57344.0f / 2 / 8);
  std::vector<float> tiny{0x1p-149f, 0};
  EXPECT_EQ(fp8_delayed_update(tiny, 1, 448), FLT_MAX);
}

}  // namespace
}  // namespace nibble
