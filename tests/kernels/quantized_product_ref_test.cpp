// Products of quantised operands by the reference kernels (spec/precision.md 5), and what quantising costs in accuracy
// (section 8): whole tensors, as a recipe makes them.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "core/error.h"
#include "kernels/quantized_harness.h"
#include "kernels/ref/quest.h"
#include "numerics/blocks.h"
#include "numerics/hadamard.h"
#include "vectors.h"

namespace nibble {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

std::vector<float> normal_matrix(int64_t rows, int64_t columns, const char* name, double std = 1) {
  return normal(static_cast<size_t>(rows * columns), name, std);
}

// NVFP4 rows from packed codes and scale bytes, under no scale of the tensor: a product is its bare sum.
Owned bare(const std::vector<std::string>& codes, const std::vector<std::vector<int>>& scales) {
  const auto rows = static_cast<int64_t>(codes.size()), columns = static_cast<int64_t>(codes[0].size());
  Owned t({DType::nvfp4, {rows, columns}});
  t.header() = {.amax = 1, .decode = 1, .saved = 1, .by_amax = 0, .blank = 0};
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = static_cast<size_t>(r);
    for (int64_t i = 0; i < columns / 2; ++i)
      t.view().codes(r)[i] =
          static_cast<uint8_t>(std::stoi(codes[row].substr(static_cast<size_t>(2 * i), 2), nullptr, 16));
    for (size_t k = 0; k < scales[row].size(); ++k) t.view().scales(r)[k] = static_cast<uint8_t>(scales[row][k]);
  }
  return t;
}
Owned bare(const Json& rows) {
  std::vector<std::string> codes;
  std::vector<std::vector<int>> scales;
  for (const Json& row : rows) codes.push_back(text(row["codes"])), scales.push_back(integers(row["scales"]));
  return bare(codes, scales);
}
// The same operand with every scale of the tensor removed.
Owned bare(Owned t) {
  t.header().by_amax = 0, t.header().decode = 1, t.header().saved = 1;
  return t;
}

const Attrs blackwell{{"accumulation", std::string("blackwell")}};

TEST(QuantizedProduct, P41_OrderOfTheSum) {
  const Json& v = vectors("gemm_accumulation");
  const Owned a = bare(v["A"]), b = bare(v["B"]);
  const std::vector<float> sequential = numbers_of(product(a, b)),
                           named = numbers_of(product(a, b, "f32", {{"accumulation", std::string("sequential")}})),
                           groups = numbers_of(product(a, b, "f32", blackwell));
  ASSERT_EQ(sequential.size(), v["results_row_major"].size());
  for (size_t i = 0; i < sequential.size(); ++i) {
    EXPECT_EQ(sequential[i], number(v["results_row_major"][i]["sequential"])) << i;
    EXPECT_EQ(groups[i], number(v["results_row_major"][i]["groups_of_64"])) << i;
  }
  EXPECT_EQ(named, sequential);
  EXPECT_NE(groups, sequential);
}

// Any row of products reads the attribute: all three GEMMs.
TEST(QuantizedProduct, P41_AllThreeProductsKnowTheAccumulation) {
  const Json& v = vectors("gemm_accumulation");
  const Owned a = bare(v["A"]), b = bare(v["B"]);
  const std::vector<float> want = numbers_of(product(a, b, "f32", blackwell));
  Attrs attrs = blackwell;
  attrs.set("dtype", std::string("f32"));
  const Owned terms[] = {a, b};
  EXPECT_EQ(numbers_of(run_reference(qlinear_dgrad_op, ref::qlinear_dgrad, terms, attrs)[0]), want);
  const Owned sums[] = {Owned({DType::f32, {3, 3}}), a, b};
  EXPECT_EQ(numbers_of(run_reference(qlinear_wgrad_op, ref::qlinear_wgrad, sums, attrs)[0]), want);
}

TEST(QuantizedProduct, P41_BlackwellIsDefinedForNvfp4Only) {
  const std::vector<float> x = normal_matrix(2, 64, "x");
  for (const char* spec : {"mxfp4", "mxfp8", "e4m3", "fp8_block"}) {
    const Owned q = row_copy(matrix(2, 64, x), spec);
    EXPECT_THROW(product(q, q, "f32", blackwell), Error) << spec;
  }
  const Owned q = row_copy(matrix(2, 64, x), "nvfp4");
  EXPECT_THROW(product(q, q, "f32", {{"accumulation", std::string("pairwise")}}), Error);
}

