// Products of BF16 operands (gemm_bf16.h), blocked as gemm.cpp blocks f32, with k counted in words of 32 bits: a word
// is one k widened to f32, or on avx512_bf16 a pair of k as they are stored. In words both are the same packing (k
// contiguous: rows of words are transposed) and the same register block; only the multiply-add differs.
//
// A chunk is up to `depth` words of one term's k. f32 results rest in C between chunks. BF16 results must not, for they
// are rounded once: a task keeps the sums of its tile in a buffer, and a block of B holds all of k.
#include "kernels/cpu/gemm_bf16.h"

#include "kernels/cpu/gemm_bf16_pack.h"

namespace nibble::NIBBLE_TARGET {
namespace {

#ifdef __AVX512F__
constexpr int max_rows = 14;  // as in gemm.cpp: 28 of 32 registers accumulate
#else
constexpr int max_rows = 6;
#endif
constexpr int columns = 2 * lanes;

// Equal on all targets, for the workspace is.
constexpr int64_t column_unit = 32;                // whole panels on every target
constexpr int64_t height = 128;                    // rows of a task
constexpr int64_t depth = 512;                     // words of a chunk
constexpr int64_t few_rows = 64;                   // up to here B is packed on the fly,
constexpr int64_t few_rows_depth = 256;            // in chunks of 256 words: 32 KiB
constexpr int64_t block_words = int64_t{2} << 20;  // of packed B
constexpr int64_t narrow = 256;  // columns at least of a block of B: packing A stays under 2 % of the product
constexpr int64_t rested = 512;  // columns at most of a task whose sums rest in a buffer: 256 KiB
constexpr int64_t gap = 16;      // free words after a panel of A: the last word stored runs over its end
constexpr int64_t line = 64;

// ---------------------------------------------------------------------------------------------------- register block

// Lines to fetch during a register block, one about every hundred cycles: the CPU drops most of a burst of prefetches.
constexpr int64_t words_a_wish = lanes == 16 ? 4 : 16;
struct Wishes {
  const void* at[depth / words_a_wish];
  int64_t count = 0;
  void add(const void* p, int64_t words) {
    if (count < words / words_a_wish) at[count++] = p;
  }
};

// to[rows][columns] = from (nullptr: +0) + the products of `words` words of k.
template <int rows, class To>
void block(int64_t words, const float* a, const float* b, const float* from, int64_t from_stride, To* to,
           int64_t to_stride, const Wishes& wishes) {
  Word acc[rows][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    acc[r][0] = from == nullptr ? zero() : load(from + r * from_stride);
    acc[r][1] = from == nullptr ? zero() : load(from + r * from_stride + lanes);
  }
  const auto step = [&] {
    const Word b0 = load(b), b1 = load(b + lanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const Word x = all(a[r]);
      acc[r][0] = multiply_add(x, b0, acc[r][0]);
      acc[r][1] = multiply_add(x, b1, acc[r][1]);
    }
    a += rows;
    b += columns;
  };
  for (int64_t k = wishes.count * words_a_wish; k < words; ++k) step();
  for (int64_t i = 0; i < wishes.count; ++i) {
    __builtin_prefetch(wishes.at[i]);
#pragma GCC unroll 4
    for (int q = 0; q < words_a_wish; ++q) step();
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    store(to + r * to_stride, acc[r][0]);
    store(to + r * to_stride + lanes, acc[r][1]);
  }
}

template <class To>
using Block = void (*)(int64_t words, const float* a, const float* b, const float* from, int64_t from_stride, To* to,
                       int64_t to_stride, const Wishes& wishes);
template <class To>
constexpr Block<To> blocks[max_rows + 1] = {nullptr,       block<1, To>,  block<2, To>, block<3, To>,  block<4, To>,
                                            block<5, To>,  block<6, To>,
#ifdef __AVX512F__
                                            block<7, To>,  block<8, To>,  block<9, To>, block<10, To>, block<11, To>,
                                            block<12, To>, block<13, To>, block<14, To>
#endif
};

// Where the sums of some outputs come from, and where they go: to f32 or to BF16.
struct Place {
  const float* from;  // nullptr: +0
  int64_t from_stride;
  float* sums;
  BFloat16* rounded;
  int64_t stride;
  Place at(int64_t i, int64_t j) const {
    return {from == nullptr ? nullptr : from + i * from_stride + j, from_stride,
            sums == nullptr ? nullptr : sums + i * stride + j, rounded == nullptr ? nullptr : rounded + i * stride + j,
            stride};
  }
};

// The lines of a register block that comes later: its sums are read first and its results written last.
void wish(int64_t rows, const Place& c, int64_t words, Wishes& wishes) {
  for (int64_t r = 0; r < rows; ++r) {
    if (c.sums == nullptr) {
      wishes.add(c.rounded + r * c.stride, words);
    } else {
      wishes.add(c.sums + r * c.stride, words);
      wishes.add(c.sums + r * c.stride + columns - 1, words);
    }
  }
}

// `rows` x `width` outputs; a panel that is cut short by the edge of C goes through copies.
template <class To>
void outputs(int64_t rows, int64_t width, int64_t words, const float* a, const float* b, const Place& c, To* to,
             const Wishes& wishes) {
  if (width == columns) return blocks<To>[rows](words, a, b, c.from, c.from_stride, to, c.stride, wishes);
  alignas(line) float in[max_rows * columns] = {};
  alignas(line) To out[max_rows * columns];
  for (int64_t r = 0; r < rows && c.from != nullptr; ++r)
    for (int64_t j = 0; j < width; ++j) in[r * columns + j] = c.from[r * c.from_stride + j];
  blocks<To>[rows](words, a, b, c.from == nullptr ? nullptr : in, columns, out, columns, wishes);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < width; ++j) to[r * c.stride + j] = out[r * columns + j];
}
void outputs(int64_t rows, int64_t width, int64_t words, const float* a, const float* b, const Place& c,
             const Wishes& wishes) {
  if (c.sums != nullptr) return outputs(rows, width, words, a, b, c, c.sums, wishes);
  outputs(rows, width, words, a, b, c, c.rounded, wishes);
}

// ---------------------------------------------------------------------------------------------------------- splitting

// [0, size) in the fewest parts of at most `limit`, as equal as can be.
struct Split {
  int64_t size, parts;
  Split(int64_t size_, int64_t limit) : size(size_), parts(ceil_div(size_, limit)) {}
  int64_t begin(int64_t i) const { return size * i / parts; }
  int64_t length(int64_t i) const { return begin(i + 1) - begin(i); }
};

// Words [begin, begin + words) of a term's k; `before` words lie in earlier chunks.
struct Chunk {
  const Bf16Term* term;
  int64_t begin, words, before;
};
// Chunk q of a product cut into chunks of at most `limit` words.
Chunk chunk_at(std::span<const Bf16Term> terms, int64_t limit, int64_t q) {
  int64_t before = 0;
  for (const Bf16Term& term : terms) {
    const Split split(ceil_div(term.k, k_of_word), limit);
    if (q < split.parts) return {&term, split.begin(q), split.length(q), before + split.begin(q)};
    q -= split.parts, before += split.size;
  }
  return {nullptr, 0, 0, before};
}

// What buffers depend on.
struct Sizes {
  int64_t m, n, terms, words;
  bool rounded;
  // Chunks of at most `limit` words: so many at most.
  int64_t chunks(int64_t limit) const { return terms == 1 ? ceil_div(words, limit) : words / limit + terms; }
};
int64_t even(int64_t k) { return (k + 1) / 2 * 2; }
Sizes sizes_of(const Bf16Product& p) {
  Sizes s{p.m, p.n, static_cast<int64_t>(p.terms.size()), 0, p.rounded != nullptr};
  for (const Bf16Term& term : p.terms) s.words += even(term.k) / k_of_word;
  return s;
}
int64_t count_chunks(const Bf16Product& p, int64_t limit) {
  int64_t n = 0;
  for (const Bf16Term& term : p.terms) n += ceil_div(ceil_div(term.k, k_of_word), limit);
  return n;
}

// How B is cut: blocks of `wide` columns (whole panels) x `deep` chunks.
struct BlockShape {
  int64_t wide, deep;
};
BlockShape block_shape(const Sizes& s) {
  int64_t most = block_words / depth;
  if (s.rounded) most = larger(narrow, smaller(most, block_words / s.words));
  const int64_t units = ceil_div(s.n, column_unit), parts = ceil_div(units, most / column_unit);
  const int64_t wide = ceil_div(units, parts) * column_unit;
  return {wide, s.rounded ? s.chunks(depth) : smaller(s.chunks(depth), block_words / wide / depth)};
}

int64_t in_lines(int64_t words) { return ceil_div(words * 4, line) * line; }

// The buffers of a call, in bytes: packed B (few rows: packed A); of each thread packed A (B) and resting sums.
struct Buffers {
  int64_t shared, packed, sums;
  int64_t bytes(int threads) const { return shared + threads * (packed + sums) + line; }
};
Buffers buffers(const Sizes& s) {
  if (s.m <= few_rows)
    return {
        in_lines(s.m * s.words + s.chunks(few_rows_depth) * ceil_div(s.m, 6) * gap),  // 6 rows: the narrowest panels
        in_lines(smaller(s.words, few_rows_depth) * column_unit), s.rounded ? in_lines(s.m * column_unit) : 0};
  const BlockShape shape = block_shape(s);
  const int64_t rows = smaller(s.m, height),
                resting = s.rounded && s.chunks(depth) > 1 ? smaller(shape.wide, rested) : 0;
  return {in_lines(shape.wide * smaller(s.words, shape.deep * depth)), in_lines(rows * (smaller(s.words, depth) + gap)),
          in_lines(rows * resting)};
}

// A thread's own buffers.
struct Own {
  float *packed, *sums;
};
struct Space {
  float *shared, *own;
  Buffers bytes;
  Space(std::byte* workspace, const Buffers& b)
      : shared(reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(workspace) + line - 1) / line * line)),
        own(shared + b.shared / 4),
        bytes(b) {}
  Own of(int thread) const {
    float* at = own + thread * (bytes.packed + bytes.sums) / 4;
    return {at, at + bytes.packed / 4};
  }
};

