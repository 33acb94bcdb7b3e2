// One row for each op (two where an attribute or the number of operands changes what happens): operands with their
// ranges, and what the op's file says about them. ops_test.cpp derives all tests from these rows and fails for an op
// without one.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/ops.h"

namespace nibble {

struct Operand {
  Type type;
  double low = -1, high = 1;  // uniform; integers: low ... high inclusive; a quantised operand: of what it is made from
  std::vector<int32_t> fixed;  // these instead
};

struct OpRow {
  const Op* op;
  std::vector<Operand> in;
  Attrs attrs;
  Types out;
  Cost cost;
  std::vector<int> differentiable;  // operands that have a gradient; none: the op is not differentiable
  int cuts;                         // axes along which the sharding string lets it be cut
  std::vector<std::pair<size_t, Type>> broken = {};  // operand and type that the shape rule refuses
};

inline Type f32(std::initializer_list<int64_t> dims) { return {DType::f32, Shape(dims)}; }
inline Type f64(std::initializer_list<int64_t> dims) { return {DType::f64, Shape(dims)}; }
inline Type i32(std::initializer_list<int64_t> dims) { return {DType::i32, Shape(dims)}; }
inline Type nvfp4(std::initializer_list<int64_t> dims) { return {DType::nvfp4, Shape(dims)}; }
inline Type tiles(std::initializer_list<int64_t> dims) { return {DType::nvfp4_2d, Shape(dims)}; }
inline Type mxfp4(std::initializer_list<int64_t> dims) { return {DType::mxfp4, Shape(dims)}; }
inline Type fp8(std::initializer_list<int64_t> dims) { return {DType::e4m3, Shape(dims)}; }

/// Two rows of 70 positions: documents of 30 and 33 with 7 of padding; padding in front, then two documents.
inline std::vector<int32_t> two_rows_of_documents() {
  std::vector<int32_t> s(140);
  for (int i = 0; i < 70; ++i) s[i] = i < 30 ? 1 : i < 63 ? 2 : 0, s[70 + i] = i < 3 ? 0 : i < 66 ? 1 : 2;
  return s;
}

inline std::vector<OpRow> op_rows() {
  const Type q = f32({2, 70, 4, 6}), k = f32({2, 70, 2, 6}), lse = f32({2, 70, 4}), x = f32({2, 5, 6}),
             bt = i32({2, 5}), bt_f = f32({2, 5});
  const Operand documents{i32({2, 70}), 0, 0, two_rows_of_documents()}, targets{bt, -1, 8}, inv_n{f32({1}), 0.25, 0.25};
  const Operand span{i32({2}), 0, 0, {80, 2}}, cache{f32({90, 2, 6})}, positive_matrix{f32({20, 6}), 0.01, 1},
      scalars{f32({8}), 0.1, 0.9};
  const Type matrix = f32({20, 6}), many = f32({2, 40, 20});
  const Attrs all_keys{{"scale", 0.4082482904638631}, {"window", int64_t{0}}},
      five_keys{{"scale", 0.4082482904638631}, {"window", int64_t{5}}};
  const Operand bits{i32({4}), 0, 0, {1234, 3, 10, 0}};  // seed, step, first row
  const auto copies = [](const char* row, const char* column, int64_t tokens) {
    return Attrs{{"row", std::string(row)}, {"column", std::string(column)}, {"tokens", tokens}, {"site", int64_t{5}}};
  };
  const Attrs rotated{{"hadamard", int64_t{32}}};
  const Attrs in_f32{{"dtype", std::string("f32")}}, in_half{{"dtype", std::string("bf16")}};
  const Attrs adam{{"eps", 1e-8}, {"eps_root", 0.0}, {"weight_decay", 0.1}};
  // clang-format off
  return {
    {&embedding_op, {{i32({2, 40}), 0, 6}, {f32({7, 6})}}, {}, {f32({2, 40, 6})}, {0, 4160}, {1}, 3, {{0, f32({2, 40})}, {1, f32({7})}}},
    {&embedding_grad_op, {{f32({7, 6})}, {i32({2, 40}), 0, 6}, {f32({2, 40, 6})}}, {}, {f32({7, 6})}, {480, 6080}, {}, 3,
     {{0, f32({7, 5})}, {1, i32({2, 39})}, {1, f32({2, 40})}}},
    {&linear_op, {{f32({2, 5, 12})}, {f32({7, 12})}}, {}, {f32({2, 5, 7})}, {1680, 1096}, {0, 1}, 4, {{1, f32({7, 11})}, {1, f32({12})}}},
    {&linear_dgrad_op, {{f32({2, 5, 7})}, {f32({7, 12})}}, {}, {f32({2, 5, 12})}, {1680, 1096}, {}, 4, {{1, f32({8, 12})}, {1, f32({7})}}},
    {&linear_dgrad_op, {{f32({2, 5, 7})}, {f32({7, 12})}, {f32({2, 5, 3})}, {f32({3, 12})}, {f32({2, 5, 3})}, {f32({3, 12})}}, {}, {f32({2, 5, 12})},
     {3120, 1624}, {}, 4, {{2, f32({2, 5, 4})}, {3, f32({3, 11})}}},
    {&linear_wgrad_op, {{f32({7, 12})}, {f32({2, 5, 7})}, {f32({2, 5, 12})}}, {}, {f32({7, 12})}, {1680, 1432}, {}, 4,
     {{0, f32({7, 11})}, {1, f32({2, 5, 8})}, {2, f32({2, 4, 12})}}},
    {&rms_norm_op, {{f32({2, 5, 20})}, {f32({20})}}, {{"eps", 1e-5}}, {f32({2, 5, 20}), bt_f}, {800, 1720}, {0, 1}, 2, {{1, f32({19})}, {1, f32({1, 20})}}},
    {&rms_norm_grad_op, {{f32({20})}, {many}, {many}, {f32({20})}, {f32({2, 40}), 0.5, 2}}, {}, {f32({20}), many}, {16000, 19760}, {}, 2,
     {{0, f32({19})}, {1, f32({2, 40, 19})}, {4, f32({2, 39})}}},
    {&rope_op, {{f32({2, 5, 4, 6})}, {f32({9, 6})}, {bt, 0, 8}}, {{"inverse", int64_t{0}}}, {f32({2, 5, 4, 6})}, {720, 1920}, {0}, 3,
     {{0, f32({2, 5, 4, 5})}, {1, f32({9, 5})}, {2, i32({2, 4})}, {2, f32({2, 5})}}},
    {&rope_op, {{f32({2, 5, 4, 6})}, {f32({9, 6})}, {bt, 0, 8}}, {{"inverse", int64_t{1}}}, {f32({2, 5, 4, 6})}, {720, 1920}, {0}, 3},
    {&attention_op, {{q, -2, 2}, {k, -2, 2}, {k}, documents}, all_keys, {q, lse}, {477120, 43120}, {0, 1, 2}, 2,
     {{1, f32({2, 69, 2, 6})}, {1, f32({2, 70, 3, 6})}, {0, f32({2, 70, 4, 5})}, {3, i32({2, 69})}, {0, f32({2, 70, 3, 6})}}},
    {&attention_op, {{q, -2, 2}, {k, -2, 2}, {k}, documents}, five_keys, {q, lse}, {65280, 43120}, {0, 1, 2}, 2},
    {&attention_grad_op, {{q}, {q}, {k}, {k}, {q}, {lse, 0, 3}, documents}, all_keys, {q, k, k}, {1192800, 83440}, {}, 2,
     {{0, k}, {4, k}, {5, f32({2, 70, 2})}, {6, i32({2, 69})}}},
    {&attention_grad_op, {{q}, {q}, {k}, {k}, {q}, {lse, 0, 3}, documents}, five_keys, {q, k, k}, {163200, 83440}, {}, 2},
    {&swiglu_op, {{x, -3, 3}, {x}}, {}, {x}, {360, 720}, {0, 1}, 3, {{1, f32({2, 5, 5})}}},
    {&swiglu_grad_op, {{x}, {x, -3, 3}, {x}}, {}, {x, x}, {720, 1200}, {}, 3, {{0, f32({2, 5, 5})}}},
    {&add_op, {{x}, {x}}, {}, {x}, {60, 720}, {0, 1}, 3, {{1, f32({5, 6})}}},
    {&scale_op, {{x}}, {{"factor", 0.3}}, {x}, {60, 480}, {0}, 3},
    {&split_heads_op, {{f32({2, 5, 12})}}, {{"head_size", int64_t{3}}}, {f32({2, 5, 4, 3})}, {0, 0}, {0}, 3, {{0, f32({2, 5, 11})}, {0, f32({1, 1, 1, 1, 12})}}},
    {&merge_heads_op, {{f32({2, 5, 4, 3})}}, {}, {f32({2, 5, 12})}, {0, 0}, {0}, 3, {{0, f32({12})}}},
    {&zeros_op, {}, {{"type", std::string("f32[3, 4]")}}, {f32({3, 4})}, {0, 48}, {}, 0},
    {&ones_op, {}, {{"type", std::string("f32[3, 4]")}}, {f32({3, 4})}, {0, 48}, {}, 0},
    {&cross_entropy_op, {{x, -2, 2}, {f32({9, 6})}, targets, inv_n}, {{"z_loss", 0.0}}, {bt_f, bt_f}, {1080, 580}, {0, 1}, 2,
     {{1, f32({9, 5})}, {2, i32({2, 4})}, {2, f32({2, 5})}, {3, f32({2})}}},
    {&cross_entropy_op, {{x, -2, 2}, {f32({9, 6})}, targets, inv_n}, {{"z_loss", 0.125}}, {bt_f, bt_f}, {1080, 580}, {0, 1}, 2},
    {&cross_entropy_grad_op, {{f32({9, 6})}, {x, -2, 2}, {f32({9, 6})}, targets, inv_n}, {{"z_loss", 0.0}}, {f32({9, 6}), x, bt_f, bt_f}, {3240, 1252}, {}, 2,
     {{0, f32({9, 5})}, {1, f32({2, 5, 5})}}},
    {&cross_entropy_grad_op, {{f32({9, 6})}, {x, -2, 2}, {f32({9, 6})}, targets, inv_n}, {{"z_loss", 0.125}}, {f32({9, 6}), x, bt_f, bt_f}, {3240, 1252}, {}, 2},
    {&append_op, {cache, {f32({3, 2, 6})}, span}, {}, {cache.type}, {0, 288}, {}, 2, {{1, f32({3, 3, 6})}, {1, f32({3, 2, 5})}, {2, i32({1})}}},
    {&attention_cached_op, {{f32({3, 4, 6}), -2, 2}, cache, cache, span}, all_keys, {f32({3, 4, 6})}, {25920, 9216}, {}, 1,
     {{0, f32({3, 3, 6})}, {1, f32({90, 2, 5})}, {3, i32({1})}}},
    {&attention_cached_op, {{f32({3, 4, 6}), -2, 2}, cache, cache, span}, five_keys, {f32({3, 4, 6})}, {25920, 9216}, {}, 1},
    {&take_row_op, {{f32({5, 6})}, {i32({1}), 0, 0, {3}}}, {}, {f32({1, 6})}, {0, 48}, {}, 1, {{1, i32({2})}, {0, f32({6})}}},
    {&adamw_op, {{matrix}, {matrix}, positive_matrix, scalars, {matrix}}, adam, {matrix, matrix, matrix}, {1920, 3392}, {}, 2,
     {{1, f32({20, 5})}, {3, f32({7})}, {4, f32({6, 20})}}},
    {&adamw_op, {{matrix}, {matrix}, positive_matrix, scalars, {matrix}, {matrix}}, adam, {matrix, matrix, matrix}, {1920, 3872}, {}, 2, {{5, f32({6, 20})}}},
    {&sgd_op, {{matrix}, scalars, {matrix}}, {}, {matrix}, {360, 1472}, {}, 2, {{1, f32({7})}, {2, f32({6, 20})}}},
    {&recast_op, {{matrix}, {matrix}}, {}, {matrix}, {0, 960}, {}, 2, {{1, f32({20, 5})}}},
    {&sum_squares_op, {{f32({20, 40})}}, {}, {f64({6})}, {1600, 3248}, {}, 0, {{0, f32({2, 3, 4})}}},
    {&sum_squares_op, {{f32({300})}, {f32({300})}}, {}, {f64({2})}, {1200, 2416}, {}, 0, {{1, f32({301})}}},
    {&norm_op, {{f64({6}), 0, 1}}, {}, {f64({1})}, {7, 56}, {}, 0, {{0, f32({6})}}},
    {&norm_op, {{f64({6}), 0, 1}, {f64({3}), 0, 100}}, {}, {f64({1})}, {10, 80}, {}, 0, {{1, f64({3, 1})}}},
    {&quantize_op, {{f32({2, 5, 20}), -3, 3}, bits}, copies("nvfp4 stochastic", "-", 5), {nvfp4({2, 5, 20})}, {400, 1860}, {}, 0,
     {{0, i32({2, 5, 20})}, {1, i32({3})}, {1, f32({4})}}},
    {&quantize_op, {{f32({2, 5, 20}), -3, 3}, bits}, copies("nvfp4", "nvfp4 stochastic hadamard=16 stream=1", 5), {nvfp4({2, 5, 20}), nvfp4({20, 32})}, {400, 2284}, {}, 0},
    {&quantize_op, {{f32({2, 5, 20}), -3, 3}, bits}, copies("mxfp8", "mxfp8", 5), {{DType::mxfp8, {2, 5, 20}}, {DType::mxfp8, {20, 64}}}, {400, 3394}, {}, 0},
    {&quantize_op, {{f32({2, 5, 20}), -3, 3}, bits}, copies("fp8_block", "fp8_block", 5), {{DType::fp8_block, {2, 5, 20}}, {DType::fp8_block, {20, 256}}}, {400, 8194}, {}, 0},
    {&quantize_op, {{f32({2, 5, 20}), -3, 3}, bits, {f32({1}), 0.5, 2}}, copies("e4m3 delayed", "-", 5), {fp8({2, 5, 20})}, {400, 1884}, {}, 0, {{2, i32({1})}, {2, f32({2})}}},
    {&requantize_op, {{nvfp4({2, 5, 20}), -3, 3}, bits}, copies("-", "nvfp4 eden hadamard=128 stream=3 signs=17", 5), {nvfp4({20, 256})}, {400, 3448}, {}, 0,
     {{0, f32({2, 5, 20})}, {0, tiles({2, 5, 20})}, {1, i32({3})}}},
    {&requantize_op, {{mxfp4({2, 5, 64}), -3, 3}, bits}, copies("-", "mxfp4 stochastic floor hadamard=32 stream=3", 5), {mxfp4({64, 64})}, {1280, 3064}, {}, 0, {{0, fp8({2, 5, 64})}}},
    {&quantize_weight_op, {{tiles({40, 20})}, {f32({40, 20})}, bits}, copies("nvfp4_2d", "-", 40), {tiles({40, 20})}, {1600, 7126}, {}, 0,
     {{0, nvfp4({40, 20})}, {0, tiles({40, 19})}, {1, i32({40, 20})}, {2, i32({3})}}},
    {&quantize_weights_op, {{tiles({32, 20})}, {tiles({20, 32})}, {f32({32, 20})}, bits}, copies("nvfp4_2d", "nvfp4_2d", 32), {tiles({32, 20}), tiles({20, 32})}, {1280, 6104}, {}, 0,
     {{0, tiles({20, 32})}, {1, nvfp4({20, 32})}, {2, i32({32, 20})}, {3, i32({3})}}},
    {&qlinear_op, {{nvfp4({2, 5, 40})}, {tiles({7, 40})}}, in_f32, {f32({2, 5, 7})}, {5600, 849}, {}, 0,
     {{0, f32({2, 5, 40})}, {0, mxfp4({2, 5, 40})}, {1, tiles({7, 20})}, {1, fp8({7, 40})}, {1, nvfp4({1, 7, 40})}}},
    {&qlinear_op, {{mxfp4({2, 5, 40})}, {mxfp4({7, 40})}}, in_half, {Type{DType::bf16, {2, 5, 7}}}, {5600, 846}, {}, 0, {{1, mxfp4({7, 70})}}},
    {&qlinear_op, {{fp8({2, 5, 12})}, {fp8({7, 12})}}, in_f32, {f32({2, 5, 7})}, {1680, 612}, {}, 0, {{1, fp8({7, 11})}}},
    {&qlinear_dgrad_op, {{nvfp4({2, 5, 40})}, {tiles({12, 40})}}, in_f32, {f32({2, 5, 12})}, {9600, 1169}, {}, 0, {{1, tiles({12, 20})}, {1, f32({12, 40})}}},
    {&qlinear_dgrad_op, {{nvfp4({2, 5, 40})}, {tiles({12, 40})}, {nvfp4({2, 5, 20})}, {tiles({12, 20})}}, in_half, {Type{DType::bf16, {2, 5, 12}}}, {14400, 1431}, {}, 0,
     {{2, nvfp4({2, 5, 40})}, {3, tiles({11, 20})}}},
    {&qlinear_wgrad_op, {{f32({7, 12})}, {nvfp4({7, 48})}, {nvfp4({12, 48})}}, in_f32, {f32({7, 12})}, {8064, 1313}, {}, 0,
     {{0, f32({7, 11})}, {1, nvfp4({8, 48})}, {1, f32({7, 48})}, {2, nvfp4({12, 64})}}},
    {&record_amax_op, {{f32({4}), 0.5, 2}, {fp8({2, 5, 12})}}, {}, {f32({4})}, {0, 12}, {}, 0, {{0, f32({2, 2})}, {0, i32({4})}, {1, f32({2, 5, 12})}}},
    {&advance_scale_op, {{f32({1}), 0.5, 2}, {f32({4}), 0.1, 1}}, {{"largest", 448.0}}, {f32({1}), f32({4})}, {4, 40}, {}, 0, {{0, f32({2})}, {1, f32({4, 1})}, {1, i32({4})}}},
    {&quest_mask_op, {{f32({2, 5, 40}), -3, 3}}, rotated, {i32({2, 5, 2})}, {3200, 1680}, {}, 2, {{0, i32({2, 5, 40})}}},
    {&quest_back_op, {{f32({2, 5, 64})}, {i32({2, 5, 2}), -1e9, 1e9}}, {{"width", int64_t{40}}, {"hadamard", int64_t{32}}, {"dtype", std::string("f32")}}, {f32({2, 5, 40})}, {3840, 4240}, {}, 2,
     {{0, f32({2, 5, 40})}, {0, Type{DType::bf16, {2, 5, 64}}}, {1, i32({2, 5, 1})}, {1, f32({2, 5, 2})}}},
    {&quest_back_op, {{f32({2, 5, 64})}, {i32({2, 5, 2}), -1e9, 1e9}}, {{"width", int64_t{40}}, {"hadamard", int64_t{0}}, {"dtype", std::string("bf16")}}, {Type{DType::bf16, {2, 5, 40}}}, {3840, 3440}, {}, 2},
    {&quest_back_add_op, {{f32({7, 40})}, {f32({7, 64})}, {i32({7, 2}), -1e9, 1e9}}, rotated, {f32({7, 40})}, {3136, 4088}, {}, 1,
     {{0, f32({7, 32})}, {1, f32({8, 64})}, {1, f32({7, 40})}, {2, i32({7, 3})}}},
    {&quantize_rows_op, {{f32({2, 5, 20}), -3, 3}, bits}, {{"row", std::string("nvfp4")}, {"tokens", int64_t{1}}, {"site", int64_t{0}}}, {nvfp4({2, 5, 20}), f32({10, 2})}, {400, 1940}, {}, 0,
     {{0, i32({2, 5, 20})}, {1, i32({3})}}},
    {&qlinear_rows_op, {{nvfp4({2, 5, 40})}, {f32({10, 2}), 0.5, 2}, {tiles({7, 40})}}, in_f32, {f32({2, 5, 7})}, {5600, 929}, {}, 0,
     {{0, mxfp4({2, 5, 40})}, {1, f32({10})}, {1, f32({9, 2})}, {2, tiles({7, 20})}, {2, fp8({7, 40})}}},
    {&linear_w4_op, {{f32({2, 5, 40})}, {nvfp4({7, 40})}}, {}, {f32({2, 5, 7})}, {5600, 2133}, {}, 0,
     {{0, i32({2, 5, 40})}, {0, f32({2, 5, 48})}, {1, f32({7, 40})}, {1, mxfp4({7, 40})}, {1, nvfp4({1, 7, 40})}}},
    {&linear_w4_op, {{f32({2, 5, 40})}, {tiles({20, 40})}}, {}, {f32({2, 5, 20})}, {16000, 2950}, {}, 0, {{1, tiles({20, 41})}}},
    {&embedding_w4_op, {{i32({2, 5}), 0, 6}, {nvfp4({7, 20})}}, {}, {f32({2, 5, 20})}, {200, 1640}, {}, 0, {{0, f32({2, 5})}, {1, f32({7, 20})}}},
    {&residual_rms_norm_op, {{f32({2, 5, 20})}, {f32({2, 5, 20})}, {f32({20})}}, {{"eps", 1e-5}}, {f32({2, 5, 20}), f32({2, 5, 20}), bt_f}, {1000, 3320}, {}, 2,
     {{1, f32({2, 5, 19})}, {2, f32({19})}}},
    {&residual_rms_norm_grad_op, {{f32({20})}, {many}, {many}, {f32({20})}, {f32({2, 40}), 0.5, 2}, {many}}, {}, {f32({20}), many}, {17600, 26160}, {}, 2,
     {{0, f32({19})}, {1, f32({2, 40, 19})}, {4, f32({2, 39})}, {5, f32({2, 40, 19})}}},
    {&rope_pair_op, {{f32({2, 5, 4, 6})}, {f32({2, 5, 2, 6})}, {f32({9, 6})}, {bt, 0, 8}}, {{"inverse", int64_t{0}}}, {f32({2, 5, 4, 6}), f32({2, 5, 2, 6})}, {1080, 2880}, {}, 4,
     {{0, f32({2, 5, 4, 5})}, {1, f32({2, 5, 2, 5})}, {2, f32({9, 5})}, {3, i32({2, 4})}}},
    {&rope_pair_op, {{f32({2, 5, 4, 6})}, {f32({2, 5, 2, 6})}, {f32({9, 6})}, {bt, 0, 8}}, {{"inverse", int64_t{1}}}, {f32({2, 5, 4, 6}), f32({2, 5, 2, 6})}, {1080, 2880}, {}, 4},
    {&adamw_squares_op, {{f32({20, 40})}, {f32({20, 40})}, {f32({20, 40}), 0.01, 1}, scalars, {f32({20, 40})}}, adam,
     {f32({20, 40}), f32({20, 40}), f32({20, 40}), f64({6})}, {14400, 22480}, {}, 0, {{1, f32({20, 5})}, {3, f32({7})}, {4, f32({6, 20})}}},
    {&adamw_squares_op, {{f32({300})}, {f32({300})}, {f32({300}), 0.01, 1}, scalars, {f32({300})}, {f32({300})}}, adam,
     {f32({300}), f32({300}), f32({300}), f64({2})}, {5400, 9648}, {}, 0, {{5, f32({301})}}}};
  // clang-format on
}

/// The row with dtype=bfloat16: activations and weights in bf16, sums and statistics in f32. Ops that see no activation
/// stay as they are.
inline OpRow in_bf16(OpRow row) {
  constexpr size_t all = 9;
  const std::pair<const Op*, std::vector<size_t>> halves[] = {{&embedding_op, {1}},
                                                              {&embedding_grad_op, {2}},
                                                              {&linear_op, {0, 1}},
                                                              {&linear_dgrad_op, {all}},
                                                              {&linear_wgrad_op, {1, 2}},
                                                              {&rms_norm_op, {0, 1}},
                                                              {&rms_norm_grad_op, {1, 2, 3}},
                                                              {&rope_op, {0}},
                                                              {&attention_op, {0, 1, 2}},
                                                              {&attention_grad_op, {0, 1, 2, 3, 4}},
                                                              {&swiglu_op, {all}},
                                                              {&swiglu_grad_op, {all}},
                                                              {&add_op, {all}},
                                                              {&scale_op, {0}},
                                                              {&cross_entropy_op, {0, 1}},
                                                              {&cross_entropy_grad_op, {1, 2}},
                                                              {&recast_op, {0}},
                                                              {&quantize_op, {0}},
                                                              {&quest_mask_op, {0}},
                                                              {&quantize_rows_op, {0}},
                                                              {&linear_w4_op, {0}},
                                                              {&residual_rms_norm_op, {all}},
                                                              {&residual_rms_norm_grad_op, {1, 2, 3, 5}},
                                                              {&rope_pair_op, {0, 1}}};
  for (const auto& [op, operands] : halves) {
    if (op != row.op) continue;
    for (size_t i = 0; i < row.in.size(); ++i)
      if (operands[0] == all || std::ranges::count(operands, i) > 0) row.in[i].type.dtype = DType::bf16;
    Types in;
    for (const Operand& o : row.in) in.push_back(o.type);
    row.out = result_types({*row.op, in, {}, row.attrs, ""});
  }
  return row;
}

}  // namespace nibble
