// Products of 4-bit operands (gemm_4bit.h). Both are packed to bytes (gemm_4bit_pack.h):
//   - a block of columns of B, up to 8 MiB with all k of all terms, in a region of its own, for its unpacking is a few
//     thousandths of the product;
//   - a task: up to `height` rows of A times a group of B's panels. It packs a chunk of k of A at a time;
//   - a register block: up to `max_rows` rows times one panel. Its sums lie in a tile between two chunks of k.
// A product of at most `few_rows` rows would read each packed value of B a few times only: there A is packed whole, and
// B a chunk of a panel at a time by whoever needs it, so that decoding reads the weights from memory once.
#include "kernels/cpu/gemm_4bit.h"

#include "kernels/cpu/gemm_4bit_pack.h"
#include "kernels/cpu/parallel.h"

namespace nibble::NIBBLE_TARGET {
namespace {

constexpr int row_group = lanes == 16 ? 4 : 3;  // without VNNI
constexpr int max_rows = vnni ? 8 : 12;
constexpr int64_t depth = 512;  // k of a chunk

// Equal on all targets, for the workspace is.
constexpr int64_t column_unit = 64;  // whole panels on every target
constexpr int64_t height = 128;      // rows of a task
constexpr int64_t few_rows = 64;     // up to here B is packed on the fly
constexpr int64_t rested = 512;      // columns at most of a task whose sums rest in a buffer
constexpr int64_t line = 64;
constexpr int64_t shared_bytes = int64_t{8} << 20;  // of packed B, of packed A of few rows

// Bytes of a block of k in one row or column, the most of any target.
constexpr int64_t packed_bytes(int words) { return words == 4 ? 24 : 40; }
constexpr int64_t chunk_blocks(int words) { return depth / 4 / words; }

// ---------------------------------------------------------------------------------------------------- register block

// Lines to fetch during a register block, one each block of k, for the CPU drops most of a burst of prefetches.
struct Wishes {
  explicit Wishes(const void* any) {
    for (const void*& p : at) p = any;
  }
  bool full() const { return count == chunk_blocks(4); }
  void add(const void* p) {
    if (!full()) at[count++] = p;
  }
  const void* at[chunk_blocks(4)];  // those past `count` are harmless
  int64_t count = 0;
};

// Up to chunk_blocks of k: sums[rows][columns] = (from_zero ? +0 : sums) + A B.
struct Factors {
  int64_t blocks;
  const std::byte *a, *b;
  float* sums;
  bool from_zero;
  const Wishes& wishes;
};

// d / 4 as a number; of NVFP4 the quarter is in A's scale.
template <int words>
inline Word number_of(IntWord d) {
  return words == 4 ? to_float(d) : mul(to_float(d), all(0.25f));
}

#ifdef __AVX512VNNI__
// uniform: the panel's columns share their scale, so the products of scales are one register for all rows.
template <int words, bool uniform, int rows>
void compute(const Factors& f) {
  constexpr int64_t start = rows * words * 4, scales = start + rows * 4;  // in a block of A
  alignas(line) float products[uniform ? chunk_blocks(words) : 1][16];
  const std::byte *a = f.a, *b = f.b;
  if constexpr (uniform)
    for (int64_t k = 0; k < f.blocks; ++k) {
      const Word x =
          _mm512_broadcast_f32x8(_mm256_maskz_loadu_ps((1 << rows) - 1, a + k * a_block_bytes(words, rows) + scales));
      const std::byte* y = b + k * b_block_bytes(words) + words * word_bytes;
      store(products[k], mul(x, select(0xff, load_floats(y), load_floats(y + b_word_bytes(words)))));
    }
  const float* product = products[0];
  Word acc[rows][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    acc[r][0] = f.from_zero ? zero() : load(f.sums + r * columns);
    acc[r][1] = f.from_zero ? zero() : load(f.sums + r * columns + lanes);
  }
  for (int64_t k = 0; k < f.blocks; ++k) {
    __builtin_prefetch(f.wishes.at[k]);
    IntWord codes[2][words];
#pragma GCC unroll 8
    for (int w = 0; w < words; ++w)
      codes[0][w] = load_int(b + w * word_bytes), codes[1][w] = load_int(b + b_word_bytes(words) + w * word_bytes);
    const Word scale0 = load_floats(b + words * word_bytes),
               scale1 = load_floats(b + b_word_bytes(words) + words * word_bytes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      IntWord d0 = all_of(a + start + r * 4), d1 = d0;
#pragma GCC unroll 8
      for (int w = 0; w < words; ++w) {
        const IntWord x = all_of(a + (r * words + w) * 4);
        d0 = _mm512_dpbusd_epi32(d0, codes[0][w], x);
        d1 = _mm512_dpbusd_epi32(d1, codes[1][w], x);
      }
      const Word s = all_floats(a + scales + r * 4);
      const Word p0 = uniform ? all(product[r]) : mul(s, scale0);
      const Word p1 = uniform ? all(product[r + 8]) : mul(s, scale1);
      acc[r][0] = fma(p0, number_of<words>(d0), acc[r][0]);
      acc[r][1] = fma(p1, number_of<words>(d1), acc[r][1]);
    }
    a += a_block_bytes(words, rows), b += b_block_bytes(words);
    if constexpr (uniform) product += 16;
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    store(f.sums + r * columns, acc[r][0]);
    store(f.sums + r * columns + lanes, acc[r][1]);
  }
}

using Compute = void (*)(const Factors& f);
// clang-format off
template <int words, bool uniform>
constexpr Compute blocks[max_rows + 1] = {
    nullptr, compute<words, uniform, 1>, compute<words, uniform, 2>, compute<words, uniform, 3>,
    compute<words, uniform, 4>, compute<words, uniform, 5>, compute<words, uniform, 6>, compute<words, uniform, 7>,
    compute<words, uniform, 8>};
// clang-format on
template <int words>
void multiply(int64_t rows, bool uniform, const Factors& f) {
  (uniform ? blocks<words, true> : blocks<words, false>)[rows](f);
}
#else
// GCC would add up in a tree, for which it has too few registers.
inline void in_order(IntWord& sum) { asm("" : "+v"(sum)); }

// Rows [r, r + group) of a panel of `rows`.
template <int words, int group>
void compute(int64_t rows, int64_t r, const Factors& f) {
  const int64_t step = a_block_bytes(words, rows);
  const std::byte *codes = f.a + r * words * 4, *scales = f.a + rows * words * 4 + r * 4, *b = f.b;
  float* sums = f.sums + r * columns;
  Word acc[group][2];
#pragma GCC unroll 8
  for (int i = 0; i < group; ++i) {
    acc[i][0] = f.from_zero ? zero() : load(sums + i * columns);
    acc[i][1] = f.from_zero ? zero() : load(sums + i * columns + lanes);
  }
  for (int64_t k = 0; k < f.blocks; ++k) {
    __builtin_prefetch(f.wishes.at[k]);
    IntWord d[group][2];
#pragma GCC unroll 8
    for (int i = 0; i < group; ++i) {
      d[i][0] = load_int(b + words * word_bytes);
      d[i][1] = load_int(b + b_word_bytes(words) + words * word_bytes);
    }
#pragma GCC unroll 8
    for (int w = 0; w < words; ++w) {
      const IntWord b0 = load_int(b + w * word_bytes), b1 = load_int(b + b_word_bytes(words) + w * word_bytes);
#pragma GCC unroll 8
      for (int i = 0; i < group; ++i) {
        const IntWord x = all_of(codes + (i * words + w) * 4);
        d[i][0] = add16(d[i][0], dot_pairs(x, b0));
        d[i][1] = add16(d[i][1], dot_pairs(x, b1));
        in_order(d[i][0]), in_order(d[i][1]);
      }
    }
    const Word scale0 = load_floats(b + (words + 1) * word_bytes);
    const Word scale1 = load_floats(b + b_word_bytes(words) + (words + 1) * word_bytes);
#pragma GCC unroll 8
    for (int i = 0; i < group; ++i) {
      const Word s = all_floats(scales + i * 4);
      acc[i][0] = fma(mul(s, scale0), number_of<words>(dot_ones(d[i][0])), acc[i][0]);
      acc[i][1] = fma(mul(s, scale1), number_of<words>(dot_ones(d[i][1])), acc[i][1]);
    }
    codes += step, scales += step, b += b_block_bytes(words);
  }
#pragma GCC unroll 8
  for (int i = 0; i < group; ++i) {
    store(sums + i * columns, acc[i][0]);
    store(sums + i * columns + lanes, acc[i][1]);
  }
}
template <int words>
void multiply(int64_t rows, bool, const Factors& f) {
  int64_t r = 0;
  for (; r + row_group <= rows; r += row_group) compute<words, row_group>(rows, r, f);
  for (; r + 2 <= rows; r += 2) compute<words, 2>(rows, r, f);
  if (r < rows) compute<words, 1>(rows, r, f);
}
#endif

// ---------------------------------------------------------------------------------------------------------- splitting

// [0, size) in the fewest parts of at most `limit`, as equal as can be.
struct Split {
  int64_t size, parts;
  Split(int64_t size_, int64_t limit) : size(size_), parts(ceil_div(size_, limit)) {}
  int64_t begin(int64_t i) const { return size * i / parts; }
  int64_t length(int64_t i) const { return begin(i + 1) - begin(i); }
};

// Blocks [begin, begin + blocks) of term t's k; `before` blocks lie in earlier chunks.
struct Chunk {
  size_t t;
  int64_t begin, blocks, before;
  bool first, last;  // of the term
};
Chunk chunk_at(const FourBitProduct& p, int64_t limit, int64_t q) {
  int64_t before = 0;
  for (size_t t = 0;; ++t) {
    const Split split(p.terms[t].blocks, limit);
    if (q < split.parts)
      return {t, split.begin(q), split.length(q), before + split.begin(q), q == 0, q + 1 == split.parts};
    q -= split.parts, before += split.size;
  }
}
int64_t count_chunks(const FourBitProduct& p, int64_t limit) {
  int64_t n = 0;
  for (const FourBitTerm& t : p.terms) n += ceil_div(t.blocks, limit);
  return n;
}

// What buffers depend on.
struct Sizes {
  int64_t m, n, blocks, terms;
  int words;
};
bool is_few(const Sizes& s) { return s.m <= few_rows && s.m * s.blocks * packed_bytes(s.words) <= shared_bytes; }

// Columns of a block of B.
int64_t block_width(const Sizes& s) {
  const int64_t most = larger(1, shared_bytes / (s.blocks * packed_bytes(s.words) * column_unit));
  const int64_t units = ceil_div(s.n, column_unit);
  return ceil_div(units, ceil_div(units, most)) * column_unit;
}

// In how many tasks the rows of A are cut: at most `height` rows each, and as many tasks for each thread.
int64_t row_tasks(int64_t m, int64_t threads) {
  const int64_t fewest = ceil_div(m, height);
  if (threads == 1) return fewest;
  const int64_t enough = larger(fewest, smaller(4 * threads, m / 64)), even = ceil_div(enough, threads) * threads;
  return even <= ceil_div(m, max_rows) ? even : enough;
}

// The buffers of a call, in bytes: packed B (few rows: packed A); of each thread packed A (B), the sums of a term, and
// those of the terms before it.
struct Buffers {
  int64_t shared, packed, sums, terms;
  int64_t bytes(int threads) const { return shared + threads * (packed + sums + terms); }
};
Buffers buffers(const Sizes& s) {
  const auto in_lines = [](int64_t bytes) { return ceil_div(bytes, line) * line; };
  const int64_t block = packed_bytes(s.words), chunk = smaller(s.blocks, chunk_blocks(s.words));
  Buffers b{};
  int64_t resting = 0;  // numbers
  if (is_few(s)) {
    b.shared = in_lines(s.m * s.blocks * block);
    b.packed = in_lines(column_unit * chunk * block);
    resting = s.m * column_unit;
  } else {
    const int64_t rows = smaller(s.m, height), wide = block_width(s);
    b.shared = in_lines(wide * s.blocks * block);
    b.packed = in_lines(rows * chunk * block);
    resting = rows * smaller(wide, rested);
  }
  // More than one chunk on any target.
  if (is_few(s) || s.terms > 1 || s.blocks > chunk_blocks(s.words)) b.sums = in_lines(resting * 4);
  if (s.terms > 1) b.terms = b.sums;
  return b;
}

// A thread's own buffers.
struct Own {
  std::byte* packed;
  float *sums, *terms;
};
struct Space {
  std::byte* shared;
  Buffers bytes;
  Own of(int thread) const {
    std::byte* at = shared + bytes.shared + thread * (bytes.packed + bytes.sums + bytes.terms);
    return {at, reinterpret_cast<float*>(at + bytes.packed), reinterpret_cast<float*>(at + bytes.packed + bytes.sums)};
  }
};

// -------------------------------------------------------------------------------------------------------- the product

// Fetches the lines of `rows` x columns results.
void wish(const FourBitProduct& p, int64_t i, int64_t j, int64_t rows, Wishes& wishes) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (i + r) * p.n + j;
    if (p.rounded != nullptr) {
      wishes.add(p.rounded + at);
    } else {
      for (int64_t g = 0; g < columns; g += lanes) wishes.add(p.sums + at + g);
    }
  }
}

