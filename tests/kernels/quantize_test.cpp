// The quantisers against their definition, byte for byte (spec/precision.md 10: P3, P11, P25, P36, P37).
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/quant_spec.h"
#include "core/quantized.h"
#include "kernels/harness.h"
#include "kernels/quantized_harness.h"

namespace nibble {
namespace {

using namespace testing;
using Types = std::vector<Type>;

// x [rows, width] and what is made of it.
struct Quantization {
  int64_t rows, width, tokens;
  std::vector<float> x;
  std::string row = "-", column = "-";
  std::array<int32_t, 4> random = {7, 3, 0, 0};
  float delayed = 0;  // 0: no such operand
  bool bf16 = false, weights = false;
};

// Memory on a cache line with a guard after it.
class Aligned {
 public:
  explicit Aligned(int64_t bytes) : bytes_(bytes), memory_(static_cast<size_t>(bytes) + 192, std::byte{0xff}) {}
  std::byte* data() { return memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64; }
  bool guard_intact() {
    for (std::byte* p = data() + bytes_; p != data() + bytes_ + 64; ++p)
      if (*p != std::byte{0xff}) return false;
    return true;
  }

 private:
  int64_t bytes_;
  Bytes memory_;
};

struct Parts {
  QuantizedHeader header;
  std::vector<uint8_t> codes, scales;
};

Parts parts_of(const Tensor& t) {
  const QuantizedView v(t);
  return {v.header(),
          {v.codes(0), v.codes(0) + v.layout.scales - v.layout.codes},
          {v.scales(0), v.scales(0) + v.layout.bytes - v.layout.scales}};
}

Types outputs(const Quantization& q) {
  const QuantSpec row = parse_quant_spec(q.row), column = parse_quant_spec(q.column);
  Types out;
  if (row.active()) out.push_back({row.format, {q.rows, row.hadamard > 0 ? filled(row, q.width) : q.width}});
  if (column.active()) out.push_back({column.format, {q.width, q.rows / q.tokens * filled(column, q.tokens)}});
  return out;
}

struct Kernels {
  KernelRun run;
  KernelWorkspace workspace = nullptr;
};

ThreadPool& threads_of(int n) {
  static std::map<int, std::unique_ptr<ThreadPool>> pools;
  std::unique_ptr<ThreadPool>& pool = pools[n];
  if (!pool) pool = std::make_unique<ThreadPool>(n);
  return *pool;
}

std::vector<Parts> run_on(const Quantization& q, const Kernels& kernel, int threads) {
  const Attrs attrs{{"row", q.row}, {"column", q.column}, {"tokens", q.tokens}, {"site", int64_t{5}}};
  const Type type{q.bf16 ? DType::bf16 : DType::f32, {q.rows, q.width}};
  Aligned x(type.nbytes() + 64), random(64), delayed(64);
  for (size_t i = 0; i < q.x.size(); ++i) {
    if (q.bf16)
      reinterpret_cast<BFloat16*>(x.data())[i] = round_bf16(q.x[i]);
    else
      reinterpret_cast<float*>(x.data())[i] = q.x[i];
  }
  std::memcpy(random.data(), q.random.data(), sizeof q.random);
  std::memcpy(delayed.data(), &q.delayed, sizeof q.delayed);
  const Types out_types = outputs(q);
  std::vector<Aligned> memory;
  for (const Type& t : out_types) memory.emplace_back(t.nbytes());
  std::vector<Tensor> in, out;
  for (size_t i = 0; i < out_types.size(); ++i) out.push_back({out_types[i], memory[i].data()});
  if (q.weights) in = out;
  in.push_back({type, x.data()}), in.push_back({i32({4}), random.data()});
  if (q.delayed != 0) in.push_back({f32({1}), delayed.data()});
  Types in_types;
  for (const Tensor& t : in) in_types.push_back(t.type);
  Aligned space(kernel.workspace == nullptr ? 0 : kernel.workspace({in_types, out_types, attrs, threads}));
  kernel.run({in, out, attrs, space.data(), threads_of(threads)});
  EXPECT_TRUE(space.guard_intact());
  std::vector<Parts> parts;
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_TRUE(memory[i].guard_intact()) << "output " << i;
    parts.push_back(parts_of(out[i]));
  }
  return parts;
}

std::vector<Parts> reference(const Quantization& q) {
  const RefKernel& r = q.weights ? quantize_weights_ref : quantize_ref;
  return q.bf16 ? run_on(q, {r.bf16, r.bf16_workspace}, 1) : run_on(q, {r.f32, r.workspace}, 1);
}

std::string difference(const Parts& a, const Parts& b) {
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  if (bits(a.header.amax) != bits(b.header.amax)) return fmt::format("amax {} {}", a.header.amax, b.header.amax);
  if (bits(a.header.decode) != bits(b.header.decode))
    return fmt::format("decode {} {}", a.header.decode, b.header.decode);
  if (bits(a.header.saved) != bits(b.header.saved)) return "saved";
  if (a.header.by_amax != b.header.by_amax) return "by_amax";
  if (a.header.blank != b.header.blank) return fmt::format("blank {} {}", a.header.blank, b.header.blank);
  for (size_t i = 0; i < a.scales.size(); ++i)
    if (a.scales[i] != b.scales[i]) return fmt::format("scale {}: {:02x} {:02x}", i, a.scales[i], b.scales[i]);
  for (size_t i = 0; i < a.codes.size(); ++i)
    if (a.codes[i] != b.codes[i]) return fmt::format("byte {} of the codes: {:02x} {:02x}", i, a.codes[i], b.codes[i]);
  return "";
}

const char* refusal(const Kernel& kernel, const Quantization& q) {
  const Attrs attrs{{"row", q.row}, {"column", q.column}, {"tokens", q.tokens}, {"site", int64_t{5}}};
  const Types out = outputs(q), x{{q.bf16 ? DType::bf16 : DType::f32, {q.rows, q.width}}, i32({4})};
  Types in = q.weights ? out : Types{};
  in.insert(in.end(), x.begin(), x.end());
  return kernel.refuses({in, out, attrs, 1});
}

// Every kernel and 1 to 3 threads against the definition; returns it.
std::vector<Parts> expect_equal(const Quantization& q) {
  const std::vector<Parts> want = reference(q);
  for_each_kernel(q.weights ? quantize_weights_cpu : quantize_cpu, [&](const Kernel& kernel, int threads) {
    ASSERT_EQ(refusal(kernel, q), nullptr);
    const std::vector<Parts> got = run_on(q, {kernel.run, kernel.workspace}, threads);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(difference(got[i], want[i]), "") << "output " << i << " of " << q.rows << " x " << q.width << " in "
                                                 << q.tokens << ", row " << q.row << ", column " << q.column;
  });
  return want;
}

uint32_t word(size_t i, uint32_t site) { return philox4x32({static_cast<uint32_t>(i / 4), 0, 0, 0}, 11, site)[i % 4]; }

// Magnitudes 2^(low..high), either sign.
std::vector<float> spread(size_t n, uint32_t site, int low, int high) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t w = word(i, site), e = word(i, site + 1000);
    const float m = 1 + static_cast<float>(w >> 9) * 0x1p-23f;
    const int exponent = low + static_cast<int>(e % static_cast<uint32_t>(high - low + 1));
    x[i] = std::ldexp((w & 1) != 0 ? -m : m, exponent);
  }
  return x;
}
size_t area(int64_t rows, int64_t width) { return static_cast<size_t>(rows * width); }

