// embedding and its gradient (kernels/ref/embedding.h): rows copied; rows of a block of 64 with one id summed, the sum
// added to the id's row (spec/training.md 2.11, column sums).
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// Rows i of dx with a bit in `rows` from `block` on: their sum over columns [begin, end) to the accumulator.
template <class T>
void add_rows(const T* dx, int64_t e, uint64_t rows, int64_t begin, int64_t end, float* acc) {
  words_of(begin, end, [&](int64_t j, auto io) {
    Word sum = zero();
    for (uint64_t left = rows; left != 0; left &= left - 1) sum = add(sum, io.get(dx + lowest_bit(left) * e + j));
    io.put(acc + j, add(io.get(acc + j), sum));
  });
}

template <class T>
void add_gradients(const KernelCall& c) {
  const int32_t* tokens = c.in[1].as<int32_t>();
  const T* dx = c.in[2].as<T>();
  float* table = c.out[0].as<float>();
  const int64_t rows = c.in[1].numel(), e = c.in[0].dim(1);
  if (c.from_zero)  // ids that do not occur have no gradient
    for_words(c.pool, c.out[0].numel(), [=](int64_t i, auto io) { io.put(table + i, zero()); });
  for_ranges(c.pool, e, rows, 64, [=](int64_t begin, int64_t end) {  // threads share the columns: blocks are in order
    for (int64_t block = 0; block < rows; block += 64) {
      const int64_t n = smaller(64, rows - block);
      uint64_t left = n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
      while (left != 0) {
        const int64_t id = tokens[block + lowest_bit(left)];
        const uint64_t same = equal_bits(tokens + block, n, static_cast<int32_t>(id));
        add_rows(dx + block * e, e, same, begin, end, table + id * e);
        left &= ~same;
      }
    }
  });
}

}  // namespace

void embedding(const KernelCall& c) {
  const int32_t* tokens = c.in[0].as<int32_t>();
  const std::byte* table = c.in[1].as<std::byte>();
  std::byte* y = c.out[0].as<std::byte>();
  const int64_t e = c.in[1].dim(1), row = e * element_bytes(c.in[1].type.dtype);
  for_ranges(c.pool, c.in[0].numel(), e, 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(y + i * row, table + tokens[i] * row, static_cast<size_t>(row));
  });
}

void embedding_grad(const KernelCall& c) {
  with_storage(c.in[2].type.dtype, [&]<class T>() { add_gradients<T>(c); });
}

}  // namespace nibble::NIBBLE_TARGET
