// The f32 matrix product against its definition, bit for bit, on every target this CPU runs (spec/training.md 2.11).
#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/philox.h"
#include "kernels/cpu/cpu_info.h"

namespace nibble {
namespace {

struct Target {
  const char* name;
  void (*gemm)(const GemmCall&, ThreadPool&, std::byte*);
  int64_t (*workspace_bytes)(int64_t m, int64_t n, int64_t k, int threads);
};

std::vector<Target> runnable_here() {
  std::vector<Target> found;
  if (cpu_runs(CpuTarget::avx2)) found.push_back({"avx2", avx2::gemm, avx2::gemm_workspace_bytes});
  if (cpu_runs(CpuTarget::avx512)) found.push_back({"avx512", avx512::gemm, avx512::gemm_workspace_bytes});
  return found;
}

// Values in [-2, 2) of 24 bits, so that nearly every sum rounds.
std::vector<float> random_values(int64_t count, uint32_t site) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t word = philox4x32({static_cast<uint32_t>(i / 4), 0, 0, 0}, 7, site)[i % 4];
    x[i] = static_cast<float>(static_cast<int32_t>(word) >> 8) * 0x1p-22f;
  }
  return x;
}

enum class Form { fprop, dgrad, wgrad };
const char* name_of(Form form) { return form == Form::fprop ? "fprop" : form == Form::dgrad ? "dgrad" : "wgrad"; }

// Operands of the three uses, exactly as large as they must be.
struct Problem {
  int64_t m, n, k;
  Form form;
  std::vector<float> a = random_values(m * k, 1), b = random_values(n * k, 2);
  GemmOperand left() const { return form == Form::wgrad ? GemmOperand{a.data(), 1, m} : GemmOperand{a.data(), k, 1}; }
  GemmOperand right() const { return form == Form::fprop ? GemmOperand{b.data(), k, 1} : GemmOperand{b.data(), 1, n}; }
  float& a_at(int64_t i, int64_t q) { return a[static_cast<size_t>(i * left().row_stride + q * left().k_stride)]; }
  float& b_at(int64_t j, int64_t q) { return b[static_cast<size_t>(j * right().row_stride + q * right().k_stride)]; }
};

std::vector<float> by_definition(const Problem& p, std::vector<float> c, int64_t c_stride, bool accumulate) {
  const GemmOperand a = p.left(), b = p.right();
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n; ++j) {
      float& out = c[static_cast<size_t>(i * c_stride + j)];
      float acc = accumulate ? out : 0.0f;
      for (int64_t q = 0; q < p.k; ++q)
        acc = std::fma(a.data[i * a.row_stride + q * a.k_stride], b.data[j * b.row_stride + q * b.k_stride], acc);
      out = acc;
    }
  return c;
}

// Runs the product in a workspace of just the promised size, at an odd address, and checks that no byte after it
// changed.
std::vector<float> run(const Target& target, ThreadPool& pool, const Problem& p, std::vector<float> c, int64_t c_stride,
                       bool accumulate) {
  const int64_t bytes = target.workspace_bytes(p.m, p.n, p.k, pool.size());
  std::vector<std::byte> workspace(static_cast<size_t>(bytes + 64 + 4), std::byte{0xa5});
  target.gemm({p.left(), p.right(), c.data(), c_stride, p.m, p.n, p.k, accumulate}, pool, workspace.data() + 4);
  const bool untouched =
      std::all_of(workspace.end() - 64, workspace.end(), [](std::byte x) { return x == std::byte{0xa5}; });
  EXPECT_TRUE(untouched) << target.name << " wrote past its workspace of " << bytes << " bytes";
  return c;
}

// The first element that differs, NaN being equal to NaN; empty if none.
std::string difference(const std::vector<float>& got, const std::vector<float>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::memcmp(&got[i], &want[i], sizeof(float)) != 0)
      return "element " + std::to_string(i) + ": " + std::to_string(got[i]) + ", not " + std::to_string(want[i]);
  }
  return "";
}

struct Shape {
  int64_t m, n, k;
  const char* why;
};
// clang-format off
const Shape shapes[] = {
    {1, 1, 1, "the smallest"},
    {7, 5, 3, "less than one register block"},
    {6, 16, 1, "one whole AVX2 block, one k"},
    {14, 32, 17, "one whole AVX-512 block"},
    {13, 33, 129, "one column in a panel of its own"},
    {1, 100, 600, "decoding, chunks of k on the fly"},
    {5, 48, 257, "decoding, five rows"},
    {64, 70, 300, "the most rows that pack B on the fly"},
    {65, 70, 300, "the fewest that do not"},
    {66, 48, 700, "two chunks of k"},
    {130, 95, 513, "two tasks of rows"},
    {300, 513, 40, "groups of columns"}};
// clang-format on

