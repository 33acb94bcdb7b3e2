// Products of quantised operands on every target this CPU runs (spec/precision.md 5.1 and 10). Operands are written
// byte by byte, not quantised; the definition is a loop of its own, which is compared with the reference kernel first.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/quantized.h"
#include "kernels/harness.h"
#include "numerics/e2m1.h"
#include "numerics/quantized_product.h"

namespace nibble {
namespace {

using testing::pool_of;

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

// Memory of a tensor, on a cache line, with a guard behind it.
class Memory {
 public:
  explicit Memory(const Type& type) : type_(type), words_((static_cast<size_t>(type.nbytes()) + 128) / 64 + 1) {
    std::memset(words_.data(), 0xff, words_.size() * sizeof(Line));
  }
  Tensor tensor() { return {type_, words_.data()}; }
  const Type& type() const { return type_; }
  bool guard_intact() const {
    const auto* end = reinterpret_cast<const uint8_t*>(words_.data()) + type_.nbytes();
    return std::all_of(end, end + 64, [](uint8_t x) { return x == 0xff; });
  }
  std::vector<float> values() const {
    std::vector<float> x(static_cast<size_t>(type_.numel()));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = type_.dtype == DType::bf16 ? widen(reinterpret_cast<const BFloat16*>(words_.data())[i])
                                        : reinterpret_cast<const float*>(words_.data())[i];
    return x;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  Type type_;
  std::vector<Line> words_;
};

bool is_mx(DType t) { return t == DType::mxfp4 || t == DType::mxfp4_2d || t == DType::mxfp8; }

// An operand [rows, k] whose bytes depend on row, place and seed only, not on how many rows there are.
class Operand : public Memory {
 public:
  Operand(DType format, int64_t rows, int64_t k, uint32_t seed) : Memory({format, {rows, k}}), view(tensor()) {
    std::memset(view.base, 0, static_cast<size_t>(view.layout.bytes));
    view.header() = {.amax = 3.25f + static_cast<float>(seed),
                     .decode = 0.1875f,
                     .saved = 1,
                     .by_amax = view.format.bits == 4 && !is_mx(format),
                     .blank = 0};
    const uint32_t per_row = static_cast<uint32_t>(view.layout.blocks * view.format.columns);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t e = 0; e < k; ++e)
        set_code(i, e, static_cast<int>(word(static_cast<uint32_t>(i) * per_row + static_cast<uint32_t>(e), seed)));
      for (int64_t b = 0; b < view.layout.scale_pitch; ++b)
        view.scales(i)[b] =
            scale(word(static_cast<uint32_t>(i / view.format.rows) * per_row + static_cast<uint32_t>(b), seed + 1000));
    }
  }
  Operand(const Operand& o) : Memory(o), view(tensor()) {}
  /// Any bits: the format takes what it needs; 8-bit codes of NaN and Inf become 0.
  void set_code(int64_t row, int64_t e, int code) {
    uint8_t* codes = view.codes(row);
    if (view.format.bits == 8) {
      codes[e] = static_cast<uint8_t>(
          (code & (type().dtype == DType::e5m2 ? 0x7C : 0x7F)) >= (type().dtype == DType::e5m2 ? 0x7C : 0x7F) ? 0
                                                                                                              : code);
      return;
    }
    codes[e / 2] = static_cast<uint8_t>(e % 2 == 0 ? (codes[e / 2] & 0xF0) | (code & 15)
                                                   : (codes[e / 2] & 0x0F) | (code & 15) << 4);
  }
  void all(int code, int scale_byte) {
    for (int64_t i = 0; i < view.layout.rows; ++i) {
      for (int64_t e = 0; e < view.layout.columns; ++e) set_code(i, e, code);
      for (int64_t b = 0; b < view.layout.scale_pitch; ++b) view.scales(i)[b] = static_cast<uint8_t>(scale_byte);
    }
  }
  QuantizedView view;

