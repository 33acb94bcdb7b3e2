// The kernel lists: every op has a kernel for each target, fastest first, and one workspace whatever the target, so
// that a memory plan does not depend on the machine.
#include "kernels/harness.h"

namespace nibble {
namespace {

using namespace testing;

constexpr const std::span<const Kernel>* lists[] = {&embedding_cpu,
                                                    &embedding_grad_cpu,
                                                    &linear_cpu,
                                                    &linear_dgrad_cpu,
                                                    &linear_wgrad_cpu,
                                                    &rms_norm_cpu,
                                                    &rms_norm_grad_cpu,
                                                    &rope_cpu,
                                                    &attention_cpu,
                                                    &attention_grad_cpu,
                                                    &swiglu_cpu,
                                                    &swiglu_grad_cpu,
                                                    &add_cpu,
                                                    &scale_cpu,
                                                    &cross_entropy_cpu,
                                                    &cross_entropy_grad_cpu,
                                                    &attention_cached_cpu,
                                                    &adamw_cpu,
                                                    &sgd_cpu,
                                                    &sum_squares_cpu,
                                                    &norm_cpu};

TEST(KernelLists, EveryOpHasItsTargetsFastestFirst) {
  for (const auto* list : lists) {
    ASSERT_GE(list->size(), 2u);
    EXPECT_EQ((*list)[list->size() - 2].name, "avx512");
    EXPECT_EQ((*list)[list->size() - 1].name, "avx2");
    EXPECT_EQ((*list)[0].name, list->size() > 2 ? "avx512_bf16" : "avx512");
    for (const Kernel& kernel : *list) {
      EXPECT_EQ(kernel.name, name_of(kernel.needs));
      EXPECT_NE(kernel.run, nullptr);
      EXPECT_EQ(kernel.workspace == nullptr, (*list)[0].workspace == nullptr);
      EXPECT_EQ(kernel.refuses != nullptr, kernel.needs == CpuTarget::avx512_bf16);  // of f32 operands
    }
  }
}

void expect_one_workspace(std::span<const Kernel> list, const std::vector<Type>& in, const std::vector<Type>& out,
                          const Attrs& attrs = {}) {
  for (const int threads : {1, 2, 7}) {
    const KernelShape shape{in, out, attrs, threads};
    const int64_t bytes = list.back().workspace(shape);
    EXPECT_GT(bytes, 0);
    for (const Kernel& kernel : list) {
      if (kernel.refuses != nullptr && kernel.refuses(shape) != nullptr) continue;
      EXPECT_EQ(kernel.workspace(shape), bytes) << kernel.name << " " << threads;
    }
  }
}

TEST(KernelLists, WorkspacesAreTheSameOnEveryTarget) {
  const Type x = f32({70, 24}), w = f32({50, 24}), y = f32({70, 50}), c = f32({24}), row = f32({70});
  expect_one_workspace(linear_cpu, {x, w}, {y});
  expect_one_workspace(linear_dgrad_cpu, {y, w, y, w}, {x});
  expect_one_workspace(linear_wgrad_cpu, {w, y, x}, {w});
  expect_one_workspace(rms_norm_grad_cpu, {c, x, x, c, row}, {c, x});
  const Type targets = i32({70}), one = f32({1});
  expect_one_workspace(cross_entropy_cpu, {x, w, targets, one}, {row, row});
  expect_one_workspace(cross_entropy_grad_cpu, {w, x, w, targets, one}, {w, x, row, row});
  const Type hx = x.as(DType::bf16), hw = w.as(DType::bf16), hy = y.as(DType::bf16);
  expect_one_workspace(linear_cpu, {hx, hw}, {hy});
  expect_one_workspace(linear_dgrad_cpu, {hy, hw, hy, hw}, {hx});
  expect_one_workspace(linear_wgrad_cpu, {w, hy, hx}, {w});
  expect_one_workspace(cross_entropy_cpu, {hx, hw, targets, one}, {row, row});
  expect_one_workspace(cross_entropy_grad_cpu, {w, hx, hw, targets, one}, {w, hx, row, row});
  const Attrs attrs{{"scale", 0.125}, {"window", int64_t{0}}};
  for (const int64_t d : {6, 24, 64}) {
    const Type q = f32({2, 70, 4, d}), k = f32({2, 70, 2, d}), lse = q.drop_last(), segments = i32({2, 70});
    expect_one_workspace(attention_cpu, {q, k, k, segments}, {q, lse}, attrs);
    expect_one_workspace(attention_grad_cpu, {q, q, k, k, q, lse, segments}, {q, k, k}, attrs);
    expect_one_workspace(attention_cached_cpu, {f32({3, 4, d}), f32({70, 2, d}), f32({70, 2, d}), i32({2})},
                         {f32({3, 4, d})}, attrs);
  }
}

}  // namespace
}  // namespace nibble