// After a term's last chunk: the D of outputs (i, j) .. (i + rows, j + width), added to those of the terms before,
// whose sums lie in `terms`; after the last term, stored. Tiles of sums and terms are [rows][columns].
void finish(const FourBitProduct& p, size_t t, int64_t i, int64_t j, int64_t rows, int64_t width, const float* sums,
            float* terms) {
  const FourBitTerm& term = p.terms[t];
  const bool first = t == 0, last = t + 1 == p.terms.size();
  for (int64_t r = 0; r < rows; ++r) {
    const Word alpha = all(term.row_alphas != nullptr ? term.row_alphas[i + r] : term.alpha);
    for (int64_t g = 0; g < width; g += lanes) {
      const int64_t at = r * columns + g, to = (i + r) * p.n + j + g;
      Word d = mul(alpha, load(sums + at));
      if (!first) d = add(load(terms + at), d);
      if (!last)
        store(terms + at, d);
      else if (g + lanes <= width)
        put(p, to, WholeWord{}, d);
      else
        put(p, to, PartWord{width - g}, d);
    }
  }
}

// Fetches a part of an operand line by line, a few during each register block.
class Fetch {
 public:
  Fetch() = default;
  Fetch(const uint8_t* from, int64_t rows, int64_t bytes, int64_t pitch)
      : at_(from), rows_(rows), bytes_(bytes), pitch_(pitch) {}
  int64_t lines() const { return rows_ * ceil_div(bytes_, line); }
  void next(int64_t lines, Wishes& wishes) {
    for (; lines > 0 && rows_ > 0 && !wishes.full(); --lines) {
      wishes.add(at_ + done_);
      done_ += line;
      if (done_ >= bytes_) done_ = 0, at_ += pitch_, --rows_;
    }
  }