 private:
  static uint32_t word(uint32_t i, uint32_t seed) { return philox4x32({i / 4, 0, 0, 0}, 7, seed)[i % 4]; }
  uint8_t scale(uint32_t bits) const {
    if (view.format.bits == 8) return static_cast<uint8_t>(107 + (bits >> 8) % 40);
    if (bits % 16 == 0) return 0;
    return static_cast<uint8_t>(is_mx(type().dtype) ? 97 + (bits >> 8) % 60 : (bits >> 8) % 127);
  }
};

// What the definition reads: doubled codes, and the scales of blocks.
struct Decoded {
  explicit Decoded(const Operand& o)
      : rows(o.view.layout.rows), blocks(o.view.layout.blocks), width(o.view.format.columns) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t e = 0; e < blocks * width; ++e)
        codes.push_back(static_cast<int8_t>(2 * e2m1_decode(o.view.codes(i)[e / 2] >> (e % 2 * 4) & 15)));
      for (int64_t b = 0; b < blocks; ++b) scales.push_back(block_scale_value(o.type().dtype, o.view.scales(i)[b]));
    }
  }
  int64_t rows, blocks, width;
  std::vector<int8_t> codes;
  std::vector<float> scales;
};
// acc of every output of a product of 4-bit operands.
std::vector<float> sums_by_definition(const Operand& x, const Operand& y) {
  const Decoded a(x), b(y);
  std::vector<float> sums;
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < b.rows; ++j) {
      float acc = 0;
      for (int64_t k = 0; k < a.blocks; ++k) {
        const int8_t* u = &a.codes[static_cast<size_t>((i * a.blocks + k) * a.width)];
        const int8_t* v = &b.codes[static_cast<size_t>((j * a.blocks + k) * a.width)];
        int d = 0;
        for (int64_t e = 0; e < a.width; ++e) d += u[e] * v[e];
        const float p =
            a.scales[static_cast<size_t>(i * a.blocks + k)] * b.scales[static_cast<size_t>(j * a.blocks + k)];
        acc = std::fma(p, static_cast<float>(d) * 0.25f, acc);
      }
      sums.push_back(acc);
    }
  return sums;
}
std::vector<float> by_definition(const Operand& a, const Operand& b, float more = 1) {
  std::vector<float> d = sums_by_definition(a, b);
  for (float& x : d) x *= product_factor(a.view.header(), b.view.header(), more);
  return d;
}

std::vector<Kernel> runnable(std::span<const Kernel> list) {
  std::vector<Kernel> found;
  for (const Kernel& k : list)
    if (cpu_runs(k.needs)) found.push_back(k);
  return found;
}
Kernel reference(const RefKernel& r) { return {"ref", CpuTarget::ref, r.f32, r.workspace}; }

// Runs a kernel; `before`: what lies where it writes.
std::vector<float> run(const Kernel& kernel, std::span<Memory* const> operands, const Type& y, const Attrs& attrs,
                       int threads, const float* before = nullptr, bool from_zero = false) {
  Memory out(y);
  std::vector<Tensor> in, outs{out.tensor()};
  std::vector<Type> types;
  if (before != nullptr) {
    std::memcpy(out.tensor().data, before, static_cast<size_t>(y.nbytes()));
    in.push_back(out.tensor());
  }
  for (Memory* m : operands) in.push_back(m->tensor());
  for (const Tensor& t : in) types.push_back(t.type);
  const KernelShape shape{types, {&y, 1}, attrs, threads};
  EXPECT_TRUE(kernel.refuses == nullptr || kernel.refuses(shape) == nullptr) << kernel.name;
  const int64_t bytes = kernel.workspace == nullptr ? 0 : kernel.workspace(shape);
  Memory space({DType::f32, {std::max<int64_t>(1, bytes / 4)}});
  kernel.run({in, outs, attrs, static_cast<std::byte*>(space.tensor().data), pool_of(threads), from_zero});
  EXPECT_TRUE(space.guard_intact()) << kernel.name << " wrote past its workspace of " << bytes;
  EXPECT_TRUE(out.guard_intact()) << kernel.name << " wrote past its results";
  return out.values();
}
std::vector<float> fprop(const Kernel& kernel, Operand& a, Operand& b, DType dtype = DType::f32, int threads = 1,
                         double factor = 1) {
  Memory* const in[] = {&a, &b};
  Attrs attrs{{"dtype", std::string(name_of(dtype))}};
  if (factor != 1) attrs.set("factor", factor);
  return run(kernel, in, {dtype, {a.view.layout.rows, b.view.layout.rows}}, attrs, threads);
}

bool same(float x, float y) { return std::memcmp(&x, &y, sizeof x) == 0 || (std::isnan(x) && std::isnan(y)); }
// The first that differs, rounded to the results' type; "" if none.
std::string difference(const std::vector<float>& got, const std::vector<float>& want, DType dtype = DType::f32) {
  if (got.size() != want.size()) return "sizes differ";
  for (size_t i = 0; i < want.size(); ++i) {
    const float w = dtype == DType::bf16 ? widen(round_bf16(want[i])) : want[i];
    if (!same(got[i], w))
      return "output " + std::to_string(i) + " is " + std::to_string(got[i]) + ", not " + std::to_string(w);
  }
  return "";
}
std::string place(const Kernel& kernel, int threads) {
  return std::string(kernel.name) + ", " + std::to_string(threads) + " threads";
}
std::string text(const Operand& a, const Operand& b) { return to_string(a.type()) + " " + to_string(b.type()); }