constexpr const char* row_specs[] = {"nvfp4",
                                     "nvfp4 stochastic",
                                     "nvfp4 pow2",
                                     "nvfp4 stochastic unit stream=4",
                                     "nvfp4 hadamard=16",
                                     "nvfp4 stochastic hadamard=16",
                                     "nvfp4 four_six=mse",
                                     "nvfp4 four_six=mae",
                                     "nvfp4 pow2 four_six=mse",
                                     "nvfp4 unit four_six=mae",
                                     "nvfp4 eden hadamard=128 stream=2 signs=16",
                                     "nvfp4 eden pow2 hadamard=128 signs=17",
                                     "nvfp4 eden unit hadamard=128 stream=1 signs=17",
                                     "nvfp4_2d",
                                     "nvfp4_2d pow2",
                                     "nvfp4_2d four_six=mse",
                                     "nvfp4_2d four_six=mae",
                                     "nvfp4_2d pow2 four_six=mae",
                                     "mxfp4",
                                     "mxfp4 stochastic",
                                     "mxfp4 floor",
                                     "mxfp4 stochastic floor",
                                     "mxfp4 stochastic hadamard=32",
                                     "mxfp4 hadamard=32",
                                     "mxfp4 stochastic floor hadamard=64 stream=2",
                                     "mxfp4 floor hadamard=64",
                                     "mxfp4_2d",
                                     "mxfp4_2d stochastic floor",
                                     "mxfp8",
                                     "e4m3",
                                     "e5m2 pow2",
                                     "e4m3 delayed",
                                     "fp8_block",
                                     "fp8_block_2d"};