// ------------------------------------------------------------------------------------------------------------ packing

constexpr int64_t along_step = 16;  // words packed at a time where rows are contiguous

// Fetches a part of an operand line by line, a few at a time between other work.
class Fetch {
 public:
  Fetch() = default;
  // Rows [i, i + rows), k [k0, k0 + k).
  Fetch(const Bf16Operand& o, int64_t i, int64_t rows, int64_t k0, int64_t k) {
    at_ = reinterpret_cast<const char*>(o.data + i * o.row_stride + k0 * o.k_stride);
    const bool across = o.k_stride == 1;
    count_ = across ? rows : k, bytes_ = 2 * (across ? k : rows), stride_ = 2 * (across ? o.row_stride : o.k_stride);
  }
  int64_t lines() const { return count_ * ceil_div(bytes_, line); }
  // f of each of the next lines.
  template <class F>
  void next(int64_t lines, const F& f) {
    for (; lines > 0 && count_ > 0; --lines) {
      f(at_ + done_);
      done_ += line;
      if (done_ >= bytes_) done_ = 0, at_ += stride_, --count_;
    }
  }

 private:
  const char* at_ = nullptr;
  int64_t count_ = 0, bytes_ = 0, stride_ = 0, done_ = 0;
};

// k of the chunk from word `w` on, at most those of `words` words.
int64_t k_in(const Chunk& c, int64_t w, int64_t words) {
  return smaller(words * k_of_word, c.term->k - (c.begin + w) * k_of_word);
}

