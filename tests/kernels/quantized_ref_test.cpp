// The reference quantisers on whole tensors: layout, copies, poison, ragged axes and random bits
// (spec/precision.md 2, 3.3, 4.3). Products: quantized_product_ref_test.cpp.
#include <gtest/gtest.h>

#include "kernels/quantized_harness.h"
#include "numerics/blocks.h"
#include "numerics/eden.h"
#include "numerics/hadamard.h"
#include "vectors.h"

namespace nibble {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

const float nan = __builtin_nanf("");
constexpr float inf = __builtin_inff();

template <class T>
std::vector<T> transposed(const std::vector<T>& x, size_t rows, size_t columns) {
  std::vector<T> t(x.size());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) t[c * rows + r] = x[r * columns + c];
  return t;
}
int64_t size_of(const Json& list) { return static_cast<int64_t>(list.size()); }

// Rows of the vectors' form: {S_enc, amax, rows: [[{scale_byte, codes, packed}]]}.
void expect_rows(const Owned& got, const Json& want) {
  EXPECT_EQ(got.header().amax, number(want["amax"]));
  EXPECT_EQ(got.header().decode, number(want["S_dec"]));
  std::vector<int> scales, codes;
  std::vector<float> values;
  for (const Json& row : want["rows"])
    for (const Json& block : row) {
      scales.push_back(static_cast<int>(word(block["scale_byte"])));
      for (const int code : integers(block["codes"])) codes.push_back(code);
      for (const float v : numbers(block["dequant"])) values.push_back(v);
    }
  EXPECT_EQ(scales_of(got), scales);
  EXPECT_EQ(codes_of(got), codes);
  const std::vector<float> x = values_of(got);
  ASSERT_EQ(x.size(), values.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(same(x[i], values[i])) << i;
  for (size_t r = 0; r < want["rows"].size(); ++r) {
    std::string packed;
    for (const Json& block : want["rows"][r]) packed += text(block["packed"]);
    EXPECT_EQ(packed_row(got, static_cast<int64_t>(r)), packed);
  }
}

TEST(QuantizedRef, P4_PackingOfOddAndEvenLengths) {
  const Json& v = vectors("packing");
  std::vector<float> x;
  for (const int code : integers(v["codes"])) x.push_back(e2m1_decode(code));
  const Owned q = row_copy(matrix(1, 16, x), "nvfp4");  // amax 6: codes are the values themselves
  EXPECT_EQ(packed_row(q, 0), text(v["bytes"]));
  EXPECT_EQ(codes_of(q), integers(v["codes"]));
  for (int64_t n = 1; n <= 33; ++n) {
    std::vector<float> row;
    std::vector<int> codes;
    for (int64_t i = 0; i < n; ++i) codes.push_back(i % 16 == 0 ? 7 : static_cast<int>(i % 16));
    for (const int code : codes) row.push_back(e2m1_decode(code));
    const Owned ragged = row_copy(matrix(1, n, row), "nvfp4");
    EXPECT_EQ(codes_of(ragged), codes);
    const QuantizedView view = ragged.view();
    EXPECT_EQ(view.layout.code_pitch, (n + 15) / 16 * 8);
    for (int64_t i = n; i < view.layout.code_pitch * 2; ++i)
      EXPECT_EQ(view.codes(0)[i / 2] >> (i % 2 * 4) & 15, 0) << "fill " << i << " of " << n;
  }
}

TEST(QuantizedRef, P4_BytesOfATensor) {
  const auto bytes = [](DType dtype, int64_t rows, int64_t columns) {
    return Type{dtype, {rows, columns}}.nbytes() - 64;
  };
  EXPECT_EQ(bytes(DType::nvfp4, 5, 33), 8 * 5 * 3 + 5 * 3);
  EXPECT_EQ(bytes(DType::nvfp4_2d, 33, 33), 8 * 33 * 3 + 3 * 3);
  EXPECT_EQ(bytes(DType::mxfp4, 4, 64), 4 * 64 * 17 / 32);
  EXPECT_EQ(bytes(DType::mxfp8, 4, 64), 4 * 64 * 33 / 32);
  EXPECT_EQ(bytes(DType::e4m3, 3, 5), 15);
}

TEST(QuantizedRef, P7_ListedTensors) {
  for (const auto& [name, v] : vectors("nvfp4_1d").items()) {
    SCOPED_TRACE(name);
    if (name == "given_amax_larger") continue;  // its amax comes from elsewhere: NumericsNvfp4.P7
    const int64_t rows = size_of(v["input"]), columns = size_of(v["input"][0]);
    for (const DType dtype : {DType::f32, DType::bf16})
      expect_rows(row_copy(matrix(rows, columns, numbers(v["input"]), dtype), "nvfp4"), v);
  }
}

TEST(QuantizedRef, P9_TilesAndTheirTranspose) {
  const Json& v = vectors("nvfp4_2d");
  const std::vector<Owned> q = quantize(matrix(16, 32, numbers(v["input"])), "nvfp4_2d", "nvfp4_2d");
  EXPECT_EQ(q[0].header().amax, number(v["amax"]));
  EXPECT_EQ(q[0].header().decode, 1 / number(v["S_enc"]));
  EXPECT_EQ(codes_of(q[0]), integers(v["codes"]));
  EXPECT_EQ(scales_of(q[0]), integers(v["tile_scale_bytes"]));
  for (int64_t r = 0; r < 16; ++r) EXPECT_EQ(packed_row(q[0], r), text(v["packed_rowwise"][static_cast<size_t>(r)]));
  for (int64_t r = 0; r < 32; ++r) EXPECT_EQ(packed_row(q[1], r), text(v["packed_colwise"][static_cast<size_t>(r)]));
  EXPECT_EQ(scales_of(q[1]), integers(v["tile_scale_bytes"]));  // one row of tiles: its transpose is the same list

  // 4 x 3 tiles, the last ones cut on both edges.
  const std::vector<float> w = normal(int64_t{53} * 41, "p9");
  const std::vector<Owned> both = quantize(matrix(53, 41, w), "nvfp4_2d", "nvfp4_2d");
  const Owned turned = row_copy(matrix(41, 53, transposed(w, 53, 41)), "nvfp4_2d");
  EXPECT_EQ(scales_of(both[1]), scales_of(turned));
  EXPECT_EQ(scales_of(both[1]), transposed(scales_of(both[0]), 4, 3));
  EXPECT_EQ(codes_of(turned), transposed(codes_of(both[0]), 53, 41));
  for (int64_t r = 0; r < 41; ++r) EXPECT_EQ(packed_row(both[1], r), packed_row(turned, r));  // with its fill
}

TEST(QuantizedRef, P10_RowCopyAndRotatedColumnCopy) {
  const Json& v = vectors("row_and_rht_column_copy");
  const std::vector<Owned> q = quantize(matrix(16, 16, numbers(v["input"])), "nvfp4", "nvfp4 hadamard=16");
  {
    SCOPED_TRACE("row copy");
    expect_rows(q[0], v["rowwise"]);
  }
  SCOPED_TRACE("column copy");
  expect_rows(q[1], v["columnwise"]);
  const Owned direct = row_copy(matrix(16, 16, numbers(v["transposed_rht_bf16"])), "nvfp4");
  EXPECT_TRUE(direct == q[1]);
}

// The copies of a weight lie over the ones of the step before.
TEST(QuantizedRef, P9_CopiesOfAWeight) {
  const Owned w = matrix(20, 36, normal(20 * 36, "w"));
  const std::vector<Owned> want = quantize(w, "nvfp4_2d", "nvfp4_2d");
  Owned random({DType::i32, {quantize_words}});
  std::memset(random.tensor().data, 0, 16);
  const Attrs attrs{{"row", "nvfp4_2d"}, {"column", "nvfp4_2d"}, {"tokens", int64_t{20}}, {"site", int64_t{0}}};
  const Owned in[] = {Owned(want[0].type()), Owned(want[1].type()), w, random};
  const std::vector<Owned> got = run_reference(quantize_weights_op, ref::quantize_weights, in, attrs);
  EXPECT_TRUE(got[0] == want[0]);
  EXPECT_TRUE(got[1] == want[1]);
}

// A NaN or an infinity anywhere: what each format stores instead of the tensor, or of the block.
TEST(QuantizedRef, P15_NonFiniteValuesPoisonTheTensor) {
  for (const Json& v : vectors("nvfp4_nonfinite")) {
    const Owned q = row_copy(matrix(1, 32, numbers(v["input"])), "nvfp4");
    EXPECT_EQ(std::bit_cast<uint32_t>(q.header().amax), word(v["amax_bits"]));
    EXPECT_EQ(scales_of(q), integers(v["scale_bytes"]));
    EXPECT_EQ(packed_row(q, 0), text(v["packed"]));
  }
  struct Row {
    const char* spec;
    int byte;  // of every scale; -1: none
  };
  const Row rows[] = {{"nvfp4", 0x7F},
                      {"nvfp4 stochastic", 0x7F},
                      {"nvfp4 four_six=mse", 0x7F},
                      {"nvfp4 pow2", 0x7F},
                      {"nvfp4 unit", 0x7F},
                      {"nvfp4_2d", 0x7F},
                      {"nvfp4 hadamard=16", 0x7F},
                      {"nvfp4 eden hadamard=128 signs=16", 0x7F},
                      {"fp8_block", 0xFF},
                      {"fp8_block_2d", 0xFF},
                      {"e4m3", -1},
                      {"e5m2", -1}};
  for (const Row& row : rows)
    for (const float bad : {nan, inf, -inf})
      for (const size_t position : {size_t{0}, size_t{128 * 40 - 1}, size_t{1700}}) {
        SCOPED_TRACE(std::string(row.spec) + " " + std::to_string(bad) + " at " + std::to_string(position));
        std::vector<float> x = normal(int64_t{40} * 128, "p15");
        x[position] = bad;
        for (const Owned& q : quantize(matrix(40, 128, x), row.spec, row.spec)) {
          EXPECT_EQ(std::bit_cast<uint32_t>(q.header().amax), 0x7fc00000u);
          EXPECT_TRUE(std::isnan(q.header().decode));
          EXPECT_EQ(q.header().blank, 0u);
          EXPECT_EQ(codes_of(q), std::vector<int>(static_cast<size_t>(q.type().numel()), 0));
          for (const int byte : scales_of(q)) EXPECT_EQ(byte, row.byte);
          const Owned other = row_copy(matrix(3, q.type().dim(1), normal(3 * q.type().dim(1), "o")),
                                       std::string(name_of(q.type().dtype)));
          for (const float y : numbers_of(product(q, other))) EXPECT_TRUE(std::isnan(y));
          for (const float y : numbers_of(product(other, q))) EXPECT_TRUE(std::isnan(y));
        }
      }
}

// The MX formats have no scale of the tensor: only the block is lost, and only what reads it is NaN.
TEST(QuantizedRef, P15_NonFiniteValuesPoisonABlockOfMx) {
  for (const char* spec : {"mxfp4", "mxfp4 floor", "mxfp4 stochastic", "mxfp8", "mxfp4_2d"})
    for (const float bad : {nan, inf, -inf}) {
      SCOPED_TRACE(std::string(spec) + " " + std::to_string(bad));
      std::vector<float> x = normal(int64_t{40} * 96, "p15");
      const Owned before = row_copy(matrix(40, 96, x), spec);
      x[5 * 96 + 40] = bad;
      const Owned q = row_copy(matrix(40, 96, x), spec);
      const QuantizedView v = q.view();
      EXPECT_EQ(std::bit_cast<uint32_t>(q.header().amax), 0x7fc00000u);
      const int64_t last = v.format.rows == 1 ? 5 : 31, first = v.format.rows == 1 ? 5 : 0;
      std::vector<int> codes = codes_of(before);
      for (int64_t r = 0; r < 40; ++r)
        for (int64_t b = 0; b < 3; ++b) {
          const bool lost = r >= first && r <= last && b == 1;
          EXPECT_EQ(v.scales(r)[b], lost ? 0xFF : before.view().scales(r)[b]);
          for (int64_t i = 32 * b; lost && i < 32 * b + 32; ++i) codes[static_cast<size_t>(r * 96 + i)] = 0;
        }
      EXPECT_EQ(codes_of(q), codes);
      const Owned other = row_copy(matrix(2, 96, normal(2 * 96, "o")), std::string(name_of(q.type().dtype)));
      const std::vector<float> y = numbers_of(product(q, other));
      for (int64_t r = 0; r < 40; ++r) EXPECT_EQ(std::isnan(y[static_cast<size_t>(2 * r)]), r >= first && r <= last);
    }
}

TEST(QuantizedRef, P17_RaggedRowsEqualFilledOnes) {
  const Json& v = vectors("ragged")["row_of_20"];
  const Owned listed = row_copy(matrix(1, 20, numbers(v["input"])), "nvfp4");
  EXPECT_EQ(listed.header().amax, number(v["amax"]));
  EXPECT_EQ(scales_of(listed), integers(v["scale_bytes"]));
  EXPECT_EQ(packed_row(listed, 0), text(v["packed"]));
  EXPECT_EQ(listed.view().layout.code_pitch, v["stored_bytes"].get<int64_t>());
  for (const char* spec :
       {"nvfp4", "nvfp4 stochastic", "nvfp4_2d", "nvfp4 four_six=mae", "mxfp4", "mxfp8", "fp8_block"})
    for (const int64_t k : {1, 15, 17, 20, 33}) {
      SCOPED_TRACE(std::string(spec) + " K " + std::to_string(k));
      const int64_t rows = 18, full = filled(parse_quant_spec(spec), k);
      const std::vector<float> x = normal(rows * k, "p17");
      std::vector<float> wide(static_cast<size_t>(rows * full));
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < k; ++i) wide[static_cast<size_t>(r * full + i)] = x[static_cast<size_t>(r * k + i)];
      const Owned ragged = row_copy(matrix(rows, k, x), spec), whole = row_copy(matrix(rows, full, wide), spec);
      EXPECT_EQ(std::memcmp(&ragged.header(), &whole.header(), sizeof(QuantizedHeader)), 0);
      EXPECT_EQ(scales_of(ragged), scales_of(whole));
      for (int64_t r = 0; r < rows; ++r) EXPECT_EQ(packed_row(ragged, r), packed_row(whole, r));
      EXPECT_EQ(numbers_of(product(ragged, ragged)), numbers_of(product(whole, whole)));
    }
}

