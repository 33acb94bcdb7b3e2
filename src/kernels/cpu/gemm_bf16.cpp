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

// What a register block multiplies: A(r, word) = a[word * rows + r], B = b[word * columns + column]; or, where `raw` is
// set, B from rows of the operand, which is packed to b on the way.
struct Factors {
  int64_t words;
  const float* a;
  float* b;
  const BFloat16* raw;
  int64_t k_stride;
};

constexpr int64_t raw_ahead = 8;  // words from a row of an unpacked B to its prefetch

// to[rows][columns] = from (nullptr: +0) + A B.
template <int rows, class To, bool packs>
void block(const Factors& f, const float* from, int64_t from_stride, To* to, int64_t to_stride, const Wishes& wishes) {
  Word acc[rows][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    acc[r][0] = from == nullptr ? zero() : load(from + r * from_stride);
    acc[r][1] = from == nullptr ? zero() : load(from + r * from_stride + lanes);
  }
  const float* a = f.a;
  float* b = f.b;
  const BFloat16* raw = f.raw;
  const int64_t k_stride = f.k_stride;
  const auto step = [&] {
    Word b0, b1;
    if constexpr (packs) {
      for (int64_t q = 0; q < k_of_word; ++q) __builtin_prefetch(raw + (raw_ahead * k_of_word + q) * k_stride);
      b0 = load_rows(raw, k_stride), b1 = load_rows(raw + lanes, k_stride);
      store(b, b0), store(b + lanes, b1);
      raw += k_of_word * k_stride;
    } else {
      b0 = load(b), b1 = load(b + lanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const Word x = all(a[r]);
      acc[r][0] = multiply_add(x, b0, acc[r][0]);
      acc[r][1] = multiply_add(x, b1, acc[r][1]);
    }
    a += rows;
    b += columns;
  };
  for (int64_t k = wishes.count * words_a_wish; k < f.words; ++k) step();
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
using Block = void (*)(const Factors& f, const float* from, int64_t from_stride, To* to, int64_t to_stride,
                       const Wishes& wishes);
// clang-format off
template <class To, bool packs>
constexpr Block<To> blocks[max_rows + 1] = {
    nullptr, block<1, To, packs>, block<2, To, packs>, block<3, To, packs>, block<4, To, packs>, block<5, To, packs>,
    block<6, To, packs>,
#ifdef __AVX512F__
    block<7, To, packs>, block<8, To, packs>, block<9, To, packs>, block<10, To, packs>, block<11, To, packs>,
    block<12, To, packs>, block<13, To, packs>, block<14, To, packs>
#endif
};
// clang-format on

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
void outputs(int64_t rows, int64_t width, const Factors& f, const Place& c, To* to, const Wishes& wishes) {
  if (width == columns)
    return (f.raw != nullptr ? blocks<To, true> : blocks<To, false>)[rows](f, c.from, c.from_stride, to, c.stride,
                                                                           wishes);
  alignas(line) float in[max_rows * columns] = {};
  alignas(line) To out[max_rows * columns];
  for (int64_t r = 0; r < rows && c.from != nullptr; ++r)
    for (int64_t j = 0; j < width; ++j) in[r * columns + j] = c.from[r * c.from_stride + j];
  blocks<To, false>[rows](f, c.from == nullptr ? nullptr : in, columns, out, columns, wishes);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < width; ++j) to[r * c.stride + j] = out[r * columns + j];
}
void outputs(int64_t rows, int64_t width, const Factors& f, const Place& c, const Wishes& wishes) {
  if (c.sums != nullptr) return outputs(rows, width, f, c, c.sums, wishes);
  outputs(rows, width, f, c, c.rounded, wishes);
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

// The buffers of a call, in bytes: packed B (few rows: packed A) and the states of its panels; of each thread packed A
// (B) and resting sums.
struct Buffers {
  int64_t shared, packed, sums, states;
  int64_t bytes(int threads) const { return shared + states + threads * (packed + sums) + line; }
};
Buffers buffers(const Sizes& s) {
  if (s.m <= few_rows)
    return {
        in_lines(s.m * s.words + s.chunks(few_rows_depth) * ceil_div(s.m, 6) * gap),  // 6 rows: the narrowest panels
        in_lines(smaller(s.words, few_rows_depth) * column_unit), s.rounded ? in_lines(s.m * column_unit) : 0, 0};
  const BlockShape shape = block_shape(s);
  const int64_t rows = smaller(s.m, height),
                resting = s.rounded && s.chunks(depth) > 1 ? smaller(shape.wide, rested) : 0;
  return {in_lines(shape.wide * smaller(s.words, shape.deep * depth)), in_lines(rows * (smaller(s.words, depth) + gap)),
          in_lines(rows * resting), in_lines(ceil_div(shape.wide / 16 * shape.deep, 4))};  // 16: the narrowest panels
}

// A thread's own buffers.
struct Own {
  float *packed, *sums;
};
struct Space {
  float *shared, *own;
  uint8_t* states;
  Buffers bytes;
  Space(std::byte* workspace, const Buffers& b)
      : shared(reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(workspace) + line - 1) / line * line)),
        own(shared + (b.shared + b.states) / 4),
        states(reinterpret_cast<uint8_t*>(shared + b.shared / 4)),
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
          outputs(rows.length(i), width, {c.words, a + rows.begin(i) * c.words + i * gap, own.packed, nullptr, 0},
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

// C for one block of B. A task is some rows of A times a group of panels. The thread that comes to a panel first packs
// it, and threads start at different ones; who meets a panel in work takes others first. Where rows of B are contiguous
// the first register block packs on the way, so that reading B and writing the panel hide behind the products.
class Multiplication {
 public:
  Multiplication(const Bf16Product& product, const BBlock& block, int threads, const Space& space)
      : p_(product),
        b_(block),
        space_(space),
        heights_(product.m, height),
        threads_(threads),
        before_(chunk_at(product.terms, depth, block.q0).before) {
    // Columns are shared out too if rows alone give the threads too little to balance; each group packs its A anew, so
    // no group under 256 columns.
    groups_ = larger(1, smaller(ceil_div(4 * threads, heights_.parts), block.n / narrow));
    if (space.bytes.sums != 0) groups_ = larger(groups_, ceil_div(block.panels(), rested / columns));
    for (int64_t i = 0; i < block.panels() * (block.q1 - block.q0); ++i) space.states[i] = untouched;
  }
  int64_t tasks() const { return heights_.parts * groups_; }

  void run(int64_t task, int thread) const {
    const int64_t h = task % heights_.parts, g = task / heights_.parts, panels = b_.panels();
    const int64_t p0 = panels * g / groups_, count = panels * (g + 1) / groups_ - p0;
    for (int64_t q = b_.q0; q < b_.q1; ++q) {
      Part t{q,
             chunk_at(p_.terms, depth, q),
             heights_.begin(h),
             p0,
             count * columns,
             Split(heights_.length(h), max_rows),
             space_.of(thread),
             next_a(task, q),
             0};
      t.lines_a_block = ceil_div(t.next_a.lines(), count * t.rows.parts);
      pack_a(t.chunk, t.i0, t.rows, t.own.packed);
      uint64_t busy[block_words / depth / 16 / 64] = {};
      for (int64_t i = 0, p = count * thread / threads_; i < count; ++i, p = p + 1 == count ? 0 : p + 1)
        if (!panel(t, p0 + p, false)) busy[p / 64] |= uint64_t{1} << (p % 64);
      for (int64_t p = 0; p < count; ++p)
        if ((busy[p / 64] >> (p % 64) & 1) != 0) panel(t, p0 + p, true);
    }
  }

 private:
  enum State : uint8_t { untouched, in_work, ready };

  struct Part {  // of a task: one chunk of k
    int64_t q;
    Chunk chunk;
    int64_t i0, p0, stride;
    Split rows;
    Own own;
    Fetch next_a;
    int64_t lines_a_block;
  };

  // A of the part after this one, as far as can be foreseen: the next chunk of the same rows, or a later task's first.
  Fetch next_a(int64_t task, int64_t q) const {
    const bool same = q + 1 < b_.q1;
    const int64_t h = (same ? task : task + threads_) % heights_.parts;
    const Chunk c = chunk_at(p_.terms, depth, same ? q + 1 : b_.q0);
    return {c.term->a, heights_.begin(h), heights_.length(h), c.begin * k_of_word, k_in(c, 0, c.words)};
  }

  // The part's rows times panel i; false if another thread is packing the panel and this one need not wait.
  bool panel(Part& t, int64_t i, bool wait) const {
    const Chunk& c = t.chunk;
    const Bf16Operand& operand = c.term->b;
    uint8_t* state = &space_.states[(t.q - b_.q0) * b_.panels() + i];
    const int64_t j = i * columns, width = smaller(columns, b_.n - j);
    Factors f{c.words, nullptr, space_.shared + b_.place(c, before_, i), nullptr, 0};
    uint8_t seen = __atomic_load_n(state, __ATOMIC_ACQUIRE);
    const bool mine = seen == untouched &&
                      __atomic_compare_exchange_n(state, &seen, in_work, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE);
    if (mine && (operand.k_stride == 1 || width < columns || k_in(c, 0, c.words) < c.words * k_of_word)) {
      pack_panel(c, b_.j0 + j, width, 0, c.words, f.b);
    } else if (mine) {
      f.raw = operand.data + b_.j0 + j + c.begin * k_of_word * operand.k_stride, f.k_stride = operand.k_stride;
    } else if (seen == in_work) {
      if (!wait) return false;
      while (__atomic_load_n(state, __ATOMIC_ACQUIRE) != ready) _mm_pause();
    }
    Fetch next_b;
    if (i + 1 < b_.panels() && __atomic_load_n(state + 1, __ATOMIC_RELAXED) == untouched)
      next_b = Fetch(operand, b_.j0 + j + columns, smaller(columns, b_.n - j - columns), c.begin * k_of_word,
                     k_in(c, 0, c.words));
    const int64_t lines_of_b = ceil_div(next_b.lines(), t.rows.parts);
    const Place place = place_of(p_, t.i0, b_.j0 + j, t.q, b_.chunks, t.own.sums + (i - t.p0) * columns, t.stride);
    for (int64_t r = 0; r < t.rows.parts; ++r) {
      Wishes wishes;
      const auto add = [&](const char* at) { wishes.add(at, c.words); };
      const bool last = r + 1 == t.rows.parts;  // then the next block is the first of another panel
      wish(t.rows.length(last ? 0 : r + 1), last ? place.at(0, columns) : place.at(t.rows.begin(r + 1), 0), c.words,
           wishes);
      t.next_a.next(t.lines_a_block, add);
      next_b.next(lines_of_b, add);
      f.a = t.own.packed + t.rows.begin(r) * c.words + r * gap;
      outputs(t.rows.length(r), width, f, place.at(t.rows.begin(r), 0), wishes);
      if (r == 0 && mine) {
        __atomic_store_n(state, uint8_t{ready}, __ATOMIC_RELEASE);
        f.raw = nullptr;
      }
    }
    return true;
  }

  const Bf16Product& p_;
  const BBlock& b_;
  const Space& space_;
  Split heights_;
  int64_t groups_, threads_, before_;
};

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
      const Multiplication part(p, block, pool.size(), space);
      pool.run(part.tasks(), [&](int64_t task, int thread) { part.run(task, thread); });
    }
}

}  // namespace nibble::NIBBLE_TARGET
