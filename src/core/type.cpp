#include "core/type.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/quantized.h"

namespace nibble {

namespace {
constexpr std::pair<DType, std::string_view> names[] = {{DType::f32, "f32"},
                                                        {DType::f64, "f64"},
                                                        {DType::i32, "i32"},
                                                        {DType::bf16, "bf16"},
                                                        {DType::nvfp4, "nvfp4"},
                                                        {DType::nvfp4_2d, "nvfp4_2d"},
                                                        {DType::mxfp4, "mxfp4"},
                                                        {DType::mxfp4_2d, "mxfp4_2d"},
                                                        {DType::mxfp8, "mxfp8"},
                                                        {DType::e4m3, "e4m3"},
                                                        {DType::e5m2, "e5m2"},
                                                        {DType::fp8_block, "fp8_block"},
                                                        {DType::fp8_block_2d, "fp8_block_2d"}};
}  // namespace

std::string_view name_of(DType dtype) {
  const auto* const found = std::ranges::find(names, dtype, &std::pair<DType, std::string_view>::first);
  return found == std::end(names) ? "?" : found->second;
}

bool parse_dtype(std::string_view text, DType* out) {
  for (const auto& [dtype, name] : names)
    if (name == text) return *out = dtype, true;
  return false;
}

BlockFormat block_format(DType dtype) {
  switch (dtype) {
    case DType::nvfp4:
      return {4, 1, 16};
    case DType::nvfp4_2d:
      return {4, 16, 16};
    case DType::mxfp4:
      return {4, 1, 32};
    case DType::mxfp4_2d:
      return {4, 32, 32};
    case DType::mxfp8:
      return {8, 1, 32};
    case DType::e4m3:
    case DType::e5m2:
      return {8, 1, 1, false};
    case DType::fp8_block:
      return {8, 1, 128};
    case DType::fp8_block_2d:
      return {8, 128, 128};
    default:
      return {};
  }
}

int64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
      return 8;
    default:
      break;
  }
  internal_error(fmt::format("{} has no whole number of bytes an element", name_of(dtype)), __FILE__, __LINE__);
}

Shape::Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  NIBBLE_CHECK(!dims.empty() && rank_ <= max_rank, "a shape has 1 to {} dimensions, got {}", max_rank, dims.size());
  std::copy(dims.begin(), dims.end(), dims_);
}

int64_t Shape::numel() const {
  int64_t n = 1;
  for (const int64_t d : dims()) n *= d;
  return n;
}

bool Shape::operator==(const Shape& o) const { return std::ranges::equal(dims(), o.dims()); }

Type Type::drop_last() const {
  NIBBLE_CHECK(rank() > 1, "{} has no dimension to drop", to_string(*this));
  return {dtype, Shape(shape.dims().first(shape.dims().size() - 1))};
}

Type Type::with_last(int64_t n) const {
  int64_t dims[Shape::max_rank];
  std::ranges::copy(shape.dims(), dims);
  dims[rank() - 1] = n;
  return {dtype, Shape(std::span<const int64_t>(dims, static_cast<size_t>(rank())))};
}

int64_t Type::quantized_bytes() const { return QuantizedLayout(*this).bytes; }

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.dims(), ", ")); }
std::string to_string(const Type& type) { return fmt::format("{}{}", name_of(type.dtype), to_string(type.shape)); }

bool parse_type(std::string_view* text, Type* out) {
  const size_t open = text->find('['), close = text->find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return false;
  if (!parse_dtype(text->substr(0, open), &out->dtype)) return false;
  std::string_view list = text->substr(open + 1, close - open - 1);
  int64_t dims[Shape::max_rank];
  size_t n = 0;
  while (!list.empty() && n < Shape::max_rank) {
    const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), dims[n]);
    if (error != std::errc() || dims[n] < 0) return false;
    ++n;
    list.remove_prefix(static_cast<size_t>(end - list.data()));
    if (list.starts_with(", "))
      list.remove_prefix(2);
    else if (!list.empty())
      return false;
  }
  if (n == 0 || !list.empty()) return false;
  out->shape = Shape(std::span<const int64_t>(dims, n));
  text->remove_prefix(close + 1);
  return true;
}

}  // namespace nibble
