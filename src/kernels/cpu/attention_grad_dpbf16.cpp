// attention_grad with bf16 q, k, v, out and gradients (kernels/ref/attention.h; spec/training.md 2.6) through
// vdpbf16ps, visited as attention_grad.cpp visits it. Scores, probabilities and the sums of dq, dk and dv are f32; p
// and ds are rounded to bf16 as operands of their products, relatively by at most 2^-9 each.
#include "kernels/cpu/attention_tile_dpbf16.h"
#include "kernels/cpu/kernels.h"
#include "numerics/functions_simd.h"

namespace nibble::NIBBLE_TARGET {
namespace {

struct Problem {
  const BFloat16 *dout, *q, *k, *v, *out;
  const float* lse;
  const int32_t* segments;
  BFloat16 *dq, *dk, *dv;
  int64_t batch, t, h, kv, d, window;
  float scale;
  explicit Problem(const KernelCall& c)
      : dout(c.in[0].as<BFloat16>()),
        q(c.in[1].as<BFloat16>()),
        k(c.in[2].as<BFloat16>()),
        v(c.in[3].as<BFloat16>()),
        out(c.in[4].as<BFloat16>()),
        lse(c.in[5].as<float>()),
        segments(c.in[6].as<int32_t>()),
        dq(c.out[0].as<BFloat16>()),
        dk(c.out[1].as<BFloat16>()),
        dv(c.out[2].as<BFloat16>()),
        batch(c.in[1].dim(0)),
        t(c.in[1].dim(1)),
        h(c.in[1].dim(2)),
        kv(c.in[2].dim(2)),
        d(c.in[1].dim(3)),
        window(c.attrs.get_int("window")),
        scale(c.attrs.get_float("scale")) {}
  int64_t tiles() const { return ceil_div(t, tile); }
  int64_t group() const { return h / kv; }
  int64_t rows_of(int64_t i) const { return smaller(tile, t - i * tile); }  // of tile i
  MaskRule rule(int64_t b) const { return {t, window, segments + b * t}; }
  // Row 64 i of a head in q, dout, out, dq; of a key/value head in k, v, dk, dv.
  int64_t query_at(int64_t b, int64_t head, int64_t i) const { return ((b * t + i * tile) * h + head) * d; }
  int64_t key_at(int64_t b, int64_t key_head, int64_t i) const { return ((b * t + i * tile) * kv + key_head) * d; }
};

// Tiles of keys: transposed k and v, paired k, and the accumulators. Offsets of tile i are i times the sizes.
struct Keys {
  float *kt, *vt, *k, *dk, *dv;
  int64_t transposed, paired, plain;
  Keys(Pieces& pieces, int64_t tiles, int64_t d)
      : transposed(transposed_words(d)), paired(paired_words(d)), plain(tile * whole_words(d)) {
    kt = pieces.floats(tiles * transposed), vt = pieces.floats(tiles * transposed);
    k = pieces.floats(tiles * paired), dk = pieces.floats(tiles * plain), dv = pieces.floats(tiles * plain);
  }
};

// A block of queries of one head. p and ds: of the tile in visit, transposed; ds also by rows.
struct Queries {
  float *qt, *dot, *q, *dout, *dq, *s, *dp, *p, *ds, *lse, *delta;  // qt, dot transposed; q, dout paired
  BFloat16* ds_rows;
  Queries(Pieces& pieces, int64_t d) {
    qt = pieces.floats(transposed_words(d)), dot = pieces.floats(transposed_words(d));
    q = pieces.floats(paired_words(d)), dout = pieces.floats(paired_words(d));
    dq = pieces.floats(tile * whole_words(d));
    s = pieces.floats(tile * tile), dp = pieces.floats(tile * tile);
    p = pieces.floats(tile_words * tile), ds = pieces.floats(tile_words * tile);
    ds_rows = reinterpret_cast<BFloat16*>(pieces.floats(tile * tile_words));
    lse = pieces.floats(tile), delta = pieces.floats(tile);
  }
};

struct Masks {
  uint64_t of_query[tile], any = 0;
  Masks(const Problem& p, int64_t b, int64_t query_tile, int64_t key_tile) {
    const MaskRule rule = p.rule(b);
    TileMask mask(rule, key_tile);
    const int64_t rows = p.rows_of(query_tile);
    for (int64_t i = 0; i < tile; ++i) any |= of_query[i] = i < rows ? mask.of(query_tile * tile + i) : 0;
  }
};

void clear(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += lanes) store(x + i, zero());
}

// Sums, [rows][whole words of D], to rows of a tensor.
void write_rows(const float* src, int64_t rows, int64_t d, BFloat16* dst, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, src += whole_words(d), dst += stride)
    words_of(0, d, [=](int64_t j, auto io) { io.put(dst + j, load(src + j)); });
}

