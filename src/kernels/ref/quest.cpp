#include "kernels/ref/quest.h"

#include <algorithm>

#include "numerics/quest.h"

namespace nibble::ref {
namespace {

// Block j of a row of g as numbers, the sums of the rotation in f64.
void back(const KernelCall& c, size_t at, int64_t row, int64_t j, double* numbers) {
  const Tensor &g = c.in[at], &mask = c.in[at + 1];
  const int64_t blocks = mask.dim(-1);
  nibble::quest_back(g.as<float>() + (row * blocks + j) * mx_block,
                     static_cast<uint32_t>(mask.as<int32_t>()[row * blocks + j]), c.attrs.get_int("hadamard") != 0,
                     numbers);
}

}  // namespace

void quest_mask(const KernelCall& c) {
  const Tensor& x = c.in[0];
  const int64_t width = x.dim(-1), blocks = c.out[0].dim(-1);
  const bool rotated = c.attrs.get_int("hadamard") != 0;
  for (int64_t i = 0; i < x.type.rows() * blocks; ++i) {
    const int64_t row = i / blocks, first = i % blocks * mx_block, n = std::min<int64_t>(mx_block, width - first);
    float v[mx_block] = {};
    for (int64_t k = 0; k < n; ++k) {
      const int64_t at = row * width + first + k;
      v[k] = x.type.dtype == DType::bf16 ? widen(x.as<BFloat16>()[at]) : widen(round_bf16(x.as<float>()[at]));
    }
    c.out[0].as<int32_t>()[i] =
        static_cast<int32_t>(nibble::quest_mask(v, static_cast<int>(rotated ? int64_t{mx_block} : n), rotated));
  }
}

void quest_back(const KernelCall& c) {
  const Tensor& x = c.out[0];
  const int64_t width = x.dim(-1);
  for (int64_t row = 0; row < x.type.rows(); ++row)
    for (int64_t j = 0; j * mx_block < width; ++j) {
      double numbers[mx_block];
      back(c, 0, row, j, numbers);
      for (int64_t k = 0; k < mx_block && j * mx_block + k < width; ++k) {
        const int64_t at = row * width + j * mx_block + k;
        if (x.type.dtype == DType::bf16)
          x.as<BFloat16>()[at] = round_bf16(numbers[k]);
        else
          x.as<float>()[at] = static_cast<float>(numbers[k]);
      }
    }
}

void quest_back_add(const KernelCall& c) {
  const int64_t rows = c.out[0].dim(0), width = c.out[0].dim(1);
  float* const acc = c.out[0].as<float>();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t j = 0; j * mx_block < width; ++j) {
      double numbers[mx_block];
      back(c, 1, row, j, numbers);
      for (int64_t k = 0; k < mx_block && j * mx_block + k < width; ++k) {
        float& sum = acc[row * width + j * mx_block + k];
        sum = (c.from_zero ? 0.0f : sum) + static_cast<float>(numbers[k]);
      }
    }
}

}  // namespace nibble::ref
