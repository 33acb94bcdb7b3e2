// Products of bf16 operands on every target this CPU runs: bit-equal to the f32 product of the widened operands where
// they are widened, within the bound of gemm_bf16.h through vdpbf16ps, and there the same bits for any number of
// threads and any neighbours.
#include "kernels/cpu/gemm_bf16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/philox.h"
#include "kernels/cpu/cpu_info.h"

namespace nibble {
namespace {

struct Target {
  const char* name;
  Bf16Gemm* gemm;
  Bf16GemmWorkspace* workspace_bytes;
  bool exact;
};

std::vector<Target> runnable_here() {
  std::vector<Target> found;
  if (cpu_runs(CpuTarget::avx2)) found.push_back({"avx2", avx2::gemm_bf16, avx2::gemm_bf16_workspace_bytes, true});
  if (cpu_runs(CpuTarget::avx512))
    found.push_back({"avx512", avx512::gemm_bf16, avx512::gemm_bf16_workspace_bytes, true});
  if (cpu_runs(CpuTarget::avx512_bf16))
    found.push_back({"avx512_bf16", avx512_bf16::gemm_bf16, avx512_bf16::gemm_bf16_workspace_bytes, false});
  return found;
}

float random_value(int64_t i, uint32_t site) {
  const uint32_t word = philox4x32({static_cast<uint32_t>(i / 4), 0, 0, 0}, 7, site)[static_cast<size_t>(i % 4)];
  return static_cast<float>(static_cast<int32_t>(word) >> 8) * 0x1p-22f;  // [-2, 2)
}
std::vector<BFloat16> random_bf16(int64_t count, uint32_t site) {
  std::vector<BFloat16> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) x[static_cast<size_t>(i)] = round_bf16(random_value(i, site));
  return x;
}

enum class Form { fprop, dgrad, wgrad };
const char* name_of(Form form) { return form == Form::fprop ? "fprop" : form == Form::dgrad ? "dgrad" : "wgrad"; }
enum class Result { sums, added, rounded };

struct Problem {
  int64_t m, n;
  std::vector<int64_t> k;  // of the terms
  Form form;
  Result result;
  std::vector<std::vector<BFloat16>> a = {}, b = {};
  Problem(int64_t m_, int64_t n_, std::vector<int64_t> k_, Form form_, Result result_)
      : m(m_), n(n_), k(std::move(k_)), form(form_), result(result_) {
    for (size_t t = 0; t < k.size(); ++t) {
      a.push_back(random_bf16(m * k[t], 2 * static_cast<uint32_t>(t)));
      b.push_back(random_bf16(n * k[t], 2 * static_cast<uint32_t>(t) + 1));
    }
  }
  std::vector<Bf16Term> terms() const {
    std::vector<Bf16Term> all;
    for (size_t t = 0; t < k.size(); ++t)
      all.push_back({form == Form::wgrad ? Bf16Operand{a[t].data(), 1, m} : Bf16Operand{a[t].data(), k[t], 1},
                     form == Form::fprop ? Bf16Operand{b[t].data(), k[t], 1} : Bf16Operand{b[t].data(), 1, n}, k[t]});
    return all;
  }
  BFloat16& a_at(size_t t, int64_t i, int64_t q) {
    return a[t][static_cast<size_t>(form == Form::wgrad ? q * m + i : i * k[t] + q)];
  }
  BFloat16& b_at(size_t t, int64_t j, int64_t q) {
    return b[t][static_cast<size_t>(form == Form::fprop ? j * k[t] + q : q * n + j)];
  }
  std::string text() const {
    return std::string(name_of(form)) + " " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k[0]) +
           (k.size() > 1 ? " and more terms" : "") + (result == Result::rounded ? ", bf16" : "");
  }
};

float before(const Problem& p, int64_t i) { return p.result == Result::added ? random_value(i, 99) : 0.0f; }

// Per output: the f32 sum in the contract's order, the exact one (to f64 rounding) and the sum of magnitudes.
struct Expected {
  std::vector<float> sum;
  std::vector<double> exact, size;
};
Expected by_definition(const Problem& p) {
  Expected e;
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n; ++j) {
      float sum = before(p, i * p.n + j);
      double exact = sum, size = std::fabs(exact);
      for (const Bf16Term& t : p.terms())
        for (int64_t q = 0; q < t.k; ++q) {
          const float x = widen(t.a.data[i * t.a.row_stride + q * t.a.k_stride]);
          const float y = widen(t.b.data[j * t.b.row_stride + q * t.b.k_stride]);
          sum = std::fma(x, y, sum);
          exact += static_cast<double>(x) * y, size += std::fabs(static_cast<double>(x) * y);
        }
      e.sum.push_back(sum), e.exact.push_back(exact), e.size.push_back(size);
    }
  return e;
}

