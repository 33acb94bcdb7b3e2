// Products with 4-bit weights: the definition is `linear` on the numbers that the codes stand for, and every kernel has
// its bits, whatever the shape, the number of rows and of threads.
#include "kernels/ref/linear_w4.h"
#include "kernels/harness.h"
#include "kernels/quantized_harness.h"
#include "kernels/ref/linear.h"
#include "numerics/decoded.h"

namespace nibble {
namespace {

using namespace testing;

Owned numbers(const Type& type, uint32_t site, double size = 2) {
  std::vector<float> x;
  for (const double v : random({DType::f32, type.shape}, site, size).values) x.push_back(static_cast<float>(v));
  return {type, x};
}
Owned weight(int64_t n, int64_t k, const char* spec, uint32_t site) {
  return row_copy(numbers({DType::f32, {n, k}}, site, 0.05), spec);
}

Owned run_kernel(KernelRun kernel, KernelWorkspace space, const Owned& x, const Owned& w, int threads) {
  const Type in[] = {x.type(), w.type()}, out[] = {x.type().with_last(w.type().dim(0))};
  Owned y(out[0]);
  const Attrs attrs;
  const int64_t bytes = space == nullptr ? 0 : space({in, out, attrs, threads});
  const Owned workspace({DType::f32, {bytes / 4 + 64}});
  const Tensor ins[] = {x.tensor(), w.tensor()}, outs[] = {y.tensor()};
  kernel({ins, outs, attrs, workspace.tensor().as<std::byte>(), pool_of(threads)});
  const auto* guard = workspace.tensor().as<uint8_t>() + (bytes + 3) / 4 * 4;
  for (int i = 0; i < 64; ++i) EXPECT_EQ(guard[i], 0xff) << "wrote past the workspace of " << bytes << " bytes";
  return y;
}
Owned reference(const Owned& x, const Owned& w) { return run_kernel(ref::linear_w4, nullptr, x, w, 1); }

struct Size {
  int64_t m, n, k;
};
// One row and few, one line of codes and several, ragged ends of all three axes; more rows than are decoded in
// registers.
constexpr Size sizes[] = {{1, 1, 1},    {1, 64, 128},   {1, 65, 129},  {1, 200, 576}, {1, 7, 33},
                          {2, 31, 16},  {3, 129, 65},   {4, 70, 1100}, {5, 40, 48},   {17, 33, 20},
                          {65, 96, 64}, {130, 17, 264}, {1, 130, 15},  {1, 16, 2064}, {2, 300, 1536}};

TEST(LinearW4, DefinitionIsLinearOnDecodedWeights) {
  for (const char* format : {"nvfp4", "nvfp4_2d", "nvfp4 pow2", "nvfp4 four_six=mse"}) {
    const Owned w = weight(37, 50, format, 1), x = numbers({DType::f32, {6, 50}}, 2);
    const QuantizedView v = w.view();
    std::vector<float> decoded;
    for (int64_t j = 0; j < 37; ++j)
      for (int64_t k = 0; k < 50; ++k) decoded.push_back(decoded_value(v, j, k));
    EXPECT_EQ(decoded, values_of(w)) << format;  // 2.4 step 6, as the golden vectors have it
    const Owned dense = matrix(37, 50, decoded);
    EXPECT_TRUE(reference(x, w) == run_kernel(ref::linear<float>, nullptr, x, dense, 1)) << format;
  }
}

TEST(LinearW4, EveryKernelEqualsTheDefinition) {
  for (const char* format : {"nvfp4", "nvfp4_2d", "nvfp4 pow2", "nvfp4 four_six=mse"})
    for (const Size& s : sizes) {
      SCOPED_TRACE(std::string(format) + " " + to_string(f32({s.m, s.n, s.k})));
      const Owned w = weight(s.n, s.k, format, 3), x = numbers({DType::f32, {s.m, s.k}}, 4);
      const Owned want = reference(x, w);
      for_each_kernel(linear_w4_cpu, [&](const Kernel& kernel, int threads) {
        EXPECT_TRUE(run_kernel(kernel.run, kernel.workspace, x, w, threads) == want);
      });
    }
}

TEST(LinearW4, Bf16ActivationsAreWidenedAndTheResultRoundedOnce) {
  for (const int64_t m : {1, 9}) {
    const Owned w = weight(70, 200, "nvfp4", 5), x = numbers({DType::bf16, {m, 200}}, 6);
    const Owned want = reference(x, w);
    const Owned wide({DType::f32, {m, 200}}, numbers_of(x));
    std::vector<float> rounded;
    for (const float v : numbers_of(reference(wide, w))) rounded.push_back(widen(round_bf16(v)));
    EXPECT_EQ(numbers_of(want), rounded);
    for_each_kernel(linear_w4_cpu, [&](const Kernel& kernel, int threads) {
      EXPECT_TRUE(run_kernel(kernel.run, kernel.workspace, x, w, threads) == want);
    });
  }
}

TEST(LinearW4, ARowDoesNotDependOnTheOthers) {
  const Owned w = weight(90, 300, "nvfp4", 7), x = numbers({DType::f32, {70, 300}}, 8);
  const std::vector<float> all = numbers_of(reference(x, w)), values = numbers_of(x);
  for_each_kernel(linear_w4_cpu, [&](const Kernel& kernel, int threads) {
    for (const int64_t first : {int64_t{0}, int64_t{68}})
      for (const int64_t count : {1, 2}) {
        const Owned some({DType::f32, {count, 300}},
                         std::span(values).subspan(static_cast<size_t>(first * 300), static_cast<size_t>(count * 300)));
        const std::vector<float> got = numbers_of(run_kernel(kernel.run, kernel.workspace, some, w, threads));
        EXPECT_EQ(got, std::vector<float>(all.begin() + first * 90, all.begin() + (first + count) * 90));
      }
  });
}

// q, k and v in one node: each has the bits of its own product.
TEST(LinearW4, SeveralWeightsAreSeveralProducts) {
  const Owned a = weight(200, 72, "nvfp4_2d", 12), b = weight(33, 72, "nvfp4", 13), d = weight(90, 72, "nvfp4_2d", 14);
  for (const int64_t m : {1, 3, 20}) {
    const Owned x = numbers({DType::f32, {m, 72}}, 15);
    for_each_kernel(linear_w4_cpu, [&](const Kernel& kernel, int threads) {
      const Type in[] = {x.type(), a.type(), b.type(), d.type()};
      const Type out[] = {{DType::f32, {m, 200}}, {DType::f32, {m, 33}}, {DType::f32, {m, 90}}};
      const Owned ya(out[0]), yb(out[1]), yd(out[2]);
      const Attrs attrs;
      const Owned workspace({DType::f32, {kernel.workspace({in, out, attrs, threads}) / 4 + 16}});
      const Tensor ins[] = {x.tensor(), a.tensor(), b.tensor(), d.tensor()},
                   outs[] = {ya.tensor(), yb.tensor(), yd.tensor()};
      kernel.run({ins, outs, attrs, workspace.tensor().as<std::byte>(), pool_of(threads)});
      EXPECT_TRUE(ya == reference(x, a) && yb == reference(x, b) && yd == reference(x, d)) << m;
    });
  }
}

// Blocks of zeros, the largest and the least scale bytes, and a poisoned tensor.
TEST(LinearW4, EdgesOfTheFormat) {
  std::vector<float> x(64 * 48, 0.0f);
  x[0] = 448 * 6, x[16] = 1e-6f, x[48] = -6, x[100] = 0.002f, x[5 * 48 + 33] = -1e-3f;
  std::vector<float> poisoned = x;
  poisoned[70] = __builtin_inff();
  const Owned a = numbers({DType::f32, {1, 48}}, 9), b = numbers({DType::f32, {8, 48}}, 10);
  for (const char* format : {"nvfp4", "nvfp4_2d"}) {
    const Owned w = row_copy(matrix(64, 48, x), format), nan = row_copy(matrix(64, 48, poisoned), format);
    for_each_kernel(linear_w4_cpu, [&](const Kernel& kernel, int threads) {
      for (const Owned* in : {&a, &b}) {
        EXPECT_TRUE(run_kernel(kernel.run, kernel.workspace, *in, w, threads) == reference(*in, w)) << format;
        for (const float v : numbers_of(run_kernel(kernel.run, kernel.workspace, *in, nan, threads)))
          EXPECT_TRUE(std::isnan(v)) << format;
      }
    });
  }
}

TEST(LinearW4, EmbeddingRowsAreDecodedNumbers) {
  const Owned table = weight(9, 20, "nvfp4_2d", 11);
  Owned tokens({DType::i32, {3}}), y({DType::f32, {3, 20}});
  const int32_t ids[] = {8, 0, 8};
  std::memcpy(tokens.tensor().data, ids, sizeof ids);
  const Tensor ins[] = {tokens.tensor(), table.tensor()}, outs[] = {y.tensor()};
  const Attrs attrs;
  ref::embedding_w4({ins, outs, attrs, nullptr, pool_of(1)});
  const std::vector<float> all = values_of(table), got = numbers_of(y);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t e = 0; e < 20; ++e)
      EXPECT_EQ(got[static_cast<size_t>(i * 20 + e)], all[static_cast<size_t>(ids[i] * 20 + e)]);
}

}  // namespace
}  // namespace nibble
