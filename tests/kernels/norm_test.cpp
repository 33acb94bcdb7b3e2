// rms_norm and its gradient: bits against the definition, the definition against FP64 (spec/training.md 9, T13).
#include "kernels/harness.h"

namespace nibble {
namespace {

using namespace testing;

Problem forward(int64_t rows, int64_t n) {
  return {{random(f32({rows, n}), 1), random(f32({n}), 2)}, {f32({rows, n}), f32({rows})}, {{"eps", 1e-5}}};
}
Problem backward(int64_t rows, int64_t n) {
  Array rstd{f32({rows}), {}};
  for (const float r : as<float>(run_reference(forward(rows, n), rms_norm_ref)[1])) rstd.values.push_back(r);
  return {{random(f32({n}), 4), random(f32({rows, n}), 3), random(f32({rows, n}), 1), random(f32({n}), 2), rstd},
          {f32({n}), f32({rows, n})},
          {},
          {0}};
}

TEST(TrainingT13, RmsNormEqualsReference) {
  struct {
    int64_t rows, n;
  } const sizes[] = {{1, 1}, {1, 17}, {3, 16}, {64, 40}, {65, 512}, {200, 33}, {1000, 130}};
  for (const auto& s : sizes) {
    expect_equals_reference(forward(s.rows, s.n), rms_norm_cpu, rms_norm_ref);
    expect_equals_reference(backward(s.rows, s.n), rms_norm_grad_cpu, rms_norm_grad_ref);
  }
}

TEST(NumericContract, RmsNormHasTheCommittedHashes) {
  expect_hash(forward(200, 130), rms_norm_cpu, rms_norm_ref, "3d8e57a52c70e953");
  expect_hash(backward(200, 130), rms_norm_grad_cpu, rms_norm_grad_ref, "62ced712be3b0e92");
}

// An ulp is taken as 2^-23 of the value: that of the lower end of its binade. The lane sums of wider rows cost more: at
// 2048 columns the largest error of these inputs is 2.1.
TEST(TrainingT13, RmsNormWithin2UlpOfFp64) {
  for (const int64_t n : {64, 512, 768, 1024}) {
    const Problem p = forward(50, n);
    const std::vector<float> got = as<float>(run_reference(p, rms_norm_ref)[0]);
    const std::vector<double> want = as<double>(run_fp64(p, rms_norm_ref)[0]);
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_LE(std::abs(static_cast<double>(got[i]) - want[i]), 2 * 0x1p-23 * std::abs(want[i])) << n << " " << i;
  }
}

TEST(TrainingT13, RmsNormGradientWithin1e6OfFp64) {
  Problem p = backward(130, 768);
  p.in[0] = filled(p.in[0].type, 0);
  const std::vector<Bytes> got = run_reference(p, rms_norm_grad_ref), want = run_fp64(p, rms_norm_grad_ref);
  for (size_t i = 0; i < 2; ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-6) << "output " << i;
}

}  // namespace
}  // namespace nibble
