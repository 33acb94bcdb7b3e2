// f32 GEMM: C[m, n] (+)= A B^T after BLIS (Van Zee and van de Geijn, "BLIS: a framework for rapidly instantiating BLAS
// functionality", 2015). Three levels:
//   - a block of up to 8 MiB of B, packed by all threads: panels of `columns` columns, cut into chunks of `depth` k;
//   - a task: up to `height` rows of A, packed by the thread that takes the task, times a group of panels;
//   - a register block: up to `max_rows` rows times one panel, each output one lane of an accumulator.
// A product of at most `few_rows` rows would read each packed value of B a few times only, so there A is packed whole,
// and B a chunk of a panel at a time into L1 by whoever needs it: decoding reads the weights from memory once.
// Between two chunks of k an accumulator rests in C; a reload changes no bit (contract in gemm.h).
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

// ---------------------------------------------------------------------------------------------------- register block

template <int rows>
void block(int64_t kc, const float* a, const float* b, float* c, int64_t c_stride, bool from_zero) {
  Word acc[rows][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    acc[r][0] = from_zero ? zero() : load(c + r * c_stride);
    acc[r][1] = from_zero ? zero() : load(c + r * c_stride + lanes);
  }
  for (int64_t k = 0; k < kc; ++k) {
    const Word b0 = load(b), b1 = load(b + lanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const Word x = all(a[r]);
      acc[r][0] = fma(x, b0, acc[r][0]);
      acc[r][1] = fma(x, b1, acc[r][1]);
    }
    a += rows;
    b += columns;
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    store(c + r * c_stride, acc[r][0]);
    store(c + r * c_stride + lanes, acc[r][1]);
  }
}

using Block = void (*)(int64_t kc, const float* a, const float* b, float* c, int64_t c_stride, bool from_zero);
constexpr Block blocks[max_rows + 1] = {nullptr,  block<1>, block<2>, block<3>,  block<4>,  block<5>,  block<6>,
#ifdef __AVX512F__
                                        block<7>, block<8>, block<9>, block<10>, block<11>, block<12>, block<13>,
                                        block<14>
#endif
};

// `rows` x `width` outputs; a panel that is cut short by the edge of C goes through a copy.
void outputs(int64_t rows, int64_t width, int64_t kc, const float* a, const float* b, float* c, int64_t c_stride,
             bool from_zero) {
  if (width == columns) return blocks[rows](kc, a, b, c, c_stride, from_zero);
  alignas(line) float tile[max_rows * columns] = {};
  for (int64_t r = 0; r < rows && !from_zero; ++r)
    for (int64_t j = 0; j < width; ++j) tile[r * columns + j] = c[r * c_stride + j];
  blocks[rows](kc, a, b, tile, columns, from_zero);
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
        for (int64_t i = 0; i < rows.parts; ++i)
          outputs(rows.length(i), width, kc, packed_a + rows.begin(i) * call.k + i * gap + k0 * rows.length(i), b,
                  call.c + rows.begin(i) * call.c_stride + j, call.c_stride, !call.accumulate && q == 0);
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

void pack_block(const GemmCall& call, const BBlock& block, ThreadPool& pool, float* packed) {
  constexpr int64_t group = 128 / columns;  // panels of a task
  const int64_t groups = ceil_div(block.panels(), group);
  pool.run(block.chunks.parts * groups, [&](int64_t task, int) {
    const int64_t q = task / groups, p0 = task % groups * group, p1 = smaller(block.panels(), p0 + group);
    const int64_t kc = block.chunks.length(q), k0 = block.k0 + block.chunks.begin(q);
    const int64_t step = call.b.k_stride == 1 ? kc : along_step;  // as in pack_a
    const int64_t j = block.j0 + p0 * columns, width = smaller(p1 * columns, block.n) - p0 * columns;
    for (int64_t k = 0; k < kc; k += step) {
      prefetch_step(call.b, j, width, k0 + k + step, k0 + smaller(k + 2 * step, kc));
      for (int64_t p = p0; p < p1; ++p)
        pack_panel(call.b, block.j0 + p * columns, smaller(columns, block.n - p * columns), k0 + k,
                   smaller(step, kc - k), packed + block.place(q, p) + k * columns);
    }
  });
}

void multiply_block(const GemmCall& call, const BBlock& block, ThreadPool& pool, const float* packed, float* a_buffers,
                    int64_t a_floats) {
  const Split heights(call.m, height);
  // Columns are shared out too if rows alone give the threads too little to balance; each group packs its A anew, so no
  // group under 256 columns.
  const int64_t wanted = ceil_div(4 * pool.size(), heights.parts);
  const int64_t groups = larger(1, smaller(wanted, block.n / 256)), panels = block.panels();
  pool.run(heights.parts * groups, [&](int64_t task, int thread) {
    const int64_t h = task % heights.parts, g = task / heights.parts, i0 = heights.begin(h);
    const Split rows(heights.length(h), max_rows);
    float* a = a_buffers + thread * a_floats;
    for (int64_t q = 0; q < block.chunks.parts; ++q) {
      const int64_t kc = block.chunks.length(q), k0 = block.k0 + block.chunks.begin(q);
      pack_a(call.a, i0, rows, k0, kc, a);
      for (int64_t p = panels * g / groups; p < panels * (g + 1) / groups; ++p) {
        const int64_t j = p * columns, width = smaller(columns, block.n - j);
        float* c = call.c + i0 * call.c_stride + block.j0 + j;
        for (int64_t i = 0; i < rows.parts; ++i)
          outputs(rows.length(i), width, kc, a + rows.begin(i) * kc + i * gap, packed + block.place(q, p),
                  c + rows.begin(i) * call.c_stride, call.c_stride, !call.accumulate && k0 == 0);
      }
    }
  });
}

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
      pack_block(call, block, pool, shared);
      multiply_block(call, block, pool, shared, own, per_thread);
    }
}

}  // namespace nibble::NIBBLE_TARGET