 private:
  const uint8_t* at_ = nullptr;
  int64_t rows_ = 0, bytes_ = 0, pitch_ = 0, done_ = 0;
};

// Rows [i0, i0 + size) of A and the chunk's k: panels of rows.length(i) rows, one after the other.
template <int words>
void pack_a(const FourBitProduct& p, const Chunk& c, int64_t i0, const Split& rows, std::byte* dst) {
  for (int64_t i = 0; i < rows.parts; ++i) {
    const int64_t width = rows.length(i), begin = rows.begin(i);
    std::byte* panel = dst + c.blocks * a_block_bytes(words, begin);
    for (int64_t r = 0; r < width; ++r)
      pack_a_row<words>(p.terms[c.t].a, i0 + begin + r, c.begin, c.blocks, r, width, panel);
  }
}

template <int words>
bool is_uniform(const FourBitTerm& t) {
  return t.b.tile >= lanes;
}

template <int words>
void multiply_few_rows(const FourBitProduct& p, ThreadPool& pool, const Space& space) {
  constexpr int64_t limit = chunk_blocks(words);
  const Split rows(p.m, max_rows);
  const int64_t chunks = count_chunks(p, limit);
  for (int64_t q = 0; q < chunks; ++q) {
    const Chunk c = chunk_at(p, limit, q);
    pack_a<words>(p, c, 0, rows, space.shared + c.before * a_block_bytes(words, p.m));
  }
  const int64_t count = ceil_div(p.n, columns), group = larger(1, smaller(8, count / (4 * pool.size())));
  pool.run(ceil_div(count, group), [&](int64_t task, int thread) {
    const Own own = space.of(thread);
    for (int64_t panel = task * group; panel < smaller(count, (task + 1) * group); ++panel) {
      const int64_t j = panel * columns, width = smaller(columns, p.n - j);
      for (int64_t q = 0; q < chunks; ++q) {
        const Chunk c = chunk_at(p, limit, q);
        pack_b_panel<words>(p.terms[c.t].b, j, width, c.begin, c.blocks, own.packed);
        const std::byte* a = space.shared + c.before * a_block_bytes(words, p.m);
        for (int64_t i = 0; i < rows.parts; ++i) {
          const int64_t begin = rows.begin(i), size = rows.length(i);
          float* sums = own.sums + begin * columns;
          multiply<words>(
              size, is_uniform<words>(p.terms[c.t]),
              {c.blocks, a + c.blocks * a_block_bytes(words, begin), own.packed, sums, c.first, Wishes(sums)});
          if (c.last) finish(p, c.t, begin, j, size, width, sums, own.terms + begin * columns);
        }
      }
    }
  });
}

