// f32 GEMM: C[m, n] (+)= A B^T after BLIS (Van Zee and van de Geijn, "BLIS: a framework for rapidly instantiating BLAS
// functionality", 2015). Three levels:
//   - a block of up to 8 MiB of B: panels of `columns` columns, cut into chunks of `depth` k, each packed by the first
//     thread that needs it;
//   - a task: up to `height` rows of A, packed by the thread that takes the task, times a group of panels;
//   - a register block: up to `max_rows` rows times one panel, each output one lane of an accumulator.
// A product of at most `few_rows` rows would read each packed value of B a few times only, so there A is packed whole,
// and B a chunk of a panel at a time into L1 by whoever needs it: decoding reads the weights from memory once.
// Between two chunks of k an accumulator rests in C; a reload changes no bit (contract in gemm.h).
// What a register block touches next (outputs, the rows of A and of B to be packed) is fetched during the one before.
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/words.h"

namespace nibble::NIBBLE_TARGET {
namespace {

#ifdef __AVX512F__
constexpr int max_rows = 14;  // 28 of 32 registers accumulate, two hold B, one A
#else
constexpr int max_rows = 6;  // 12 of 16
#endif
constexpr int columns = 2 * lanes;

// Equal on all targets, for gemm_workspace_bytes is.
constexpr int64_t column_unit = 32;      // whole panels on every target
constexpr int64_t height = 128;          // rows of a task: height x depth of A is 256 KiB, half of a Zen 3's L2
constexpr int64_t depth = 512;           // k of a chunk
constexpr int64_t few_rows = 64;         // up to here B is packed on the fly,
constexpr int64_t few_rows_depth = 256;  // in chunks of 256 k: 32 KiB at most
constexpr int64_t block_floats = int64_t{2} << 20;  // of packed B
constexpr int64_t gap = 16;   // free floats after a panel of A: the last word stored runs over its end
constexpr int64_t line = 64;  // bytes of a cache line; buffers start on one
constexpr int64_t line_floats = line / int64_t{sizeof(float)};

// ---------------------------------------------------------------------------------------------------- register block

// Pairs of lines to bring into L1 and L2 during a register block, one about every hundred cycles: the CPU drops most of
// a burst of prefetches. The last in the list are the block's own outputs.
constexpr int64_t steps_a_wish = lanes == 16 ? 4 : 16;  // k
struct Wishes {
  const float* at[depth / steps_a_wish + 2 * max_rows];
  int64_t count = 0;
  void add(const float* p) { at[count++] = p; }
};

// One block's outputs and where its operands lie: A(r, k) = a[k * rows + r], B(j, k) = b[k * b_step + j].
struct Block {
  int64_t kc;
  const float *a, *b;
  int64_t b_step;
  float* packed_b;  // where b goes, if the block packs it
  float* c;
  int64_t c_stride;
  bool from_zero;
};

constexpr int64_t ahead = 12;  // k from a row of an unpacked B to its prefetch

template <int rows, bool packs>
void compute(const Block& t, const Wishes& wishes) {
  Word acc[rows][2];
  float* c = t.c;
  const int64_t c_stride = t.c_stride;
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    acc[r][0] = t.from_zero ? zero() : load(c + r * c_stride);
    acc[r][1] = t.from_zero ? zero() : load(c + r * c_stride + lanes);
  }
  const float *a = t.a, *b = t.b;
  float* packed = t.packed_b;
  const int64_t b_step = packs ? t.b_step : columns;
  const auto step = [&] {
    const Word b0 = load(b), b1 = load(b + lanes);
    if constexpr (packs) {
      __builtin_prefetch(b + ahead * b_step);
      __builtin_prefetch(b + ahead * b_step + columns - 1);
      store(packed, b0);
      store(packed + lanes, b1);
      packed += columns;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const Word x = all(a[r]);
      acc[r][0] = fma(x, b0, acc[r][0]);
      acc[r][1] = fma(x, b1, acc[r][1]);
    }
    a += rows;
    b += b_step;
  };
  const int64_t granted = smaller(wishes.count, t.kc / steps_a_wish);
  for (int64_t k = t.kc - granted * steps_a_wish; k > 0; --k) step();
  const float* const* wish = wishes.at + (wishes.count - granted);
  for (int64_t i = 0; i < granted; ++i) {
    __builtin_prefetch(wish[i]);
    __builtin_prefetch(wish[i] + line_floats);
#pragma GCC unroll 4
    for (int q = 0; q < steps_a_wish; ++q) step();
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    store(c + r * c_stride, acc[r][0]);
    store(c + r * c_stride + lanes, acc[r][1]);
  }
}

using Compute = void (*)(const Block&, const Wishes&);
template <bool packs>
constexpr Compute blocks[max_rows + 1] = {nullptr,
                                          compute<1, packs>,
                                          compute<2, packs>,
                                          compute<3, packs>,
                                          compute<4, packs>,
                                          compute<5, packs>,
                                          compute<6, packs>,
#ifdef __AVX512F__
                                          compute<7, packs>,
                                          compute<8, packs>,
                                          compute<9, packs>,
                                          compute<10, packs>,
                                          compute<11, packs>,
                                          compute<12, packs>,
                                          compute<13, packs>,
                                          compute<14, packs>
#endif
};

// `rows` x `width` outputs; a panel that is cut short by the edge of C goes through a copy.
void outputs(int64_t rows, int64_t width, const Block& block, Wishes& wishes) {
  const int64_t c_stride = block.c_stride;
  float* c = block.c;
  for (int64_t r = 0; r < rows && !block.from_zero; ++r) wishes.add(c + (rows + r) * c_stride);  // the next block's
  for (int64_t r = 0; r < rows; ++r) wishes.add(c + r * c_stride);
  if (width == columns) return (block.packed_b != nullptr ? blocks<true> : blocks<false>)[rows](block, wishes);
  alignas(line) float tile[max_rows * columns] = {};
  for (int64_t r = 0; r < rows && !block.from_zero; ++r)
    for (int64_t j = 0; j < width; ++j) tile[r * columns + j] = c[r * c_stride + j];
  Block copy = block;
  copy.c = tile, copy.c_stride = columns;
  blocks<false>[rows](copy, wishes);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < width; ++j) c[r * c_stride + j] = tile[r * columns + j];
}

