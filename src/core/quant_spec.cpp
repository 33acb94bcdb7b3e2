#include "core/quant_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/attrs.h"
#include "core/error.h"

namespace nibble {
namespace {

constexpr std::string_view roundings[] = {"nearest", "stochastic", "eden"},
                           scales[] = {"exact", "pow2", "unit", "delayed"},
                           choices[] = {"off", "four_six=mse", "four_six=mae"};

template <class E, size_t n>
bool set_word(const std::string_view (&names)[n], std::string_view word, E* out) {
  const auto* const found = std::ranges::find(names, word);
  if (found == std::end(names)) return false;
  *out = static_cast<E>(found - names);
  return true;
}
template <class N>
bool set_number(std::string_view name, std::string_view word, N* out) {
  if (!word.starts_with(name)) return false;
  word.remove_prefix(name.size());
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *out);
  return error == std::errc() && end == word.data() + word.size();
}

}  // namespace

std::string to_string(const QuantSpec& s) {
  if (!s.active()) return "-";
  std::string text(name_of(s.format));
  const auto add = [&text](bool unusual, const auto& word) {
    if (unusual) text += fmt::format(" {}", word);
  };
  add(s.rounding != Rounding::nearest, roundings[static_cast<size_t>(s.rounding)]);
  add(s.tensor_scale != TensorScale::exact, scales[static_cast<size_t>(s.tensor_scale)]);
  add(s.four_six != FourSix::off, choices[static_cast<size_t>(s.four_six)]);
  add(s.floor_scale, "floor");
  add(s.quest, "quest");
  add(s.vmax, "vmax");
  add(s.hadamard != 0, fmt::format("hadamard={}", s.hadamard));
  add(s.stream != 0, fmt::format("stream={}", s.stream));
  add(s.sign_stream != 0, fmt::format("signs={}", s.sign_stream));
  return text;
}

QuantSpec parse_quant_spec(std::string_view text) {
  QuantSpec s;
  if (text == "-") return s;
  for (bool first = true; !text.empty(); first = false) {
    const size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (word == "floor" || word == "quest" || word == "vmax") {
      (word == "floor" ? s.floor_scale : word == "quest" ? s.quest : s.vmax) = true;
      continue;
    }
    const bool known = first ? parse_dtype(word, &s.format)
                             : set_word(roundings, word, &s.rounding) || set_word(scales, word, &s.tensor_scale) ||
                                   set_word(choices, word, &s.four_six) || set_number("hadamard=", word, &s.hadamard) ||
                                   set_number("stream=", word, &s.stream) || set_number("signs=", word, &s.sign_stream);
    NIBBLE_CHECK(known, "{} is no word of a quantiser", word);
  }
  return s;
}

QuantSpec spec_of(const Attrs& attrs, std::string_view name) {
  return attrs.has(name) ? parse_quant_spec(attrs.get_string(name)) : QuantSpec{};
}

int64_t filled(const QuantSpec& spec, int64_t n) {
  const int64_t unit = std::max(block_format(spec.format).columns, spec.hadamard);
  return (n + unit - 1) / unit * unit;
}

}  // namespace nibble