constexpr int64_t sizes[] = {1, 7, 16, 17, 64, 65, 129, 1000};
constexpr std::pair<DType, DType> mixes[] = {{DType::nvfp4, DType::nvfp4_2d},
                                             {DType::nvfp4_2d, DType::nvfp4},
                                             {DType::mxfp4, DType::mxfp4_2d},
                                             {DType::mxfp4_2d, DType::mxfp4}};

TEST(KernelQuantizedGemm, P43_TheDefinitionHereIsTheReferences) {
  for (const auto& [fa, fb] : mixes)
    for (const int64_t k : {1, 33, 129}) {
      Operand a(fa, 35, k, 1), b(fb, 50, k, 2);
      EXPECT_EQ(difference(fprop(reference(qlinear_ref), a, b), by_definition(a, b)), "") << text(a, b);
    }
}

// An output depends on its row of A and its row of B only: the definition is computed once for the largest product.
TEST(KernelQuantizedGemm, P43_EqualsTheReferenceForAllSizesOnEveryTarget) {
  for (const auto& [fa, fb] : mixes)
    for (const int64_t k : sizes) {
      std::vector<Operand> as, bs;
      for (const int64_t size : sizes) as.emplace_back(fa, size, k, 1), bs.emplace_back(fb, size, k, 2);
      const std::vector<float> all = by_definition(as.back(), bs.back());
      for (Operand& a : as)
        for (Operand& b : bs) {
          const int64_t m = a.view.layout.rows, n = b.view.layout.rows;
          std::vector<float> want;
          for (int64_t i = 0; i < m; ++i)
            want.insert(want.end(), &all[static_cast<size_t>(i * 1000)], &all[static_cast<size_t>(i * 1000)] + n);
          for (const Kernel& kernel : runnable(qlinear_cpu))
            for (const int threads : {1, 2, 3})
              ASSERT_EQ(difference(fprop(kernel, a, b, DType::f32, threads), want), "")
                  << place(kernel, threads) << " " << text(a, b);
        }
    }
}

TEST(KernelQuantizedGemm, P43_LongRowsAndWideMatricesAreCutWithoutATrace) {
  struct Case {
    int64_t m, n, k;
    const char* why;
  };
  const Case cases[] = {{3, 70, 5001, "few rows, many chunks of k"},
                        {70, 90, 5001, "sums that rest between chunks"},
                        {66, 6000, 1000, "two blocks of B"},
                        {300, 1300, 600, "groups of columns"}};
  for (const auto& [fa, fb] : {mixes[0], mixes[3]})
    for (const Case& c : cases) {
      Operand a(fa, c.m, c.k, 3), b(fb, c.n, c.k, 4);
      const std::vector<float> want = by_definition(a, b);
      for (const Kernel& kernel : runnable(qlinear_cpu))
        for (const int threads : {1, 3})
          for (const DType dtype : {DType::f32, DType::bf16})
            EXPECT_EQ(difference(fprop(kernel, a, b, dtype, threads), want, dtype), "")
                << place(kernel, threads) << " " << text(a, b) << ": " << c.why;
    }
}

TEST(KernelQuantizedGemm, P43_DgradAddsTheTermsInOrder) {
  for (const auto& [fa, fb] : mixes)
    for (const int64_t m : {9, 70})
      for (const size_t terms : {1u, 2u, 3u}) {
        const int64_t widths[] = {40, 600, 513}, n = 77;
        std::vector<Operand> operands;
        for (size_t t = 0; t < terms; ++t) {
          operands.emplace_back(fa, m, widths[t], static_cast<uint32_t>(10 + t));
          operands.emplace_back(fb, n, widths[t], static_cast<uint32_t>(20 + t));
        }
        std::vector<Memory*> in;
        for (Operand& o : operands) in.push_back(&o);
        std::vector<float> want;
        for (size_t t = 0; t < terms; ++t) {
          const std::vector<float> d = by_definition(operands[2 * t], operands[2 * t + 1], 16.0f / 9);
          if (t == 0) want = d;
          for (size_t i = 0; i < d.size() && t > 0; ++i) want[i] += d[i];
        }
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const Attrs attrs{{"dtype", std::string(name_of(dtype))}, {"factor", double{16.0f / 9}}};
          const Type y{dtype, {m, n}};
          EXPECT_EQ(difference(run(reference(qlinear_dgrad_ref), in, y, attrs, 1), want, dtype), "");
          for (const Kernel& kernel : runnable(qlinear_dgrad_cpu))
            for (const int threads : {1, 2, 3})
              EXPECT_EQ(difference(run(kernel, in, y, attrs, threads), want, dtype), "")
                  << place(kernel, threads) << ", " << terms << " terms, " << m << " rows";
        }
      }
}