TEST(NumericContract, GemmEqualsTheScalarLoop) {
  for (const Shape& s : shapes)
    for (const Form form : {Form::fprop, Form::dgrad, Form::wgrad})
      for (const bool accumulate : {false, true}) {
        const Problem p{s.m, s.n, s.k, form};
        const int64_t c_stride = accumulate ? s.n + 5 : s.n;  // the gap must stay as it is
        const std::vector<float> c = random_values(s.m * c_stride, 3);
        const std::vector<float> want = by_definition(p, c, c_stride, accumulate);
        for (const Target& target : runnable_here())
          for (const int threads : {1, 2, 3}) {
            ThreadPool pool(threads);
            EXPECT_EQ(difference(run(target, pool, p, c, c_stride, accumulate), want), "")
                << target.name << ", " << threads << " threads, " << name_of(form) << " " << s.m << "x" << s.n << "x"
                << s.k << (accumulate ? ", accumulating" : "") << ": " << s.why;
          }
      }
}

// B is larger than a packed block in both directions: two blocks of columns, two of k.
TEST(NumericContract, GemmEqualsTheScalarLoopAcrossBlocksOfB) {
  const Problem p{65, 4200, 520, Form::dgrad};
  const std::vector<float> c = random_values(p.m * p.n, 3), want = by_definition(p, c, p.n, true);
  for (const Target& target : runnable_here())
    for (const int threads : {1, 2}) {
      ThreadPool pool(threads);
      EXPECT_EQ(difference(run(target, pool, p, c, p.n, true), want), "") << target.name << ", " << threads;
    }
}

TEST(NumericContract, GemmKeepsNonFiniteValuesInTheirRowsAndColumns) {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t m : {9, 77})  // few rows, many rows
    for (const Form form : {Form::fprop, Form::dgrad, Form::wgrad}) {
      Problem p{m, 37, 300, form};
      p.a_at(3, 299) = nan;  // row 3
      p.a_at(5, 0) = inf;    // row 5: Inf, where B is 0 NaN
      p.b_at(8, 0) = 0;
      p.b_at(36, 150) = -inf;  // the last column
      const std::vector<float> c(static_cast<size_t>(p.m * p.n), 1.0f), want = by_definition(p, c, p.n, false);
      ASSERT_TRUE(std::isnan(want[3 * 37]) && std::isnan(want[5 * 37 + 8]) && std::isinf(want[5 * 37 + 9]) &&
                  std::isinf(want[36]) && std::isfinite(want[0]));
      for (const Target& target : runnable_here()) {
        ThreadPool pool(2);
        EXPECT_EQ(difference(run(target, pool, p, c, p.n, false), want), "") << target.name << " " << name_of(form);
      }
    }
}

TEST(NumericContract, GemmWithoutKGivesZerosOrLeavesC) {
  const std::vector<float> c = random_values(12, 3);
  for (const Target& target : runnable_here()) {
    ThreadPool pool(2);
    std::vector<float> kept = c, cleared = c;
    const GemmOperand none{nullptr, 0, 1};
    target.gemm({none, none, kept.data(), 4, 3, 4, 0, true}, pool, nullptr);
    target.gemm({none, none, cleared.data(), 4, 3, 3, 0, false}, pool, nullptr);
    EXPECT_EQ(kept, c) << target.name;
    for (size_t i = 0; i < c.size(); ++i) EXPECT_EQ(cleared[i], i % 4 == 3 ? c[i] : 0.0f) << target.name << " " << i;
  }
}

// Every machine checks its own path against the same bits. Seven threads meet at the panels of B.
TEST(NumericContract, GemmHasTheCommittedHash) {
  struct {
    Form form;
    const char* hash;
  } const cases[] = {{Form::fprop, "c627d67bbb328b25"}, {Form::wgrad, "7b4f69644220af5a"}};
  for (const auto& [form, hash] : cases) {
    const Problem p{259, 1030, 1111, form};
    const std::vector<float> c = random_values(p.m * p.n, 3);
    for (const Target& target : runnable_here())
      for (const int threads : {1, 2, 3, 7}) {
        ThreadPool pool(threads);
        const std::vector<float> got = run(target, pool, p, c, p.n, true);
        EXPECT_EQ(hex16(xxh3(got.data(), got.size() * sizeof(float))), hash)
            << target.name << ", " << threads << " threads, " << name_of(form);
      }
  }
}

TEST(NumericContract, GemmWorkspaceIsTheSameOnEveryTargetAndBounded) {
  for (const int64_t m : {1, 64, 65, 2048})
    for (const int64_t n : {1, 500, 8192, 128256})
      for (const int64_t k : {1, 512, 16384})
        for (const int threads : {1, 2, 64}) {
          const int64_t bytes = avx2::gemm_workspace_bytes(m, n, k, threads);
          EXPECT_EQ(bytes, avx512::gemm_workspace_bytes(m, n, k, threads)) << m << "x" << n << "x" << k;
          const int64_t shared = m <= 64 ? 4 * (m + 1) * k : int64_t{8} << 20;
          EXPECT_LE(bytes, shared + threads * (int64_t{300} << 10) + 4096) << m << "x" << n << "x" << k;
        }
}

}  // namespace
}  // namespace nibble
