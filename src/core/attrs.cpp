#include "core/attrs.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "core/error.h"

namespace nibble {

Attrs::Attrs(std::initializer_list<std::pair<std::string, Value>> list) : list_(list) {}

void Attrs::set(std::string_view name, Value value) {
  for (auto& [key, old] : list_)
    if (key == name) {
      old = std::move(value);
      return;
    }
  list_.emplace_back(std::string(name), std::move(value));
}

const Attrs::Value* Attrs::find(std::string_view name) const {
  for (const auto& [key, value] : list_)
    if (key == name) return &value;
  return nullptr;
}

bool Attrs::has(std::string_view name) const { return find(name) != nullptr; }

int64_t Attrs::get_int(std::string_view name) const {
  const Value* v = find(name);
  NIBBLE_CHECK(v != nullptr && std::holds_alternative<int64_t>(*v), "no integer attribute {}", name);
  return std::get<int64_t>(*v);
}

double Attrs::get_double(std::string_view name) const {
  const Value* v = find(name);
  NIBBLE_CHECK(v != nullptr && std::holds_alternative<double>(*v), "no number attribute {}", name);
  return std::get<double>(*v);
}

const std::string& Attrs::get_string(std::string_view name) const {
  const Value* v = find(name);
  NIBBLE_CHECK(v != nullptr && std::holds_alternative<std::string>(*v), "no text attribute {}", name);
  return std::get<std::string>(*v);
}

std::string to_string(const Attrs& attrs) {
  if (attrs.empty()) return "";
  std::string s = "{";
  for (const auto& [name, value] : attrs) {
    if (s.size() > 1) s += ", ";
    if (const auto* i = std::get_if<int64_t>(&value))
      s += fmt::format("{}={}", name, *i);
    else if (const auto* d = std::get_if<double>(&value))
      s += fmt::format("{}={:a}", name, *d);
    else
      s += fmt::format("{}=\"{}\"", name, std::get<std::string>(value));
  }
  return s + "}";
}

bool parse_attrs(std::string_view* text, Attrs* out) {
  *out = {};
  if (!text->starts_with('{')) return true;
  text->remove_prefix(1);
  while (!text->starts_with('}')) {
    const size_t eq = text->find('=');
    if (eq == std::string_view::npos) return false;
    const std::string name(text->substr(0, eq));
    text->remove_prefix(eq + 1);
    if (text->starts_with('"')) {
      const size_t close = text->find('"', 1);
      if (close == std::string_view::npos) return false;
      out->set(name, std::string(text->substr(1, close - 1)));
      text->remove_prefix(close + 1);
    } else {
      const std::string word(text->substr(0, text->find_first_of(",}")));
      char* end = nullptr;
      if (word.find_first_of("xni") != std::string::npos) {  // hexadecimal float, nan, inf
        out->set(name, std::strtod(word.c_str(), &end));
        if (end != word.c_str() + word.size()) return false;
      } else {
        int64_t i = 0;
        if (std::from_chars(word.data(), word.data() + word.size(), i).ec != std::errc()) return false;
        out->set(name, i);
      }
      text->remove_prefix(word.size());
    }
    if (text->starts_with(", ")) text->remove_prefix(2);
  }
  text->remove_prefix(1);
  return true;
}

}  // namespace nibble
