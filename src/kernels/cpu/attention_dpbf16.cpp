// attention with bf16 q, k, v and output (kernels/ref/attention.h; spec/training.md 2.6) through vdpbf16ps, visited as
// attention.cpp visits it. Scores, softmax, its sums and the output until its one rounding are f32; the probabilities
// are rounded to bf16 as operands of P V, which moves an output by at most 2^-8 max |v|.
#include <cstring>
#include <limits>

#include "kernels/cpu/attention_tile_dpbf16.h"
#include "kernels/cpu/kernels.h"
#include "numerics/functions_simd.h"

namespace nibble::NIBBLE_TARGET {
namespace {

constexpr int64_t block_rows = 512;  // (position, head) rows of a task at most
constexpr float minus_inf = -std::numeric_limits<float>::infinity();

// What a block of positions reads and writes. Row r of the block: position first + r / heads, head r % heads.
struct Block {
  const BFloat16 *q, *k, *v;            // of the block's first row; of the first key
  int64_t position_stride, key_stride;  // elements between positions of q, between keys
  BFloat16* out;                        // as q
  float* lse;
  int64_t lse_stride, heads, d, first, positions;
  float scale;
  int64_t rows() const { return positions * heads; }
  int64_t at(int64_t r) const { return r / heads * position_stride + r % heads * d; }
};

int64_t positions_of(int64_t heads) { return larger(1, smaller(tile, block_rows / heads)); }

struct Buffers {
  float *q, *k, *v, *scores, *out, *max, *sum;  // q, k transposed; v paired; out [rows][whole words of D]
  BFloat16 *rows, *p;                           // rows of q side by side; probabilities of a group
  Buffers(Pieces& pieces, int64_t count, int64_t d) {
    q = pieces.floats(ceil_div(count, tile) * transposed_words(d));
    k = pieces.floats(transposed_words(d)), v = pieces.floats(paired_words(d));
    scores = pieces.floats(16 * tile), p = reinterpret_cast<BFloat16*>(pieces.floats(16 * tile_words));
    rows = reinterpret_cast<BFloat16*>(pieces.floats(ceil_div(tile * d, 2)));
    out = pieces.floats(count * whole_words(d));
    max = pieces.floats(count + 16), sum = pieces.floats(count + 16);  // whole words are read from any row on
  }
};

void start(const Block& b, const Buffers& m) {
  const int64_t rows = b.rows();
  for (int64_t r = 0; r < rows; r += tile) {
    const int64_t n = smaller(tile, rows - r);
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(m.rows + i * b.d, b.q + b.at(r + i), static_cast<size_t>(b.d) * sizeof(BFloat16));
    pack_transposed(m.rows, b.d, n, b.d, m.q + r / tile * transposed_words(b.d));
  }
  for (int64_t i = 0; i < rows * whole_words(b.d); i += lanes) store(m.out + i, zero());
  for (int64_t i = 0; i < rows + lanes; ++i) m.max[i] = minus_inf, m.sum[i] = 0;
}

// Scores of one row to fl(s scale), excluded ones to -Inf; returns the largest.
float scale_row(float* s, uint64_t mask, Word scale) {
  Word m = all(minus_inf);
#pragma GCC unroll 4
  for (int64_t w = 0; w < tile / lanes; ++w) {
    Word x = mul(load(s + w * lanes), scale);
    if (mask != ~uint64_t{0}) x = select(word_of(mask, w), x, all(minus_inf));
    store(s + w * lanes, x);
    m = max(m, x);
  }
  return reduce_max(m);
}

// Scores of one row to operands e = exp(s - m); returns the lane sum of e before it is rounded.
float exp_row(const float* s, float m, BFloat16* e) {
  Word sum = zero();
#pragma GCC unroll 2
  for (int64_t j = 0; j < tile; j += 2 * lanes) {
    const Word low = exp_f32(sub(load(s + j), all(m))), high = exp_f32(sub(load(s + j + lanes), all(m)));
    store_operands(e + j, low, high);
    sum = add(add(sum, low), high);
  }
  return lane_sum({{sum}});
}

// The online softmax of a group of rows: scores to probabilities, and the sums and outputs so far to the new maximum.
void softmax_rows(const Buffers& m, const uint64_t* masks, int64_t rows, float scale, int64_t first, int64_t width) {
  float *max_so_far = m.max + first, *sum_so_far = m.sum + first;
  alignas(64) float fresh[16] = {}, factor[16];
  for (int64_t r = 0; r < rows; ++r)
    if (masks[r] != 0) {
      const float x = scale_row(m.scores + r * tile, masks[r], all(scale)), old = max_so_far[r];
      fresh[r] = x > old || x != x ? x : old;
    }
  store(factor, exp_f32(sub(load(max_so_far), load(fresh))));
  for (int64_t r = 0; r < rows; ++r) {
    if (masks[r] == 0) continue;
    const float f = factor[r];  // before the row's first key exp(-Inf) = +0; NaN only where the row becomes NaN anyway
    sum_so_far[r] = sum_so_far[r] * f + exp_row(m.scores + r * tile, fresh[r], m.p + r * tile);
    max_so_far[r] = fresh[r];
    if (f == 1.0f) continue;
    float* out = m.out + (first + r) * width;
    for (int64_t j = 0; j < width; j += lanes) store(out + j, mul(load(out + j), all(f)));
  }
}

void finish(const Block& b, const Buffers& m) {
  for (int64_t r = 0; r < b.rows(); ++r) {
    const float sum = m.sum[r];
    b.lse[r / b.heads * b.lse_stride + r % b.heads] = sum == 0.0f ? 0.0f : m.max[r] + log_f32(sum);
    const Word inverse = all(sum == 0.0f ? 0.0f : 1.0f / sum);  // without keys the output is +0 already
    BFloat16* out = b.out + b.at(r);
    const float* acc = m.out + r * whole_words(b.d);
    words_of(0, b.d, [=](int64_t j, auto io) { io.put(out + j, mul(load(acc + j), inverse)); });
  }
}

void attend(const Block& b, const MaskRule& rule, const Buffers& m) {
  const int64_t rows = b.rows(), width = whole_words(b.d), last = b.first + b.positions - 1;
  start(b, m);
  for (int64_t t = rule.first_key(b.first) / tile; t <= last / tile; ++t) {
    TileMask mask(rule, t);
    uint64_t of_position[tile], any_row = 0;
    for (int64_t p = 0; p < b.positions; ++p) any_row |= of_position[p] = mask.of(b.first + p);
    if (any_row == 0) continue;
    const int64_t keys = smaller(tile, rule.keys - t * tile);
    pack_transposed(b.k + t * tile * b.key_stride, b.key_stride, keys, b.d, m.k);
    pack_pairs(b.v + t * tile * b.key_stride, b.key_stride, keys, b.d, m.v);
    const int64_t groups = ceil_div(smaller(rows, tile), group_rows);
    for (int64_t r64 = 0; r64 < rows; r64 += tile) {
      const int64_t in_tile = smaller(tile, rows - r64);
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t r = r64 + in_tile * g / groups, n = r64 + in_tile * (g + 1) / groups - r;
        uint64_t masks[group_rows], some = 0;
        for (int64_t i = 0; i < n; ++i) some |= masks[i] = of_position[(r + i) / b.heads];
        if (some == 0) continue;
        pair_scores(m.q + r64 / tile * transposed_words(b.d) + (r - r64), m.k, b.d, masks, n, m.scores);
        softmax_rows(m, masks, n, b.scale, r, width);
        masked_pair_product(false, reinterpret_cast<const float*>(m.p), masks, n, m.v, m.out + r * width, width);
      }
    }
  }
  finish(b, m);
}

struct Sizes {
  int64_t heads, d, positions, bytes;  // heads of a group, positions of a task, bytes of a thread
  Sizes(int64_t query_heads, int64_t key_heads, int64_t size)
      : heads(query_heads / key_heads), d(size), positions(positions_of(heads)) {
    Pieces pieces(nullptr);
    Buffers(pieces, positions * heads, d);
    bytes = pieces.used_bytes();
  }
};

}  // namespace