TEST(KernelQuantizedGemm, P43_WgradGoesOnFromTheAccumulatorOrFromZero) {
  for (const auto& [fa, fb] : {std::pair{DType::nvfp4, DType::nvfp4}, std::pair{DType::mxfp4, DType::mxfp4}})
    for (const int64_t m : {20, 140}) {
      const int64_t n = 100;
      Operand a(fa, m, 1040, 5), b(fb, n, 1040, 6);
      a.view.header().by_amax = 0, a.view.header().saved = 0.75f;  // requantised
      std::memset(a.view.codes(1), 0, static_cast<size_t>(a.view.layout.code_pitch));
      a.view.header().decode = -0.1875f;  // a row of -0, which from zero is +0
      Memory* const in[] = {&a, &b};
      const testing::Array before = testing::random({DType::f32, {m, n}}, 99);
      std::vector<float> sums(before.values.begin(), before.values.end());
      const std::vector<float> d = by_definition(a, b);
      for (const bool from_zero : {false, true}) {
        std::vector<float> want;
        for (size_t i = 0; i < d.size(); ++i) want.push_back(from_zero ? 0.0f + d[i] : sums[i] + d[i]);
        const auto got = [&](const Kernel& kernel, int threads) {
          return run(kernel, in, {DType::f32, {m, n}}, {}, threads, sums.data(), from_zero);
        };
        EXPECT_EQ(difference(got(reference(qlinear_wgrad_ref), 1), want), "");
        for (const Kernel& kernel : runnable(qlinear_wgrad_cpu))
          for (const int threads : {1, 2, 3})
            EXPECT_EQ(difference(got(kernel, threads), want), "") << place(kernel, threads) << ", " << m << " rows";
      }
    }
}

// The product of two scales is one multiplication of f32: it may overflow, or be subnormal, before d is seen.
// Sums in groups of four blocks, rounded, then added towards zero (5.2): all three products, all sizes of the last
// group.
TEST(KernelQuantizedGemm, P41_BlackwellsSumsEqualTheReference) {
  const std::pair<DType, DType> kinds[] = {mixes[0], mixes[1], {DType::nvfp4, DType::nvfp4}};
  for (const auto& [fa, fb] : kinds)
    for (const int64_t k : {1, 16, 48, 64, 65, 129, 1000})
      for (const int64_t m : {1, 3, 4, 5, 70, 300}) {
        const int64_t n = m == 5 ? 1 : m == 300 ? 9 : m + 29;
        Operand a(fa, m, k, 5), b(fb, n, k, 6), c(fa, m, 80, 7), d(fb, n, 80, 8);
        Memory *const one[] = {&a, &b}, *const two[] = {&a, &b, &c, &d};
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const Attrs attrs{{"dtype", std::string(name_of(dtype))}, {"accumulation", std::string("blackwell")}};
          const Type y{dtype, {m, n}};
          const std::vector<float> fprop = run(reference(qlinear_ref), one, y, attrs, 1),
                                   dgrad = run(reference(qlinear_dgrad_ref), two, y, attrs, 1);
          if (k == 1000 && m == 70 && dtype == DType::f32) {
            EXPECT_NE(fprop, by_definition(a, b));
          }
          for (const Kernel& kernel : runnable(qlinear_cpu))
            for (const int threads : {1, 3})
              ASSERT_EQ(difference(run(kernel, one, y, attrs, threads), fprop), "")
                  << place(kernel, threads) << " " << text(a, b);
          for (const Kernel& kernel : runnable(qlinear_dgrad_cpu))
            ASSERT_EQ(difference(run(kernel, two, y, attrs, 2), dgrad), "") << place(kernel, 2) << " " << text(a, b);
        }
        const Attrs attrs{{"dtype", std::string("f32")}, {"accumulation", std::string("blackwell")}};
        const Type y{DType::f32, {m, n}};
        const std::vector<float> before(static_cast<size_t>(m * n), 0.125f);
        for (const bool from_zero : {false, true}) {
          const std::vector<float> want = run(reference(qlinear_wgrad_ref), one, y, attrs, 1, before.data(), from_zero);
          for (const Kernel& kernel : runnable(qlinear_wgrad_cpu))
            ASSERT_EQ(difference(run(kernel, one, y, attrs, 2, before.data(), from_zero), want), "")
                << place(kernel, 2) << " " << text(a, b);
        }
      }
}

