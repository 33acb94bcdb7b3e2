// attention, its gradient and attention over a cache: bits against the definition, the definition against FP64, and
// what segments must guarantee (spec/training.md 9, T15 and T16).
#include "kernels/harness.h"

namespace nibble {
namespace {

using namespace testing;

enum class Segments { one, packed, scattered, returning, padding };
struct Size {
  int64_t b, t, h, k, d, window;
  Segments segments;
  const char* why;
};
// clang-format off
constexpr Size sizes[] = {
    {1, 1, 1, 1, 1, 0, Segments::one, "the smallest"},
    {2, 5, 2, 1, 6, 0, Segments::one, "less than a word"},
    {1, 64, 2, 2, 64, 0, Segments::one, "one whole tile"},
    {2, 130, 4, 2, 16, 0, Segments::one, "GQA, a short last tile"},
    {1, 200, 3, 1, 34, 0, Segments::packed, "one key head for all, packed segments, padding at the end"},
    {3, 150, 2, 2, 64, 0, Segments::packed, "as many heads as three threads share evenly"},
    {2, 140, 2, 1, 24, 0, Segments::scattered, "segments that come back: masks with holes"},
    {1, 230, 2, 1, 24, 0, Segments::returning, "neighbours of one segment, whose keys have holes"},
    {1, 300, 2, 1, 8, 70, Segments::one, "a window longer than a tile"},
    {2, 200, 2, 2, 20, 7, Segments::packed, "a window shorter than a tile, and segments"},
    {1, 70, 6, 3, 96, 0, Segments::padding, "a row of padding only"},
    {1, 100, 24, 1, 40, 0, Segments::one, "more rows than a task of one head group has positions"}};
// clang-format on

Array segments_of(const Size& s) {
  Array a = filled(i32({s.b, s.t}), 1);
  for (int64_t b = 0; b < s.b; ++b)
    for (int64_t i = 0; i < s.t; ++i) {
      double& x = a.values[static_cast<size_t>(b * s.t + i)];
      if (s.segments == Segments::packed) x = i >= s.t - 9 ? 0 : static_cast<double>(1 + i / (37 + b));
      if (s.segments == Segments::scattered) x = static_cast<double>(i * i % 7 % 3);
      if (s.segments == Segments::returning) x = static_cast<double>(1 + i / 30 % 2);
      if (s.segments == Segments::padding) x = 0;
    }
  return a;
}
Attrs attrs_of(const Size& s) { return {{"scale", 1 / std::sqrt(static_cast<double>(s.d))}, {"window", s.window}}; }
Problem forward(const Size& s) {
  const Type q = f32({s.b, s.t, s.h, s.d}), k = f32({s.b, s.t, s.k, s.d});
  return {{random(q, 1), random(k, 2), random(k, 3), segments_of(s)}, {q, q.drop_last()}, attrs_of(s)};
}
Array as_array(const Type& type, const Bytes& bytes) {
  const std::vector<float> x = as<float>(bytes);
  return {type, {x.begin(), x.end()}};
}
// The gradient's problem, with out and lse of the forward's inputs.
Problem backward_of(const Problem& f) {
  const std::vector<Bytes> out = run_reference(f, attention_ref);
  const Type &q = f.in[0].type, &k = f.in[1].type;
  return {{random(q, 5), f.in[0], f.in[1], f.in[2], as_array(q, out[0]), as_array(q.drop_last(), out[1]), f.in[3]},
          {q, k, k},
          f.attrs};
}

struct CachedSize {
  int64_t rows, h, k, d, positions, start, count, window;
};
constexpr CachedSize cached[] = {{1, 1, 1, 2, 4, 0, 1, 0},       {1, 8, 2, 64, 300, 257, 1, 0},
                                 {1, 6, 1, 30, 300, 63, 1, 0},   {16, 4, 4, 32, 128, 60, 9, 0},
                                 {70, 4, 2, 64, 200, 90, 70, 0}, {8, 4, 2, 16, 200, 100, 8, 20},
                                 {4, 2, 1, 8, 16, 0, 0, 0},      {130, 9, 3, 64, 300, 100, 120, 0}};
Problem cached_problem(const CachedSize& s) {
  const Type q = f32({s.rows, s.h, s.d}), k = f32({s.positions, s.k, s.d});
  return {{random(q, 1),
           random(k, 2),
           random(k, 3),
           {i32({2}), {static_cast<double>(s.start), static_cast<double>(s.count)}}},
          {q},
          {{"scale", 0.25}, {"window", s.window}}};
}

TEST(TrainingT15, AttentionEqualsReference) {
  for (const Size& s : sizes) {
    SCOPED_TRACE(s.why);
    expect_equals_reference(forward(s), attention_cpu, attention_ref);
  }
}

TEST(TrainingT15, AttentionGradEqualsReference) {
  for (const Size& s : sizes) {
    SCOPED_TRACE(s.why);
    expect_equals_reference(backward_of(forward(s)), attention_grad_cpu, attention_grad_ref);
  }
}

TEST(TrainingT15, LargeScoresAndNonFiniteInputsEqualReference) {
  Problem p = forward({1, 80, 2, 1, 16, 0, Segments::one, ""});
  for (double& x : p.in[0].values) x *= 100;  // one key takes all: exp underflows to +0
  expect_equals_reference(p, attention_cpu, attention_ref);
  expect_equals_reference(backward_of(p), attention_grad_cpu, attention_grad_ref);
  p.in[1].values[70 * 16] = NAN, p.in[1].values[20 * 16 + 1] = INFINITY, p.in[2].values[5] = -INFINITY;
  expect_equals_reference(p, attention_cpu, attention_ref);
  expect_equals_reference(backward_of(p), attention_grad_cpu, attention_grad_ref);
}

TEST(NumericContract, AttentionHasTheCommittedHashes) {
  const Problem f = forward(sizes[4]), g = backward_of(f);
  expect_hash(f, attention_cpu, attention_ref, "1c14b95478a7ae9b");
  expect_hash(g, attention_grad_cpu, attention_grad_ref, "331b7a82e6c25456");
  expect_hash(cached_problem(cached[4]), attention_cached_cpu, attention_cached_ref, "bcf8b44d887b747c");
}

TEST(TrainingT15, AttentionWithin1e6OfFp64) {
  for (const Size& s : {sizes[3], sizes[4], sizes[8]}) {
    SCOPED_TRACE(s.why);
    const Problem f = forward(s);
    const std::vector<Bytes> got = run_reference(f, attention_ref), want = run_fp64(f, attention_ref);
    for (size_t i = 0; i < 2; ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-6) << "output " << i;
    const Problem b = backward_of(f);
    const std::vector<Bytes> grad = run_reference(b, attention_grad_ref);
    Problem exact = b;  // FP64 all the way: out and lse too
    for (size_t i = 0; i < 2; ++i) exact.in[4 + i].values = as<double>(want[i]);
    const std::vector<Bytes> want_grad = run_fp64(exact, attention_grad_ref);
    for (size_t i = 0; i < 3; ++i) EXPECT_LE(relative_error(grad[i], want_grad[i]), 1e-6) << "gradient " << i;
  }
}

// Everything of segment 2 becomes NaN; not one bit of the other segments' results may change.
TEST(TrainingT15, AnotherSegmentsTokensChangeNoBit) {
  for (const Segments kind : {Segments::packed, Segments::scattered, Segments::returning}) {
    const Size s{1, 160, 4, 2, 24, 0, kind, ""};
    const Problem clean = forward(s), clean_grad = backward_of(clean);
    Problem dirty = clean, dirty_grad = clean_grad;
    const auto spoil = [&](Array& a) {
      const size_t row = a.values.size() / static_cast<size_t>(s.t);
      for (size_t i = 0; i < a.values.size(); ++i)
        if (clean.in[3].values[i / row] == 2) a.values[i] = NAN;
    };
    for (size_t i = 0; i < 3; ++i) spoil(dirty.in[i]);
    for (size_t i = 0; i < 6; ++i) spoil(dirty_grad.in[i]);
    const auto compare = [&](const Problem& a, const Problem& b, const Kernel& kernel, int threads) {
      const std::vector<Bytes> want = run(a, kernel.run, kernel.workspace, threads);
      const std::vector<Bytes> got = run(b, kernel.run, kernel.workspace, threads);
      for (size_t o = 0; o < want.size(); ++o) {
        std::vector<float> w = as<float>(want[o]), g = as<float>(got[o]);
        const size_t row = w.size() / static_cast<size_t>(s.t);
        size_t checked = 0;
        for (size_t i = 0; i < w.size(); ++i) {
          if (clean.in[3].values[i / row] == 2) continue;
          ASSERT_EQ(std::memcmp(&w[i], &g[i], sizeof(float)), 0) << "output " << o << " element " << i;
          ++checked;
        }
        EXPECT_GT(checked, 0u);
      }
    };
    for_each_kernel(attention_cpu, [&](const Kernel& kernel, int threads) { compare(clean, dirty, kernel, threads); });
    for_each_kernel(attention_grad_cpu,
                    [&](const Kernel& kernel, int threads) { compare(clean_grad, dirty_grad, kernel, threads); });
  }
}

// The first tile of keys becomes NaN: no query that the window keeps from it may change, nor any later key's gradient.
TEST(TrainingT15, TilesOutsideTheWindowChangeNoBit) {
  const Size s{1, 400, 4, 2, 24, 70, Segments::one, ""};
  const size_t free = 64 + 69;  // the first position whose window begins after the tile
  const Problem clean = forward(s), clean_grad = backward_of(clean);
  Problem dirty = clean, dirty_grad = clean_grad;
  const auto spoil = [](Array& a, size_t positions) {
    const size_t row = a.values.size() / 400;
    std::fill_n(a.values.begin(), positions * row, NAN);
  };
  for (const size_t i : {1, 2}) spoil(dirty.in[i], 64);
  for (const size_t i : {0, 4, 5}) spoil(dirty_grad.in[i], free);  // what the forward pass made of these keys
  for (const size_t i : {2, 3}) spoil(dirty_grad.in[i], 64);
  const auto compare = [&](const Problem& a, const Problem& b, const Kernel& kernel, int threads) {
    const std::vector<Bytes> want = run(a, kernel.run, kernel.workspace, threads);
    const std::vector<Bytes> got = run(b, kernel.run, kernel.workspace, threads);
    for (size_t o = 0; o < want.size(); ++o) {
      const std::vector<float> w = as<float>(want[o]), g = as<float>(got[o]);
      const size_t from = w.size() / 400 * free;
      EXPECT_EQ(std::memcmp(&w[from], &g[from], (w.size() - from) * sizeof(float)), 0) << "output " << o;
      EXPECT_TRUE(std::isnan(g[0]) && std::isfinite(g[from])) << "output " << o;
    }
  };
  for_each_kernel(attention_cpu, [&](const Kernel& kernel, int threads) { compare(clean, dirty, kernel, threads); });
  for_each_kernel(attention_grad_cpu,
                  [&](const Kernel& kernel, int threads) { compare(clean_grad, dirty_grad, kernel, threads); });
}

TEST(TrainingT16, RowsWithoutAnAllowedKeyGiveExactlyZero) {
  const Size s{2, 100, 4, 2, 24, 0, Segments::packed, ""};
  Problem f = forward(s), g = backward_of(f);
  const std::vector<double>& segments = f.in[3].values;
  const auto check = [&](const Problem& p, const Kernel& kernel, int threads) {
    for (const Bytes& out : run(p, kernel.run, kernel.workspace, threads)) {
      const std::vector<float> x = as<float>(out);
      const size_t row = x.size() / segments.size();
      size_t zeros = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        if (segments[i / row] != 0) continue;
        const float zero = 0;
        ASSERT_EQ(std::memcmp(&x[i], &zero, sizeof zero), 0) << i;
        ++zeros;
      }
      EXPECT_EQ(zeros, 2 * 9 * row);
    }
  };
  for_each_kernel(attention_cpu, [&](const Kernel& kernel, int threads) { check(f, kernel, threads); });
  for_each_kernel(attention_grad_cpu, [&](const Kernel& kernel, int threads) { check(g, kernel, threads); });
}

// The same problem with bf16 operands and results; lse, operand 5 of the gradient, stays f32.
Problem in_bf16(Problem p) {
  const auto halve = [](Type& t) {
    if (t.dtype == DType::f32 && t.rank() == 4) t.dtype = DType::bf16;
  };
  for (Array& a : p.in) {
    halve(a.type);
    if (a.type.dtype == DType::bf16)
      for (double& x : a.values) x = widen(round_bf16(static_cast<float>(x)));
  }
  for (Type& t : p.out) halve(t);
  return p;
}

// Every kernel that takes bf16, with 1, 2 and 3 threads: equal to the definition where it widens. Through vdpbf16ps
// the probabilities (and ds) are operands in bf16: results within 2^-8 of the size of what they sum, rounded once.
void expect_bf16(const Problem& p, std::span<const Kernel> list, const RefKernel& reference, double size) {
  const std::vector<Bytes> want = run(p, reference.bf16, reference.bf16_workspace);
  for (const Kernel& kernel : list) {
    if (!cpu_runs(kernel.needs)) continue;
    const std::vector<Bytes> one = run(p, kernel.run, kernel.workspace, 1);
    for (const int threads : {2, 3}) EXPECT_EQ(run(p, kernel.run, kernel.workspace, threads), one) << kernel.name;
    for (size_t o = 0; o < want.size(); ++o) {
      if (kernel.needs != CpuTarget::avx512_bf16) {
        EXPECT_EQ(one[o], want[o]) << kernel.name << " output " << o;
        continue;
      }
      const std::vector<double> got = values_of(p.out[o], one[o]), exact = values_of(p.out[o], want[o]);
      double largest = 0;
      for (const double x : exact) largest = std::max(largest, std::abs(x));
      for (size_t i = 0; i < exact.size(); ++i)
        ASSERT_LE(std::abs(got[i] - exact[i]), 0x1p-8 * (size > 0 ? size : largest) + 0x1p-7 * std::abs(exact[i]))
            << "output " << o << " element " << i << ": " << got[i] << ", not " << exact[i];
    }
  }
}

TEST(TrainingBf16, AttentionStaysInTheBound) {
  for (const Size& s : sizes) {
    SCOPED_TRACE(s.why);
    const Problem f = in_bf16(forward(s));
    expect_bf16(f, attention_cpu, attention_ref, 2);  // |v| < 2
    Problem g = in_bf16(backward_of(forward(s)));
    const std::vector<Bytes> out = run(f, attention_ref.bf16, attention_ref.bf16_workspace);
    g.in[4].values = values_of(f.out[0], out[0]), g.in[5].values = values_of(f.out[1], out[1]);
    expect_bf16(g, attention_grad_cpu, attention_grad_ref, 0);
  }
}

TEST(TrainingBf16, AnotherSegmentsTokensChangeNoBit) {
  for (const Segments kind : {Segments::packed, Segments::scattered, Segments::returning}) {
    const Size s{1, 161, 4, 2, 23, 0, kind, ""};
    const Problem clean = in_bf16(forward(s)), clean_grad = in_bf16(backward_of(forward(s)));
    const std::vector<double> segments = clean.in[3].values;
    const auto spoiled = [&](Problem p) {
      for (Array& a : p.in) {
        const size_t row = a.values.size() / static_cast<size_t>(s.t);
        for (size_t i = 0; i < a.values.size() && a.type.dtype != DType::i32; ++i)
          if (segments[i / row] == 2) a.values[i] = NAN;
      }
      return p;
    };
    const auto compare = [&](const Problem& p, const Kernel& kernel) {
      const std::vector<Bytes> want = run(p, kernel.run, kernel.workspace, 2);
      const std::vector<Bytes> got = run(spoiled(p), kernel.run, kernel.workspace, 2);
      for (size_t o = 0; o < want.size(); ++o) {
        const std::vector<double> w = values_of(p.out[o], want[o]), g = values_of(p.out[o], got[o]);
        for (size_t i = 0; i < w.size(); ++i)
          if (segments[i / (w.size() / static_cast<size_t>(s.t))] != 2) {
            ASSERT_EQ(std::memcmp(&w[i], &g[i], sizeof(double)), 0) << kernel.name << " " << o << " element " << i;
          }
      }
    };
    for (const Kernel& kernel : attention_cpu)
      if (cpu_runs(kernel.needs)) compare(clean, kernel);
    for (const Kernel& kernel : attention_grad_cpu)
      if (cpu_runs(kernel.needs)) compare(clean_grad, kernel);
  }
}

TEST(TrainingBf16, RowsWithoutAnAllowedKeyGiveExactlyZero) {
  const Size s{2, 100, 4, 2, 24, 0, Segments::packed, ""};
  const Problem f = in_bf16(forward(s)), g = in_bf16(backward_of(forward(s)));
  const auto check = [&](const Problem& p, const Kernel& kernel) {
    const std::vector<Bytes> out = run(p, kernel.run, kernel.workspace, 2);
    for (size_t o = 0; o < out.size(); ++o) {
      const std::vector<double> x = values_of(p.out[o], out[o]);
      const size_t row = x.size() / f.in[3].values.size();
      for (size_t i = 0; i < x.size(); ++i)
        if (f.in[3].values[i / row] == 0) {
          ASSERT_TRUE(x[i] == 0 && !std::signbit(x[i])) << kernel.name << " " << i;
        }
    }
  };
  for (const Kernel& kernel : attention_cpu)
    if (cpu_runs(kernel.needs)) check(f, kernel);
  for (const Kernel& kernel : attention_grad_cpu)
    if (cpu_runs(kernel.needs)) check(g, kernel);
}

TEST(TrainingT15, AttentionOverACacheEqualsReference) {
  for (const CachedSize& s : cached)
    expect_equals_reference(cached_problem(s), attention_cached_cpu, attention_cached_ref);
}

TEST(TrainingT15, AttentionOverACacheNeverReadsPastItsRows) {
  const CachedSize s{16, 4, 2, 32, 128, 60, 9, 0};
  const Problem clean = cached_problem(s);
  Problem dirty = clean;
  for (size_t i = 1; i < 3; ++i)
    for (size_t j = (60 + 9) * 2 * 32; j < dirty.in[i].values.size(); ++j) dirty.in[i].values[j] = NAN;
  for_each_kernel(attention_cached_cpu, [&](const Kernel& kernel, int threads) {
    EXPECT_EQ(difference(clean.out[0], run(dirty, kernel.run, kernel.workspace, threads)[0],
                         run(clean, kernel.run, kernel.workspace, threads)[0]),
              "");
  });
}

}  // namespace
}  // namespace nibble