// Two sequences of 20 tokens: each is filled to 32 before the transform, and all 64 results are stored.
TEST(QuantizedRef, P17_RotationFillsEachSequence) {
  const Json& v = vectors("ragged")["rht_of_20_tokens"];
  const std::vector<float> tokens = numbers(v["input"]), turned = numbers(v["output_bf16"]);
  std::vector<float> x, want;
  for (const float sign : {1.0f, -1.0f}) {
    for (const float t : tokens) x.push_back(sign * t);
    for (const float t : turned) want.push_back(sign * t + 0.0f);
  }
  const Owned q = column_copy(matrix(40, 1, x), "nvfp4 hadamard=16", {.tokens = 20});
  EXPECT_TRUE(q == row_copy(matrix(1, 64, want), "nvfp4"));
}

// Codes in the fill of the last block are read by nobody.
TEST(QuantizedRef, P17_TheFillOfTheLastBlockIsNotRead) {
  for (const char* spec : {"nvfp4", "mxfp4", "mxfp8", "fp8_block"}) {
    const std::vector<float> x = normal(5 * 37, "x"), w = normal(3 * 37, "w");
    const Owned a = row_copy(matrix(5, 37, x), spec), b = row_copy(matrix(3, 37, w), spec);
    const std::vector<float> want = numbers_of(product(a, b));
    for (const Owned* t : {&a, &b}) {
      const QuantizedView v = t->view();
      for (int64_t r = 0; r < v.layout.rows; ++r) {
        if (v.format.bits == 4) v.codes(r)[18] |= 0xF0;
        for (int64_t i = v.format.bits == 4 ? 19 : 37; i < v.layout.code_pitch; ++i) v.codes(r)[i] = 0xFF;
      }
    }
    EXPECT_EQ(numbers_of(product(a, b)), want) << spec;
  }
}

