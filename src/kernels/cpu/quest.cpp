// quest_mask, quest_back, quest_back_add: the definitions of numerics/quest.h, rows shared by the threads.
#include "numerics/quest.h"

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// f(row, j, first, n): block j of a row holds the columns first .. first + n - 1.
template <class F>
void for_blocks(ThreadPool& pool, int64_t rows, int64_t width, const F& f) {
  for_ranges(pool, rows, width, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t j = 0, first = 0; first < width; ++j, first += mx_block)
        f(row, j, first, smaller(mx_block, width - first));
  });
}

struct Masked {
  const float* g;
  const int32_t* mask;
  int64_t blocks;  // of a row
  bool rotated;
  Masked(const KernelCall& c, size_t at)
      : g(c.in[at].as<float>()),
        mask(c.in[at + 1].as<int32_t>()),
        blocks(c.in[at + 1].dim(-1)),
        rotated(c.attrs.get_int("hadamard") != 0) {}
  void back(int64_t row, int64_t j, double* numbers) const {
    const int64_t i = row * blocks + j;
    nibble::quest_back(g + i * mx_block, static_cast<uint32_t>(mask[i]), rotated, numbers);
  }
};

}  // namespace

void quest_mask(const KernelCall& c) {
  const Tensor& x = c.in[0];
  const int64_t width = x.dim(-1), blocks = c.out[0].dim(-1);
  const bool rotated = c.attrs.get_int("hadamard") != 0;
  int32_t* const mask = c.out[0].as<int32_t>();
  with_storage(x.type.dtype, [&]<class T>() {
    for_blocks(c.pool, x.type.rows(), width, [&](int64_t row, int64_t j, int64_t first, int64_t n) {
      float v[mx_block] = {};
      for (int64_t k = 0; k < n; ++k) {
        const T number = x.as<T>()[row * width + first + k];
        if constexpr (sizeof(T) == 4)
          v[k] = widen(round_bf16(number));
        else
          v[k] = widen(number);
      }
      mask[row * blocks + j] =
          static_cast<int32_t>(nibble::quest_mask(v, static_cast<int>(rotated ? mx_block : n), rotated));
    });
  });
}

void quest_back(const KernelCall& c) {
  const Tensor& x = c.out[0];
  const Masked masked(c, 0);
  const int64_t width = x.dim(-1);
  with_storage(x.type.dtype, [&]<class T>() {
    for_blocks(c.pool, x.type.rows(), width, [&](int64_t row, int64_t j, int64_t first, int64_t n) {
      double numbers[mx_block];
      masked.back(row, j, numbers);
      for (int64_t k = 0; k < n; ++k) {
        T& to = x.as<T>()[row * width + first + k];
        if constexpr (sizeof(T) == 4)
          to = static_cast<float>(numbers[k]);
        else
          to = round_bf16(numbers[k]);
      }
    });
  });
}

void quest_back_add(const KernelCall& c) {
  const Masked masked(c, 1);
  const int64_t rows = c.out[0].dim(0), width = c.out[0].dim(1);
  float* const acc = c.out[0].as<float>();
  for_blocks(c.pool, rows, width, [&](int64_t row, int64_t j, int64_t first, int64_t n) {
    double numbers[mx_block];
    masked.back(row, j, numbers);
    for (int64_t k = 0; k < n; ++k) {
      float& sum = acc[row * width + first + k];
      sum = (c.from_zero ? 0.0f : sum) + static_cast<float>(numbers[k]);
    }
  });
}

}  // namespace nibble::NIBBLE_TARGET