TEST(QuantizedProduct, P41_AddsTowardsZero) {
  constexpr float big = 0x1p30f, below = 0x1.fffffep29f, next = 0x1.000002p30f;
  EXPECT_EQ(add_towards_zero(big, 0x1p-60f), big);
  EXPECT_EQ(add_towards_zero(big, -0x1p-60f), below);  // beyond what an f64 sum holds
  EXPECT_EQ(add_towards_zero(-big, 0x1p-60f), -below);
  EXPECT_EQ(add_towards_zero(-big, -0x1p-60f), -big);
  EXPECT_EQ(add_towards_zero(-0x1p-60f, big), below);
  EXPECT_EQ(add_towards_zero(big, 127), big);  // a step is 128
  EXPECT_EQ(add_towards_zero(big, 128), next);
  EXPECT_EQ(add_towards_zero(-big, -255), -next);
  EXPECT_EQ(add_towards_zero(big, -1), below);
  EXPECT_EQ(std::bit_cast<uint32_t>(add_towards_zero(1, -1)), 0u);
  EXPECT_EQ(add_towards_zero(0, -3), -3);
  EXPECT_TRUE(std::isnan(add_towards_zero(1, __builtin_nanf(""))));
}

TEST(QuantizedProduct, P42_ThreeGemmsOfOneLinear) {
  const Json& v = vectors("linear_three_gemms");
  const Owned x = matrix(16, 32, numbers(v["X"]), DType::bf16), w = matrix(16, 32, numbers(v["W"]), DType::bf16),
              dy = matrix(16, 16, numbers(v["DY"]), DType::bf16);
  const std::vector<Owned> xs = quantize(x, "nvfp4", "nvfp4 hadamard=16"), ws = quantize(w, "nvfp4_2d", "nvfp4_2d"),
                           dys = quantize(dy, "nvfp4", "nvfp4 hadamard=16");
  const std::pair<const Owned*, const char*> copies[] = {
      {&xs[0], "x_row"}, {&xs[1], "xT_rht"}, {&dys[0], "dy_row"}, {&dys[1], "dyT_rht"}, {&ws[0], "w_2d"}};
  for (const auto& [copy, name] : copies) {
    const Json& want = v[name];
    for (size_t r = 0; r < want["codes"].size(); ++r)
      EXPECT_EQ(packed_row(*copy, static_cast<int64_t>(r)), text(want["codes"][r])) << name;
    EXPECT_EQ(scales_of(*copy), integers(want[want.contains("scales") ? "scales" : "tile_scales"])) << name;
  }
  struct Gemm {
    const char* name;
    const Owned &a, &b;
  };
  const Gemm gemms[] = {{"fprop", xs[0], ws[0]}, {"dgrad", dys[0], ws[1]}, {"wgrad", dys[1], xs[1]}};
  for (const auto& [name, a, b] : gemms) {
    SCOPED_TRACE(name);
    const Json& want = v[name];
    EXPECT_EQ(a.header().amax, number(want["amax_A"]));
    EXPECT_EQ(b.header().amax, number(want["amax_B"]));
    EXPECT_EQ(product_factor(a.header(), b.header()), number(want["alpha_common"]));
    EXPECT_EQ(numbers_of(product(bare(a), bare(b))), numbers(want["exact_sum"]));
    EXPECT_EQ(numbers_of(product(a, b, "bf16")), numbers(want["out_bf16"]));
  }
  const Attrs attrs{{"dtype", std::string("bf16")}};
  const Owned terms[] = {dys[0], ws[1]};
  EXPECT_EQ(numbers_of(run_reference(qlinear_dgrad_op, ref::qlinear_dgrad, terms, attrs)[0]),
            numbers(v["dgrad"]["out_bf16"]));
  const Owned sums[] = {Owned({DType::f32, {16, 32}}), dys[1], xs[1]};
  std::vector<float> dw = numbers_of(run_reference(qlinear_wgrad_op, ref::qlinear_wgrad, sums, {})[0]);
  for (float& t : dw) t = widen(round_bf16(t));
  EXPECT_EQ(dw, numbers(v["wgrad"]["out_bf16"]));
}

