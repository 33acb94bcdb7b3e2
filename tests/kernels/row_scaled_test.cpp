// Activations under one tensor scale a row (spec/precision.md 6, `row`): each row as if it were alone, on every kernel.
#include "kernels/ref/row_scaled.h"
#include "kernels/harness.h"
#include "kernels/quantized_harness.h"

namespace nibble {
namespace {

using namespace testing;

// Rows of very different sizes, so that a scale of all of them would change most codes.
std::vector<float> uneven(int64_t rows, int64_t width, uint32_t site) {
  std::vector<float> x;
  for (const double v : random({DType::f32, {rows, width}}, site).values) {
    const auto row = static_cast<int64_t>(x.size()) / width;
    x.push_back(static_cast<float>(v) * std::ldexp(1.0f, static_cast<int>(row % 7) * 3 - 9));
  }
  return x;
}
Attrs row_attrs(const std::string& spec) { return {{"row", spec}, {"tokens", int64_t{1}}, {"site", int64_t{0}}}; }

std::vector<Owned> run_kernel(KernelRun kernel, KernelWorkspace space, const std::vector<const Owned*>& in,
                              const std::vector<Type>& out, const Attrs& attrs, int threads) {
  std::vector<Type> types;
  std::vector<Tensor> ins, outs;
  for (const Owned* o : in) types.push_back(o->type()), ins.push_back(o->tensor());
  std::vector<Owned> made(out.begin(), out.end());
  for (const Owned& o : made) outs.push_back(o.tensor());
  const Owned workspace({DType::f32, {(space == nullptr ? 0 : space({types, out, attrs, threads})) / 4 + 16}});
  kernel({ins, outs, attrs, workspace.tensor().as<std::byte>(), pool_of(threads)});
  return made;
}

Owned no_bits() {
  Owned random({DType::i32, {quantize_words}});
  std::memset(random.tensor().data, 0, quantize_words * 4);
  return random;
}
std::vector<Owned> quantize_rows(const Owned& x, const std::string& spec, KernelRun kernel = ref::quantize_rows,
                                 KernelWorkspace space = ref::quantize_rows_workspace, int threads = 1) {
  const Owned random = no_bits();
  return run_kernel(kernel, space, {&x, &random},
                    {x.type().as(parse_quant_spec(spec).format), {DType::f32, {x.type().rows(), 2}}}, row_attrs(spec),
                    threads);
}
Owned multiply_rows(const std::vector<Owned>& x, const Owned& w, const char* dtype,
                    KernelRun kernel = ref::qlinear_rows, KernelWorkspace space = ref::qlinear_rows_workspace,
                    int threads = 1) {
  Type y = x[0].type().with_last(w.type().dim(0));
  parse_dtype(dtype, &y.dtype);
  return std::move(run_kernel(kernel, space, {&x[0], &x[1], &w}, {y}, {{"dtype", std::string(dtype)}}, threads)[0]);
}

// Specs of x and w.
constexpr std::pair<const char*, const char*> recipes[] = {{"nvfp4", "nvfp4_2d"},
                                                           {"nvfp4 pow2", "nvfp4 pow2"},
                                                           {"nvfp4 four_six=mse", "nvfp4 four_six=mse"},
                                                           {"nvfp4 unit", "nvfp4_2d unit"},
                                                           {"e4m3", "e4m3"},
                                                           {"fp8_block", "fp8_block_2d"}};

TEST(PrecisionP52, ARowIsQuantisedAndMultipliedAsIfItWereAlone) {
  const int64_t rows = 9, width = 50;
  const std::vector<float> x = uneven(rows, width, 1);
  for (const auto& [spec, weight] : recipes) {
    const Owned w = row_copy(matrix(20, width, uneven(20, width, 2)), weight);
    const std::vector<Owned> q = quantize_rows(matrix(rows, width, x), spec);
    const std::vector<float> y = numbers_of(multiply_rows(q, w, "f32"));
    bool some_differ = false;
    const Owned whole = row_copy(matrix(rows, width, x), spec);
    for (int64_t r = 0; r < rows; ++r) {
      const Owned alone = row_copy(matrix(1, width, std::span(x).subspan(static_cast<size_t>(r * width), width)), spec);
      EXPECT_EQ(packed_row(q[0], r), packed_row(alone, 0)) << spec << ", row " << r;
      EXPECT_EQ(numbers_of(q[1])[static_cast<size_t>(2 * r)], alone.header().amax) << spec;
      EXPECT_EQ(numbers_of(q[1])[static_cast<size_t>(2 * r + 1)], alone.header().decode) << spec;
      EXPECT_EQ(std::vector<float>(y.begin() + r * 20, y.begin() + (r + 1) * 20), numbers_of(product(alone, w)))
          << spec << ", row " << r;
      some_differ = some_differ || packed_row(alone, 0) != packed_row(whole, r);
    }
    const bool has_scale = std::string(spec) == "nvfp4" || std::string(spec) == "e4m3";
    if (has_scale) {
      EXPECT_TRUE(some_differ) << spec << ": the test would pass with the tensor's amax too";
    }
  }
}

TEST(PrecisionP52, EveryKernelEqualsTheDefinition) {
  struct Size {
    int64_t m, n, k;
  };
  for (const auto& [spec, weight] : recipes)
    for (const Size& s : {Size{1, 40, 64}, {5, 33, 50}, {70, 65, 130}, {130, 20, 600}}) {
      if (std::string(weight) == "fp8_block_2d" && s.k > 200) continue;  // sums a block at a time: within a bound
      SCOPED_TRACE(std::string(spec) + " " + std::to_string(s.m));
      const Owned x = matrix(s.m, s.k, uneven(s.m, s.k, 3), s.m % 2 == 0 ? DType::bf16 : DType::f32);
      const Owned w = row_copy(matrix(s.n, s.k, uneven(s.n, s.k, 4)), weight);
      const std::vector<Owned> want = quantize_rows(x, spec);
      for_each_kernel(quantize_rows_cpu, [&](const Kernel& kernel, int threads) {
        const Type in[] = {x.type(), no_bits().type()};
        if (kernel.refuses != nullptr && kernel.refuses({in, {}, row_attrs(spec), threads}) != nullptr) return;
        const std::vector<Owned> got = quantize_rows(x, spec, kernel.run, kernel.workspace, threads);
        EXPECT_TRUE(got[0] == want[0]) << "codes";
        EXPECT_TRUE(got[1] == want[1]) << "scales";
      });
      if (std::string(weight) == "fp8_block_2d") continue;
      for (const char* dtype : {"f32", "bf16"}) {
        const Owned y = multiply_rows(want, w, dtype);
        for_each_kernel(qlinear_rows_cpu, [&](const Kernel& kernel, int threads) {
          EXPECT_TRUE(multiply_rows(want, w, dtype, kernel.run, kernel.workspace, threads) == y) << dtype;
        });
      }
    }
}

// The kernel on vpdpbusd is bit-equal too where all operands have 4 bits.
TEST(PrecisionP52, VnniEqualsTheDefinition) {
  const Kernel& kernel = qlinear_rows_cpu.front();
  if (!cpu_runs(kernel.needs)) GTEST_SKIP() << "this CPU lacks " << name_of(kernel.needs);
  for (const int64_t m : {1, 7, 150}) {
    const std::vector<Owned> x = quantize_rows(matrix(m, 200, uneven(m, 200, 5)), "nvfp4");
    const Owned w = row_copy(matrix(70, 200, uneven(70, 200, 6)), "nvfp4_2d");
    EXPECT_TRUE(multiply_rows(x, w, "f32", kernel.run, kernel.workspace, 2) == multiply_rows(x, w, "f32")) << m;
  }
}

TEST(PrecisionP15, APoisonedRowPoisonsItsOwnResultsOnly) {
  std::vector<float> x = uneven(6, 48, 7);
  x[2 * 48 + 5] = __builtin_nanf(""), x[4 * 48 + 47] = __builtin_inff();
  const Owned w = row_copy(matrix(20, 48, uneven(20, 48, 8)), "nvfp4_2d");
  const std::vector<Owned> q = quantize_rows(matrix(6, 48, x), "nvfp4");
  EXPECT_TRUE(std::isnan(q[0].header().amax)) << "whoever checks results for NaN looks at the header";
  const std::vector<float> y = numbers_of(multiply_rows(q, w, "f32"));
  for (int64_t r = 0; r < 6; ++r)
    for (int64_t j = 0; j < 20; ++j)
      EXPECT_EQ(std::isnan(y[static_cast<size_t>(r * 20 + j)]), r == 2 || r == 4) << r << ", " << j;
}

}  // namespace
}  // namespace nibble