// ---------------------------------------------------------------------------------------------------------- splitting

// [0, size) in the fewest parts of at most `limit`, as equal as can be.
struct Split {
  int64_t size, parts;
  Split(int64_t size_, int64_t limit) : size(size_), parts(ceil_div(size_, limit)) {}
  int64_t begin(int64_t i) const { return size * i / parts; }
  int64_t length(int64_t i) const { return begin(i + 1) - begin(i); }
};

// In how many tasks the rows of A are cut: at most `height` rows each, and as many tasks for each thread.
int64_t row_tasks(int64_t m, int64_t threads) {
  const int64_t fewest = ceil_div(m, height);
  if (threads == 1) return fewest;
  const int64_t enough = larger(fewest, smaller(4 * threads, m / 56)), even = ceil_div(enough, threads) * threads;
  return even <= ceil_div(m, 14) ? even : enough;
}

// How B is cut: blocks of `wide` columns (whole panels) x `deep` k.
struct BlockShape {
  int64_t wide, deep;
};
BlockShape block_shape(int64_t n, int64_t k) {
  const int64_t units = ceil_div(n, column_unit), parts = ceil_div(units * column_unit, block_floats / depth);
  const int64_t wide = ceil_div(units, parts) * column_unit;
  return {wide, smaller(k, block_floats / wide / depth * depth)};
}

int64_t in_lines(int64_t floats) { return ceil_div(floats * int64_t{sizeof(float)}, line) * line; }

// The two buffers of a call, in bytes.
struct Buffers {
  int64_t shared, per_thread;
};
Buffers buffers(int64_t m, int64_t n, int64_t k) {
  if (m <= few_rows) return {in_lines(m * k + few_rows * gap), in_lines(smaller(k, few_rows_depth) * column_unit)};
  const BlockShape shape = block_shape(n, k);
  return {in_lines(shape.wide * shape.deep), in_lines((smaller(m, height)) * (smaller(k, depth) + gap))};
}

