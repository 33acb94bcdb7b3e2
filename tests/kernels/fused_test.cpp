// The fused kernels: bits against the definition, which is their parts one after the other.
#include "kernels/harness.h"

namespace nibble {
namespace {

using namespace testing;

Problem residual_norm(int64_t rows, int64_t n) {
  return {{random(f32({rows, n}), 1), random(f32({rows, n}), 5), random(f32({n}), 2)},
          {f32({rows, n}), f32({rows, n}), f32({rows})},
          {{"eps", 1e-5}}};
}
Problem residual_norm_grad(int64_t rows, int64_t n) {
  Array rstd{f32({rows}), {}};
  const Problem forward{
      {random(f32({rows, n}), 1), random(f32({n}), 2)}, {f32({rows, n}), f32({rows})}, {{"eps", 1e-5}}};
  for (const float r : as<float>(run_reference(forward, rms_norm_ref)[1])) rstd.values.push_back(r);
  return {{random(f32({n}), 4), random(f32({rows, n}), 3), random(f32({rows, n}), 1), random(f32({n}), 2), rstd,
           random(f32({rows, n}), 6)},
          {f32({n}), f32({rows, n})},
          {},
          {0}};
}
Problem rope_pair(int64_t rows, int64_t heads, int64_t kv_heads, int64_t d, int64_t inverse) {
  return {{random(f32({rows, heads, d}), 1), random(f32({rows, kv_heads, d}), 2), random(f32({50, d}), 3),
           random_ints(i32({rows}), 4, 0, 50)},
          {f32({rows, heads, d}), f32({rows, kv_heads, d})},
          {{"inverse", inverse}},
          {0, 1}};
}
Problem adamw_squares(const Type& type, int parts, int64_t tiles) {
  Array v = random(type, 3);
  for (double& x : v.values) x = std::abs(x);
  Problem p{{random(type, 1), random(type, 2), v, {f32({8}), {1e-3, 0.9, 0.1, 0.99, 0.01, 0.19, 0.0199, 0.5}}},
            {type, type, type, {DType::f64, {tiles}}},
            {{"eps", 1e-8}, {"eps_root", 0.0}, {"weight_decay", 0.1}},
            {0, 1, 2}};
  for (double& x : p.in[3].values) x = static_cast<double>(static_cast<float>(x));
  for (int i = 0; i < parts; ++i) p.in.push_back(random(type, static_cast<uint32_t>(10 + i)));
  return p;
}

TEST(DesignRule6, FusedNormsEqualTheirParts) {
  struct {
    int64_t rows, n;
  } const sizes[] = {{1, 1}, {1, 17}, {3, 16}, {64, 40}, {65, 512}, {200, 33}, {1000, 130}};
  for (const auto& s : sizes) {
    expect_equals_reference(residual_norm(s.rows, s.n), residual_rms_norm_cpu, residual_rms_norm_ref);
    expect_equals_reference(residual_norm_grad(s.rows, s.n), residual_rms_norm_grad_cpu, residual_rms_norm_grad_ref);
  }
}

TEST(DesignRule6, RopePairEqualsTwoRopes) {
  for (const int64_t inverse : {0, 1})
    for (const int64_t d : {2, 6, 32, 64, 80}) {
      expect_equals_reference(rope_pair(7, 4, 2, d, inverse), rope_pair_cpu, rope_pair_ref);
      expect_equals_reference(rope_pair(300, 3, 1, d, inverse), rope_pair_cpu, rope_pair_ref);
    }
}

TEST(DesignRule6, AdamwSquaresEqualsItsParts) {
  expect_equals_reference(adamw_squares(f32({1, 1}), 1, 1), adamw_squares_cpu, adamw_squares_ref);
  expect_equals_reference(adamw_squares(f32({33, 50}), 2, 12), adamw_squares_cpu, adamw_squares_ref);
  expect_equals_reference(adamw_squares(f32({700, 128}), 1, 352), adamw_squares_cpu, adamw_squares_ref);
  expect_equals_reference(adamw_squares(f32({300}), 2, 2), adamw_squares_cpu, adamw_squares_ref);
  expect_equals_reference(adamw_squares(f32({100000}), 1, 391), adamw_squares_cpu, adamw_squares_ref);
}

TEST(NumericContract, FusedKernelsHaveTheCommittedHashes) {
  expect_hash(residual_norm(200, 130), residual_rms_norm_cpu, residual_rms_norm_ref, "c07e65d92d0167b2");
  expect_hash(residual_norm_grad(200, 130), residual_rms_norm_grad_cpu, residual_rms_norm_grad_ref, "2817009fe87cc710");
  expect_hash(rope_pair(100, 4, 2, 32, 0), rope_pair_cpu, rope_pair_ref, "8ebe96f0285abf8a");
  expect_hash(adamw_squares(f32({100, 130}), 2, 63), adamw_squares_cpu, adamw_squares_ref, "88b2084b883e6454");
}

}  // namespace
}  // namespace nibble