// Columns [j0, j0 + n) of C.
template <int words>
class Multiplication {
 public:
  Multiplication(const FourBitProduct& p, int64_t j0, int64_t n, int threads, const Space& space)
      : p_(p),
        j0_(j0),
        n_(n),
        panels_(ceil_div(n, columns)),
        chunks_(count_chunks(p, limit)),
        heights_(p.m, ceil_div(p.m, row_tasks(p.m, threads))),
        threads_(threads),
        space_(space) {
    // Columns are shared out too if rows alone give the threads too little to balance; each group packs its A anew, so
    // no group under 256 columns.
    groups_ = larger(1, smaller(ceil_div(2 * threads, heights_.parts), n / 256));
    if (chunks_ > 1) groups_ = larger(groups_, ceil_div(panels_, rested / columns));
  }
  int64_t panels() const { return panels_; }
  int64_t tasks() const { return heights_.parts * groups_; }

  void pack(int64_t panel) const {
    for (int64_t q = 0; q < chunks_; ++q) {
      const Chunk c = chunk_at(p_, limit, q);
      const int64_t j = panel * columns;
      pack_b_panel<words>(p_.terms[c.t].b, j0_ + j, smaller(columns, n_ - j), c.begin, c.blocks, packed_b(c, panel));
    }
  }