// 2^20, 2^-4, -2^20: the small term is lost or not, as the order of the blocks says.
TEST(QuantizedProduct, P44_BlocksAddInAscendingOrder) {
  const auto row = [](const char* first, const char* second, const char* third) {
    const std::string zeros = "00000000000000";
    return first + zeros + second + zeros + third + zeros;
  };
  const auto sum = [&](const char* a, const char* b, const char* c, std::vector<int> scales) {
    const Owned x = bare({row(a, b, c)}, {scales}), y = bare({row("07", "07", "07")}, {scales});
    return numbers_of(product(x, y))[0];
  };
  // code 7 = 6, F = -6; scale bytes 7E = 448, 01 = 2^-9: terms of 36 * 448^2, 36 * 2^-18 and -36 * 448^2.
  constexpr float small = 36 * 0x1p-18f;
  EXPECT_EQ(sum("07", "07", "0f", {0x7E, 0x01, 0x7E}), 0);
  EXPECT_EQ(sum("07", "0f", "07", {0x7E, 0x7E, 0x01}), small);
  EXPECT_EQ(sum("07", "07", "0f", {0x01, 0x7E, 0x7E}), 0);
}

// What BF16 units make of the same operands (5.3): q s is a BF16 number, a product of two is exact in float32, every
// addition rounds. Only the order of additions and roundings differs from the definition.
TEST(QuantizedProduct, P45_Bf16UnitsStayInTheBound) {
  int64_t near = 0, all = 0;
  for (int shape = 0; shape < 20; ++shape) {
    const int64_t m = 3 + shape % 5, n = 16 + 7 * (shape % 3), k = std::array{16, 48, 64, 100, 512, 1536}[shape % 6];
    const char* weight = shape % 2 == 0 ? "nvfp4_2d" : "nvfp4";
    const std::string name = std::to_string(shape);
    const Owned x = row_copy(matrix(m, k, normal_matrix(m, k, ("x" + name).c_str())), "nvfp4");
    const Owned w = row_copy(matrix(n, k, normal_matrix(n, k, ("w" + name).c_str(), 0.03)), weight);
    const std::vector<float> a = values_of(bare(x)), b = values_of(bare(w));  // q s
    for (const std::vector<float>* side : {&a, &b})
      for (const float v : *side) ASSERT_EQ(widen(round_bf16(v)), v);
    const float alpha = product_factor(x.header(), w.header());
    const std::vector<float> exact = numbers_of(product(bare(x), bare(w))), rounded = numbers_of(product(x, w, "bf16"));
    for (int64_t r = 0; r < m; ++r)
      for (int64_t c = 0; c < n; ++c) {
        float sum = 0, size = 0;
        for (int64_t i = 0; i < k; ++i) {
          const float term = a[static_cast<size_t>(r * k + i)] * b[static_cast<size_t>(c * k + i)];
          sum += term, size += std::abs(term);
        }
        const auto at = static_cast<size_t>(r * n + c);
        EXPECT_LE(std::abs(sum - exact[at]), static_cast<float>(k) * 0x1p-23f * size) << shape;
        const auto order = [](float v) {  // of BF16 numbers, one apart for neighbours
          const int bits = round_bf16(v).bits;
          return bits >= 0x8000 ? 0x8000 - bits : bits;
        };
        near += std::abs(order(alpha * sum) - order(rounded[at])) <= 1, ++all;
      }
  }
  EXPECT_GE(near, all * 999 / 1000);
  EXPECT_GT(all, 2000);
}

TEST(QuantizedProduct, P40_ExtremeCodes) {
  const std::string most(16, '7'), least(16, 'f');
  EXPECT_EQ(numbers_of(product(bare({most, least}, {{0x7E}, {0x7E}}), bare({most}, {{0x7E}}))),
            (std::vector<float>{16 * 36 * 448.0f * 448.0f, -16 * 36 * 448.0f * 448.0f}));
}

