// How the quantisers cut a matrix: items that stay in the second-level cache, and within them blocks whose lanes are
// columns, or rows that were transposed.
#pragma once
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantize_copy.h"

namespace nibble::NIBBLE_TARGET {

// Where a block of vectors goes: lane l is vector `vector` + l, of which the first n count.
struct Place {
  int64_t vector, n;
  int64_t position;  // of its first element along the vectors
  int64_t end;       // of what is stored along them
  Sums* sums;        // of the first block's groups of 16, those of the next `sums_pitch` on; nullptr: not known
  int64_t sums_pitch;
  // Of lane 0, from `position` on; the next lane's lie a pitch further.
  uint8_t *codes = nullptr, *scales = nullptr;
  int64_t code_pitch = 0, scale_pitch = 0;
};

// The matrix and how it is cut. Rows of a sequence are its tokens.
template <class T>
struct Matrix {
  const T* x;
  int64_t rows, width, tokens;
  /// Columns are read from beyond the second-level cache: not brought there by a row copy just before.
  bool far = false;
  bool is_large() const { return rows * width * int64_t{sizeof(T)} > 1 << 20; }
  int64_t sequences() const { return rows / tokens; }
  const T* at(int64_t row, int64_t column) const { return x + row * width + column; }
};

// A part of one sequence: tokens t .. t + height - 1, columns c .. c + width - 1. `height` counts tokens that exist.
struct Item {
  int64_t sequence, t, height, c, width;
};

template <class M, class F>
void for_items(ThreadPool& pool, const M& m, bool whole_rows, const F& f) {
  const int64_t across = whole_rows ? 1 : ceil_div(m.width, item_columns), down = ceil_div(m.tokens, item_tokens);
  run_tasks(pool, m.sequences() * down * across, m.rows * m.width, [&](int64_t task, int) {
    Item item{};
    item.sequence = task / (down * across), item.t = task / across % down * item_tokens;
    item.height = smaller(item_tokens, m.tokens - item.t);
    item.c = whole_rows ? 0 : task % across * item_columns;
    item.width = whole_rows ? m.width : smaller(item_columns, m.width - item.c);
    f(item);
  });
}

template <int n>
struct Count {
  static constexpr int value = n;
};

/// A whole MS-EDEN copy (quantize_eden.cpp).
void make_eden(ThreadPool& pool, const Matrix<float>& m, Copy* q, bool column);
void make_eden(ThreadPool& pool, const Matrix<BFloat16>& m, Copy* q, bool column);

// Asks for the next word of columns of `rows` rows: their lines lie too far apart for the CPU to foresee.
template <class T>
void prefetch_next_columns(const Matrix<T>& m, const T* x, int64_t c, int64_t rows) {
  if (!m.far || c + lanes >= m.width) return;
  for (int64_t e = 0; e < rows; ++e) __builtin_prefetch(x + e * m.width + lanes);
}

// f(load, place, count) for a word of columns of an item, `batch` blocks at a time (count), the last ones singly.
// sums: of all words of groups of 16, groups outside, or nullptr.
template <int64_t block, int batch, class T, class F>
void for_column_blocks(const Matrix<T>& m, const Item& item, int64_t c, int64_t sequence, Sums* sums, const F& f) {
  const int64_t words = ceil_div(m.width, lanes), n = smaller(lanes, m.width - c), pitch = m.width;
  for (int64_t t = item.t; t < item.t + item.height;) {
    const T* const x = m.at(item.sequence * m.tokens + t, c);
    const int64_t there = item.t + item.height - t;
    Sums* const own = sums == nullptr ? nullptr : sums + (item.sequence * sequence + t) / group * words + c / lanes;
    const Place place{c, n, item.sequence * sequence + t, (item.sequence + 1) * sequence, own, words};
    prefetch_next_columns(m, x, c, smaller(there, batch * block));
    if (n == lanes && there >= batch * block) {
      f([=](int64_t e) { return load(x + e * pitch); }, place, Count<batch>{});
      t += batch * block;
    } else {
      f([=](int64_t e) { return e < there ? load_first(x + e * pitch, n) : zero(); }, place, Count<1>{});
      t += block;
    }
  }
}

// The same for rows whose blocks are rotated: `lanes` rows at a time, transposed.
template <int64_t block, class T, class F>
void for_turned_blocks(const Matrix<T>& m, const Item& item, const F& f) {
  const int64_t first = item.sequence * m.tokens + item.t, length = ceil_div(m.width, block) * block;
  for (int64_t r = 0; r < item.height; r += lanes)
    for (int64_t c = item.c; c < item.c + item.width; c += block) {
      const int64_t n = smaller(lanes, item.height - r), there = smaller(block, m.width - c);
      float turned[block * lanes];
      const T* const x = m.at(first + r, c);
      for (int64_t k = 0; k < block; k += lanes) {
        Word v[lanes];
        for (int64_t l = 0; l < lanes; ++l)
          v[l] = l >= n || k >= there ? zero()
                 : there - k >= lanes ? load(x + l * m.width + k)
                                      : load_first(x + l * m.width + k, there - k);
        transpose(v);
        for (int64_t e = 0; e < lanes; ++e) store(turned + (k + e) * lanes, v[e]);
      }
      f([&](int64_t e) { return load(turned + e * lanes); }, Place{first + r, n, c, length, nullptr, 0}, Count<1>{});
    }
}

}  // namespace nibble::NIBBLE_TARGET