// The results as floats, in a workspace of just the promised size at an odd address, with a gap after each row of C.
std::vector<float> run(const Target& target, int threads, const Problem& p) {
  constexpr int64_t extra = 5;
  const int64_t stride = p.n + extra;
  int64_t k = 0;
  for (const int64_t one : p.k) k += (one + 1) / 2 * 2;
  ThreadPool pool(threads);
  const int64_t bytes =
      target.workspace_bytes(p.m, p.n, k, static_cast<int64_t>(p.k.size()), p.result == Result::rounded, threads);
  std::vector<std::byte> workspace(static_cast<size_t>(bytes + 64 + 4), std::byte{0xa5});
  std::vector<float> sums(static_cast<size_t>(p.m * stride), 77);
  std::vector<BFloat16> rounded(sums.size(), {0x1234});
  for (int64_t i = 0; i < p.m * p.n; ++i) sums[static_cast<size_t>(i / p.n * stride + i % p.n)] = before(p, i);
  const std::vector<Bf16Term> terms = p.terms();
  const bool to_bf16 = p.result == Result::rounded;
  target.gemm({terms, p.m, p.n, to_bf16 ? nullptr : sums.data(), to_bf16 ? rounded.data() : nullptr, stride,
               p.result == Result::added},
              pool, workspace.data() + 4);
  EXPECT_TRUE(std::all_of(workspace.end() - 64, workspace.end(), [](std::byte x) { return x == std::byte{0xa5}; }))
      << target.name << " wrote past its workspace of " << bytes << " bytes: " << p.text();
  std::vector<float> c;
  for (int64_t i = 0; i < p.m * stride; ++i) {
    const auto at = static_cast<size_t>(i);
    if (i % stride < p.n) {
      c.push_back(to_bf16 ? widen(rounded[at]) : sums[at]);
    } else {
      EXPECT_TRUE(sums[at] == 77 && rounded[at].bits == 0x1234) << "the gap of row " << i / stride;
    }
  }
  return c;
}

bool same(float x, float y) { return std::memcmp(&x, &y, sizeof x) == 0 || (std::isnan(x) && std::isnan(y)); }

// The first output that is not as it must be; "" if none.
std::string wrong(const Target& target, const Problem& p, const Expected& want, const std::vector<float>& got) {
  int64_t k = 0;
  for (const int64_t one : p.k) k += one;
  for (size_t i = 0; i < got.size(); ++i) {
    const float sum = p.result == Result::rounded ? widen(round_bf16(want.sum[i])) : want.sum[i];
    const double bound = (static_cast<double>(k) + 2) * 0x1p-23 * want.size[i] +
                         (p.result == Result::rounded ? std::fabs(want.exact[i]) * 0x1.01p-8 : 0);
    if (target.exact ? !same(got[i], sum) : !(std::fabs(got[i] - want.exact[i]) <= bound))
      return "output " + std::to_string(i) + " is " + std::to_string(got[i]) + ", not " +
             std::to_string(target.exact ? static_cast<double>(sum) : want.exact[i]);
  }
  return "";
}

struct Case {
  int64_t m, n;
  std::vector<int64_t> k;
  const char* why;
};
// clang-format off
const Case cases[] = {
    {1, 1, {1}, "the smallest"},
    {7, 5, {3}, "less than one register block, half a pair"},
    {14, 32, {17}, "one whole AVX-512 block"},
    {13, 33, {129}, "one column in a panel of its own"},
    {1, 100, {1300}, "decoding, chunks of k on the fly"},
    {64, 40, {600}, "the most rows that pack B on the fly"},
    {65, 40, {600}, "the fewest that do not"},
    {66, 48, {1101}, "chunks of k on every target"},
    {130, 95, {513}, "two tasks of rows"},
    {150, 530, {40}, "groups of columns"},
    {5, 37, {7, 300, 1}, "few rows, three terms"},
    {70, 550, {33, 600, 10}, "three terms whose sums rest in a buffer"}};
// clang-format on

TEST(TrainingBf16, ProductsEqualTheDefinitionOrStayInTheBound) {
  for (const Case& c : cases)
    for (const Form form : {Form::fprop, Form::dgrad, Form::wgrad})
      for (const Result result : {Result::sums, Result::added, Result::rounded}) {
        const Problem p(c.m, c.n, c.k, form, result);
        const Expected want = by_definition(p);
        for (const Target& target : runnable_here()) {
          const std::vector<float> got = run(target, 1, p);
          EXPECT_EQ(wrong(target, p, want, got), "") << target.name << ", " << p.text() << ": " << c.why;
          for (const int threads : {2, 3})
            EXPECT_TRUE(std::ranges::equal(run(target, threads, p), got, same)) << target.name << ", " << p.text();
        }
      }
}

// A block of B is at most 4096 columns: the last of these are in a second one. An output depends on its row of A and
// column of B only, so the same rows and columns in a small product have the same bits.
TEST(TrainingBf16, BlocksOfBChangeNoBit) {
  const Problem wide(65, 4200, {40}, Form::fprop, Result::rounded), narrow(65, 33, {40}, Form::fprop, Result::rounded);
  Problem last = narrow;
  std::copy(wide.b[0].end() - 33 * 40, wide.b[0].end(), last.b[0].begin());
  for (const Target& target : runnable_here()) {
    const std::vector<float> all = run(target, 2, wide), first = run(target, 2, narrow), end = run(target, 1, last);
    for (int64_t i = 0; i < 65 * 33; ++i) {
      const auto at = static_cast<size_t>(i / 33 * 4200 + i % 33);
      EXPECT_TRUE(same(all[at], first[static_cast<size_t>(i)]) &&
                  same(all[at + 4200 - 33], end[static_cast<size_t>(i)]))
          << target.name << " " << i;
    }
  }
}