TEST(QuantizedProduct, P47_ZeroPoisonAndOverflow) {
  const std::vector<float> x = normal_matrix(3, 128, "x");
  for (const char* spec :
       {"nvfp4", "nvfp4 pow2", "nvfp4 four_six=mse", "nvfp4_2d", "mxfp4", "mxfp8", "e4m3", "e5m2", "fp8_block"}) {
    const Owned zero = row_copy(matrix(2, 128, std::vector<float>(256)), spec),
                some = row_copy(matrix(3, 128, x), spec);
    for (const float y : numbers_of(product(zero, some))) EXPECT_EQ(std::bit_cast<uint32_t>(y), 0u) << spec;
    for (const float y : numbers_of(product(some, zero))) EXPECT_EQ(std::bit_cast<uint32_t>(y), 0u) << spec;
    std::vector<float> bad(256, 1);
    bad[3] = bad[200] = __builtin_nanf("");
    const Owned poisoned = row_copy(matrix(2, 128, bad), spec);
    if (std::string(spec).starts_with("mx")) continue;  // by blocks: QuantizedRef.P15
    for (const Owned* other : {&zero, &some})
      for (const float y : numbers_of(product(poisoned, *other))) EXPECT_TRUE(std::isnan(y)) << spec;
  }
  std::vector<float> large = x;
  for (float& t : large) t *= 1e30f;
  const Owned q = row_copy(matrix(3, 128, large), "nvfp4");  // the codes are fine, the factor overflows
  for (const float y : numbers_of(product(q, q))) EXPECT_FALSE(std::isfinite(y));
}

TEST(QuantizedProduct, FactorOfEachPair) {
  const std::vector<float> x = normal_matrix(4, 64, "x"), w = normal_matrix(4, 64, "w", 0.02);
  const Owned a = row_copy(matrix(4, 64, x), "nvfp4"), b = row_copy(matrix(4, 64, w), "nvfp4_2d"),
              c = row_copy(matrix(4, 64, w), "nvfp4 four_six=mse"), d = row_copy(matrix(4, 64, w), "nvfp4 pow2");
  EXPECT_EQ(product_factor(a.header(), b.header()), (a.header().amax * b.header().amax) * rcp_7225344);
  EXPECT_EQ(product_factor(a.header(), c.header()), a.header().decode * c.header().decode);
  EXPECT_EQ(product_factor(d.header(), a.header()), d.header().decode * a.header().decode);
  const float saved = c.header().decode;
  c.header().saved = saved;
  EXPECT_EQ(product_factor(a.header(), c.header()), (a.header().decode * c.header().decode) * saved);
  EXPECT_EQ(product_factor(c.header(), d.header(), 16.0f / 9),
            ((c.header().decode * d.header().decode) * saved) * (16.0f / 9));
}

// The gradient of an input that several linears share: each D in f32, added in order, one rounding at the end.
TEST(QuantizedProduct, TermsOfDgradAddBeforeTheRounding) {
  const Owned dy1 = row_copy(matrix(4, 32, normal_matrix(4, 32, "dy1")), "nvfp4"),
              dy2 = row_copy(matrix(4, 48, normal_matrix(4, 48, "dy2")), "nvfp4"),
              w1 = row_copy(matrix(5, 32, normal_matrix(5, 32, "w1")), "nvfp4_2d"),
              w2 = row_copy(matrix(5, 48, normal_matrix(5, 48, "w2")), "nvfp4_2d");
  const std::vector<float> first = numbers_of(product(dy1, w1)), second = numbers_of(product(dy2, w2));
  std::vector<float> want;
  for (size_t i = 0; i < first.size(); ++i) want.push_back(widen(round_bf16(first[i] + second[i])));
  const Owned terms[] = {dy1, w1, dy2, w2};
  const Attrs attrs{{"dtype", std::string("bf16")}};
  EXPECT_EQ(numbers_of(run_reference(qlinear_dgrad_op, ref::qlinear_dgrad, terms, attrs)[0]), want);
}

TEST(QuantizedProduct, WgradAddsToItsAccumulator) {
  const Owned a = row_copy(matrix(4, 32, normal_matrix(4, 32, "a")), "nvfp4"),
              b = row_copy(matrix(5, 32, normal_matrix(5, 32, "b")), "nvfp4"),
              sum = matrix(4, 5, normal_matrix(4, 5, "s"));
  const std::vector<float> before = numbers_of(sum), d = numbers_of(product(a, b));
  ThreadPool pool(1);
  const Tensor in[] = {sum.tensor(), a.tensor(), b.tensor()}, out[] = {sum.tensor()};
  const Attrs none;
  ref::qlinear_wgrad({in, out, none, nullptr, pool, false});
  for (size_t i = 0; i < d.size(); ++i) EXPECT_EQ(numbers_of(sum)[i], before[i] + d[i]);
  ref::qlinear_wgrad({in, out, none, nullptr, pool, true});
  EXPECT_EQ(numbers_of(sum), d);
}

