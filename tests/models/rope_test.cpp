// Obligation T14 of spec/training.md: the rotary goldens of 2.5, and that the layout of pairs does not matter to
// scores.
#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/ops.h"
#include "ops/values.h"

namespace nibble {
namespace {

using Kind = RopeConfig::Kind;

const RopeConfig llama31{.kind = Kind::llama3, .theta = 5e5, .factor = 8, .low = 1, .high = 4, .original = 8192};
const RopeConfig gpt_oss{
    .kind = Kind::yarn, .theta = 1.5e5, .factor = 32, .original = 4096, .truncate = false, .attention_scaling = true};
const RopeConfig deepseek{.kind = Kind::yarn, .theta = 1e4, .factor = 40, .original = 4096};

TEST(TrainingT14, Llama31Frequencies) {
  const std::vector<float> inv = rope_frequencies(llama31, 128);
  RopeConfig plain = llama31;
  plain.kind = Kind::standard;
  const std::vector<float> base = rope_frequencies(plain, 128);
  const std::pair<size_t, double> golden[] = {
      {28, 3.211445995e-3}, {29, 2.166570764e-3}, {32, 5.248461610e-4}, {35, 9.556212354e-5}};
  for (const auto& [i, want] : golden) EXPECT_NEAR(inv[i], want, 6e-8 * want) << i;  // f32
  for (size_t i = 0; i < 64; ++i) {  // unchanged, then blended, then divided by the factor
    if (i <= 28) {
      EXPECT_EQ(inv[i], base[i]) << i;
    } else if (i >= 35) {
      EXPECT_EQ(inv[i], base[i] / 8) << i;
    } else {
      EXPECT_TRUE(inv[i] < base[i] && inv[i] > base[i] / 8) << i;
    }
  }
}

TEST(TrainingT14, YarnBounds) {
  const YarnBounds a = yarn_bounds(gpt_oss, 64), b = yarn_bounds(deepseek, 64);
  EXPECT_NEAR(a.low, 8.0927791, 5e-8);
  EXPECT_NEAR(a.high, 17.3980245, 5e-8);
  EXPECT_EQ(b.low, 10);
  EXPECT_EQ(b.high, 23);
  RopeConfig equal = deepseek;
  equal.beta_slow = equal.beta_fast, equal.truncate = false;
  EXPECT_NEAR(yarn_bounds(equal, 64).high - yarn_bounds(equal, 64).low, 0.001, 1e-12);
  RopeConfig wide = deepseek;
  wide.beta_fast = 1e6, wide.beta_slow = 1e-30;  // clamped to the dimensions that exist
  EXPECT_EQ(yarn_bounds(wide, 64).low, 0);
  EXPECT_EQ(yarn_bounds(wide, 64).high, 63);
}

TEST(TrainingT14, YarnFrequenciesAndScaling) {
  EXPECT_NEAR(rope_magnitude(gpt_oss), 1.3465735903, 5e-11);
  EXPECT_EQ(rope_magnitude(deepseek), 1);
  EXPECT_EQ(rope_magnitude(llama31), 1);
  for (const RopeConfig& c : {gpt_oss, deepseek}) {
    const std::vector<float> inv = rope_frequencies(c, 64);
    const YarnBounds b = yarn_bounds(c, 64);
    for (size_t i = 0; i < inv.size(); ++i) {
      const long double base = powl(c.theta, -2.0L * static_cast<long double>(i) / 64);
      const long double ramp = std::clamp<long double>((static_cast<long double>(i) - b.low) / (b.high - b.low), 0, 1);
      const long double want = base / c.factor * ramp + base * (1 - ramp);
      EXPECT_NEAR(inv[i], static_cast<double>(want), 1.3e-7 * static_cast<double>(want)) << i;  // two roundings to f32
    }
  }
}

TEST(TrainingT14, LinearDividesEveryFrequency) {
  const RopeConfig plain{.theta = 1e6}, linear{.kind = Kind::linear, .theta = 1e6, .factor = 8};
  const std::vector<float> a = rope_frequencies(plain, 256), b = rope_frequencies(linear, 256);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(b[i], a[i] / 8) << i;
}

TEST(TrainingT14, FrequenciesAreRoundedOnce) {
  for (const double theta : {1e4, 1e5, 5e5, 1e6})
    for (const int64_t d : {32, 64, 128, 256}) {
      const std::vector<float> inv = rope_frequencies({.theta = theta}, d);
      ASSERT_EQ(static_cast<int64_t>(inv.size()), d / 2);
      for (int64_t i = 0; i < d / 2; ++i)
        EXPECT_EQ(inv[static_cast<size_t>(i)],
                  static_cast<float>(powl(theta, -2.0L * static_cast<long double>(i) / static_cast<long double>(d))))
            << theta << " " << d << " " << i;
    }
}

TEST(TrainingT14, TableEqualsLongDouble) {
  for (const RopeConfig& c : {RopeConfig{}, llama31, gpt_oss}) {
    const int64_t d = 64, first = 4000, rows = 300;
    std::vector<float> table(static_cast<size_t>(rows * d));
    fill_rope_table(c, d, first, rows, table.data());
    const std::vector<float> inv = rope_frequencies(c, d);
    const long double magnitude = c.attention_scaling ? 0.1L * logl(32) + 1 : 1;
    int64_t off = 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < d / 2; ++i) {
        const float angle = static_cast<float>(first + r) * inv[static_cast<size_t>(i)];
        const auto cosine = static_cast<float>(cosl(angle) * magnitude),
                   sine = static_cast<float>(sinl(angle) * magnitude);
        off += table[static_cast<size_t>(r * d + i)] != cosine;
        off += table[static_cast<size_t>(r * d + d / 2 + i)] != sine;
      }
    EXPECT_EQ(off, 0) << "of " << rows * d;
  }
}

TEST(TrainingT14, TheTableOfAPartIsThePartOfTheTable) {
  std::vector<float> all(100 * 16), part(10 * 16);
  fill_rope_table(llama31, 16, 0, 100, all.data());
  fill_rope_table(llama31, 16, 37, 10, part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 37 * 16));
}