bool delayed(const std::string& spec) { return spec.find("delayed") != std::string::npos; }

struct Sizes {
  int64_t rows, width, tokens;
};

TEST(PrecisionP11, EveryCopyEqualsTheDefinition) {
  const Sizes sizes[] = {{1, 1, 1},     {2, 17, 1},     {16, 16, 16},    {33, 31, 11},    {40, 130, 20},
                         {64, 257, 64}, {257, 40, 257}, {128, 256, 128}, {150, 520, 150}, {144, 96, 48}};
  uint32_t site = 0;
  for (const Sizes& s : sizes)
    for (const char* spec : row_specs)
      for (const bool bf16 : {false, true}) {
        const bool square = std::string(spec).find("2d") != std::string::npos;
        Quantization q{s.rows, s.width, square ? s.rows : s.tokens, spread(area(s.rows, s.width), ++site, -9, 1)};
        q.bf16 = bf16, q.delayed = delayed(spec) ? 12.5f : 0, q.random[2] = static_cast<int32_t>(3 * q.tokens);
        q.row = spec, q.column = "-";
        expect_equal(q);
        q.row = "-", q.column = spec;
        expect_equal(q);
        if (HasFailure()) return;
      }
}

TEST(PrecisionP11, BothCopiesInOneRead) {
  const std::pair<const char*, const char*> pairs[] = {
      {"nvfp4", "nvfp4 hadamard=16 stream=3"},
      {"nvfp4 stochastic", "nvfp4 stochastic hadamard=16 stream=1"},
      {"nvfp4", "nvfp4"},
      {"nvfp4_2d", "nvfp4_2d"},
      {"nvfp4_2d four_six=mae", "nvfp4_2d four_six=mae"},
      {"nvfp4 eden hadamard=128 signs=16", "nvfp4 eden hadamard=128 stream=1 signs=17"},
      {"nvfp4 four_six=mse", "nvfp4 eden hadamard=128 signs=17"},
      {"mxfp4 stochastic floor hadamard=64", "mxfp4 stochastic floor hadamard=64 stream=1"},
      {"mxfp8", "mxfp8"},
      {"e4m3", "e4m3"},
      {"fp8_block", "fp8_block"},
      {"mxfp4 stochastic", "mxfp4 stochastic hadamard=32 stream=1"}};
  uint32_t site = 500;
  for (const Sizes& s : {Sizes{96, 80, 48}, Sizes{75, 300, 25}, Sizes{257, 272, 257}})
    for (const auto& [row, column] : pairs) {
      Quantization q{s.rows, s.width, s.tokens, spread(area(s.rows, s.width), ++site, -6, 2), row, column};
      if (std::string(row).starts_with("nvfp4_2d")) q.tokens = q.rows;
      expect_equal(q);
      q.weights = true;
      expect_equal(q);
      if (HasFailure()) return;
    }
}