  void run(int64_t task, int thread) const {
    const int64_t h = task % heights_.parts, g = task / heights_.parts, i0 = heights_.begin(h);
    const int64_t begin = panels_ * g / groups_, end = panels_ * (g + 1) / groups_;
    const Split rows(heights_.length(h), max_rows);
    const Own own = space_.of(thread);
    alignas(line) float tile[max_rows * columns];
    for (int64_t q = 0; q < chunks_; ++q) {
      const Chunk c = chunk_at(p_, limit, q);
      pack_a<words>(p_, c, i0, rows, own.packed);
      Fetch next = next_a(task, q);
      const int64_t lines = ceil_div(next.lines(), rows.parts * (end - begin));
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t j = panel * columns, width = smaller(columns, n_ - j);
        for (int64_t i = 0; i < rows.parts; ++i) {
          const int64_t r = rows.begin(i), place = ((panel - begin) * rows.size + r) * columns;
          float* sums = chunks_ == 1 ? tile : own.sums + place;
          Wishes wishes(sums);
          if (q + 1 == chunks_) wish(p_, i0 + r, j0_ + j, rows.length(i), wishes);
          next.next(lines, wishes);
          multiply<words>(
              rows.length(i), is_uniform<words>(p_.terms[c.t]),
              {c.blocks, own.packed + c.blocks * a_block_bytes(words, r), packed_b(c, panel), sums, c.first, wishes});
          if (c.last) finish(p_, c.t, i0 + r, j0_ + j, rows.length(i), width, sums, own.terms + place);
        }
      }
    }
  }

 private:
  static constexpr int64_t limit = chunk_blocks(words);
  // A of the part after chunk q of a task, as far as can be foreseen: the next chunk, or a later task's first.
  Fetch next_a(int64_t task, int64_t q) const {
    const bool same = q + 1 < chunks_;
    const int64_t h = (same ? task : task + threads_) % heights_.parts;
    const Chunk c = chunk_at(p_, limit, same ? q + 1 : 0);
    const FourBitOperand& a = p_.terms[c.t].a;
    return {a.codes + heights_.begin(h) * a.code_pitch + c.begin * words * 2, heights_.length(h), c.blocks * words * 2,
            a.code_pitch};
  }
  std::byte* packed_b(const Chunk& c, int64_t panel) const {
    return space_.shared + (c.before * panels_ + panel * c.blocks) * b_block_bytes(words);
  }
  const FourBitProduct& p_;
  int64_t j0_, n_, panels_, chunks_;
  Split heights_;
  int64_t threads_;
  const Space& space_;
  int64_t groups_;
};