// A, rows contiguous: all rows of a few words at a time, from where the panels are cut, for the lines of successive k
// may fall into the same few sets of the cache.
void pack_a_along(const Chunk& c, int64_t i0, const Split& rows, float* dst) {
  constexpr int64_t stride = height + 2 * 16;
  alignas(line) float some[along_step * stride];
  const Bf16Operand& a = c.term->a;
  for (int64_t w = 0; w < c.words; w += along_step) {
    const int64_t count = smaller(along_step, c.words - w);
    for (int64_t q = 0; q < count; ++q)
      pack_word(a.data + i0 + (c.begin + w + q) * k_of_word * a.k_stride, a.k_stride, rows.size, k_in(c, w + q, 1),
                some + q * stride);
    for (int64_t p = 0; p < rows.parts; ++p) {
      const int64_t width = rows.length(p);
      const float* from = some + rows.begin(p);
      float* to = dst + rows.begin(p) * c.words + p * gap + w * width;
      for (int64_t q = 0; q < count; ++q)
        for (int64_t r = 0; r < width; r += lanes) store(to + q * width + r, load(from + q * stride + r));
    }
  }
}

// Rows [i0, i0 + size) of A and the chunk's k: panels of rows.length(p) rows, panel p at begin(p) words + p gap.
void pack_a(const Chunk& c, int64_t i0, const Split& rows, float* dst) {
  const Bf16Operand& a = c.term->a;
  if (a.k_stride != 1) return pack_a_along(c, i0, rows, dst);
  for (int64_t p = 0; p < rows.parts; ++p)
    pack_across(a.data + (i0 + rows.begin(p)) * a.row_stride + c.begin * k_of_word, a.row_stride, rows.length(p),
                k_in(c, 0, c.words), dst + rows.begin(p) * c.words + p * gap, rows.length(p));
}

