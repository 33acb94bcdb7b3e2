// adamw, sgd, sum_squares and norm against their definition on every target and 1, 2, 3 threads (spec/training.md 9,
// T22 and T24).
#include "kernels/harness.h"

namespace nibble {
namespace {

using namespace testing;

// lr, b1, 1-b1, b2, 1-b2, c1, c2, clip of step t.
Array scalars_of(int t) {
  const double b1 = 0.9, b2 = 0.95;
  Array s{f32({8}), {3e-4, b1, 1 - b1, b2, 1 - b2, 1 - std::pow(b1, t), 1 - std::pow(b2, t), t % 3 == 0 ? 0.37 : 1.0}};
  for (double& x : s.values) x = static_cast<double>(static_cast<float>(x));
  return s;
}
Attrs adamw_attrs(double decay) { return {{"eps", 1e-8}, {"eps_root", 1e-12}, {"weight_decay", decay}}; }

Problem adamw_problem(int64_t n, int parts, double decay) {
  Problem p{{random(f32({n}), 1), random(f32({n}), 2), random(f32({n}), 3), scalars_of(4)},
            {f32({n}), f32({n}), f32({n})},
            adamw_attrs(decay),
            {0, 1, 2}};
  for (double& v : p.in[2].values) v = std::abs(v);
  for (int k = 0; k < parts; ++k) p.in.push_back(random(f32({n}), 10 + static_cast<uint32_t>(k)));
  return p;
}

TEST(TrainingT22, AdamwEqualsReference) {
  for (const int64_t n : {int64_t{1}, int64_t{19}, int64_t{1000}, int64_t{150'001}})
    for (const double decay : {0.0, 0.1})
      for (const int parts : {1, 3}) expect_equals_reference(adamw_problem(n, parts, decay), adamw_cpu, adamw_ref);
}

TEST(NumericContract, AdamwHasTheCommittedHash) {
  expect_hash(adamw_problem(5000, 2, 0.1), adamw_cpu, adamw_ref, "2941839c5b1fdb07");
}

TEST(TrainingT22, AdamwEqualsReferenceOver100Steps) {
  for_each_kernel(adamw_cpu, [&](const Kernel& kernel, int threads) {
    Problem p = adamw_problem(77, 1, 0.1);
    p.in[1] = p.in[2] = filled(f32({77}), 0);
    for (int step = 1; step <= 100; ++step) {
      p.in[3] = scalars_of(step);
      p.in[4] = random(f32({77}), 100 + static_cast<uint32_t>(step), 0.1);
      const std::vector<Bytes> want = run_reference(p, adamw_ref), got = run(p, kernel.run, kernel.workspace, threads);
      for (size_t i = 0; i < 3; ++i) {
        ASSERT_EQ(difference(p.out[i], got[i], want[i]), "") << "step " << step << " output " << i;
        const std::vector<float> next = as<float>(got[i]);
        p.in[i].values.assign(next.begin(), next.end());
      }
    }
  });
}

// By hand: a first step from zero moments moves a weight by lr (g / (|g| + eps)), nearly lr.
TEST(TrainingT22, AdamwFirstStepMovesByTheRate) {
  Problem p{{filled(f32({2}), 1), filled(f32({2}), 0), filled(f32({2}), 0), scalars_of(1), {f32({2}), {0.5, -4}}},
            {f32({2}), f32({2}), f32({2})},
            adamw_attrs(0),
            {0, 1, 2}};
  for_each_kernel(adamw_cpu, [&](const Kernel& kernel, int threads) {
    const std::vector<Bytes> got = run(p, kernel.run, kernel.workspace, threads);
    EXPECT_NEAR(as<float>(got[0])[0], 1 - 3e-4, 1e-7);
    EXPECT_NEAR(as<float>(got[0])[1], 1 + 3e-4, 1e-7);
    EXPECT_NEAR(as<float>(got[1])[1], -0.4, 1e-7);
    EXPECT_NEAR(as<float>(got[2])[1], 0.8, 1e-6);
  });
}

TEST(TrainingT22, SgdEqualsReference) {
  for (const int64_t n : {int64_t{1}, int64_t{19}, int64_t{150'001}}) {
    Problem p{{random(f32({n}), 1), scalars_of(3), random(f32({n}), 2), random(f32({n}), 3)}, {f32({n})}, {}, {0}};
    expect_equals_reference(p, sgd_cpu, sgd_ref);
  }
}

TEST(TrainingT24, SumSquaresEqualsReference) {
  const std::initializer_list<int64_t> shapes[] = {{1},    {255},    {256},    {1000},    {70'000},
                                                   {1, 1}, {16, 16}, {17, 33}, {100, 15}, {300, 513}};
  for (const auto& dims : shapes) {
    const Type type = f32(dims);
    const int64_t tiles =
        type.rank() == 1 ? (type.dim(0) + 255) / 256 : ((type.dim(0) + 15) / 16) * ((type.dim(1) + 15) / 16);
    for (const uint32_t parts : {1u, 2u}) {
      Problem p{{}, {{DType::f64, {tiles}}}, {}};
      for (uint32_t k = 0; k < parts; ++k) p.in.push_back(random(type, k));
      expect_equals_reference(p, sum_squares_cpu, sum_squares_ref);
    }
  }
}

TEST(TrainingT24, NormEqualsReferenceAtAnySize) {
  for (const double size : {0.0, 5e-324, 1e-300, 1e-30, 1.0, 1e30, 1e300}) {
    Array a = random({DType::f64, {1000}}, 1, size), b = random({DType::f64, {3}}, 2, size);
    for (Array* x : {&a, &b})
      for (double& v : x->values) v = std::abs(v);
    expect_equals_reference({{a, b}, {{DType::f64, {1}}}, {}}, norm_cpu, norm_ref);
  }
}

TEST(TrainingT24, NormIsOrderFreeAndKeepsNonFinite) {
  const Type one{DType::f64, {1}}, four{DType::f64, {4}};
  for_each_kernel(norm_cpu, [&](const Kernel& kernel, int threads) {
    const auto norm_of = [&](std::vector<double> tiles) {
      return as<double>(run({{{four, std::move(tiles)}}, {one}, {}}, kernel.run, kernel.workspace, threads)[0])[0];
    };
    EXPECT_EQ(norm_of({9, 0, 16, 0}), 5);
    EXPECT_EQ(norm_of({1e16, 1, 1, 1}), norm_of({1, 1, 1, 1e16}));
    EXPECT_TRUE(std::isnan(norm_of({1, NAN, 2, 3})));
    EXPECT_TRUE(std::isnan(norm_of({INFINITY, NAN, 2, 3})));
    EXPECT_EQ(norm_of({1, 2, INFINITY, 3}), INFINITY);
  });
}

}  // namespace
}  // namespace nibble
