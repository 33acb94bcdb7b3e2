// Attributes of a node: a few named numbers that are part of what the node computes (eps of a norm, the scale of an
// attention). Kernels read them by name once per call; numbers print as hexadecimal floats, so a graph's text form
// holds the exact bits.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace nibble {

class Attrs {
 public:
  using Value = std::variant<int64_t, double, std::string>;
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, Value>> list);
  /// Adds or replaces.
  void set(std::string_view name, Value value);
  bool has(std::string_view name) const;
  /// The value of an attribute that must exist with this type; anything else is an internal error.
  int64_t get_int(std::string_view name) const;
  double get_double(std::string_view name) const;
  const std::string& get_string(std::string_view name) const;
  float get_float(std::string_view name) const { return static_cast<float>(get_double(name)); }
  bool empty() const { return list_.empty(); }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }
  bool operator==(const Attrs&) const = default;

 private:
  const Value* find(std::string_view name) const;
  std::vector<std::pair<std::string, Value>> list_;  // in order of insertion
};

std::string to_string(const Attrs& attrs);  // {eps=0x1.4f8b58p-17, name="x"}; "" if empty
/// Reads what to_string wrote from the front of `text` and removes it there; false if malformed.
bool parse_attrs(std::string_view* text, Attrs* out);

}  // namespace nibble