// Columns [j, j + width) of B, width <= columns, and words [w, w + words) of the chunk: dst[word * columns + column].
void pack_panel(const Chunk& c, int64_t j, int64_t width, int64_t w, int64_t words, float* dst) {
  const Bf16Operand& b = c.term->b;
  const BFloat16* src = b.data + j * b.row_stride + (c.begin + w) * k_of_word * b.k_stride;
  if (b.k_stride != 1) {
    for (int64_t q = 0; q < words; ++q)
      pack_word(src + q * k_of_word * b.k_stride, b.k_stride, width, k_in(c, w + q, 1), dst + q * columns);
    return;
  }
  for (int64_t g = 0; g < width; g += lanes)
    pack_across(src + g * b.row_stride, b.row_stride, smaller(width - g, lanes), k_in(c, w, words), dst + g, columns);
  if (width <= lanes)  // nothing is read from the other half, but it must hold numbers
    for (int64_t q = 0; q < words; ++q) store(dst + q * columns + lanes, zero());
}

// -------------------------------------------------------------------------------------------------------- the product

// Chunk q of `chunks` of outputs that start at (i, j): where the sums are before and after it. `resting`: their rest.
Place place_of(const Bf16Product& p, int64_t i, int64_t j, int64_t q, int64_t chunks, float* resting, int64_t stride) {
  if (p.sums != nullptr) {
    float* c = p.sums + i * p.c_stride + j;
    return {q == 0 && !p.accumulate ? nullptr : c, p.c_stride, c, nullptr, p.c_stride};
  }
  const float* from = q == 0 ? nullptr : resting;
  if (q + 1 < chunks) return {from, stride, resting, nullptr, stride};
  return {from, stride, nullptr, p.rounded + i * p.c_stride + j, p.c_stride};
}