TEST(QuantizedRef, P18_FourOverSixOfTilesAndRows) {
  const Json& v = vectors("nvfp4_4over6");
  std::vector<float> x;
  for (const Json& block : v["blocks"])
    for (const float t : numbers(block["input"])) x.push_back(t);
  for (const char* kind : {"mse", "mae"}) {
    const Owned q = row_copy(matrix(size_of(v["blocks"]), 16, x), std::string("nvfp4 four_six=") + kind);
    EXPECT_EQ(q.header().by_amax, 0u);
    EXPECT_EQ(q.header().decode, 1 / number(v["S_enc"]));
    std::vector<int> scales, codes;
    for (const Json& block : v["blocks"]) {
      scales.push_back(integers(block["bytes_6_4"])[block[kind]["chosen"] == 4]);
      for (const int code : integers(block[kind]["codes"])) codes.push_back(code);
    }
    EXPECT_EQ(scales_of(q), scales);
    EXPECT_EQ(codes_of(q), codes);
  }
  const Json& tile = v["tile_of_nvfp4_2d_columns_16_31"];
  const Owned w = row_copy(matrix(16, 32, numbers(vectors("nvfp4_2d")["input"])), "nvfp4_2d four_six=mse");
  EXPECT_EQ(scales_of(w)[1], integers(tile["bytes_6_4"])[tile["chosen"] == 4]);
}