void attention_bf16(const KernelCall& c) {
  const BFloat16 *q = c.in[0].as<BFloat16>(), *k = c.in[1].as<BFloat16>(), *v = c.in[2].as<BFloat16>();
  const int32_t* segments = c.in[3].as<int32_t>();
  BFloat16* out = c.out[0].as<BFloat16>();
  float* lse = c.out[1].as<float>();
  const int64_t batch = c.in[0].dim(0), t = c.in[0].dim(1), h = c.in[0].dim(2), d = c.in[0].dim(3), kv = c.in[1].dim(2);
  const int64_t window = c.attrs.get_int("window");
  const float scale = c.attrs.get_float("scale");
  const Sizes sizes(h, kv, d);
  const int64_t blocks = ceil_div(t, sizes.positions);
  run_tasks(c.pool, batch * kv * blocks, batch * h * t * t * d / 32, [&](int64_t task, int thread) {
    // The longest come first, so that the last tasks are short.
    const int64_t b = task / blocks / kv, key_head = task / blocks % kv, head = key_head * sizes.heads;
    const int64_t first = (blocks - 1 - task % blocks) * sizes.positions, row = b * t + first;
    const int64_t keys = (b * t * kv + key_head) * d;
    const Block block{.q = q + (row * h + head) * d,
                      .k = k + keys,
                      .v = v + keys,
                      .position_stride = h * d,
                      .key_stride = kv * d,
                      .out = out + (row * h + head) * d,
                      .lse = lse + row * h + head,
                      .lse_stride = h,
                      .heads = sizes.heads,
                      .d = d,
                      .first = first,
                      .positions = smaller(sizes.positions, t - first),
                      .scale = scale};
    Pieces pieces(c.workspace + thread * sizes.bytes);
    attend(block, {t, window, segments + b * t}, Buffers(pieces, sizes.positions * sizes.heads, d));
  });
}
int64_t attention_bf16_workspace(const KernelShape& s) {
  return Sizes(s.in[0].dim(2), s.in[1].dim(2), s.in[0].dim(3)).bytes * s.threads;
}

}  // namespace nibble::NIBBLE_TARGET
