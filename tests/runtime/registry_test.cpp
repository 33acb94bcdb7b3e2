// Which kernel runs, and why the faster ones do not.
#include "runtime/registry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/ops.h"
#include "ops/values.h"

namespace nibble {
namespace {

TEST(RuntimeRegistry, TheFirstThatTheTargetAllowsIsChosenAndRefusalsAreNamed) {
  const Types in{{DType::f32, {4, 16}}, {DType::f32, {16, 16}}}, out{{DType::f32, {4, 16}}};
  const Attrs attrs;
  for (const KernelRow& row : kernel_table())
    for (const CpuTarget target : {CpuTarget::ref, CpuTarget::avx2, CpuTarget::avx512}) {
      if (std::ranges::any_of(row.cpu, [](const Kernel& k) { return k.refuses != nullptr; }))
        continue;  // depends on the node
      std::string_view name = "ref";
      std::string refusals;
      for (const Kernel& k : row.cpu) {
        if (k.needs <= target) {
          name = k.name;
          break;
        }
        refusals += fmt::format("{}{}: needs {}, cpu_target is {}", refusals.empty() ? "" : "; ", k.name,
                                name_of(k.needs), name_of(target));
      }
      const KernelChoice choice = choose_kernel(*row.op, {in, out, attrs, 1}, target);
      EXPECT_EQ(choice.name, name) << row.op->name << " on " << name_of(target);
      EXPECT_EQ(choice.refusals, refusals) << row.op->name << " on " << name_of(target);
      EXPECT_NE(choice.run, nullptr);
      EXPECT_EQ(choice.run == row.ref->f32, choice.name == "ref");
    }
}

TEST(RuntimeRegistry, KernelsOfBf16OperandsRefuseF32) {
  const Attrs attrs;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const bool half = dtype == DType::bf16;
    const Types in{{dtype, {4, 16}}, {dtype, {16, 16}}}, out{{dtype, {4, 16}}};
    const KernelChoice best = choose_kernel(linear_op, {in, out, attrs, 1}, CpuTarget::avx512_bf16);
    EXPECT_EQ(best.name, half ? "avx512_bf16" : "avx512");
    EXPECT_EQ(best.refusals, half ? "" : "avx512_bf16: takes bf16 only");
    EXPECT_EQ(choose_kernel(linear_op, {in, out, attrs, 1}, CpuTarget::avx512).name, "avx512");
  }
}

TEST(RuntimeRegistry, FasterKernelsComeFirst) {
  for (const KernelRow& row : kernel_table())
    for (size_t i = 1; i < row.cpu.size(); ++i)
      EXPECT_GE(row.cpu[i - 1].needs, row.cpu[i].needs) << row.op->name << ": " << row.cpu[i].name;
}

TEST(RuntimeRegistry, AnOpWithoutRowIsNamed) {
  EXPECT_TRUE(says(error_of([] { kernels_of(input_op); }), "op input has no row in the kernel table"));
}

}  // namespace
}  // namespace nibble