struct Worker {
  const Problem& p;
  Keys keys;
  Queries queries;
  Worker(const Problem& problem, Pieces pieces, int64_t tiles)
      : p(problem), keys(pieces, tiles, p.d), queries(pieces, p.d) {}

  // Key tile i into place `at`.
  void load_keys(int64_t b, int64_t key_head, int64_t i, int64_t at) {
    const int64_t stride = p.kv * p.d, rows = p.rows_of(i), from = p.key_at(b, key_head, i);
    pack_transposed(p.k + from, stride, rows, p.d, keys.kt + at * keys.transposed);
    pack_transposed(p.v + from, stride, rows, p.d, keys.vt + at * keys.transposed);
    pack_pairs(p.k + from, stride, rows, p.d, keys.k + at * keys.paired);
  }
  void clear_key_gradients(int64_t tiles) {
    clear(keys.dk, tiles * keys.plain);
    clear(keys.dv, tiles * keys.plain);
  }
  void write_key_gradients(int64_t b, int64_t key_head, int64_t i, int64_t at) {
    const int64_t to = p.key_at(b, key_head, i), stride = p.kv * p.d;
    write_rows(keys.dk + at * keys.plain, p.rows_of(i), p.d, p.dk + to, stride);
    write_rows(keys.dv + at * keys.plain, p.rows_of(i), p.d, p.dv + to, stride);
  }

  void load_queries(int64_t b, int64_t head, int64_t i) {
    const int64_t stride = p.h * p.d, rows = p.rows_of(i), from = p.query_at(b, head, i);
    pack_pairs(p.q + from, stride, rows, p.d, queries.q);
    pack_pairs(p.dout + from, stride, rows, p.d, queries.dout);
    pack_transposed(p.q + from, stride, rows, p.d, queries.qt);
    pack_transposed(p.dout + from, stride, rows, p.d, queries.dot);
    for (int64_t r = 0; r < rows; ++r) {
      const BFloat16 *dout = p.dout + from + r * stride, *out = p.out + from + r * stride;
      queries.delta[r] = lane_sum_of(
          p.d, [=](int64_t j, auto io, const Lanes16& s) { return fma(io.get(dout + j), io.get(out + j), s); });
      queries.lse[r] = p.lse[(b * p.t + i * tile + r) * p.h + head];
    }
  }
  void clear_query_gradients() { clear(queries.dq, tile * whole_words(p.d)); }
  void write_query_gradients(int64_t b, int64_t head, int64_t i) {
    write_rows(queries.dq, p.rows_of(i), p.d, p.dq + p.query_at(b, head, i), p.h * p.d);
  }

  // p and ds of 16 keys of a row, over s and dp.
  void probabilities_of(int64_t r, int64_t j, Word* e, Word* ds) const {
    *e = exp_f32(sub(mul(load(queries.s + r * tile + j), all(p.scale)), all(queries.lse[r])));
    *ds = mul(mul(*e, sub(load(queries.dp + r * tile + j), all(queries.delta[r]))), all(p.scale));
  }

  // p and ds of the tile as operands, for rows 2 i and 2 i + 1 at a time. Excluded entries hold anything.
  void probabilities(const Masks& m) {
    for (int64_t r = 0; r < tile; r += 2) {
      const uint64_t seen = m.of_query[r] | m.of_query[r + 1];
      for (int64_t j = 0; seen >> j != 0; j += 2 * lanes) {
        Word e[2][2], ds[2][2];  // row, word
        for (int i = 0; i < 2; ++i) {
          for (int w = 0; w < 2; ++w) probabilities_of(r + i, j + w * lanes, &e[i][w], &ds[i][w]);
          store_operands(queries.ds_rows + (r + i) * tile + j, ds[i][0], ds[i][1]);
        }
        for (int w = 0; w < 2; ++w) {
          const int64_t at = r / 2 * tile + j + w * lanes;
          store(queries.p + at, pair_rows(e[0][w], e[1][w]));
          store(queries.ds + at, pair_rows(ds[0][w], ds[1][w]));
        }
        if (j + 2 * lanes == tile) break;
      }
    }
  }