TEST(TrainingBf16, NonFiniteValuesStayInTheirRowsAndColumns) {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t m : {9, 77})  // few rows, many rows
    for (const Form form : {Form::fprop, Form::dgrad, Form::wgrad}) {
      Problem p(m, 37, {301}, form, Result::rounded);
      p.a_at(0, 3, 300) = round_bf16(nan);  // row 3
      p.a_at(0, 5, 0) = round_bf16(inf);    // row 5: Inf, where B is 0 NaN
      p.b_at(0, 8, 0) = round_bf16(0);
      p.b_at(0, 36, 150) = round_bf16(-inf);  // the last column
      for (const Target& target : runnable_here()) {
        const std::vector<float> c = run(target, 2, p);
        for (size_t i = 0; i < c.size(); ++i) {
          const size_t row = i / 37, column = i % 37;
          if (row == 5 && column == 36) continue;  // Inf - Inf or a sum of infinities
          if (row == 3 || (row == 5 && column == 8)) {
            EXPECT_TRUE(std::isnan(c[i])) << target.name << " " << i;
          } else {
            EXPECT_EQ(std::isinf(c[i]), row == 5 || column == 36) << target.name << " " << i << " " << c[i];
          }
        }
      }
    }
}

// One rounding after the last term: 1 + 2^-8 - 2^-20 is below the tie of 1 and 1 + 2^-7, but the first term alone is
// the tie, and 2^-9 + 2^-9 added to a rounded 1 one by one would be lost. Subnormal results are kept.
TEST(TrainingBf16, ResultsAreRoundedOnceAndKeepSubnormals) {
  struct Row {
    std::vector<float> first, second;  // products with 1
    float want;
  };
  const Row rows[] = {{{1, 0x1p-8f}, {-0x1p-20f}, 1.0f},
                      {{1, 0x1p-8f}, {0x1p-20f}, 1.0f + 0x1p-7f},
                      {{1, 0x1p-9f}, {0x1p-9f, 0x1p-20f}, 1.0f + 0x1p-7f},
                      {{0x1p-126f, -0x1.8p-126f}, {0}, -0x1p-127f}};
  for (const Row& row : rows) {
    Problem p(1, 1, {static_cast<int64_t>(row.first.size()), static_cast<int64_t>(row.second.size())}, Form::fprop,
              Result::rounded);
    for (size_t i = 0; i < row.first.size(); ++i) p.a[0][i] = round_bf16(row.first[i]), p.b[0][i] = round_bf16(1);
    for (size_t i = 0; i < row.second.size(); ++i) p.a[1][i] = round_bf16(row.second[i]), p.b[1][i] = round_bf16(1);
    for (const Target& target : runnable_here()) {
      const float got = run(target, 1, p)[0];
      if (target.exact || row.want > 0)
        EXPECT_EQ(got, row.want) << target.name;
      else
        EXPECT_TRUE(got == row.want || got == 0) << target.name << " " << got;  // vdpbf16ps flushes its results
    }
  }
}

TEST(TrainingBf16, ProductsWithoutKGiveZerosOrLeaveC) {
  for (const Target& target : runnable_here())
    for (const Result result : {Result::sums, Result::added, Result::rounded}) {
      const Problem p(3, 4, {0}, Form::fprop, result);
      const std::vector<float> got = run(target, 2, p);
      for (int64_t i = 0; i < 12; ++i) EXPECT_TRUE(same(got[static_cast<size_t>(i)], before(p, i))) << target.name;
    }
}

TEST(TrainingBf16, WorkspaceIsTheSameOnEveryTargetAndBounded) {
  for (const int64_t m : {1, 64, 65, 2048})
    for (const int64_t n : {1, 500, 8192, 128256})
      for (const int64_t k : {2, 512, 6144})
        for (const int64_t terms : {1, 3})
          for (const bool rounded : {false, true})
            for (const int threads : {1, 2, 64}) {
              const int64_t bytes = avx2::gemm_bf16_workspace_bytes(m, n, k, terms, rounded, threads);
              EXPECT_EQ(bytes, avx512::gemm_bf16_workspace_bytes(m, n, k, terms, rounded, threads));
              EXPECT_EQ(bytes, avx512_bf16::gemm_bf16_workspace_bytes(m, n, k, terms, rounded, threads));
              EXPECT_LE(bytes, (int64_t{8} << 20) + threads * (int64_t{600} << 10) + 4096)
                  << m << "x" << n << "x" << k << " " << rounded;
            }
}

}  // namespace
}  // namespace nibble