TEST(KernelQuantizedGemm, P43_ExtremeScalesOfMxfp4) {
  for (const int64_t m : {5, 80}) {
    Operand a(DType::mxfp4, m, 130, 7), b(DType::mxfp4_2d, 70, 130, 8);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t k = 0; k < 5; ++k)
        a.view.scales(i)[k] = static_cast<uint8_t>(i % 3 == 0 ? 254 - i : i % 3 * 60 - 60);
    for (int64_t j = 0; j < 70; j += 32)
      for (int64_t k = 0; k < 5; ++k) b.view.scales(j)[k] = static_cast<uint8_t>(j == 0 ? 254 - k : j + 2 * k);
    const std::vector<float> want = by_definition(a, b);
    EXPECT_TRUE(std::ranges::any_of(want, [](float x) { return std::isinf(x); }));
    for (const Kernel& kernel : runnable(qlinear_cpu))
      EXPECT_EQ(difference(fprop(kernel, a, b), want), "") << kernel.name << " " << m;
  }
}

TEST(KernelQuantizedGemm, P40_ProductsOfElementAndScaleAreExactInBf16) {
  for (int code = 0; code < 8; ++code)
    for (int byte = 0; byte < 0x7F; ++byte) {
      const float x = e2m1_decode(code) * e4m3_decode(byte);
      EXPECT_EQ(widen(round_bf16(x)), x) << code << " " << byte;
    }
}

TEST(KernelQuantizedGemm, P40_EveryPairOfCodesIsExact) {
  for (const DType format : {DType::nvfp4, DType::mxfp4})
    for (const int64_t rows : {16, 80}) {
      Operand a(format, rows, 1, 1), b(format, 16, 1, 2);
      const int one = format == DType::nvfp4 ? e4m3_one : 127;
      a.all(0, one), b.all(0, one);
      for (int64_t i = 0; i < rows; ++i) a.set_code(i, 0, static_cast<int>(i % 16));
      for (int64_t j = 0; j < 16; ++j) b.set_code(j, 0, static_cast<int>(j));
      a.view.header().by_amax = 0, a.view.header().decode = 1, b.view.header().decode = 1;
      for (const Kernel& kernel : runnable(qlinear_cpu)) {
        const std::vector<float> c = fprop(kernel, a, b);
        for (size_t i = 0; i < c.size(); ++i)
          EXPECT_EQ(c[i], e2m1_decode(static_cast<int>(i / 16 % 16)) * e2m1_decode(static_cast<int>(i % 16)))
              << kernel.name << " " << i;
      }
    }
}

TEST(KernelQuantizedGemm, P40_ExtremeCodesAndScalesAreExact) {
  for (const DType format : {DType::nvfp4, DType::mxfp4})
    for (const int64_t m : {3, 90})
      for (const int sign : {7, 15}) {  // codes of 6 and -6
        Operand a(format, m, 64, 1), b(format, 33, 64, 2);
        const int byte = format == DType::nvfp4 ? 0x7E : 127 + 8;  // 448, 256
        a.all(7, byte), b.all(sign, byte);
        a.view.header().by_amax = 0, a.view.header().decode = 1, b.view.header().decode = 1;
        const float scale = format == DType::nvfp4 ? 448 : 256;
        for (const Kernel& kernel : runnable(qlinear_cpu))
          for (const float x : fprop(kernel, a, b))
            EXPECT_EQ(x, (sign == 7 ? 36 : -36) * 64 * scale * scale) << kernel.name;
      }
}