// Tiles of many widths of distribution: some take 4, some 6, and the transpose takes the same.
TEST(QuantizedRef, P18_BothCopiesOfATileHaveItsByte) {
  constexpr int64_t rows = 256, columns = 2048;
  std::vector<float> x(rows * columns);
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t w = philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, 1, 18)[0];
    const size_t tile = i / columns / 16 * (columns / 16) + i % columns / 16;
    const int most = 20 + static_cast<int>(tile % 92);
    x[i] = i / columns % 16 == 0 && i % 16 == 0
               ? 7
               : static_cast<float>(static_cast<int>(w % static_cast<uint32_t>(2 * most + 1)) - most) / 16;
  }
  for (const std::string kind : {"four_six=mae", "four_six=mse", "pow2 four_six=mae"}) {
    const std::string spec = "nvfp4_2d " + kind;
    const std::vector<Owned> both = quantize(matrix(rows, columns, x), spec, spec);
    EXPECT_EQ(scales_of(both[1]), transposed(scales_of(both[0]), rows / 16, columns / 16)) << kind;
    EXPECT_EQ(codes_of(both[1]), transposed(codes_of(both[0]), rows, columns)) << kind;
  }
}

TEST(QuantizedRef, P16_PowerOfTwoScalesDoNotDependOnTheAmax) {
  const std::vector<float> z = normal(int64_t{32} * 64, "p16");
  std::vector<std::vector<float>> values;
  for (const float other : {4.0f, 8.1f, 150.0f}) {  // a row that holds the amax
    std::vector<float> x = z;
    x.resize(x.size() + 64), x.back() = other;
    std::vector<float> y = values_of(row_copy(matrix(33, 64, x), "nvfp4 pow2"));
    for (const float t : y) EXPECT_EQ(widen(round_bf16(t)), t);
    y.resize(z.size());
    values.push_back(y);
  }
  EXPECT_EQ(values[0], values[1]);
  EXPECT_EQ(values[0], values[2]);
}

