// attention and attention_cached (kernels/ref/attention.h; spec/training.md 2.6, 2.11): FlashAttention's online softmax
// (arXiv 2205.14135) over tiles of 64 keys on the absolute grid. A task is a block of query positions with all heads of
// one key/value head, so a key tile is packed once for them; the rows of a block go through scores, softmax and
// P V a register group at a time, so that scores never leave L1.
#include <limits>

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/widened.h"
#include "numerics/functions_simd.h"

namespace nibble::NIBBLE_TARGET {
namespace {

constexpr int64_t block_rows = 512;  // (position, head) rows of a task at most; Q and the output of each stay in L2

// What a block of positions reads and writes. Row r of the block: position first + r / heads, head r % heads.
struct Block {
  const float *q, *k, *v;               // of the block's first row; of the first key
  int64_t position_stride, key_stride;  // floats between positions of q, between keys
  float *out, *lse;                     // as q; lse with its own stride, or nullptr
  int64_t lse_stride, heads, d, first, positions;
  float scale;
  int64_t rows() const { return positions * heads; }
};

int64_t positions_of(int64_t heads) { return larger(1, smaller(tile, block_rows / heads)); }

struct Buffers {
  float *q, *k, *v, *scores, *out, *max, *sum;  // q, k transposed; v, out plain
  Buffers(Pieces& pieces, int64_t rows, int64_t d) {
    const int64_t tiles = ceil_div(rows, tile);
    q = pieces.floats(tiles * tile * d);
    k = pieces.floats(tile * d), v = pieces.floats(plain_floats(tile, d));
    scores = pieces.floats(16 * tile);  // a group has at most 14 rows
    out = pieces.floats(plain_floats(rows, d));
    max = pieces.floats(rows + 16), sum = pieces.floats(rows + 16);  // whole words are read from any row on
  }
};

void start(const Block& b, const Buffers& m) {
  const int64_t rows = b.rows(), width = whole_words(b.d);
  for (int64_t r = 0; r < rows; r += tile) {  // through a plain tile, for the rows are not evenly spaced
    const int64_t n = smaller(tile, rows - r);
    for (int64_t i = 0; i < n; ++i)
      pack_plain(b.q + (r + i) / b.heads * b.position_stride + (r + i) % b.heads * b.d, b.d, 1, b.d, m.v + i * width);
    pack_transposed(m.v, width, n, b.d, m.q + r * b.d);
  }
  for (int64_t i = 0; i < rows * width; i += lanes) store(m.out + i, zero());
  for (int64_t i = 0; i < rows + lanes; ++i) m.max[i] = -std::numeric_limits<float>::infinity(), m.sum[i] = 0;
}

// Scores of one row to fl(s scale), excluded ones to -Inf; returns the largest.
float scale_row(float* s, uint64_t mask, Word scale) {
  constexpr float minus_inf = -std::numeric_limits<float>::infinity();
  Word m = all(minus_inf);
#pragma GCC unroll 8
  for (int64_t w = 0; w < tile / lanes; ++w) {
    Word x = mul(load(s + w * lanes), scale);
    if (mask != ~uint64_t{0}) x = select(word_of(mask, w), x, all(minus_inf));
    store(s + w * lanes, x);
    m = max(m, x);
  }
  return reduce_max(m);
}

// Scores of one row to e = exp(s - m); returns their lane sum. An excluded key's e is +0, or NaN where the row's max
// is not finite, and then the row is NaN anyway.
float exp_row(float* s, float m) {
  Lanes16 sum = zero16();
#pragma GCC unroll 4
  for (int64_t j = 0; j < tile; j += 16) {
    const Lanes16 e = map16([=](Word x) { return exp_f32(sub(x, all(m))); }, load16(s + j));
    store16(s + j, e);
    sum = add(sum, e);
  }
  return lane_sum(sum);
}

// The online softmax of a group of rows: scores to e, and the sums and outputs so far brought to the new maximum.
void softmax_rows(float* s, const uint64_t* masks, int64_t rows, float scale, float* max_so_far, float* sum_so_far,
                  float* out, int64_t width) {
  alignas(64) float fresh[16], factor[16];
  for (int i = 0; i < 16; ++i) fresh[i] = 0;
  for (int64_t r = 0; r < rows; ++r)
    if (masks[r] != 0) {
      const float m = scale_row(s + r * tile, masks[r], all(scale)), old = max_so_far[r];
      fresh[r] = m > old || m != m ? m : old;
    }
  for (int64_t r = 0; r < rows; r += lanes) store(factor + r, exp_f32(sub(load(max_so_far + r), load(fresh + r))));
  for (int64_t r = 0; r < rows; ++r) {
    if (masks[r] == 0) continue;
    const float f = factor[r];  // before the row's first key exp(-Inf) = +0; NaN only where the row becomes NaN anyway
    sum_so_far[r] = sum_so_far[r] * f + exp_row(s + r * tile, fresh[r]);
    max_so_far[r] = fresh[r];
    if (f == 1.0f) continue;
    for (int64_t j = 0; j < width; j += lanes) store(out + r * width + j, mul(load(out + r * width + j), all(f)));
  }
}

void finish(const Block& b, const Buffers& m) {
  const int64_t width = whole_words(b.d);
  for (int64_t r = 0; r < b.rows(); ++r) {
    const int64_t position = r / b.heads, head = r % b.heads;
    const float sum = m.sum[r];
    if (b.lse != nullptr) b.lse[position * b.lse_stride + head] = sum == 0.0f ? 0.0f : m.max[r] + log_f32(sum);
    const Word inverse = all(sum == 0.0f ? 0.0f : 1.0f / sum);  // without keys the output is +0 already
    float *out = b.out + position * b.position_stride + head * b.d, *acc = m.out + r * width;
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
    pack_plain(b.v + t * tile * b.key_stride, b.key_stride, keys, b.d, m.v);
    const int64_t groups = ceil_div(smaller(rows, tile), group_rows);
    for (int64_t r64 = 0; r64 < rows; r64 += tile) {
      const int64_t in_tile = smaller(tile, rows - r64);
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t r = r64 + in_tile * g / groups, n = r64 + in_tile * (g + 1) / groups - r;
        uint64_t masks[group_rows], some = 0;
        for (int64_t i = 0; i < n; ++i) some |= masks[i] = of_position[(r + i) / b.heads];
        if (some == 0) continue;
        scores(m.q + r64 * b.d + (r - r64), m.k, b.d, masks, n, m.scores);
        softmax_rows(m.scores, masks, n, b.scale, m.max + r, m.sum + r, m.out + r * width, width);
        masked_product(false, m.scores, masks, n, m.v, m.out + r * width, width);
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
Buffers buffers_of(const Sizes& s, std::byte* workspace, int thread) {
  Pieces pieces(workspace + thread * s.bytes);
  return {pieces, s.positions * s.heads, s.d};
}

void attention_f32(const KernelCall& c) {
  const float *q = c.in[0].as<float>(), *k = c.in[1].as<float>(), *v = c.in[2].as<float>();
  const int32_t* segments = c.in[3].as<int32_t>();
  float *out = c.out[0].as<float>(), *lse = c.out[1].as<float>();
  const int64_t batch = c.in[0].dim(0), t = c.in[0].dim(1), h = c.in[0].dim(2), d = c.in[0].dim(3), kv = c.in[1].dim(2);
  const int64_t window = c.attrs.get_int("window");
  const float scale = c.attrs.get_float("scale");
  const Sizes sizes(h, kv, d);
  const int64_t blocks = ceil_div(t, sizes.positions);
  run_tasks(c.pool, batch * kv * blocks, batch * h * t * t * d / 16, [&](int64_t task, int thread) {
    // A head's keys stay in cache for its blocks; among these the longest come first, so that the last tasks are short.
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
    attend(block, {t, window, segments + b * t}, buffers_of(sizes, c.workspace, thread));
  });
}
}  // namespace

void attention(const KernelCall& c) { run_f32(c, 0, attention_f32); }
int64_t attention_workspace(const KernelShape& s) {
  return widened_bytes(s) + Sizes(s.in[0].dim(2), s.in[1].dim(2), s.in[0].dim(3)).bytes * s.threads;
}

namespace {

void attention_cached_f32(const KernelCall& c) {
  const float *q = c.in[0].as<float>(), *k = c.in[1].as<float>(), *v = c.in[2].as<float>();
  float* out = c.out[0].as<float>();
  const int64_t rows = c.in[0].dim(0), h = c.in[0].dim(1), d = c.in[0].dim(2), kv = c.in[1].dim(1);
  const int64_t start_at = c.in[3].as<int32_t>()[0], count = smaller(rows, c.in[3].as<int32_t>()[1]);
  const MaskRule rule{start_at + count, c.attrs.get_int("window"), nullptr};
  const float scale = c.attrs.get_float("scale");
  const Sizes sizes(h, kv, d);
  const int64_t blocks = ceil_div(count, sizes.positions);
  run_tasks(c.pool, kv * blocks, count * h * rule.keys * d / 16, [&](int64_t task, int thread) {
    const int64_t first = (blocks - 1 - task % blocks) * sizes.positions, key_head = task / blocks, keys = key_head * d;
    const int64_t at = (first * h + key_head * sizes.heads) * d;
    const Block block{.q = q + at,
                      .k = k + keys,
                      .v = v + keys,
                      .position_stride = h * d,
                      .key_stride = kv * d,
                      .out = out + at,
                      .lse = nullptr,
                      .lse_stride = 0,
                      .heads = sizes.heads,
                      .d = d,
                      .first = start_at + first,
                      .positions = smaller(sizes.positions, count - first),
                      .scale = scale};
    attend(block, rule, buffers_of(sizes, c.workspace, thread));
  });
  words_of(count * h * d, rows * h * d, [=](int64_t i, auto io) { io.put(out + i, zero()); });
}
}  // namespace

void attention_cached(const KernelCall& c) { run_f32(c, 0, attention_cached_f32); }
int64_t attention_cached_workspace(const KernelShape& s) {
  return widened_bytes(s) + Sizes(s.in[0].dim(1), s.in[1].dim(1), s.in[0].dim(2)).bytes * s.threads;
}

}  // namespace nibble::NIBBLE_TARGET