TEST(PrecisionP11, RandomShapes) {
  for (uint32_t i = 0; i < 60; ++i) {
    const int64_t rows = 1 + word(i, 77) % 257, width = 1 + word(i, 78) % 257;
    const bool halves = rows % 2 == 0 && word(i, 79) % 2 == 0;
    Quantization q{rows,
                   width,
                   halves ? rows / 2 : rows,
                   spread(area(rows, width), 600 + i, -12, 3),
                   "nvfp4",
                   "nvfp4 stochastic hadamard=16 stream=1"};
    q.bf16 = i % 3 == 0;
    expect_equal(q);
    if (HasFailure()) return;
  }
}

TEST(PrecisionP11, EveryMagnitude) {
  uint32_t site = 700;
  for (const auto& [low, high] : {std::pair(-126, 127), {-126, -120}, {120, 127}, {-149, -126}, {-30, 30}, {-3, -3}})
    for (const char* spec : row_specs) {
      Quantization q{50, 70, 50, spread(area(50, 70), ++site, low, high)};
      q.delayed = delayed(spec) ? 12.5f : 0;
      q.row = spec;
      expect_equal(q);
      q.row = "-", q.column = spec;
      expect_equal(q);
      if (HasFailure()) return;
    }
}

TEST(PrecisionP11, ZeroOneHotConstantAndNotFinite) {
  const float nan = std::nanf(""), infinite = INFINITY;
  const std::pair<const char*, std::vector<std::pair<size_t, float>>> cases[] = {
      {"zero", {}},
      {"one-hot", {{777, 3.5f}}},
      {"tiny", {{777, 1e-38f}, {20, -1e-42f}}},
      {"NaN", {{777, nan}}},
      {"NaN of all bits", {{777, std::bit_cast<float>(0xffffffffu)}}},
      {"Inf", {{3, -infinite}}},
      {"overflows in BF16", {{3, 3.4e38f}}},
      {"far apart", {{0, 1e38f}, {1700, 1e-38f}, {900, -1.0f}}}};
  for (const char* spec : row_specs) {
    for (const auto& [what, values] : cases) {
      SCOPED_TRACE(what);
      Quantization q{40, 70, 20, std::vector<float>(area(40, 70), 0.0f)};
      if (std::string(spec).find("2d") != std::string::npos) q.tokens = 40;
      for (const auto& [at, value] : values) q.x[at] = value;
      q.delayed = delayed(spec) ? 12.5f : 0;
      q.row = spec;
      expect_equal(q);
      q.row = "-", q.column = spec;
      expect_equal(q);
    }
    Quantization q{40, 70, 40, std::vector<float>(area(40, 70), -0.37f)};
    q.delayed = delayed(spec) ? 12.5f : 0;
    q.row = spec;
    expect_equal(q);
    q.x.assign(q.x.size(), -0.0f);
    expect_equal(q);
    if (HasFailure()) return;
  }
}

// All BF16 numbers, and many bits of f32 that stay finite: under a scale of one, an element is its encoder's input
// times the scale of its block, and every block of 16 has another.
TEST(PrecisionP3, AllBf16Inputs) {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    x.push_back((bits & 0x7F80) == 0x7F80 ? 0.0f : std::bit_cast<float>(bits << 16));
  for (const char* spec : {"nvfp4 unit", "nvfp4", "nvfp4 stochastic unit", "mxfp4", "mxfp4 stochastic", "mxfp8", "e4m3",
                           "e4m3 delayed", "e5m2 delayed"}) {
    Quantization q{256, 256, 256, x};
    q.delayed = delayed(spec) ? 1 : 0;
    for (const float largest : {0.0f, 6.0f, 100.0f}) {  // beside each run of 15 inputs, so that scales are ordinary
      if (largest > 0)
        for (size_t i = 0; i < x.size(); ++i) q.x[i] = i % 16 == 15 ? largest : std::abs(x[i]) > largest ? 0.0f : x[i];
      q.row = spec, q.column = "-";
      expect_equal(q);
      q.row = "-", q.column = spec;
      expect_equal(q);
      if (HasFailure()) return;
    }
  }
}

