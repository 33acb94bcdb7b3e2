#include "core/type.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace nibble {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::i32:
      return "i32";
    case DType::bf16:
      return "bf16";
  }
  return "?";
}

bool parse_dtype(std::string_view text, DType* out) {
  for (const DType d : {DType::f32, DType::f64, DType::i32, DType::bf16})
    if (name_of(d) == text) return *out = d, true;
  return false;
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
  }
  return 0;
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