// A product of at most `few_rows` rows reads each packed value of B a few times only: A is packed whole, and B a chunk
// of a panel at a time into L1 by whoever needs it, so that decoding reads the weights from memory once.
void multiply_few_rows(const Bf16Product& p, const Sizes& s, ThreadPool& pool, const Space& space) {
  const Split rows(p.m, max_rows);
  const int64_t chunks = count_chunks(p, few_rows_depth);
  for (int64_t q = 0; q < chunks; ++q) {
    const Chunk c = chunk_at(p.terms, few_rows_depth, q);
    pack_a(c, 0, rows, space.shared + p.m * c.before + q * rows.parts * gap);
  }
  const int64_t count = ceil_div(s.n, columns), group = larger(1, smaller(8, count / (4 * pool.size())));
  pool.run(ceil_div(count, group), [&](int64_t task, int thread) {
    const Own own = space.of(thread);
    for (int64_t panel = task * group; panel < smaller(count, (task + 1) * group); ++panel) {
      const int64_t j = panel * columns, width = smaller(columns, p.n - j);
      for (int64_t q = 0; q < chunks; ++q) {
        const Chunk c = chunk_at(p.terms, few_rows_depth, q);
        pack_panel(c, j, width, 0, c.words, own.packed);
        const float* a = space.shared + p.m * c.before + q * rows.parts * gap;
        const Place place = place_of(p, 0, j, q, chunks, own.sums, columns);
        for (int64_t i = 0; i < rows.parts; ++i)
          outputs(rows.length(i), width, c.words, a + rows.begin(i) * c.words + i * gap, own.packed,
                  place.at(rows.begin(i), 0), {});
      }
    }
  });
}

// One block of B: columns [j0, j0 + n), chunks [q0, q1) of `chunks`.
struct BBlock {
  int64_t j0, n, q0, q1, chunks;
  int64_t panels() const { return ceil_div(n, columns); }
  // Panel p of a chunk in the packed block, whose first chunk has `before` words before it.
  int64_t place(const Chunk& c, int64_t before, int64_t p) const {
    return ((c.before - before) * panels() + p * c.words) * columns;
  }
};

void pack_block(const Bf16Product& p, const BBlock& b, ThreadPool& pool, float* packed) {
  constexpr int64_t group = 128 / columns;  // panels of a task
  const int64_t groups = ceil_div(b.panels(), group), before = chunk_at(p.terms, depth, b.q0).before;
  pool.run((b.q1 - b.q0) * groups, [&](int64_t task, int) {
    const Chunk c = chunk_at(p.terms, depth, b.q0 + task / groups);
    const int64_t p0 = task % groups * group, p1 = smaller(b.panels(), p0 + group);
    const int64_t step = c.term->b.k_stride == 1 ? c.words : along_step;
    const int64_t j = b.j0 + p0 * columns, width = smaller(p1 * columns, b.n) - p0 * columns;
    for (int64_t w = 0; w < c.words; w += step) {
      if (step < c.words) {  // the lines of a column of k are too far apart for the hardware to guess
        Fetch ahead(c.term->b, j, width, (c.begin + w + step) * k_of_word, k_in(c, w + step, step));
        ahead.next(ahead.lines(), [](const char* at) { __builtin_prefetch(at); });
      }
      for (int64_t i = p0; i < p1; ++i)
        pack_panel(c, b.j0 + i * columns, smaller(columns, b.n - i * columns), w, smaller(step, c.words - w),
                   packed + b.place(c, before, i) + w * columns);
    }
  });
}

// The part of A that its thread packs after chunk q: the next chunk of the same rows, or the first one of a later task.
Fetch next_a(const Bf16Product& p, const BBlock& b, const Split& heights, int64_t q, int64_t task, int64_t i0) {
  int64_t rows = smaller(height, p.m - i0);
  if (q + 1 < b.q1) {
    ++q;
  } else {
    const int64_t h = task % heights.parts;
    q = b.q0, i0 = heights.begin(h), rows = heights.length(h);
  }
  const Chunk c = chunk_at(p.terms, depth, q);
  return Fetch(c.term->a, i0, rows, c.begin * k_of_word, k_in(c, 0, c.words));
}