// In the stated order the large terms swallow the small ones between them, and then cancel.
TEST(KernelQuantizedGemm, P44_CancellingTermsGiveTheValueOfTheStatedOrder) {
  for (const int64_t m : {4, 100})
    for (const int64_t blocks : {3, 64, 200}) {
      Operand a(DType::nvfp4, m, 16 * blocks, 1), b(DType::nvfp4, 40, 16 * blocks, 2);
      a.all(1, 1), b.all(1, 1);  // each block 16 * 2^-2 * 2^-18
      a.view.header().by_amax = 0, a.view.header().decode = 1, b.view.header().decode = 1;
      const auto large = [&](Operand& o, int64_t block, int code) {
        for (int64_t i = 0; i < o.view.layout.rows; ++i) {
          for (int64_t e = 0; e < 16; ++e) o.set_code(i, block * 16 + e, code);
          o.view.scales(i)[block] = 0x7E;
        }
      };
      // Large terms first and last; then both first, which leaves the small ones; the large one first, which swallows
      // them; and last, which rounds their sum.
      struct Row {
        int64_t plus, minus;
      };
      for (const Row row : {Row{0, blocks - 1}, Row{0, 1}, Row{blocks / 2, 0}, Row{blocks - 1, -1}, Row{0, -1}}) {
        Operand x = a, y = b;
        large(x, row.plus, 7), large(y, row.plus, 7);
        if (row.minus >= 0) large(x, row.minus, 7), large(y, row.minus, 15);
        float want = 0;
        for (int64_t k = 0; k < blocks; ++k)
          want += k == row.plus ? 448.0f * 448 * 16 * 36 : k == row.minus ? -448.0f * 448 * 16 * 36 : 0x1p-16f;
        for (const Kernel& kernel : runnable(qlinear_cpu))
          for (const int threads : {1, 3})
            for (const float got : fprop(kernel, x, y, DType::f32, threads))
              ASSERT_EQ(got, want) << place(kernel, threads) << ", large terms " << row.plus << ", " << row.minus
                                   << " of " << blocks;
      }
    }
}

TEST(KernelQuantizedGemm, P47_AZeroOperandGivesExactlyZero) {
  for (const auto& [fa, fb] : mixes)
    for (const int64_t m : {5, 80})
      for (const bool zero_scales : {false, true}) {
        Operand a(fa, m, 100, 1), b(fb, 50, 100, 2), zero = b;
        if (zero_scales && is_mx(fb)) continue;  // E8M0 has no zero
        zero_scales ? zero.all(3, 0) : zero.all(0, 0x40);
        for (const Kernel& kernel : runnable(qlinear_cpu))
          for (const DType dtype : {DType::f32, DType::bf16})
            for (const float x : fprop(kernel, a, zero, dtype)) EXPECT_TRUE(same(x, 0.0f)) << kernel.name << " " << x;
      }
}

TEST(KernelQuantizedGemm, P47_APoisonedOperandGivesNanEverywhere) {
  for (const auto& [fa, fb] : mixes)
    for (const int64_t m : {5, 80}) {
      Operand a(fa, m, 100, 1), b(fb, 50, 100, 2);
      b.view.header().amax = nan_value, b.view.header().decode = nan_value;
      b.all(0, is_mx(fb) ? 0 : e4m3_nan);
      for (const Kernel& kernel : runnable(qlinear_cpu))
        for (const DType dtype : {DType::f32, DType::bf16})
          for (const float x : fprop(kernel, a, b, dtype)) EXPECT_TRUE(std::isnan(x)) << kernel.name << " " << x;
    }
}

// The scale of one block alone: NaN in its row, or its column, and nowhere else. Alpha may overflow.
TEST(KernelQuantizedGemm, P47_NonFiniteValuesStayWhereTheyAre) {
  for (const auto& [fa, fb] : mixes)
    for (const int64_t m : {20, 120}) {
      Operand a(fa, m, 300, 1), b(fb, 100, 300, 2);
      const uint8_t nan_byte = is_mx(fa) ? e8m0_nan : e4m3_nan;
      a.view.scales(3)[2] = nan_byte, b.view.scales(99)[8] = nan_byte;
      const std::vector<float> want = by_definition(a, b);
      const int64_t ta = a.view.format.rows, tb = b.view.format.rows;
      for (int64_t at = 0; at < m * 100; ++at)
        EXPECT_EQ(std::isnan(want[static_cast<size_t>(at)]), at / 100 / ta == 3 / ta || at % 100 / tb == 99 / tb);
      for (const Kernel& kernel : runnable(qlinear_cpu))
        EXPECT_EQ(difference(fprop(kernel, a, b), want), "") << kernel.name << " " << m;
      a.view.header().by_amax = 0, a.view.header().decode = 0x1p100f, b.view.header().decode = 0x1p100f;
      const std::vector<float> huge = by_definition(a, b);
      EXPECT_TRUE(m <= ta || std::ranges::any_of(huge, [](float x) { return std::isinf(x); }));
      for (const Kernel& kernel : runnable(qlinear_cpu))
        EXPECT_EQ(difference(fprop(kernel, a, b), huge), "") << kernel.name << " " << m;
    }
}

// ------------------------------------------------------------------------------------------------------------ 8 bits