template <int words>
void product(const FourBitProduct& p, ThreadPool& pool, std::byte* workspace) {
  Sizes s{p.m, p.n, 0, static_cast<int64_t>(p.terms.size()), words};
  for (const FourBitTerm& t : p.terms) s.blocks += t.blocks;
  const Space space{workspace, buffers(s)};
  if (is_few(s)) return multiply_few_rows<words>(p, pool, space);
  const int64_t wide = block_width(s);
  for (int64_t j0 = 0; j0 < p.n; j0 += wide) {
    const Multiplication<words> part(p, j0, smaller(wide, p.n - j0), pool.size(), space);
    pool.run(part.panels(), [&](int64_t panel, int) { part.pack(panel); });
    pool.run(part.tasks(), [&](int64_t task, int thread) { part.run(task, thread); });
  }
}

}  // namespace

int64_t gemm_4bit_workspace_bytes(int64_t m, int64_t n, int64_t blocks, int64_t terms, bool mx, int threads) {
  if (m <= 0 || n <= 0 || blocks <= 0) return 0;
  return buffers({m, n, blocks, terms, mx ? 8 : 4}).bytes(threads);
}

void gemm_4bit(const FourBitProduct& p, ThreadPool& pool, std::byte* workspace) {
  if (p.m <= 0 || p.n <= 0) return;
  p.mx ? product<8>(p, pool, workspace) : product<4>(p, pool, workspace);
}

}  // namespace nibble::NIBBLE_TARGET