float* aligned(std::byte* p) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(p) + line - 1) / line * line);
}

// ------------------------------------------------------------------------------------------------------------ packing

constexpr int64_t along_step = 16;  // k packed at a time over all panels of an operand whose rows are contiguous

// Fetches rows [i, i + rows) of the next step: the lines of a column of k are too far apart for the hardware to guess.
void prefetch_step(const GemmOperand& o, int64_t i, int64_t rows, int64_t k, int64_t end) {
  for (; k < end; ++k)
    for (int64_t r = 0; r < rows; r += 16) __builtin_prefetch(o.data + i + r + k * o.k_stride);
}

// Rows [i0, i0 + size) of A and kc of its k: panels of rows.length(p) rows, panel p at begin(p) * kc + p * gap.
void pack_a(const GemmOperand& a, int64_t i0, const Split& rows, int64_t k0, int64_t kc, float* dst) {
  // Where rows are contiguous, a few k of all panels at a time: the lines read then still are in L1 for the next panel.
  const int64_t step = a.k_stride == 1 ? kc : along_step;
  for (int64_t k = 0; k < kc; k += step) {
    const int64_t some = smaller(step, kc - k);
    prefetch_step(a, i0, rows.size, k0 + k + step, k0 + smaller(k + 2 * step, kc));
    for (int64_t p = 0; p < rows.parts; ++p) {
      const int64_t width = rows.length(p);
      pack_rows(a, i0 + rows.begin(p), width, k0 + k, some, dst + rows.begin(p) * kc + p * gap + k * width, width);
    }
  }
}

// Columns [j, j + width) of B, width <= columns, and kc of its k: dst[k * columns + column].
void pack_panel(const GemmOperand& b, int64_t j, int64_t width, int64_t k0, int64_t kc, float* dst) {
  for (int64_t g = 0; g < width; g += lanes) pack_rows(b, j + g, smaller(width - g, lanes), k0, kc, dst + g, columns);
  if (width <= lanes)  // nothing is read from the other half, but it must hold numbers
    for (int64_t k = 0; k < kc; ++k) store(dst + k * columns + lanes, zero());
}

// -------------------------------------------------------------------------------------------------------- the product

void multiply_few_rows(const GemmCall& call, ThreadPool& pool, float* packed_a, float* chunks, int64_t chunk_floats) {
  const Split rows(call.m, max_rows), panels(call.n, columns), chunk(call.k, few_rows_depth);
  pack_a(call.a, 0, rows, 0, call.k, packed_a);
  const int64_t count = ceil_div(call.n, columns), group = larger(1, smaller(8, count / (4 * pool.size())));
  pool.run(ceil_div(count, group), [&](int64_t task, int thread) {
    float* b = chunks + thread * chunk_floats;
    for (int64_t p = task * group; p < smaller(count, (task + 1) * group); ++p) {
      const int64_t j = p * columns, width = smaller(columns, call.n - j);
      for (int64_t q = 0; q < chunk.parts; ++q) {
        const int64_t k0 = chunk.begin(q), kc = chunk.length(q);
        pack_panel(call.b, j, width, k0, kc, b);
        Wishes wishes;
        for (int64_t i = 0; i < rows.parts; ++i, wishes.count = 0)
          outputs(rows.length(i), width,
                  {kc, packed_a + rows.begin(i) * call.k + i * gap + k0 * rows.length(i), b, columns, nullptr,
                   call.c + rows.begin(i) * call.c_stride + j, call.c_stride, !call.accumulate && q == 0},
                  wishes);
      }
    }
  });
}

// One block of B: columns [j0, j0 + n), k [k0, k0 + k).
struct BBlock {
  int64_t j0, n, k0, k;
  const Split chunks{k, depth};
  int64_t panels() const { return ceil_div(n, columns); }
  // Panel p of chunk q in the packed block.
  int64_t place(int64_t q, int64_t p) const { return (chunks.begin(q) * panels() + p * chunks.length(q)) * columns; }
};

