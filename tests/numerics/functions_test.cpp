// The elementary functions of spec/training.md 2.11: error bounds against 113-bit references, special values, and the
// committed hashes by which every machine checks its own bits. Registers against scalars: kernels/math_arrays_test.cpp.
#include "numerics/functions.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <quadmath.h>
#include <xxhash.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/hash.h"
#include "core/philox.h"

namespace nibble {
namespace {

using Quad = __float128;

// |y - want| in units of the last place of f32 (24 bits) or f64 (53) at `want`; subnormals have the smallest unit.
double ulps(Quad y, Quad want, int digits, int least_exponent) {
  int e = 0;
  frexpq(want, &e);
  return static_cast<double>(fabsq(y - want) / ldexpq(1, std::max(e, least_exponent) - digits));
}
double ulps_f32(float y, Quad want) { return ulps(y, want, 24, -125); }
double ulps_f64(double y, Quad want) { return ulps(y, want, 53, -1021); }

// ---- f32: every 257th of the 2^32 bit patterns ----

struct RowF32 {
  const char* name;
  float (*f)(float);
  double (*near)(double);  // f64 reference: sorts out what deserves the slow one
  Quad (*exact)(Quad);
  float lowest, highest;  // bounds are measured in here; the special values have their own test
  float least_size;       // and not below this |x|, where the answer is 1 or x
  double bound;
  const char* hash;  // of all outputs, NaN and infinities included
};
// clang-format off
const RowF32 rows_f32[] = {
    {"exp", [](float x) { return exp_f32(x); }, std::exp, expq, -0x1.5d589ep+6f, 0x1.62e42ep+6f, 0x1p-30f, 1, "788e210a0a408575"},
    {"log", [](float x) { return log_f32(x); }, std::log, logq, 0x1p-149f, 0x1.fffffep+127f, 0x1p-149f, 1, "5499a12c3678a88a"},
    {"tanh", [](float x) { return tanh_f32(x); }, std::tanh, tanhq, -0x1.fffffep+127f, 0x1.fffffep+127f, 0x1p-30f, 2, "648400f8b3fccc9b"},
};
// clang-format on

class TrainingT13 : public testing::TestWithParam<RowF32> {};

TEST_P(TrainingT13, SampleOfAllFloats) {
  const RowF32& row = GetParam();
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  double worst = 0;
  float worst_x = 0;
  int64_t checked = 0;
  for (uint64_t pattern = 0; pattern < uint64_t{1} << 32; pattern += 257) {
    const float x = from_bits<float>(static_cast<uint32_t>(pattern)), y = row.f(x);
    XXH3_64bits_update(state.get(), &y, sizeof y);
    if (!(x >= row.lowest && x <= row.highest) || std::fabs(x) < row.least_size) continue;
    ++checked;
    const double near = row.near(x);
    const double unit = std::fmax(std::ldexp(1.0, std::ilogb(near) - 23), 0x1p-149);
    if (std::fabs(y - near) < (worst - 1e-6) * unit) continue;
    const double error = ulps_f32(y, row.exact(x));
    if (error > worst) worst = error, worst_x = x;
  }
  EXPECT_LE(worst, row.bound) << "at " << fmt::format("{:a}", worst_x);
  EXPECT_GT(worst, 0.5);  // the test looked
  EXPECT_GT(checked, 2'000'000);
  EXPECT_EQ(hex16(XXH3_64bits_digest(state.get())), row.hash);
}
INSTANTIATE_TEST_SUITE_P(F32, TrainingT13, testing::ValuesIn(rows_f32),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(TrainingT13F32, SpecialValues) {
  const float inf = inf_f32, tiny = 0x1p-149f;
  const auto bits = [](float x) { return bits_of(x); };
  const uint32_t nan = 0x7fc00000;
  EXPECT_EQ(bits(exp_f32(0.0f)), bits(1.0f));
  EXPECT_EQ(bits(exp_f32(-0.0f)), bits(1.0f));
  EXPECT_EQ(bits(exp_f32(-0x1.5d58a0p+6f)), 0u);
  EXPECT_GE(exp_f32(-0x1.5d589ep+6f), 0x1p-126f);
  EXPECT_EQ(exp_f32(0x1.62e430p+6f), inf);
  EXPECT_LT(exp_f32(0x1.62e42ep+6f), inf);
  EXPECT_EQ(exp_f32(inf), inf);
  EXPECT_EQ(bits(exp_f32(-inf)), 0u);
  EXPECT_EQ(log_f32(0.0f), -inf);
  EXPECT_EQ(log_f32(-0.0f), -inf);
  EXPECT_EQ(bits(log_f32(-tiny)), nan);
  EXPECT_EQ(bits(log_f32(-inf)), nan);
  EXPECT_EQ(bits(log_f32(1.0f)), 0u);
  EXPECT_EQ(log_f32(inf), inf);
  EXPECT_EQ(log_f32(tiny), -0x1.9d1dap+6f);  // -149 log 2
  for (const float x : {0.0f, tiny, 0x1p-126f, 0x1p-30f}) {
    EXPECT_EQ(bits(tanh_f32(x)), bits(x));
    EXPECT_EQ(bits(tanh_f32(-x)), bits(-x));
  }
  for (float x = 0x1p-12f; x < 12; x *= 1.01f) EXPECT_EQ(bits(tanh_f32(-x)), bits(-tanh_f32(x)));
  EXPECT_EQ(tanh_f32(inf), 1.0f);
  EXPECT_EQ(tanh_f32(-inf), -1.0f);
  EXPECT_LE(tanh_f32(9.0f), 1.0f);
  for (const uint32_t any_nan : {0x7f800001u, 0x7fc12345u, 0xffc00000u, 0xff812345u}) {
    const float x = from_bits<float>(any_nan);
    EXPECT_EQ(bits(exp_f32(x)), nan);
    EXPECT_EQ(bits(log_f32(x)), nan);
    EXPECT_EQ(bits(tanh_f32(x)), nan);
  }
}

TEST(TrainingT13F32, SigmoidAndSilu) {
  EXPECT_EQ(sigmoid_f32(0.0f), 0.5f);
  EXPECT_EQ(sigmoid_f32(100.0f), 1.0f);
  EXPECT_EQ(sigmoid_f32(-100.0f), 0.0f);
  EXPECT_EQ(silu_f32(0.0f), 0.0f);
  EXPECT_EQ(silu_f32(100.0f), 100.0f);
  for (float x = -80; x < 80; x += 0.013f) {
    const double exact = 1 / (1 + std::exp(-double{x}));
    EXPECT_NEAR(sigmoid_f32(x), exact, 2e-7 * exact);
    EXPECT_NEAR(silu_f32(x), x * exact, 2e-7 * std::fabs(x * exact));
  }
}

// ---- f64: random inputs of every kind that is used ----

struct Draws {  // uniform in [0, 1)
  uint32_t next = 0;
  double operator()() {
    const PhiloxWords w = philox4x32({next++, 0, 0, 0}, 13, 0);
    return static_cast<double>((uint64_t{w[0]} << 21) | (w[1] >> 11)) * 0x1p-53;
  }
};
double any_size(Draws& u, double least, double most) {  // log-uniform between two powers of two, either sign
  const double size = std::ldexp(1 + u(), static_cast<int>(std::floor(least + (most - least) * u())));
  return u() < 0.5 ? -size : size;
}
double near_quarter_turn(Draws& u) {  // the double next to k pi/2, 0 <= k < 2^29
  const Quad half_pi = acosq(Quad(0));
  const double k = std::floor(std::ldexp(u(), static_cast<int>(30 * u())));
  return static_cast<double>(k * half_pi);
}

struct RowF64 {
  const char* name;
  double (*f)(double);
  Quad (*exact)(Quad);
  double (*draw)(Draws& u);
  const char* hash;
};
// clang-format off
const RowF64 rows_f64[] = {
    {"exp, all", [](double x) { return exp_f64(x); }, expq, [](Draws& u) { return -746 + 1455.7 * u(); }, "5833db1633eeb114"},
    {"exp, near 0", [](double x) { return exp_f64(x); }, expq, [](Draws& u) { return any_size(u, -60, 3); }, "010817bcdcc42a14"},
    {"exp, subnormal", [](double x) { return exp_f64(x); }, expq, [](Draws& u) { return -708 - 38 * u(); }, "a9918ff3992aaa03"},
    {"log, all", [](double x) { return log_f64(x); }, logq, [](Draws& u) { return std::fabs(any_size(u, -1074, 1024)); }, "a817f96dce9bbaa4"},
    {"log, near 1", [](double x) { return log_f64(x); }, logq, [](Draws& u) { return 0.4 + 2 * u(); }, "b3efbd5467fe4d82"},
    {"log, at 1", [](double x) { return log_f64(x); }, logq, [](Draws& u) { return 1 + any_size(u, -52, -2); }, "57119adbac71c71a"},
    {"sin, all", [](double x) { return sin_f64(x); }, sinq, [](Draws& u) { return any_size(u, -60, 30); }, "fcaf7eff725311d8"},
    {"cos, all", [](double x) { return cos_f64(x); }, cosq, [](Draws& u) { return any_size(u, -60, 30); }, "4b5fa1980bbdbdfe"},
    {"sin, one turn", [](double x) { return sin_f64(x); }, sinq, [](Draws& u) { return -4 + 8 * u(); }, "4ef95907d51f932c"},
    {"cos, one turn", [](double x) { return cos_f64(x); }, cosq, [](Draws& u) { return -4 + 8 * u(); }, "99c8b267ee46d93a"},
    {"sin, multiples of pi/2", [](double x) { return sin_f64(x); }, sinq, near_quarter_turn, "60e721e39b8a5830"},
    {"cos, multiples of pi/2", [](double x) { return cos_f64(x); }, cosq, near_quarter_turn, "fad7f022626fee79"},
};
// clang-format on

TEST(TrainingT13F64, WithinOneUlp) {
  constexpr int draws = 40'000;
  for (const RowF64& row : rows_f64) {
    Draws u;
    std::vector<double> y;
    double worst = 0, worst_x = 0;
    for (int i = 0; i < draws; ++i) {
      const double x = row.draw(u);
      y.push_back(row.f(x));
      const double error = ulps_f64(y.back(), row.exact(x));
      if (error > worst) worst = error, worst_x = x;
    }
    EXPECT_LE(worst, 1.0) << row.name << " at " << fmt::format("{:a}", worst_x);
    EXPECT_GT(worst, 0.4) << row.name;
    EXPECT_EQ(hex16(xxh3(y.data(), y.size() * sizeof(double))), row.hash) << row.name << ", worst " << worst;
  }
}

TEST(TrainingT13F64, SpecialValues) {
  const double inf = inf_f64;
  const auto bits = [](double x) { return bits_of(x); };
  const uint64_t nan = 0x7ff8000000000000;
  EXPECT_EQ(bits(exp_f64(0.0)), bits(1.0));
  EXPECT_EQ(bits(exp_f64(-0.0)), bits(1.0));
  EXPECT_LT(exp_f64(0x1.62e42fefa39efp+9), inf);
  EXPECT_EQ(exp_f64(0x1.62e42fefa39f0p+9), inf);
  EXPECT_EQ(exp_f64(-0x1.74910d52d3051p+9), 0x1p-1074);
  EXPECT_EQ(bits(exp_f64(-0x1.74910d52d3052p+9)), 0u);
  EXPECT_EQ(exp_f64(inf), inf);
  EXPECT_EQ(bits(exp_f64(-inf)), 0u);
  EXPECT_EQ(log_f64(0.0), -inf);
  EXPECT_EQ(log_f64(-0.0), -inf);
  EXPECT_EQ(bits(log_f64(-1.0)), nan);
  EXPECT_EQ(bits(log_f64(1.0)), 0u);
  EXPECT_EQ(log_f64(inf), inf);
  EXPECT_EQ(bits(sin_f64(0.0)), bits(0.0));
  EXPECT_EQ(bits(sin_f64(-0.0)), bits(-0.0));
  EXPECT_EQ(cos_f64(-0.0), 1.0);
  EXPECT_EQ(sin_f64(-0x1p-1074), -0x1p-1074);
  EXPECT_EQ(cos_f64(0x1.921fb54442d18p+0), 0x1.1a62633145c07p-54);  // what fl(pi/2) leaves of pi/2
  for (const double x : {inf, -inf, 0x1.0000000000001p30, nan_f64}) {
    EXPECT_EQ(bits(sin_f64(x)), nan);
    EXPECT_EQ(bits(cos_f64(x)), nan);
  }
  const double signalling = from_bits<double>(0xfff0000000000001);
  EXPECT_EQ(bits(exp_f64(signalling)), nan);
  EXPECT_EQ(bits(log_f64(signalling)), nan);
}

TEST(TrainingT13F64, Powers) {
  EXPECT_EQ(pow_f64(10000.0, 0.0), 1.0);
  EXPECT_EQ(bits_of(pow_f64(500000.0, -0.125)), bits_of(exp_f64(-0.125 * log_f64(500000.0))));
  EXPECT_NEAR(pow_f64(10000.0, -62.0 / 64), std::pow(10000.0, -62.0 / 64), 1e-18);
  EXPECT_EQ(ipow_f64(0.9, 0), 1.0);
  EXPECT_EQ(ipow_f64(0.9, 1), 0.9);
  EXPECT_EQ(ipow_f64(3.0, 33), 5559060566555523.0);
  EXPECT_EQ(ipow_f64(-2.0, 63), -0x1p63);
  const double b = 0.95, b2 = b * b, b3 = b2 * b, b6 = b3 * b3;  // 13 = 1101 in binary: 1, 3, 6, 13
  EXPECT_EQ(ipow_f64(b, 13), b6 * b6 * b);
}

}  // namespace
}  // namespace nibble