TEST(QuantizedRef, P20_MxTensors) {
  for (const Json& v : vectors("mx")) {
    if (v["fmt"] != "mxfp8_e4m3") continue;
    const Owned q = row_copy(matrix(1, 32, numbers(v["input"])), "mxfp8");
    EXPECT_EQ(scales_of(q)[0], static_cast<int>(word(v["e8m0"])));
    EXPECT_EQ(codes_of(q), integers(v["bytes"]));
    EXPECT_EQ(values_of(q), numbers(v["dequant"]));
  }
  std::vector<float> x;
  for (const Json& v : vectors("mx")) {
    if (v["fmt"] == "mxfp4_input") x = numbers(v["input"]);
    if (v["fmt"] != "mxfp4_ocp_floor_rn" && v["fmt"] != "mxfp4_roundup_rn") continue;
    const Owned q = row_copy(matrix(1, 32, x), v["fmt"] == "mxfp4_roundup_rn" ? "mxfp4" : "mxfp4 floor");
    EXPECT_EQ(scales_of(q)[0], static_cast<int>(word(v["e8m0"])));
    EXPECT_EQ(codes_of(q), integers(v["codes"]));
  }
  // Stochastic: 3/4 of the value under the floor rule, both halves of a block with bits of their own.
  for (const char* spec : {"mxfp4 floor stochastic stream=4", "mxfp4 stochastic stream=4"}) {
    const Owned q = row_copy(matrix(1, 32, x), spec);
    const float factor =
        e8m0_inverse(scales_of(q)[0]) * (std::string(spec).find("floor") != std::string::npos ? 0.75f : 1);
    for (size_t i = 0; i < 32; ++i) {
      const PhiloxWords words = philox4x32({static_cast<uint32_t>(i / 16), 0, 3, 4}, 1234, 7);
      EXPECT_EQ(codes_of(q)[i], e2m1_encode_stochastic(x[i] * factor, words[i % 16 / 4] >> (i % 4 * 8) & 255)) << i;
    }
  }
}

