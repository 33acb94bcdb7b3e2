// add, scale, swiglu, rope, embedding and their gradients against their definition on every target and 1, 2, 3 threads.
#include <algorithm>

#include "kernels/harness.h"

namespace nibble {
namespace {

using namespace testing;

// The last one is shared out among the threads.
constexpr int64_t lengths[] = {1, 7, 8, 16, 31, 100, 200'003};

TEST(NumericContract, AddAndScaleEqualReference) {
  for (const int64_t n : lengths) {
    expect_equals_reference({{random(f32({n}), 1), random(f32({n}), 2)}, {f32({n})}, {}}, add_cpu, add_ref);
    expect_equals_reference({{random(f32({n}), 1)}, {f32({n})}, {{"factor", 0.3}}}, scale_cpu, scale_ref);
  }
}

TEST(NumericContract, SwigluEqualsReference) {
  for (const int64_t n : lengths) {
    Array gate = random(f32({n}), 1, 20);
    if (n >= 100) {  // both ends of exp, and what it makes of non-finite values
      constexpr double special[] = {-0.0, 90, -90, 1e30, -1e30, INFINITY, -INFINITY, NAN};
      std::copy(std::begin(special), std::end(special), gate.values.begin() + 3);
    }
    const Array up = random(f32({n}), 2), dy = random(f32({n}), 3);
    expect_equals_reference({{gate, up}, {f32({n})}, {}}, swiglu_cpu, swiglu_ref);
    expect_equals_reference({{dy, gate, up}, {f32({n}), f32({n})}, {}}, swiglu_grad_cpu, swiglu_grad_ref);
  }
}

TEST(NumericContract, SwigluHasTheCommittedHashes) {
  const Type type = f32({5000});
  expect_hash({{random(type, 1, 20), random(type, 2)}, {type}, {}}, swiglu_cpu, swiglu_ref, "f3f9082c1161265e");
  expect_hash({{random(type, 3), random(type, 1, 20), random(type, 2)}, {type, type}, {}}, swiglu_grad_cpu,
              swiglu_grad_ref, "3f5b0e644a09fba5");
}

TEST(NumericContract, RopeEqualsReference) {
  struct {
    int64_t rows, heads, d;
  } const sizes[] = {{1, 1, 2}, {5, 3, 6}, {9, 2, 64}, {4, 1, 34}, {300, 5, 128}};
  for (const auto& s : sizes)
    for (const int64_t inverse : {0, 1}) {
      const Array positions = random_ints(i32({s.rows}), 3, 0, 50);
      expect_equals_reference({{random(f32({s.rows, s.heads, s.d}), 1), random(f32({50, s.d}), 2, 1), positions},
                               {f32({s.rows, s.heads, s.d})},
                               {{"inverse", inverse}}},
                              rope_cpu, rope_ref);
    }
}

TEST(NumericContract, EmbeddingEqualsReference) {
  for (const int64_t e : {1, 20, 130, 512})
    for (const int64_t rows : {1, 63, 64, 200}) {
      const Array tokens = random_ints(i32({rows}), 1, 0, 40);
      expect_equals_reference({{tokens, random(f32({40, e}), 2)}, {f32({rows, e})}, {}}, embedding_cpu, embedding_ref);
      expect_equals_reference({{random(f32({40, e}), 3), tokens, random(f32({rows, e}), 2)}, {f32({40, e})}, {}, {0}},
                              embedding_grad_cpu, embedding_grad_ref);
    }
}

// Two rows of one id in a block are summed before they meet the accumulator: 2^24 + (1 + 1), not (2^24 + 1) + 1.
TEST(NumericContract, EmbeddingGradSumsABlockFirst) {
  const Problem p{{filled(f32({2, 1}), 0x1p24), filled(i32({2}), 1), filled(f32({2, 1}), 1)}, {f32({2, 1})}, {}, {0}};
  for_each_kernel(embedding_grad_cpu, [&](const Kernel& kernel, int threads) {
    EXPECT_EQ(as<float>(run(p, kernel.run, kernel.workspace, threads)[0]), (std::vector<float>{0x1p24f, 0x1p24f + 2}));
  });
}

}  // namespace
}  // namespace nibble