// Products of a block of 128 are summed, then scaled (section 5.4); MXFP8 elements are scaled first.
TEST(QuantizedProduct, EightBitSums) {
  const int64_t k = 300;
  const std::vector<float> x = normal_matrix(3, k, "x"), w = normal_matrix(2, k, "w");
  for (const char* spec : {"fp8_block", "mxfp8", "e4m3", "e5m2"}) {
    const Owned a = row_copy(matrix(3, k, x), spec), b = row_copy(matrix(2, k, w), spec);
    const DType format = a.type().dtype;
    const QuantizedView va = a.view(), vb = b.view();
    std::vector<float> want;
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 2; ++j) {
        float acc = 0, sum = 0;
        for (int64_t e = 0; e < k; ++e) {
          float u = element_value(format, va.codes(i), e), t = element_value(format, vb.codes(j), e);
          if (format == DType::mxfp8) u *= e8m0_decode(va.scales(i)[e / 32]), t *= e8m0_decode(vb.scales(j)[e / 32]);
          if (format != DType::fp8_block) {
            acc = std::fma(u, t, acc);
            continue;
          }
          sum = std::fma(u, t, e % 128 == 0 ? 0.0f : sum);
          if (e % 128 == 127 || e == k - 1)
            acc += sum * e8m0_decode(va.scales(i)[e / 128]) * e8m0_decode(vb.scales(j)[e / 128]);
        }
        want.push_back((a.header().decode * b.header().decode) * acc);
      }
    EXPECT_EQ(numbers_of(product(a, b)), want) << spec;
  }
}

// dy of 20 columns times the transposed copy of a weight of 20 rows, whose last block is filled.
TEST(QuantizedProduct, P17_RowCopyTimesColumnCopyOfARaggedAxis) {
  const std::vector<float> dy = normal_matrix(3, 20, "dy"), w = normal_matrix(20, 5, "w");
  for (const char* spec : {"nvfp4", "mxfp8", "e4m3"}) {
    const Owned a = row_copy(matrix(3, 20, dy), spec), b = column_copy(matrix(20, 5, w), spec);
    const std::vector<float> x = values_of(a), t = values_of(b), got = numbers_of(product(a, b));
    const auto pitch = static_cast<size_t>(b.type().dim(1));
    for (size_t i = 0; i < 3; ++i)
      for (size_t j = 0; j < 5; ++j) {
        double sum = 0;
        for (size_t e = 0; e < 20; ++e)
          sum += static_cast<double>(x[20 * i + e]) * static_cast<double>(t[pitch * j + e]);
        EXPECT_NEAR(got[5 * i + j], sum, 1e-5) << spec;
      }
  }
}

// Micro-batches of equal codes: their sums differ from the single one by roundings only.
TEST(QuantizedProduct, P48_WeightGradientOverMicroBatches) {
  const int64_t tokens = 128, n = 16, k = 32;
  const std::vector<float> dy = normal_matrix(tokens, n, "dy", 1e-3), x = normal_matrix(tokens, k, "x");
  const auto copies = [&](int64_t first, int64_t rows) {
    const auto part = [&](const std::vector<float>& t, int64_t width) {
      return matrix(rows, width,
                    std::span(t).subspan(static_cast<size_t>(first * width), static_cast<size_t>(rows * width)));
    };
    const Place at{.first_row = static_cast<int32_t>(first)};
    return std::pair(column_copy(part(dy, n), "nvfp4 pow2 stochastic hadamard=16 stream=1", at),
                     column_copy(part(x, k), "nvfp4 pow2 hadamard=16", at));
  };
  const auto [dy_all, x_all] = copies(0, tokens);
  const std::vector<float> whole = numbers_of(product(dy_all, x_all));
  std::vector<float> sum(whole.size());
  for (int64_t first = 0; first < tokens; first += 32) {
    const auto [a, b] = copies(first, 32);
    const std::vector<float> part = numbers_of(product(a, b));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  const std::vector<float> a = values_of(dy_all), b = values_of(x_all);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j) {
      double terms = 0;
      for (int64_t t = 0; t < tokens; ++t)
        terms += std::fabs(static_cast<double>(a[static_cast<size_t>(i * tokens + t)]) *
                           static_cast<double>(b[static_cast<size_t>(j * tokens + t)]));
      EXPECT_NEAR(sum[static_cast<size_t>(i * k + j)], whole[static_cast<size_t>(i * k + j)],
                  static_cast<double>(tokens) / 16 * 0x1p-23 * terms);
    }
}