TEST(QuantizedRef, P21_Fp8Tensors) {
  std::vector<float> x;
  for (const Json& v : vectors("mx"))
    if (v["fmt"] == "mxfp8_e4m3") x = numbers(v["input"]);
  for (const Json& v : vectors("fp8_current_and_block")) {
    const std::string format = v["fmt"];
    if (!v.contains("bytes")) continue;
    const std::string spec = format.substr(12, 4) + (format.find("pow2") != std::string::npos ? " pow2" : "");
    const std::vector<Owned> q = quantize(matrix(4, 8, x), spec, spec);
    EXPECT_EQ(q[0].header().amax, number(v["amax"])) << spec;
    EXPECT_EQ(q[0].header().decode, number(v["scale_inv"])) << spec;
    EXPECT_EQ(codes_of(q[0]), integers(v["bytes"])) << spec;
    EXPECT_EQ(codes_of(q[1]), transposed(codes_of(q[0]), 4, 8)) << spec;  // one set of codes, both ways
  }
  for (const Json& v : vectors("fp8_block_scale")) {
    const float amax = number(v["amax"]);
    if (widen(round_bf16(amax)) != amax) continue;
    const Owned q = row_copy(matrix(1, 3, std::vector<float>{amax, -amax, 0}), "fp8_block");
    EXPECT_EQ(block_scale_value(DType::fp8_block, scales_of(q)[0]), number(v["scale_inv"])) << v;
    EXPECT_EQ(codes_of(q)[0], e4m3_encode(amax * number(v["scale"]))) << v;
  }
}

TEST(QuantizedRef, P22_DelayedScaleOfTheStepBefore) {
  const Owned x = matrix(2, 3, std::vector<float>{1, -2, 3, -500, 0, 0.5f});
  Owned random({DType::i32, {quantize_words}});
  std::memset(random.tensor().data, 0, 16);
  const Owned scale({DType::f32, {1}}, std::vector<float>{4});
  const Attrs attrs{{"row", "e4m3 delayed"}, {"column", "-"}, {"tokens", int64_t{2}}, {"site", int64_t{0}}};
  const Owned in[] = {x, random, scale};
  const Owned q = run_reference(quantize_op, ref::quantize, in, attrs)[0];
  EXPECT_EQ(q.header().amax, 500);  // what goes into the history
  EXPECT_EQ(q.header().decode, 0.25f);
  EXPECT_EQ(values_of(q), (std::vector<float>{1, -2, 3, -112, 0, 0.5f}));  // what lies beyond 448/4 saturates
}