// Scores q k^T of rotated vectors: half-split pairs (i, i + D/2) here; interleaved pairs (2i, 2i + 1) of the source are
// permuted on read, half-split row i from row 2i, D/2 + i from 2i + 1.
TEST(TrainingT14, InterleavedPairsGiveTheSameScores) {
  constexpr int64_t d = 16, t = 9;
  Random random(1);
  std::vector<double> q(t * d), k(t * d), table(t * d);
  for (double& x : q) x = random.uniform(-1, 1);
  for (double& x : k) x = random.uniform(-1, 1);
  std::vector<float> table_f32(t * d);
  fill_rope_table(llama31, d, 0, t, table_f32.data());
  std::copy(table_f32.begin(), table_f32.end(), table.begin());
  const auto interleaved = [&](const std::vector<double>& x) {  // rotated in place of its own pairs
    std::vector<double> y(x.size());
    for (int64_t r = 0; r < t; ++r)
      for (int64_t i = 0; i < d / 2; ++i) {
        const double c = table[r * d + i], s = table[r * d + d / 2 + i], a = x[r * d + 2 * i], b = x[r * d + 2 * i + 1];
        y[r * d + 2 * i] = a * c - b * s, y[r * d + 2 * i + 1] = b * c + a * s;
      }
    return y;
  };
  const auto half_split = [&](const std::vector<double>& x) {  // permuted, rotated by the op
    Graph g;
    Builder b(g);
    const Value in = b.input("x", {DType::f32, {t, 1, d}});
    b.output("y", rope(b, in, b.input("table", {DType::f32, {t, d}}), b.input("positions", {DType::i32, {t}})));
    Interpreter run(g, Scalar::f64);
    for (int64_t r = 0; r < t; ++r) {
      run.input("positions").as<int32_t>()[r] = static_cast<int32_t>(r);
      for (int64_t i = 0; i < d / 2; ++i)
        for (int64_t p = 0; p < 2; ++p) run.input("x").as<double>()[r * d + p * d / 2 + i] = x[r * d + 2 * i + p];
    }
    std::copy(table.begin(), table.end(), run.input("table").as<double>());
    run.run();
    return std::vector<double>(run.output("y").as<double>(), run.output("y").as<double>() + t * d);
  };
  const std::vector<double> qi = interleaved(q), ki = interleaved(k), qh = half_split(q), kh = half_split(k);
  for (int64_t i = 0; i < t; ++i)
    for (int64_t j = 0; j < t; ++j) {
      double a = 0, b = 0;
      for (int64_t x = 0; x < d; ++x) a += qi[i * d + x] * ki[j * d + x], b += qh[i * d + x] * kh[j * d + x];
      EXPECT_NEAR(a, b, 1e-14);
    }
}

}  // namespace
}  // namespace nibble