  // The products of the loaded queries (tile i) with the key tile at place `at`.
  void visit(const Masks& m, int64_t query_rows, int64_t key_rows, int64_t at, bool for_queries, bool for_keys) {
    const int64_t width = whole_words(p.d);
    const float *kt = keys.kt + at * keys.transposed, *vt = keys.vt + at * keys.transposed;
    pair_scores(queries.qt, kt, p.d, m.of_query, query_rows, queries.s);
    pair_scores(queries.dot, vt, p.d, m.of_query, query_rows, queries.dp);
    probabilities(m);
    if (for_queries)
      masked_pair_product(false, reinterpret_cast<const float*>(queries.ds_rows), m.of_query, query_rows,
                          keys.k + at * keys.paired, queries.dq, width);
    if (!for_keys) return;
    uint64_t of_key[tile];
    transpose_bits(m.of_query, of_key);
    masked_pair_product(true, queries.p, of_key, key_rows, queries.dout, keys.dv + at * keys.plain, width);
    masked_pair_product(true, queries.ds, of_key, key_rows, queries.q, keys.dk + at * keys.plain, width);
  }

  void whole(int64_t b, int64_t key_head) {
    for (int64_t i = 0; i < p.tiles(); ++i) load_keys(b, key_head, i, i);
    clear_key_gradients(p.tiles());
    for (int64_t head = key_head * p.group(); head < (key_head + 1) * p.group(); ++head)
      for (int64_t i = 0; i < p.tiles(); ++i) {
        load_queries(b, head, i);
        clear_query_gradients();
        for (int64_t j = p.rule(b).first_key(i * tile) / tile; j <= i; ++j)
          if (const Masks m(p, b, i, j); m.any != 0) visit(m, p.rows_of(i), p.rows_of(j), j, true, true);
        write_query_gradients(b, head, i);
      }
    for (int64_t i = 0; i < p.tiles(); ++i) write_key_gradients(b, key_head, i, i);
  }

  void key_tile(int64_t b, int64_t key_head, int64_t j) {
    load_keys(b, key_head, j, 0);
    clear_key_gradients(1);
    for (int64_t head = key_head * p.group(); head < (key_head + 1) * p.group(); ++head)
      for (int64_t i = j; i < p.tiles(); ++i)
        if (const Masks m(p, b, i, j); m.any != 0) {
          load_queries(b, head, i);
          visit(m, p.rows_of(i), p.rows_of(j), 0, false, true);
        }
    write_key_gradients(b, key_head, j, 0);
  }

  void query_block(int64_t b, int64_t head, int64_t i) {
    load_queries(b, head, i);
    clear_query_gradients();
    for (int64_t j = p.rule(b).first_key(i * tile) / tile; j <= i; ++j)
      if (const Masks m(p, b, i, j); m.any != 0) {
        load_keys(b, head / p.group(), j, 0);
        visit(m, p.rows_of(i), p.rows_of(j), 0, true, false);
      }
    write_query_gradients(b, head, i);
  }
};

// Five products by the busiest thread against seven shared evenly.
bool whole_heads(int64_t tasks, int threads) { return 5 * ceil_div(tasks, threads) * threads <= 7 * tasks; }
int64_t tiles_in_place(int64_t tasks, int64_t t, int threads) {
  return whole_heads(tasks, threads) ? ceil_div(t, tile) : 1;
}
int64_t bytes_of(int64_t tiles, int64_t d) {
  Pieces pieces(nullptr);
  Keys(pieces, tiles, d);
  Queries(pieces, d);
  return pieces.used_bytes();
}

}  // namespace

void attention_grad_bf16(const KernelCall& c) {
  const Problem p(c);
  const int64_t heads = p.batch * p.kv, work = p.batch * p.h * p.t * p.t * p.d / 16;
  const int64_t tiles = tiles_in_place(heads, p.t, c.pool.size()), bytes = bytes_of(tiles, p.d);
  const auto worker = [&](int thread) { return Worker(p, Pieces(c.workspace + thread * bytes), tiles); };
  if (whole_heads(heads, c.pool.size())) {
    run_tasks(c.pool, heads, work, [&](int64_t task, int thread) { worker(thread).whole(task / p.kv, task % p.kv); });
    return;
  }
  run_tasks(c.pool, heads * p.tiles(), work, [&](int64_t task, int thread) {  // the longest first: early keys
    const int64_t head = task % heads;
    worker(thread).key_tile(head / p.kv, head % p.kv, task / heads);
  });
  const int64_t query_heads = p.batch * p.h;
  run_tasks(c.pool, query_heads * p.tiles(), work, [&](int64_t task, int thread) {  // late queries
    const int64_t head = task % query_heads;
    worker(thread).query_block(head / p.h, head % p.h, p.tiles() - 1 - task / query_heads);
  });
}
int64_t attention_grad_bf16_workspace(const KernelShape& s) {
  const int64_t heads = s.in[1].dim(0) * s.in[2].dim(2), d = s.in[1].dim(3);
  return bytes_of(tiles_in_place(heads, s.in[1].dim(1), s.threads), d) * s.threads;
}

}  // namespace nibble::NIBBLE_TARGET