// ---- accuracy: table 8.1 on 512 x 1024 normal numbers, table 8.3 for one linear ----

struct Expected {
  const char* spec;
  double mse, db, shrink, zeros;  // mse in thousandths, zeros in per cent
};
class QuantizerError : public ::testing::TestWithParam<Expected> {};

TEST_P(QuantizerError, P50_OnNormalNumbers) {
  const Expected& want = GetParam();
  const std::vector<float> x = normal_matrix(512, 1024, "p50");
  const Owned q = row_copy(matrix(512, 1024, x), want.spec);
  std::vector<float> before = x, after = values_of(q);
  const std::string spec = want.spec;
  if (spec.find("eden") != std::string::npos) {  // its error is that of the rotated values
    for (size_t g = 0; g < x.size() / 128; ++g)
      rht128(before.data() + 128 * g, philox4x32({static_cast<uint32_t>(g % 8), 0, 3, 16}, 1234, 7));
  }
  if (spec.find("floor stochastic") != std::string::npos || spec.find("stochastic floor") != std::string::npos)
    for (float& v : after) v *= 4.0f / 3;
  const auto e = errors_of(before, after, 1024);
  EXPECT_NEAR(1000 * e.mse, want.mse, 0.02 * want.mse);
  EXPECT_NEAR(e.db(), want.db, 0.1);
  EXPECT_NEAR(e.shrink, want.shrink, spec.find("quest") == std::string::npos ? 0.001 : 0.002);  // of 16,384 deviations
  EXPECT_NEAR(e.zeros, want.zeros, 0.2);
}
INSTANTIATE_TEST_SUITE_P(Table, QuantizerError,
                         ::testing::Values(Expected{"nvfp4", 9.056, 20.43, 0.0046, 6.81},
                                           Expected{"nvfp4 four_six=mse", 7.561, 21.21, 0.0034, 8.12},
                                           Expected{"nvfp4 four_six=mae", 7.789, 21.08, 0.0031, 7.74},
                                           Expected{"nvfp4_2d", 12.395, 19.07, 0.0091, 10.10},
                                           Expected{"nvfp4_2d four_six=mse", 12.370, 19.08, 0.0090, 10.23},
                                           Expected{"nvfp4 stochastic", 18.95, 17.22, 0.0040, 6.86},
                                           Expected{"nvfp4 stochastic vmax", 23.53, 16.28, 0.0007, 7.28},
                                           Expected{"mxfp4 quest", 27.03, 15.68, 0.0647, 6.43},  // measured apart
                                           Expected{"nvfp4 eden hadamard=128 signs=16", 9.778, 20.10, 0.0005, 6.73},
                                           Expected{"nvfp4 pow2", 9.04, 20.44, 0.0046, 6.81},
                                           Expected{"mxfp4 floor", 13.23, 18.79, 0.0196, 8.80},
                                           Expected{"mxfp4", 13.31, 18.76, 0.0100, 10.68},
                                           Expected{"mxfp4 stochastic", 27.08, 15.67, 0, 10.6},
                                           Expected{"mxfp4 stochastic floor", 28.21, 15.50, 0, 11.7}),
                         [](const auto& row) {
                           std::string name;
                           for (const char c : std::string(row.param.spec)) name += std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

// One operand, relative error in per cent: last sentence of 8.1.
TEST(QuantizerErrors, P50_EightBitFormats) {
  const std::vector<float> x = normal_matrix(8, 1024, "p50");
  const std::pair<const char*, double> rows[] = {{"mxfp8", 2.7}, {"e4m3", 2.6}, {"e5m2", 5.3}, {"nvfp4", 9.5}};
  for (const auto& [spec, percent] : rows)
    EXPECT_NEAR(100 * std::sqrt(errors_of(x, values_of(row_copy(matrix(8, 1024, x), spec)), 8192).mse), percent, 0.15)
        << spec;
}

// a [m, k] times b [n, k] transposed; what lies between is in f32, far below the errors measured.
std::vector<float> multiply(const std::vector<float>& a, const std::vector<float>& b, size_t k) {
  const size_t m = a.size() / k, n = b.size() / k;
  std::vector<float> bt(b.size()), y(m * n);
  for (size_t j = 0; j < n; ++j)
    for (size_t e = 0; e < k; ++e) bt[e * n + j] = b[j * k + e];
  for (size_t i = 0; i < m; ++i)
    for (size_t e = 0; e < k; ++e) {
      const float t = a[i * k + e];
      for (size_t j = 0; j < n; ++j) y[i * n + j] += t * bt[e * n + j];
    }
  return y;
}
double sqnr(const std::vector<float>& want, const std::vector<float>& got) {
  return errors_of(want, got, want.size()).db();
}

// One linear of 8.3: 1024 tokens, K 1024, N 512. Operands by the reference quantisers, products of their values. The
// rows' factors have a heavy tail: of 1024 squared ones about 50 count, so one draw of them differs from the next by
// 0.05 dB in dX and dW, and a draw that one row dominates by 0.2. The numbers of 8.3 are one draw; "rows3" is one where
// 69 rows count. Mean of "rows0" to "rows7" in dB: te_nvfp4 dX 15.07, dW 15.23, without rotation 15.69; quartet2
// dX 15.64, dW 15.61.
struct Linear {
  static constexpr int64_t tokens = 1024, inputs = 1024, outputs = 512;
  std::vector<float> x = normal_matrix(tokens, inputs, "x"),
                     w = normal_matrix(outputs, inputs, "w", 1 / std::sqrt(static_cast<double>(inputs))), dy;
  Linear() {
    const std::vector<float> z = normal_matrix(tokens, outputs, "dy"), size = normal_matrix(tokens, 1, "rows3");
    for (size_t i = 0; i < z.size(); ++i)
      dy.push_back(widen(round_bf16(z[i] * 1e-4f * std::exp(size[i / size_t{outputs}]))));
  }
  static std::vector<float> turn(const std::vector<float>& t, size_t rows) {
    std::vector<float> turned(t.size());
    const size_t columns = t.size() / rows;
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) turned[c * rows + r] = t[r * columns + c];
    return turned;
  }
  std::vector<float> y() const { return multiply(x, w, inputs); }
  std::vector<float> dx() const { return multiply(dy, turn(w, outputs), outputs); }
  std::vector<float> dw() const { return multiply(turn(dy, tokens), turn(x, tokens), tokens); }
};

TEST(QuantizedLinear, P50_ForwardAndDgradOfTeNvfp4) {
  const Linear l;
  const std::vector<Owned> w = quantize(matrix(l.outputs, l.inputs, l.w), "nvfp4_2d", "nvfp4_2d");
  const std::vector<float> x = values_of(row_copy(matrix(l.tokens, l.inputs, l.x), "nvfp4")),
                           dy = values_of(row_copy(matrix(l.tokens, l.outputs, l.dy), "nvfp4 stochastic"));
  EXPECT_NEAR(sqnr(l.y(), multiply(x, values_of(w[0]), l.inputs)), 16.70, 0.1);
  EXPECT_NEAR(sqnr(l.dx(), multiply(dy, values_of(w[1]), l.outputs)), 15.07, 0.1);
}
TEST(QuantizedLinear, P50_WgradOfTeNvfp4WithAndWithoutRotation) {
  const Linear l;
  const std::vector<float> want = l.dw();
  const std::pair<const char*, double> rows[] = {{" hadamard=16", 15.29}, {"", 15.65}};
  for (const auto& [rotation, db] : rows) {
    const std::string more = rotation;
    const std::vector<float> dy = values_of(
                                 column_copy(matrix(l.tokens, l.outputs, l.dy), "nvfp4 stochastic stream=1" + more)),
                             x = values_of(column_copy(matrix(l.tokens, l.inputs, l.x), "nvfp4" + more));
    EXPECT_NEAR(sqnr(want, multiply(dy, x, l.tokens)), db, 0.1) << more;
  }
}
TEST(QuantizedLinear, P50_TeNvfp4WithTheWiderRangeOfStochasticRounding) {
  const Linear l;
  const Owned w = column_copy(matrix(l.outputs, l.inputs, l.w), "nvfp4_2d");
  const std::vector<Owned> dy = quantize(matrix(l.tokens, l.outputs, l.dy), "nvfp4 stochastic vmax",
                                         "nvfp4 stochastic vmax hadamard=16 stream=1");
  const Owned x = column_copy(matrix(l.tokens, l.inputs, l.x), "nvfp4 hadamard=16");
  EXPECT_NEAR(sqnr(l.dx(), multiply(values_of(dy[0]), values_of(w), l.outputs)), 14.44, 0.1);
  EXPECT_NEAR(sqnr(l.dw(), multiply(values_of(dy[1]), values_of(x), l.tokens)), 14.79,
              0.15);  // another draw of the rows
  // The product's factor is that of both decode scales, for the bound is not the standard one.
  const Owned y = product(dy[1], x);
  EXPECT_EQ(dy[1].header().by_amax, 0u);
  EXPECT_GT(sqnr(multiply(values_of(dy[1]), values_of(x), l.tokens), numbers_of(y)), 100);
}
// mxfp4_quartet: the gradient of the turned operand, turned back, is that of the numbers, less what was cut off.
TEST(QuantizedLinear, Mxfp4QuartetGoesThereAndBack) {
  const Linear l;
  const Owned x = row_copy(matrix(l.tokens, l.inputs, l.x), "mxfp4 quest hadamard=32"),
              w = row_copy(matrix(l.outputs, l.inputs, l.w), "mxfp4 quest hadamard=32");
  EXPECT_NEAR(sqnr(l.y(), multiply(values_of(x), values_of(w), l.inputs)), 12.45, 0.1);  // as measured
  const std::vector<Owned> dy = quantize(matrix(l.tokens, l.outputs, l.dy), "mxfp4 stochastic floor hadamard=32",
                                         "mxfp4 stochastic floor hadamard=32 stream=1");
  const Owned wt = requantized(w, "mxfp4 stochastic floor hadamard=32 stream=2");
  const Attrs rotated{{"hadamard", int64_t{32}}};
  const Owned numbers[] = {matrix(l.tokens, l.inputs, l.x)};
  const Owned mask = std::move(run_reference(quest_mask_op, ref::quest_mask, numbers, rotated)[0]);
  const Owned turned[] = {product(dy[0], wt, "f32", {{"factor", double{16.0f / 9}}}), mask};
  Attrs attrs = rotated;
  attrs.set("width", int64_t{l.inputs}), attrs.set("dtype", std::string("f32"));
  const std::vector<float> dx = numbers_of(run_reference(quest_back_op, ref::quest_back, turned, attrs)[0]),
                           want = l.dx();
  double dot = 0, squares = 0, wanted = 0;
  for (size_t i = 0; i < dx.size(); ++i)
    dot += static_cast<double>(dx[i]) * want[i], squares += static_cast<double>(dx[i]) * dx[i],
        wanted += static_cast<double>(want[i]) * want[i];
  // Of the square 7.3 % is cut off and w is quantised to 15.7 dB before dy and it are drawn.
  EXPECT_GT(dot / std::sqrt(squares * wanted), 0.85);
  EXPECT_NEAR(dot / wanted, 1 - 0.073 - 0.065, 0.02) << "no factor is forgotten, nothing is counted twice";
}
// Both operands of a product are turned by the same signs, or nothing would be left of it.
TEST(QuantizedLinear, P50_P27_Quartet2) {
  const Linear l;
  const Owned x = row_copy(matrix(l.tokens, l.inputs, l.x), "nvfp4 four_six=mse"),
              w = row_copy(matrix(l.outputs, l.inputs, l.w), "nvfp4 four_six=mse");
  EXPECT_NEAR(sqnr(l.y(), multiply(values_of(x), values_of(w), l.inputs)), 18.21, 0.1);
  const std::vector<Owned> dy = quantize(matrix(l.tokens, l.outputs, l.dy), "nvfp4 eden hadamard=128 signs=16",
                                         "nvfp4 eden hadamard=128 stream=1 signs=17");
  const Owned wt = requantized(w, "nvfp4 eden hadamard=128 stream=2 signs=16"),
              xt = requantized(x, "nvfp4 eden hadamard=128 stream=3 signs=17");
  EXPECT_NEAR(sqnr(l.dx(), multiply(values_of(dy[0]), values_of(wt), l.outputs)), 15.74, 0.1);
  EXPECT_NEAR(sqnr(l.dw(), multiply(values_of(dy[1]), values_of(xt), l.tokens)), 15.65, 0.1);
}

}  // namespace
}  // namespace nibble