constexpr std::pair<DType, DType> eight_bit_mixes[] = {{DType::e4m3, DType::e4m3},
                                                       {DType::e5m2, DType::e4m3},
                                                       {DType::mxfp8, DType::mxfp8},
                                                       {DType::fp8_block, DType::fp8_block_2d}};

double value_of(const Operand& o, int64_t i, int64_t e) {
  const double scale =
      o.view.format.scales ? block_scale_value(o.type().dtype, o.view.scales(i)[e / o.view.format.columns]) : 1;
  return element_value(o.type().dtype, o.view.codes(i), e) * scale;
}
// K 2^-23 sum |a b| around the exact sum, times alpha, and the last rounding.
std::string outside_bound(const Operand& a, const Operand& b, const std::vector<float>& got) {
  const int64_t m = a.view.layout.rows, n = b.view.layout.rows, k = a.view.layout.columns;
  const double alpha = product_factor(a.view.header(), b.view.header());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double exact = 0, size = 0;
      for (int64_t e = 0; e < k; ++e) {
        const double term = value_of(a, i, e) * value_of(b, j, e) * alpha;
        exact += term, size += std::fabs(term);
      }
      const double x = got[static_cast<size_t>(i * n + j)];
      if (!(std::fabs(x - exact) <= static_cast<double>(k) * 0x1p-23 * size + std::fabs(exact) * 0x1p-24))
        return "output " + std::to_string(i * n + j) + " is " + std::to_string(x) + ", not " + std::to_string(exact);
    }
  return "";
}

struct Size {
  int64_t m, n, k;
};
constexpr Size eight_bit_sizes[] = {{1, 1, 1},     {7, 16, 17},    {17, 65, 129}, {80, 33, 64},
                                    {3, 40, 1100}, {530, 20, 300}, {70, 520, 100}};

TEST(KernelQuantizedGemm, P46_EightBitProductsEqualTheReferenceOrStayInTheBound) {
  for (const auto& [fa, fb] : eight_bit_mixes)
    for (const Size& s : eight_bit_sizes) {
      Operand a(fa, s.m, s.k, 1), b(fb, s.n, s.k, 2);
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const std::vector<float> want = fprop(reference(qlinear_ref), a, b, dtype);
        for (const Kernel& kernel : runnable(qlinear_cpu)) {
          const std::vector<float> one = fprop(kernel, a, b, dtype);
          // The reference adds fp8_block a block at a time, kernels do not (numerics.md).
          const bool by_block = fa == DType::fp8_block || fa == DType::fp8_block_2d;
          if (kernel.needs != CpuTarget::avx512_bf16 && !by_block) {
            EXPECT_EQ(difference(one, want), "") << place(kernel, 1) << " " << text(a, b);
          } else if (dtype == DType::f32) {
            EXPECT_EQ(outside_bound(a, b, one), "") << place(kernel, 1) << " " << text(a, b);
          }
          for (const int threads : {2, 3})
            EXPECT_EQ(difference(fprop(kernel, a, b, dtype, threads), one), "")
                << place(kernel, threads) << " " << text(a, b);
        }
      }
    }
}

TEST(KernelQuantizedGemm, P46_EightBitGradientsAddInOrder) {
  Operand dy(DType::e5m2, 70, 300, 1), w(DType::e4m3, 90, 300, 2), dz(DType::e5m2, 70, 40, 3),
      v(DType::e4m3, 90, 40, 4);
  Memory* const terms[] = {&dy, &w, &dz, &v};
  Memory* const pair[] = {&dy, &w};
  const testing::Array before = testing::random({DType::f32, {70, 90}}, 99);
  const std::vector<float> sums(before.values.begin(), before.values.end());
  for (const int threads : {1, 3}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Attrs attrs{{"dtype", std::string(name_of(dtype))}};
      const Type dx{dtype, {70, 90}};
      const std::vector<float> want = run(reference(qlinear_dgrad_ref), terms, dx, attrs, 1);
      for (const Kernel& kernel : runnable(qlinear_dgrad_cpu)) {
        if (kernel.needs == CpuTarget::avx512_bf16) continue;
        EXPECT_EQ(difference(run(kernel, terms, dx, attrs, threads), want), "") << place(kernel, threads);
      }
    }
    for (const bool from_zero : {false, true}) {
      const Type dw{DType::f32, {70, 90}};
      const std::vector<float> want = run(reference(qlinear_wgrad_ref), pair, dw, {}, 1, sums.data(), from_zero);
      for (const Kernel& kernel : runnable(qlinear_wgrad_cpu)) {
        const std::vector<float> got = run(kernel, pair, dw, {}, threads, sums.data(), from_zero);
        if (kernel.needs != CpuTarget::avx512_bf16) {
          EXPECT_EQ(difference(got, want), "") << place(kernel, threads);
        } else if (from_zero) {
          EXPECT_EQ(outside_bound(dy, w, got), "") << place(kernel, threads);
        }
      }
    }
  }
}