// Draws are named by global coordinates (section 4.3), so a part of the batch has the codes of the whole.
TEST(QuantizedRef, P29_BlockIndexOfRowAndColumnCopies) {
  for (const Json& v : vectors("block_index")) {
    const int64_t rows = v["R"], columns = v["C"], r = v["r"], c = v["c"];
    EXPECT_EQ(v["copy"] == "row" ? r * ((columns + 15) / 16) + c / 16 : r / 16 * columns + c,
              v["index"].get<int64_t>());
    std::vector<float> x = normal(rows * columns, "p29");
    const bool row = v["copy"] == "row";
    const std::vector<Owned> q = quantize(matrix(rows, columns, x), "nvfp4 stochastic", "nvfp4 stochastic stream=1");
    const Owned& copy = q[row ? 0 : 1];
    const Nvfp4Scale s = nvfp4_scale(copy.header().amax);
    const int64_t i = row ? r : c, e = row ? c : r;
    const PhiloxWords words = philox4x32({v["index"].get<uint32_t>(), 0, 3, row ? 0u : 1u}, 1234, 7);
    const float t = x[static_cast<size_t>(r * columns + c)] * nvfp4_encode_scale(copy.view().scales(i)[e / 16], s);
    const uint32_t byte = words[static_cast<size_t>(e % 16 / 4)] >> (e % 4 * 8) & 255;
    EXPECT_EQ(codes_of(copy)[static_cast<size_t>(i * copy.type().dim(1) + e)], e2m1_encode_stochastic(t, byte)) << v;
  }
}

TEST(QuantizedRef, P29_APartOfTheBatchHasTheCodesOfTheWhole) {
  const int64_t tokens = 20, sequences = 4, width = 40, part = tokens * 2;
  std::vector<float> x = normal(tokens * sequences * width, "part");
  x[0] = x[static_cast<size_t>(part * width)] = 9;  // one amax for both parts
  for (const char* column : {"nvfp4 stochastic stream=1", "nvfp4 pow2 stochastic hadamard=16 stream=1",
                             "nvfp4 pow2 eden hadamard=128 stream=1 signs=17"}) {
    SCOPED_TRACE(column);
    const auto run = [&](int64_t first, int64_t rows) {
      return quantize(
          matrix(rows, width,
                 std::span(x).subspan(static_cast<size_t>(first * width), static_cast<size_t>(rows * width))),
          "nvfp4 stochastic", column, {.first_row = static_cast<int32_t>(first), .tokens = tokens});
    };
    const std::vector<Owned> whole = run(0, tokens * sequences), second = run(part, part);
    const std::vector<int> rows = codes_of(whole[0]), rows2 = codes_of(second[0]);
    EXPECT_TRUE(std::equal(rows2.begin(), rows2.end(), rows.begin() + part * width));
    const int64_t all = whole[1].type().dim(1), half = second[1].type().dim(1);
    EXPECT_EQ(all, 2 * half);
    const std::vector<float> columns = values_of(whole[1]), columns2 = values_of(second[1]);
    for (int64_t i = 0; i < width; ++i)
      for (int64_t e = 0; e < half; ++e)
        ASSERT_EQ(columns2[static_cast<size_t>(i * half + e)], columns[static_cast<size_t>(i * all + half + e)])
            << i << " " << e;
  }
}

TEST(QuantizedRef, P36_StochasticCodesAreAliveAndDifferBetweenSteps) {
  const Owned dy = matrix(64, 256, normal(int64_t{64} * 256, "dy", 1e-4));
  const std::vector<Owned> a = quantize(dy, "nvfp4 stochastic", "nvfp4 stochastic hadamard=16 stream=1");
  const std::vector<Owned> b = quantize(dy, "nvfp4 stochastic", "nvfp4 stochastic hadamard=16 stream=1", {.step = 4});
  for (size_t k = 0; k < 2; ++k) {
    EXPECT_EQ(a[k].header().blank, 0u);
    const std::vector<int> x = codes_of(a[k]), y = codes_of(b[k]);
    size_t differ = 0, alive = 0;
    for (size_t i = 0; i < x.size(); ++i) differ += x[i] != y[i], alive += (x[i] & 7) != 0;
    EXPECT_GT(differ * 10, x.size());
    EXPECT_GT(alive * 10, x.size() * 8);
  }
  EXPECT_TRUE(a[0] == quantize(dy, "nvfp4 stochastic")[0]);
}

