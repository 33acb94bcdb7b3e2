// linear, linear_dgrad, linear_wgrad against their definition on every target and 1, 2, 3 threads.
#include "kernels/harness.h"

namespace nibble {
namespace {

using namespace testing;

struct Size {
  int64_t m, n, k;
};
constexpr Size sizes[] = {{1, 1, 1}, {1, 50, 33}, {3, 7, 5}, {40, 17, 65}, {130, 96, 64}, {65, 40, 600}};

TEST(NumericContract, LinearEqualsReference) {
  for (const Size& s : sizes)
    expect_equals_reference({{random(f32({s.m, s.k}), 1), random(f32({s.n, s.k}), 2)}, {f32({s.m, s.n})}, {}},
                            linear_cpu, linear_ref);
}

TEST(NumericContract, LinearTakesAnyLeadingAxes) {
  expect_equals_reference({{random(f32({3, 15, 20}), 1), random(f32({9, 20}), 2)}, {f32({3, 15, 9})}, {}}, linear_cpu,
                          linear_ref);
}

TEST(NumericContract, LinearDgradOfOneAndOfThreeTermsEqualsReference) {
  for (const Size& s : sizes) {
    Problem p{{random(f32({s.m, s.n}), 1), random(f32({s.n, s.k}), 2)}, {f32({s.m, s.k})}, {}};
    expect_equals_reference(p, linear_dgrad_cpu, linear_dgrad_ref);
    for (const int64_t n : {s.n + 3, int64_t{1}}) {  // terms of different widths, as q, k and v are
      p.in.push_back(random(f32({s.m, n}), 3));
      p.in.push_back(random(f32({n, s.k}), 4));
    }
    expect_equals_reference(p, linear_dgrad_cpu, linear_dgrad_ref);
  }
}

TEST(NumericContract, LinearWgradContinuesTheAccumulator) {
  for (const Size& s : sizes)
    expect_equals_reference({{random(f32({s.n, s.k}), 3), random(f32({s.m, s.n}), 1), random(f32({s.m, s.k}), 2)},
                             {f32({s.n, s.k})},
                             {},
                             {0}},
                            linear_wgrad_cpu, linear_wgrad_ref);
}

}  // namespace
}  // namespace nibble