TEST(KernelQuantizedGemm, P47_EightBitNansAndInfinitiesStayInTheirRows) {
  for (const DType format : {DType::e4m3, DType::e5m2, DType::mxfp8})
    for (const int64_t m : {5, 80}) {
      Operand a(format, m, 70, 1), b(format, 20, 70, 2);
      b.all(0x40, 127);
      a.view.codes(2)[65] = 0xFF;                             // NaN
      if (format == DType::e5m2) a.view.codes(4)[69] = 0x7C;  // Inf
      if (format == DType::mxfp8) a.view.scales(4)[2] = e8m0_nan;
      const std::vector<float> want = fprop(reference(qlinear_ref), a, b);
      for (const Kernel& kernel : runnable(qlinear_cpu)) {
        const std::vector<float> got = fprop(kernel, a, b);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(std::isnan(got[i]), std::isnan(want[i])) << kernel.name << " " << i;
          EXPECT_EQ(std::isinf(got[i]), std::isinf(want[i])) << kernel.name << " " << i;
          EXPECT_EQ(std::isfinite(got[i]), i / 20 != 2 && (i / 20 != 4 || format == DType::e4m3)) << kernel.name;
        }
      }
    }
}

TEST(KernelQuantizedGemm, P47_EightBitZeroAndPoisonedOperands) {
  for (const auto& [fa, fb] : eight_bit_mixes)
    for (const int64_t m : {5, 80}) {
      Operand a(fa, m, 200, 1), b(fb, 50, 200, 2), zero = b;
      zero.all(0, 127);
      b.view.header().amax = nan_value, b.view.header().decode = nan_value;
      for (const Kernel& kernel : runnable(qlinear_cpu)) {
        for (const float x : fprop(kernel, a, zero)) EXPECT_TRUE(same(x, 0.0f)) << kernel.name << " " << x;
        for (const float x : fprop(kernel, a, b)) EXPECT_TRUE(std::isnan(x)) << kernel.name << " " << x;
      }
    }
}

TEST(KernelQuantizedGemm, WorkspaceIsTheSameOnEveryTargetAndBounded) {
  const Attrs attrs{{"dtype", std::string("f32")}};
  for (const DType format : {DType::nvfp4, DType::mxfp4_2d, DType::mxfp8})
    for (const int64_t m : {1, 64, 65, 2048})
      for (const int64_t n : {1, 500, 8192, 128256})
        for (const int64_t k : {2, 512, 6144, 65536})
          for (const size_t terms : {1u, 3u})
            for (const int threads : {1, 2, 64}) {
              std::vector<Type> in;
              for (size_t t = 0; t < terms; ++t) in.push_back({format, {m, k}}), in.push_back({format, {n, k}});
              const Type y{DType::f32, {m, n}};
              const KernelShape shape{in, {&y, 1}, attrs, threads};
              const int64_t bytes = qlinear_dgrad_cpu.back().workspace(shape);
              for (const Kernel& kernel : qlinear_dgrad_cpu) EXPECT_EQ(kernel.workspace(shape), bytes);
              EXPECT_LE(bytes, std::max(int64_t{8} << 20, 64 * int64_t{24} * 3 * k / 16) +
                                   threads * (int64_t{615} << 10) + 4096)
                  << m << "x" << n << "x" << k << " " << terms << " terms";
            }
}

TEST(KernelQuantizedGemm, OtherOperandsAreRefusedWithAReason) {
  const Type a{DType::f32, {8, 64}}, nv{DType::nvfp4, {8, 64}}, mx{DType::mxfp4, {8, 64}}, y{DType::f32, {8, 8}};
  const Type fp8{DType::e4m3, {8, 64}};
  const std::vector<Type> mixed{nv, nv, mx, mx}, widths{nv, nv, fp8, fp8}, numbers{a, a};
  for (const Kernel& kernel : qlinear_dgrad_cpu)
    for (const std::vector<Type>* in : {&mixed, &widths, &numbers})
      EXPECT_NE(kernel.refuses({*in, {&y, 1}, {}, 1}), nullptr) << kernel.name;
}

}  // namespace
}  // namespace nibble