void multiply_block(const Bf16Product& p, const BBlock& b, ThreadPool& pool, const Space& space) {
  const Split heights(p.m, height);
  // Columns are shared out too if rows alone give the threads too little to balance; each group packs its A anew, so no
  // group under 256 columns.
  const int64_t wanted = ceil_div(4 * pool.size(), heights.parts), panels = b.panels();
  int64_t groups = larger(1, smaller(wanted, b.n / narrow));
  if (space.bytes.sums != 0) groups = larger(groups, ceil_div(panels, rested / columns));
  const int64_t before = chunk_at(p.terms, depth, b.q0).before;
  pool.run(heights.parts * groups, [&](int64_t task, int thread) {
    const int64_t h = task % heights.parts, g = task / heights.parts, i0 = heights.begin(h);
    const int64_t p0 = panels * g / groups, p1 = panels * (g + 1) / groups, stride = (p1 - p0) * columns;
    const Split rows(heights.length(h), max_rows);
    const Own own = space.of(thread);
    for (int64_t q = b.q0; q < b.q1; ++q) {
      const Chunk c = chunk_at(p.terms, depth, q);
      pack_a(c, i0, rows, own.packed);
      Fetch ahead = next_a(p, b, heights, q, task + pool.size(), i0);
      const int64_t some = ceil_div(ahead.lines(), (p1 - p0) * rows.parts);
      for (int64_t i = p0; i < p1; ++i) {
        const int64_t j = i * columns, width = smaller(columns, b.n - j);
        const Place place = place_of(p, i0, b.j0 + j, q, b.chunks, own.sums + (i - p0) * columns, stride);
        for (int64_t r = 0; r < rows.parts; ++r) {
          Wishes wishes;
          ahead.next(some, [&](const char* line_of_a) { wishes.add(line_of_a, c.words); });
          const bool last = r + 1 == rows.parts;  // then the next block is the first of another panel
          wish(rows.length(last ? 0 : r + 1), last ? place.at(0, columns) : place.at(rows.begin(r + 1), 0), c.words,
               wishes);
          outputs(rows.length(r), width, c.words, own.packed + rows.begin(r) * c.words + r * gap,
                  space.shared + b.place(c, before, i), place.at(rows.begin(r), 0), wishes);
        }
      }
    }
  });
}

// No k at all: the sums are +0 or stay as they are.
void without_k(const Bf16Product& p) {
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n && !p.accumulate; ++j) {
      if (p.sums != nullptr) {
        p.sums[i * p.c_stride + j] = 0;
      } else {
        p.rounded[i * p.c_stride + j] = {};
      }
    }
}

}  // namespace

int64_t gemm_bf16_workspace_bytes(int64_t m, int64_t n, int64_t k, int64_t terms, bool rounded, int threads) {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  // Words of one k and of two.
  return larger(buffers({m, n, terms, even(k), rounded}).bytes(threads),
                buffers({m, n, terms, even(k) / 2, rounded}).bytes(threads));
}

void gemm_bf16(const Bf16Product& p, ThreadPool& pool, std::byte* workspace) {
  if (p.m <= 0 || p.n <= 0) return;
  const Sizes s = sizes_of(p);
  if (s.words == 0) return without_k(p);
  const Space space(workspace, buffers(s));
  if (p.m <= few_rows) return multiply_few_rows(p, s, pool, space);
  const BlockShape shape = block_shape(s);
  const int64_t chunks = count_chunks(p, depth);
  for (int64_t j0 = 0; j0 < p.n; j0 += shape.wide)
    for (int64_t q = 0; q < chunks; q += shape.deep) {
      const BBlock block{j0, smaller(shape.wide, p.n - j0), q, smaller(chunks, q + shape.deep), chunks};
      pack_block(p, block, pool, space.shared);
      multiply_block(p, block, pool, space);
    }
}

}  // namespace nibble::NIBBLE_TARGET