// The lines of an operand's rows [i0, i0 + size), k [k0, k0 + kc), brought into L2 a few at a time during other work.
class Fetch {
 public:
  Fetch() = default;
  Fetch(const GemmOperand& o, int64_t i0, int64_t size, int64_t k0, int64_t kc)
      : at_(o.data + i0 * o.row_stride + k0 * o.k_stride),
        step_(o.k_stride == 1 ? o.row_stride : o.k_stride),
        width_(o.k_stride == 1 ? kc : size),
        left_(o.k_stride == 1 ? size : kc) {}
  int64_t pairs() const { return left_ * ceil_div(width_, 2 * line_floats); }
  void some(int64_t count, Wishes& wishes) {
    for (; count > 0 && left_ > 0; --count) {
      wishes.add(at_ + done_);
      done_ += 2 * line_floats;
      if (done_ >= width_) done_ = 0, at_ += step_, --left_;
    }
  }

 private:
  const float* at_ = nullptr;
  int64_t step_ = 0, width_ = 0, left_ = 0, done_ = 0;
};

// C (+)= A B for one block of B. A task is some rows of A times a group of panels. The thread that comes to a panel
// first packs it, and threads start at different ones; who meets a panel in work takes others first.
class Multiplication {
 public:
  Multiplication(const GemmCall& call, const BBlock& block, int threads, float* packed, float* a_buffers,
                 int64_t a_floats)
      : call_(call),
        block_(block),
        heights_(call.m, ceil_div(call.m, row_tasks(call.m, threads))),
        groups_(larger(1, smaller(ceil_div(2 * threads, heights_.parts), block.n / 256))),
        threads_(threads),
        packed_(packed),
        a_buffers_(a_buffers),
        a_floats_(a_floats) {}
  int64_t tasks() const { return heights_.parts * groups_; }

  void run(int64_t task, int thread) {
    const int64_t h = task % heights_.parts, g = task / heights_.parts, panels = block_.panels();
    const int64_t p0 = panels * g / groups_, count = panels * (g + 1) / groups_ - p0;
    for (int64_t q = 0; q < block_.chunks.parts; ++q) {
      Part part{q,
                heights_.begin(h),
                Split(heights_.length(h), max_rows),
                a_buffers_ + thread * a_floats_,
                fetch_after(task, q),
                0};
      part.blocks_left = part.rows.parts * count;
      pack_a(call_.a, part.i0, part.rows, first_k(q), block_.chunks.length(q), part.a);
      uint64_t busy[max_panels / 64] = {};
      for (int64_t i = 0, p = count * thread / threads_; i < count; ++i, p = p + 1 == count ? 0 : p + 1)
        if (!panel(part, p0 + p, false)) busy[p / 64] |= uint64_t{1} << (p % 64);
      for (int64_t p = 0; p < count; ++p)
        if ((busy[p / 64] >> (p % 64) & 1) != 0) panel(part, p0 + p, true);
    }
  }

 private:
  enum State : uint8_t { untouched, in_work, ready };
  static constexpr int64_t max_panels = 2 * block_floats / depth / column_unit;  // of a block
  static constexpr int64_t pairs_a_block = max_rows * columns / 9;               // half a byte a cycle

  struct Part {  // of a task: one chunk of k
    int64_t q, i0;
    Split rows;
    float* a;
    Fetch next_a;
    int64_t blocks_left;
  };

  int64_t first_k(int64_t q) const { return block_.k0 + block_.chunks.begin(q); }
  // A of the part after this one, as far as can be foreseen.
  Fetch fetch_after(int64_t task, int64_t q) const {
    const bool same = q + 1 < block_.chunks.parts;
    const int64_t h = same ? task % heights_.parts : (task + threads_) % heights_.parts, to = same ? q + 1 : 0;
    return {call_.a, heights_.begin(h), heights_.length(h), first_k(to), block_.chunks.length(to)};
  }

