// Initial draws of spec/training.md 2.2: PHI^-1 against 113-bit arithmetic, committed hashes (T11), moments (T12).
#include "numerics/normal.h"

#include <gtest/gtest.h>
#include <quadmath.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/hash.h"
#include "core/philox.h"

namespace nibble {
namespace {

// Relative distance of x from the exact PHI^-1(p): one Newton step, which is as good as exact this near the root.
double quantile_error(double p, double x) {
  const __float128 root_half = sqrtq(static_cast<__float128>(0.5)), q = x;
  const __float128 density = expq(-q * q / 2) * root_half / sqrtq(acosq(static_cast<__float128>(-1)));
  // Near 1/2 through erf, in the lower tail through erfc: neither cancels.
  const __float128 excess =
      p > 0.4 ? erfq(q * root_half) / 2 - (static_cast<__float128>(p) - 0.5) : erfcq(-q * root_half) / 2 - p;
  return static_cast<double>(fabsq(excess / density / q));
}

TEST(TrainingT11Quantile, AgreesWithQuadPrecision) {
  double worst = 0;
  for (uint32_t i = 0; i < 30'000; ++i) {
    const PhiloxWords w = philox4x32({i, 0, 0, 0}, 2, 2);
    const double u = (w[0] + 0.5) * 0x1p-32;
    worst = std::max(worst, quantile_error(u, normal_quantile(u)));
    const double deep = std::ldexp(u, -static_cast<int>(w[1] % 1000));  // down to 1e-300: all three formulas
    worst = std::max(worst, quantile_error(deep, normal_quantile(deep)));
  }
  EXPECT_LT(worst, 1e-15);
}

TEST(TrainingT11Quantile, KnownValues) {
  EXPECT_EQ(normal_quantile(0.5), 0.0);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-15);
  EXPECT_NEAR(normal_quantile(0.022750131948179207), -2.0, 1e-15);
  EXPECT_NEAR(normal_quantile(0x1p-33), -6.3379577545537886, 1e-14);  // the smallest u: no draw lies outside
  EXPECT_EQ(normal_quantile(0.03125), -normal_quantile(0.96875));
  EXPECT_EQ(normal_quantile(0.0), -INFINITY);
  EXPECT_EQ(normal_quantile(1.0), INFINITY);
  for (const double p : {-0.1, 1.1, std::nan("")}) EXPECT_TRUE(std::isnan(normal_quantile(p)));
}

std::vector<float> filled(int64_t first, int64_t count, uint32_t seed, std::string_view name, double std_value,
                          bool truncated) {
  std::vector<float> x(static_cast<size_t>(count));
  fill_normal(x.data(), first, count, seed, name, std_value, truncated);
  return x;
}

TEST(TrainingT11, FollowsTheDefinition) {
  const std::string_view name = "model.layers.3.mlp.up_proj.weight";
  const double std_value = 1 / std::sqrt(512.0);
  EXPECT_EQ(init_name_hash(name), xxh3(name) & 0xffffffff);
  for (const int64_t e : {int64_t{0}, int64_t{1}, int64_t{6}, int64_t{1003}, (int64_t{5} << 34) + 2}) {
    const PhiloxWords w = philox4x32({static_cast<uint32_t>(e >> 2), static_cast<uint32_t>(e >> 34), 0, 0x100}, 42,
                                     static_cast<uint32_t>(xxh3(name)));
    const double u = (w[static_cast<size_t>(e & 3)] + 0.5) * 0x1p-32;
    EXPECT_EQ(filled(e, 1, 42, name, std_value, false)[0], static_cast<float>(std_value * normal_quantile(u)));
    const double inside = 0.022750131948179207 + u * 0.9544997361036416;
    EXPECT_EQ(filled(e, 1, 42, name, std_value, true)[0],
              static_cast<float>(std_value / 0.87962566103423978 * normal_quantile(inside)));
  }
}

TEST(TrainingT11, Hashes) {
  struct Row {
    const char* name;
    uint32_t seed;
    double std_value;
    bool truncated;
    const char* hash;  // of 100,003 elements
  };
  const Row rows[] = {{"model.embed_tokens.weight", 0, 1.0, false, "ca1dc9d418c83826"},
                      {"model.layers.0.self_attn.q_proj.weight", 0, 0.044194173824159216, false, "f006ece3649bfd57"},
                      {"model.layers.7.mlp.down_proj.weight", 1234, 0.025515518153991442, true, "873a88660f6b8d58"},
                      {"lm_head.weight", 0xffffffff, 0.02, true, "b9853ea72b6893a5"}};
  for (const Row& row : rows) {
    const std::vector<float> x = filled(0, 100'003, row.seed, row.name, row.std_value, row.truncated);
    EXPECT_EQ(hex16(xxh3(x.data(), x.size() * sizeof(float))), row.hash) << row.name;
  }
}

TEST(TrainingT11, AnyCutGivesTheSameElements) {
  const std::vector<float> whole = filled(0, 5000, 7, "norm", 0.5, true);
  for (const int64_t cut : {1, 2, 3, 4, 511, 512, 513, 2047, 4999}) {
    std::vector<float> parts = filled(0, cut, 7, "norm", 0.5, true);
    const std::vector<float> rest = filled(cut, 5000 - cut, 7, "norm", 0.5, true);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << cut;
  }
  EXPECT_NE(filled(0, 8, 8, "norm", 0.5, true), filled(0, 8, 7, "norm", 0.5, true));
  EXPECT_NE(filled(0, 8, 7, "norn", 0.5, true), filled(0, 8, 7, "norm", 0.5, true));
}

TEST(TrainingT12, MomentsAndTruncation) {
  constexpr int64_t n = 1 << 20;
  for (const bool truncated : {false, true}) {
    const double std_value = 0.03;
    const std::vector<float> x = filled(0, n, 3, "w", std_value, truncated);
    double sum = 0, squares = 0, largest = 0;
    for (const float v : x) sum += v, squares += double{v} * v, largest = std::fmax(largest, std::fabs(v));
    const double mean = sum / n, spread = std::sqrt(squares / n - mean * mean);
    EXPECT_LT(std::fabs(mean), 4 * std_value / std::sqrt(n));
    // Standard error of a standard deviation: std sqrt((kurtosis - 1) / 4n); kurtosis 3, truncated at two 2.37.
    EXPECT_LT(std::fabs(spread - std_value), 4 * std_value * std::sqrt((truncated ? 1.37 : 2.0) / (4.0 * n)));
    const double limit = 2 * std_value / 0.87962566103423978;
    EXPECT_EQ(largest <= limit * (1 + 1e-7), truncated);
    EXPECT_GT(largest, 0.999 * limit);
  }
}

}  // namespace
}  // namespace nibble