TEST(PrecisionP3, RandomBits) {
  for (uint32_t site = 0; site < 8; ++site) {
    std::vector<float> x(area(512, 256));
    for (size_t i = 0; i < x.size(); ++i) {
      const float v = std::bit_cast<float>(word(i, 900 + site));
      x[i] = std::isfinite(v) && std::abs(v) < 3e38f ? v : 0;
    }
    for (const char* spec : {"nvfp4 unit", "mxfp4 stochastic", "mxfp8"}) {
      Quantization q{512, 256, 512, x, spec};
      expect_equal(q);
      q.row = "-", q.column = spec;
      expect_equal(q);
    }
    if (HasFailure()) return;
  }
}

// Groups whose magnitudes span 0 to 60 binades; sums in f32 where that is exact, else in f64.
TEST(PrecisionP25, RotatedGroupsOfAnySpan) {
  for (int span = 0; span <= 60; ++span)
    for (const int low : {-126, -80, 0, 127 - span}) {
      Quantization q{64, 96, 64, spread(area(64, 96), static_cast<uint32_t>(2000 + span), low, low + span)};
      if (low == 127 - span)
        for (float& v : q.x) v *= 0.125f;
      q.column = "nvfp4 hadamard=16";
      expect_equal(q);
      if (HasFailure()) return;
    }
}

// Sums that a bit 2^-span of the largest value's last place decides: 14 values of 8 bits add to a tie of BF16 that
// would go down, two small ones differ in their last bit. In f32 that bit is lost from a span of 13 on.
TEST(PrecisionP25, TiesThatTheSmallestBitDecides) {
  constexpr uint32_t signs = 0xD7E8;
  for (int span = 0; span <= 60; ++span)
    for (uint32_t draw = 0; draw < 12; ++draw) {
      const uint32_t small = draw % 8;  // this one and the one 8 further on meet in the last stage
      int v[16], sum = 0;
      for (uint32_t e = 0; e < 16; ++e) {
        const bool large = e != small && e != small + 8;
        v[e] = large ? 128 + static_cast<int>(word(16 * draw + e, static_cast<uint32_t>(4000 + span)) % 96) : 0;
        sum += v[e];
      }
      v[(small + 1) % 16] += ((8 - sum) % 32 + 32) % 32;
      Quantization q{16, 1, 16, std::vector<float>(16)};
      for (uint32_t e = 0; e < 16; ++e) {
        float x = static_cast<float>(v[e]);
        if (e == small) x = std::ldexp(201.0f, -span);
        if (e == small + 8) x = std::ldexp(-200.0f, -span);
        q.x[e] = (signs >> e & 1) != 0 ? -x : x;
      }
      q.column = "nvfp4 hadamard=16";
      expect_equal(q);
      if (HasFailure()) return;
    }
}

// The same of 64 in MXFP4: 62 values of 8 bits add to 160.5 * 64, a tie of BF16 between 5 and more under the block's
// scale, and two small ones to the bit above it. Integers of 32 bits hold it up to a span of 16.
TEST(PrecisionP25, TiesOf64ThatTheSmallestBitDecides) {
  constexpr uint32_t signs = 0xD7E8;
  for (int span = 0; span < 40; ++span)  // in float64 too the last bit is lost from 40 on
    for (uint32_t draw = 0; draw < 12; ++draw) {
      const uint32_t small = draw % 32;
      int v[64], sum = 0;
      for (uint32_t e = 0; e < 64; ++e) {
        const bool large = e != small && e != small + 32;
        v[e] = large ? 128 + static_cast<int>(word(64 * draw + e, static_cast<uint32_t>(5000 + span)) % 70) : 0;
        sum += v[e];
      }
      for (uint32_t e = 0; sum != 160 * 64 + 32; e = (e + 1) % 64) {
        if (v[e] == 0) continue;
        const int step = std::clamp(160 * 64 + 32 - sum, 128 - v[e], 255 - v[e]);
        v[e] += step, sum += step;
      }
      Quantization q{64, 1, 64, std::vector<float>(64)};
      for (uint32_t e = 0; e < 64; ++e) {
        float x = static_cast<float>(v[e]);
        if (e == small) x = std::ldexp(201.0f, -span);
        if (e == small + 32) x = std::ldexp(-200.0f, -span);
        if (draw % 2 == 1) x = -x;
        q.x[e] = (signs >> (e % 16) & 1) != 0 ? -x : x;
      }
      q.column = "mxfp4 floor hadamard=64";
      EXPECT_EQ(expect_equal(q)[0].codes[0] & 7, 7) << "span " << span;  // 6: above the tie
      q.row = "mxfp4 floor hadamard=64", q.column = "-", q.rows = 1, q.tokens = 1, q.width = 64;
      EXPECT_EQ(expect_equal(q)[0].codes[0] & 7, 7) << "span " << span;
      if (HasFailure()) return;
    }
}

