// cross_entropy and its gradient: bits against the definition, the definition against FP64 (spec/training.md 9, T17).
#include "kernels/harness.h"

namespace nibble {
namespace {

using namespace testing;

struct Size {
  int64_t rows, v, e;
  const char* why;
};
constexpr Size sizes[] = {{1, 1, 1, "the smallest"},
                          {5, 37, 6, "less than a tile"},
                          {600, 50, 9, "two tiles of 512"},
                          {270, 33'000, 1, "two tiles, the least that a long row of logits gets"},
                          {100, 1000, 24, "shared by threads"}};

// Every fifth token has no target.
Array targets_of(const Size& s) {
  Array targets = random_ints(i32({s.rows}), 4, 0, s.v);
  for (size_t i = 3; i < targets.values.size(); i += 5) targets.values[i] = -1;
  return targets;
}
Array inv_n(const Size& s) { return {f32({1}), {static_cast<double>(1.0f / static_cast<float>(s.rows))}}; }
Problem forward(const Size& s) {
  return {{random(f32({s.rows, s.e}), 1), random(f32({s.v, s.e}), 2), targets_of(s), inv_n(s)},
          {f32({s.rows}), f32({s.rows})},
          {{"z_loss", 0.0}}};
}
Problem backward(const Size& s, double z) {
  return {
      {random(f32({s.v, s.e}), 3), random(f32({s.rows, s.e}), 1), random(f32({s.v, s.e}), 2), targets_of(s), inv_n(s)},
      {f32({s.v, s.e}), f32({s.rows, s.e}), f32({s.rows}), f32({s.rows})},
      {{"z_loss", z}},
      {0}};
}

TEST(TrainingT17, CrossEntropyEqualsReference) {
  for (const Size& s : sizes) {
    SCOPED_TRACE(s.why);
    expect_equals_reference(forward(s), cross_entropy_cpu, cross_entropy_ref);
  }
}

TEST(TrainingT17, CrossEntropyGradEqualsReference) {
  for (const Size& s : sizes)
    for (const double z : {0.0, 1e-3}) {
      SCOPED_TRACE(s.why);
      expect_equals_reference(backward(s, z), cross_entropy_grad_cpu, cross_entropy_grad_ref);
    }
}

TEST(TrainingT17, AnyNumberOfTilesGivesTheSameBitsInLessMemory) {
  int64_t last = int64_t{1} << 60;
  for (const int64_t tiles : {1, 2, 3, 7, 100, 1000}) {
    Problem p = backward(sizes[4], 1e-3);
    p.attrs.set("tiles", tiles);
    expect_hash(p, cross_entropy_grad_cpu, cross_entropy_grad_ref, "da83cce2a482cf2c");
    std::vector<Type> in;
    for (const Array& a : p.in) in.push_back(a.type);
    const int64_t bytes = cross_entropy_grad_cpu.back().workspace({in, p.out, p.attrs, 2});
    EXPECT_LE(bytes, last) << tiles << " tiles";
    last = bytes;
  }
}

// With bf16 operands too, on each target with its own bits.
TEST(TrainingBf16, AnyNumberOfTilesGivesTheSameBits) {
  Problem p = backward(sizes[4], 1e-3);
  for (const size_t i : {1, 2}) {
    p.in[i].type.dtype = DType::bf16;
    for (double& x : p.in[i].values) x = widen(round_bf16(static_cast<float>(x)));
  }
  p.out[1].dtype = DType::bf16;
  for (const Kernel& kernel : cross_entropy_grad_cpu) {
    if (!cpu_runs(kernel.needs)) continue;
    std::vector<Bytes> want;
    for (const int64_t tiles : {1, 2, 3, 7, 100, 1000}) {
      p.attrs.set("tiles", tiles);
      const std::vector<Bytes> got = run(p, kernel.run, kernel.workspace, 2);
      if (want.empty()) want = got;
      EXPECT_EQ(got, want) << kernel.name << ", " << tiles << " tiles";
    }
  }
}

TEST(NumericContract, CrossEntropyHasTheCommittedHash) {
  expect_hash(backward(sizes[4], 1e-3), cross_entropy_grad_cpu, cross_entropy_grad_ref, "da83cce2a482cf2c");
}

TEST(TrainingT17, NonFiniteLogitsStayInTheirTokens) {
  Problem p = backward({40, 50, 8, ""}, 0);
  p.in[1].values[2 * 8] = NAN;
  p.in[1].values[10 * 8 + 3] = INFINITY;
  expect_equals_reference(p, cross_entropy_grad_cpu, cross_entropy_grad_ref);
  const std::vector<float> ce = as<float>(run_reference(p, cross_entropy_grad_ref)[2]);
  EXPECT_TRUE(std::isnan(ce[2]) && std::isnan(ce[10]) && std::isfinite(ce[1]));
}

TEST(TrainingT17, TokensWithoutTargetHaveNeitherLossNorGradient) {
  const Size s{20, 30, 5, ""};
  const Problem p = backward(s, 1e-3);
  for_each_kernel(cross_entropy_grad_cpu, [&](const Kernel& kernel, int threads) {
    const std::vector<Bytes> got = run(p, kernel.run, kernel.workspace, threads);
    const std::vector<float> dh = as<float>(got[1]), ce = as<float>(got[2]), lse = as<float>(got[3]);
    for (size_t i = 3; i < 20; i += 5) {
      EXPECT_EQ(ce[i], 0.0f);
      EXPECT_EQ(lse[i], 0.0f);
      for (size_t j = 0; j < 5; ++j) EXPECT_EQ(dh[i * 5 + j], 0.0f);
    }
    EXPECT_GT(ce[0], 0.0f);
  });
}

TEST(TrainingT17, LossAndGradientWithin1e6OfFp64) {
  for (const double z : {0.0, 1e-2}) {
    Problem p = backward({60, 100, 64, ""}, z);
    p.in[0] = filled(p.in[0].type, 0);
    for (double& x : p.in[2].values) x *= 0.1;  // logits of about unit variance, as at the start of training
    const std::vector<Bytes> got = run_reference(p, cross_entropy_grad_ref);
    const std::vector<Bytes> want = run_fp64(p, cross_entropy_grad_ref);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-6) << "output " << i;
  }
}

}  // namespace
}  // namespace nibble
