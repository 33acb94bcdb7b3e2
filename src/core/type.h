// What a value is: element type and shape. Numbers are dense and row-major; quantised tensors hold codes and scales
// (core/quantized.h). Type::nbytes() is the only function that turns a type into bytes.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

/// After bf16: quantised formats (spec/precision.md 2). A `_2d` format shares a scale among a square tile.
enum class DType : uint8_t {
  f32,
  f64,
  i32,
  bf16,
  nvfp4,
  nvfp4_2d,
  mxfp4,
  mxfp4_2d,
  mxfp8,
  e4m3,
  e5m2,
  fp8_block,
  fp8_block_2d
};

std::string_view name_of(DType dtype);                // "f32"
bool parse_dtype(std::string_view text, DType* out);  // false if unknown
int64_t element_bytes(DType dtype);                   // of numbers

/// How a quantised format lays out its elements: codes of `bits` bits, and a scale byte for each block of `columns`
/// elements along the last axis, or for each tile of `rows` x `columns`.
struct BlockFormat {
  int bits = 0;  // 0: not quantised
  int rows = 1, columns = 1;
  bool scales = true;  // false: under one scale of the tensor only
};
BlockFormat block_format(DType dtype);
inline bool is_quantized(DType dtype) { return dtype >= DType::nvfp4; }

/// Up to five dimensions, slowest first. Rank 0 does not occur: a scalar is [1].
class Shape {
 public:
  static constexpr int max_rank = 5;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);
  int rank() const { return rank_; }
  /// i may be negative: -1 is the last (fastest) dimension.
  int64_t dim(int i) const { return dims_[i < 0 ? rank_ + i : i]; }
  int64_t numel() const;
  /// Product of all dimensions but the last: the number of rows of the matrix [rows, last].
  int64_t rows() const { return numel() / dim(-1); }
  std::span<const int64_t> dims() const { return {dims_, static_cast<size_t>(rank_)}; }
  bool operator==(const Shape& o) const;

 private:
  int64_t dims_[max_rank] = {};
  int rank_ = 0;
};

struct Type {
  DType dtype = DType::f32;
  Shape shape;
  int rank() const { return shape.rank(); }
  int64_t dim(int i) const { return shape.dim(i); }
  int64_t numel() const { return shape.numel(); }
  int64_t rows() const { return shape.rows(); }
  /// Bytes in memory: the only size function.
  int64_t nbytes() const { return is_quantized(dtype) ? quantized_bytes() : numel() * element_bytes(dtype); }
  /// The same element type without the last dimension.
  Type drop_last() const;
  /// The same leading dimensions with another last one.
  Type with_last(int64_t n) const;
  Type as(DType other) const { return {other, shape}; }
  bool operator==(const Type& o) const = default;

 private:
  int64_t quantized_bytes() const;
};

std::string to_string(const Shape& shape);  // "[4, 64]"
std::string to_string(const Type& type);    // "f32[4, 64]"
/// Reads what to_string(Type) wrote from the front of `text` and removes it there; false if it is no type.
bool parse_type(std::string_view* text, Type* out);

/// Non-owning view of a dense row-major buffer.
struct Tensor {
  Type type;
  void* data = nullptr;
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t dim(int i) const { return type.dim(i); }
  int64_t numel() const { return type.numel(); }
};

}  // namespace nibble