TEST(PrecisionP25, RotatedGroupsOf64OfAnySpan) {
  for (int span = 0; span <= 40; ++span)
    for (const int low : {-126, -90, -60, 0, 110 - span, 127 - span}) {
      Quantization q{128, 48, 64, spread(area(128, 48), static_cast<uint32_t>(7000 + span), low, low + span)};
      if (low == 127 - span)
        for (float& x : q.x) x *= 0.125f;
      for (size_t i = 0; i < q.x.size(); i += 3) q.x[i] = 0;
      q.row = "mxfp4 stochastic floor hadamard=64", q.column = "mxfp4 floor hadamard=64";
      expect_equal(q);
      if (HasFailure()) return;
    }
}

TEST(PrecisionP25, ManyGroups) {
  std::vector<float> x;
  for (int span = 0; span <= 60; ++span) {
    const std::vector<float> some = spread(area(16, 1640), static_cast<uint32_t>(3000 + span), -span, 0);
    x.insert(x.end(), some.begin(), some.end());
  }
  Quantization q{61 * 16, 1640, 61 * 16, x};  // 10^5 groups, a span for each 16 rows
  q.column = "nvfp4 unit hadamard=16";
  expect_equal(q);
}

TEST(PrecisionP36, StochasticCodesAreNotZeroAndChangeFromStepToStep) {
  for_each_kernel(quantize_cpu, [&](const Kernel& kernel, int threads) {
    Quantization q{
        64, 128, 64, spread(area(64, 128), 40, -6, 0), "nvfp4 stochastic", "nvfp4 stochastic hadamard=16 stream=1"};
    const std::vector<Parts> one = run_on(q, {kernel.run, kernel.workspace}, threads);
    q.random[1] += 1;
    const std::vector<Parts> two = run_on(q, {kernel.run, kernel.workspace}, threads);
    for (size_t k = 0; k < one.size(); ++k) {
      size_t other = 0, values = 0;
      for (size_t i = 0; i < one[k].codes.size(); ++i)
        for (const int shift : {0, 4}) {
          other += (one[k].codes[i] >> shift & 15) != (two[k].codes[i] >> shift & 15);
          values += (one[k].codes[i] >> shift & 7) != 0;
        }
      EXPECT_GT(values, 0u);
      EXPECT_GT(10 * other, 2 * one[k].codes.size()) << other << " of " << 2 * one[k].codes.size();
    }
  });
}