TEST(QuantizedRef, BlankIsATensorThatLostAllItsValues) {
  const auto blank = [](const char* spec, std::vector<float> x) {
    return row_copy(matrix(1, static_cast<int64_t>(x.size()), x), spec).header().blank;
  };
  for (const char* spec : {"nvfp4", "mxfp4", "mxfp8", "e4m3", "fp8_block"}) {
    EXPECT_EQ(blank(spec, {0, 0, -0.0f}), 0u) << spec;
    EXPECT_EQ(blank(spec, {0, 1, -0.0f}), 0u) << spec;
  }
  EXPECT_EQ(blank("nvfp4 unit", {1e-4f, -1e-5f}), 1u);  // without a tensor scale the block's underflows
  EXPECT_EQ(blank("nvfp4", {1e-4f, -1e-5f}), 0u);
}

// RHT-128 of a row copy, then EDEN: the group, its signs and its words.
TEST(QuantizedRef, P39_EdenOfARowAndOfASavedOperand) {
  const std::vector<float> x = normal(2 * 200, "p39");
  const Owned q = row_copy(matrix(2, 200, x), "nvfp4 eden hadamard=128 signs=16");
  ASSERT_EQ(q.type().dim(1), 256);
  std::vector<float> z(512);
  for (size_t r = 0; r < 2; ++r)
    for (size_t i = 0; i < 200; ++i) z[r * 256 + i] = x[r * 200 + i];
  float amax = 0;
  for (size_t g = 0; g < 4; ++g) {
    rht128(z.data() + 128 * g, philox4x32({static_cast<uint32_t>(g % 2), 0, 3, 16}, 1234, 7));
    for (size_t i = 0; i < 128; ++i) amax = std::max(amax, std::fabs(z[128 * g + i]));
  }
  EXPECT_EQ(q.header().amax, amax);
  const Nvfp4Scale s = nvfp4_scale(amax, nvfp4_eden);
  for (uint32_t g = 0; g < 4; ++g) {
    uint32_t words[8];
    for (uint32_t k = 0; k < 8; ++k) words[k] = philox4x32({8 * g + k, 0, 3, 0}, 1234, 7)[0];
    const EdenGroup want = eden(z.data() + 128 * g, s, words);
    for (uint32_t k = 0; k < 8; ++k) EXPECT_EQ(scales_of(q)[8 * g + k], want.bytes[k]);
    for (uint32_t i = 0; i < 128; ++i) EXPECT_EQ(codes_of(q)[128 * g + i], want.codes[i]);
  }
  // A saved operand turns its products of code and block scale; its S_dec waits for the factor of the product.
  const Owned saved = row_copy(matrix(128, 16, normal(128 * 16, "saved")), "nvfp4 four_six=mse");
  std::vector<float> products = values_of(saved);
  const QuantizedView v = saved.view();
  for (int64_t r = 0; r < 128; ++r)
    for (int64_t i = 0; i < 16; ++i)
      products[static_cast<size_t>(r * 16 + i)] =
          element_value(DType::nvfp4, v.codes(r), i) * e4m3_decode(v.scales(r)[0]);
  const std::string spec = "nvfp4 eden hadamard=128 stream=3 signs=17";
  const Owned again = requantized(saved, spec), direct = column_copy(matrix(128, 16, products), spec);
  EXPECT_EQ(again.header().saved, saved.header().decode);
  EXPECT_EQ(again.header().amax, direct.header().amax);
  EXPECT_EQ(codes_of(again), codes_of(direct));
  EXPECT_EQ(scales_of(again), scales_of(direct));
}

}  // namespace
}  // namespace nibble