  // The part's rows times panel p; false if another thread is packing the panel and this one need not wait.
  bool panel(Part& t, int64_t p, bool wait) {
    uint8_t* state = &states_[t.q * block_.panels() + p];
    const int64_t j = block_.j0 + p * columns, width = smaller(columns, block_.n - p * columns);
    const int64_t k0 = first_k(t.q), kc = block_.chunks.length(t.q);
    float* packed = packed_ + block_.place(t.q, p);
    Block block{kc, t.a, packed, columns, nullptr, nullptr, call_.c_stride, !call_.accumulate && k0 == 0};
    uint8_t seen = __atomic_load_n(state, __ATOMIC_ACQUIRE);
    const bool mine = seen == untouched &&
                      __atomic_compare_exchange_n(state, &seen, in_work, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE);
    if (mine && (call_.b.k_stride == 1 || width < columns)) {
      pack_panel(call_.b, j, width, k0, kc, packed);
    } else if (mine) {  // a row of B is as good as one of a panel: the first register block packs
      block.b = call_.b.data + j + k0 * call_.b.k_stride, block.b_step = call_.b.k_stride, block.packed_b = packed;
    } else if (seen == in_work) {
      if (!wait) return false;
      while (__atomic_load_n(state, __ATOMIC_ACQUIRE) != ready) _mm_pause();
    }
    Fetch next_b;
    if (p + 1 < block_.panels() && __atomic_load_n(state + 1, __ATOMIC_RELAXED) == untouched)
      next_b = Fetch(call_.b, j + columns, smaller(columns, block_.n - (p + 1) * columns), k0, kc);
    const int64_t b_pairs = ceil_div(next_b.pairs(), t.rows.parts);
    for (int64_t i = 0; i < t.rows.parts; ++i) {
      const int64_t r = t.rows.begin(i), rows = t.rows.length(i);
      Wishes wishes;
      const int64_t room = larger(0, kc / steps_a_wish - 2 * rows), a_pairs = smaller(room, pairs_a_block);
      if (--t.blocks_left * a_pairs < t.next_a.pairs()) t.next_a.some(a_pairs, wishes);
      next_b.some(smaller(b_pairs, room - wishes.count), wishes);
      block.a = t.a + r * kc + i * gap, block.c = call_.c + (t.i0 + r) * call_.c_stride + j;
      outputs(rows, width, block, wishes);
      if (i == 0 && mine) {
        __atomic_store_n(state, ready, __ATOMIC_RELEASE);
        block.b = packed, block.b_step = columns, block.packed_b = nullptr;
      }
    }
    return true;
  }

  const GemmCall& call_;
  const BBlock& block_;
  Split heights_;
  int64_t groups_, threads_;
  float *packed_, *a_buffers_;
  int64_t a_floats_;
  uint8_t states_[2 * max_panels] = {};  // of panel p in chunk q: [q * panels + p]
};

}  // namespace

int64_t gemm_workspace_bytes(int64_t m, int64_t n, int64_t k, int threads) {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const Buffers bytes = buffers(m, n, k);
  return bytes.shared + threads * bytes.per_thread + line;
}

void gemm(const GemmCall& call, ThreadPool& pool, std::byte* workspace) {
  if (call.m <= 0 || call.n <= 0) return;
  if (call.k <= 0) {
    for (int64_t i = 0; i < call.m && !call.accumulate; ++i)
      for (int64_t j = 0; j < call.n; ++j) call.c[i * call.c_stride + j] = 0;
    return;
  }
  const Buffers bytes = buffers(call.m, call.n, call.k);
  const int64_t per_thread = bytes.per_thread / int64_t{sizeof(float)};
  float* shared = aligned(workspace);
  float* own = shared + bytes.shared / int64_t{sizeof(float)};
  if (call.m <= few_rows) return multiply_few_rows(call, pool, shared, own, per_thread);
  const BlockShape shape = block_shape(call.n, call.k);
  for (int64_t j0 = 0; j0 < call.n; j0 += shape.wide)
    for (int64_t k0 = 0; k0 < call.k; k0 += shape.deep) {
      const BBlock block{j0, smaller(shape.wide, call.n - j0), k0, smaller(shape.deep, call.k - k0)};
      Multiplication product(call, block, pool.size(), shared, own, per_thread);
      pool.run(product.tasks(), [&](int64_t task, int thread) { product.run(task, thread); });
    }
}

}  // namespace nibble::NIBBLE_TARGET