TEST(PrecisionP37, StochasticCodesDoNotDependOnThreadsOrOnTheCut) {
  // Two sequences with the same largest magnitudes: each alone has the scales of both.
  const int64_t tokens = 80, width = 272;
  std::vector<float> half = spread(area(tokens, width), 50, -6, -1);
  Quantization q{2 * tokens, width, tokens, half, "nvfp4 stochastic", "nvfp4 stochastic hadamard=16 stream=1"};
  q.x.insert(q.x.end(), half.begin(), half.end());
  q.random[2] = 6 * tokens;
  for_each_kernel(quantize_cpu, [&](const Kernel& kernel, int) {
    const std::vector<Parts> whole = run_on(q, {kernel.run, kernel.workspace}, 1);
    for (int threads = 2; threads <= 16; ++threads) {
      const std::vector<Parts> same = run_on(q, {kernel.run, kernel.workspace}, threads);
      for (size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(difference(same[i], whole[i]), "") << threads << " threads";
    }
    for (const int part : {0, 1}) {
      Quantization p = q;
      p.rows = tokens, p.x = half, p.random[2] += static_cast<int32_t>(part * tokens);
      const std::vector<Parts> alone = run_on(p, {kernel.run, kernel.workspace}, 2);
      const size_t n = alone[0].codes.size();
      EXPECT_TRUE(std::equal(alone[0].codes.begin(), alone[0].codes.end(),
                             whole[0].codes.begin() + static_cast<ptrdiff_t>(part * static_cast<int>(n))));
      const size_t pitch = alone[1].codes.size() / static_cast<size_t>(width);
      for (size_t c = 0; c < static_cast<size_t>(width); ++c)
        ASSERT_EQ(std::memcmp(&alone[1].codes[c * pitch], &whole[1].codes[(2 * c + static_cast<size_t>(part)) * pitch],
                              pitch),
                  0)
            << "column " << c;
    }
  });
}

// What requantize makes of a row copy's codes: rotated products of element and block scale.
TEST(PrecisionP58, RequantizedCopiesEqualTheDefinition) {
  const auto requantized = [](const Owned& saved, const Quantization& q, const Kernels& kernel, int threads) {
    const Attrs attrs{{"column", q.column}, {"tokens", q.tokens}, {"site", int64_t{5}}};
    const Type made = outputs(q)[0];
    Owned random({DType::i32, {4}}), out(made);
    std::memcpy(random.tensor().data, q.random.data(), sizeof q.random);
    const std::vector<Tensor> in = {saved.tensor(), random.tensor()}, outs = {out.tensor()};
    const Types in_types = {saved.type(), random.type()}, out_types = {made};
    const int64_t bytes = kernel.workspace == nullptr ? 0 : kernel.workspace({in_types, out_types, attrs, threads});
    const Owned space({DType::f32, {bytes / 4 + 1}});
    kernel.run({in, outs, attrs, space.tensor().as<std::byte>(), threads_of(threads)});
    return out;
  };
  const Sizes sizes[] = {{1, 1, 1},       {2, 17, 1},      {48, 130, 16},   {128, 256, 128}, {96, 31, 32},
                         {257, 272, 257}, {300, 520, 100}, {512, 300, 128}, {130, 16, 130}};
  uint32_t site = 6000;
  for (const Sizes& s : sizes)
    for (const char* from : {"nvfp4 four_six=mse", "nvfp4", "nvfp4 unit"})
      for (const std::pair<int, int>& binades : std::vector<std::pair<int, int>>{{-6, 1}, {-30, 30}, {-126, -100}}) {
        std::vector<float> x = spread(area(s.rows, s.width), ++site, binades.first, binades.second);
        if (site % 5 == 0) x.assign(x.size(), 0.0f);
        if (site % 7 == 0) x[x.size() / 2] = std::nanf("");
        const Owned saved = row_copy(Owned({DType::f32, {s.rows, s.width}}, x), from);
        Quantization q{s.rows, s.width, s.tokens, {}, "-", "nvfp4 eden hadamard=128 stream=3 signs=17"};
        q.random[2] = static_cast<int32_t>(2 * s.tokens);
        const Owned want = requantized(saved, q, {requantize_ref.f32, requantize_ref.workspace}, 1);
        for_each_kernel(requantize_cpu, [&](const Kernel& kernel, int threads) {
          EXPECT_EQ(difference(parts_of(requantized(saved, q, {kernel.run, kernel.workspace}, threads).tensor()),
                               parts_of(want.tensor())),
                    "")
              << s.rows << " x " << s.width << " in " << s.tokens << " from " << from;
        });
        if (HasFailure()) return;
      }
}

TEST(QuantizeKernels, LeaveSomeCopiesToTheReference) {
  Quantization q{64, 128, 32, {}};
  for (const char* spec : {"nvfp4_2d", "nvfp4 hadamard=64", "nvfp4 hadamard=32"}) {
    q.row = spec, q.column = "-";
    q.tokens = std::string(spec) == "nvfp4_2d" ? 8 : 32;
    for (const Kernel& kernel : quantize_cpu) EXPECT_NE(refusal(kernel, q), nullptr) << spec;
  }
}

}  // namespace
}  // namespace nibble
