// Types, suffixes and legal values of configuration values.  Source: spec/training.md 1.1, 1.3.
#include "io/config_value.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "io/suggest.h"

namespace nibble {
namespace {

using Kind = RawValue::Kind;

bool is_null_word(std::string_view s) {
  return s.empty() || s == "null" || s == "None" || s == "none" || s == "~" || s == "Null" || s == "NULL";
}

/// A decimal with optional underscores between digits; nothing else in the text.
std::optional<double> decimal(std::string_view text) {
  std::string s;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      s += text[i];
    } else if (i == 0 || i + 1 == text.size() || !isdigit(text[i - 1]) || !isdigit(text[i + 1])) {
      return std::nullopt;
    }
  }
  if (!s.empty() && s[0] == '+') s.erase(0, 1);
  if (s.empty() || !(isdigit(s[0]) || s[0] == '-' || s[0] == '.')) return std::nullopt;  // from_chars also reads "inf"
  double x = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), x);
  if (error != std::errc() || end != s.data() + s.size() || !std::isfinite(x)) return std::nullopt;
  return x;
}

/// An integer: 50, 1_000, 1e6, 4k, 2M, 1.5G (x1000), 64Ki, 1Mi (x1024); bytes also take a final B.
std::optional<int64_t> whole(std::string_view text, bool is_bytes) {
  double factor = 1;
  if (is_bytes && text.size() > 1 && text.back() == 'B') text.remove_suffix(1);
  bool binary = false;
  if (text.size() > 2 && text.back() == 'i') {
    binary = true;
    text.remove_suffix(1);
  }
  if (text.size() > 1) {
    const size_t power = std::string_view("kMGT").find(text.back() == 'K' && binary ? 'k' : text.back());
    if (power != std::string_view::npos && !(binary && text.back() == 'k')) {
      for (size_t i = 0; i <= power; ++i) factor *= binary ? 1024 : 1000;
      text.remove_suffix(1);
      binary = false;
    }
  }
  if (binary) return std::nullopt;
  int64_t exact = 0;
  std::string digits(text);
  if (const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), exact);
      factor == 1 && error == std::errc() && end == digits.data() + digits.size())
    return exact;  // beyond 2^53 too
  const auto x = decimal(text);
  if (!x) return std::nullopt;
  const double value = *x * factor;
  if (value != std::floor(value) || std::abs(value) > 9007199254740992.0) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<bool> truth(std::string_view s) {
  if (s == "true" || s == "True") return true;
  if (s == "false" || s == "False") return false;
  return std::nullopt;
}

/// Does x meet one alternative such as ">0,<=1"?
bool meets(std::string_view alternative, double x) {
  for (size_t begin = 0; begin < alternative.size();) {
    const size_t comma = std::min(alternative.find(',', begin), alternative.size());
    std::string_view term = alternative.substr(begin, comma - begin);
    const size_t digits = term.find_first_not_of("<>=");
    const std::string_view op = term.substr(0, digits);
    const auto bound = decimal(term.substr(digits == term.npos ? term.size() : digits));
    if (!bound) return false;
    if (!(op == ">="   ? x >= *bound
          : op == ">"  ? x > *bound
          : op == "<=" ? x <= *bound
          : op == "<"  ? x < *bound
                       : x == *bound))
      return false;
    begin = comma + 1;
  }
  return !alternative.empty();
}

bool is_word(std::string_view alternative) { return !alternative.empty() && isalpha(alternative[0]); }

bool has_word(const Key& key, std::string_view word) {
  for (std::string_view a : alternatives(key.legal))
    if (is_word(a) && a == word) return true;
  return false;
}

bool numeric_legal(std::string_view column, double x) {
  const auto all = alternatives(column);
  bool any_bound = false;
  for (std::string_view a : all) {
    if (is_word(a)) continue;
    any_bound = true;
    if (meets(a, x)) return true;
  }
  return !any_bound && column.empty();
}

std::string expectation(const Key& key) {
  std::string s(type_name(key.type));
  if (key.type == KeyType::boolean) s = "bool: true or false";
  if (key.type == KeyType::choice) {
    std::vector<std::string> names;
    for (std::string_view a : alternatives(key.legal)) names.push_back(a.empty() ? "\"\"" : std::string(a));
    return "one of " + either(names);
  }
  if (!key.legal.empty()) {
    s += ", ";
    for (std::string_view a : alternatives(key.legal)) s += fmt::format("{}{}", s.ends_with(", ") ? "" : " or ", a);
  }
  if (key.flags & key_nullable) s += ", or null";
  return s;
}

[[noreturn]] void wrong(const Key& key, const RawValue& raw) {
  const std::string got = raw.kind == Kind::null ? "null" : raw.text;
  Error error("E002", "{}={} is no legal value of {}", key.name, got, key.name);
  error.expected_text = expectation(key);
  error.got_text = got;
  std::vector<std::string> names;
  if (key.type == KeyType::choice)
    for (std::string_view a : alternatives(key.legal)) names.emplace_back(a);
  if (key.type == KeyType::boolean) names = {"true", "false"};
  const auto distance = [&](const std::string& a, const std::string& b) {
    return edit_distance(got, a) < edit_distance(got, b);
  };
  if (!names.empty())
    error.hint_text = fmt::format("{}={}", key.name, *std::min_element(names.begin(), names.end(), distance));
  else if ((key.type == KeyType::text || key.type == KeyType::path) && raw.kind != Kind::null)
    error.hint_text = fmt::format("quote it to have it as a string: '{}=\"{}\"'", key.name, got);
  else
    error.hint_text = fmt::format("nibble config explain {}", key.name);
  throw error;
}

/// Values that are illegal for a reason worth saying.
void known_refusals(const Key& key, const std::string& value) {
  if (key.name == "quantization") {
    std::vector<std::string> names;
    for (std::string_view a : alternatives(key.legal)) {
      if (a == value) return;
      if (!a.empty()) names.emplace_back(a);
    }
    const auto near = nearest(value, names, 3);
    throw Error("E502", "quantization={} is no recipe of nibble", value)
        .expected(fmt::format("one of \"\", {}", fmt::join(names, ", ")), value)
        .hint("quantization={}", near.empty() ? "te_nvfp4" : near[0]);
  }
  if (key.name == "hardware" && value == "tpu")
    throw Error("E010", "hardware=tpu: nibble has no TPU back-end").hint("hardware=cpu");
  if (key.name == "dataset_type" &&
      (value == "tfds" || value == "c4_mlperf" || value == "olmo_grain" || value == "grain"))
    throw Error("E010", "dataset_type={}: nibble reads files, and not this format", value)
        .hint("convert the data to JSON lines or text and give train_files=...; or dataset_type=synthetic");
  if (key.type == KeyType::path && (value.starts_with("gs://") || value.starts_with("s3://")))
    throw Error("E010", "{}={}: cloud storage is not in this program", key.name, value)
        .hint("mount it, or give a local folder");
}

ConfigValue typed_list(const Key& key, const RawValue& raw) {
  std::vector<std::string> items;
  if (raw.kind == Kind::list)
    items = raw.items;
  else if (raw.kind == Kind::scalar && !(raw.text.empty() || (!raw.quoted && is_null_word(raw.text))))
    items = {raw.text};
  else if (raw.kind == Kind::map)
    wrong(key, raw);
  else if (key.flags & key_nullable)
    return {};
  if (!key.legal.empty()) {
    const auto legal = alternatives(key.legal);
    for (const std::string& item : items) {
      const auto x = decimal(item);
      if (std::find(legal.begin(), legal.end(), item) == legal.end() && !(x && numeric_legal(key.legal, *x)))
        wrong(key, raw);
    }
  }
  return items;
}

}  // namespace

RawValue raw_of_text(std::string_view text) {
  RawValue raw;
  raw.text = std::string(text);
  const size_t first = text.find_first_not_of(' ');
  const char open = first == text.npos ? '\0' : text[first];
  if (open == '[' || open == '{' || open == '"' || open == '\'') {
    try {
      const YAML::Node node = YAML::Load(raw.text);
      if (node.IsScalar()) return {.kind = Kind::scalar, .text = node.Scalar(), .quoted = true, .items = {}};
      raw.kind = node.IsMap() ? Kind::map : Kind::list;
      for (const YAML::Node& item : node) {
        if (raw.kind == Kind::map) break;
        if (!item.IsScalar() && !item.IsNull())
          raw.kind = Kind::map;  // nested: no key takes it
        else
          raw.items.push_back(item.IsNull() ? "" : item.Scalar());
      }
      return raw;
    } catch (const YAML::Exception&) {  // "[INST] hello": a string that only begins like a list
    }
  }
  raw.kind = Kind::scalar;
  return raw;
}

ConfigValue typed_value(const Key& key, const RawValue& raw) {
  if (key.type == KeyType::list) return typed_list(key, raw);
  if (raw.kind == Kind::list || raw.kind == Kind::map) wrong(key, raw);
  const std::string& s = raw.text;
  const bool null = raw.kind == Kind::null || (!raw.quoted && is_null_word(s) &&
                                               !(key.type == KeyType::choice && s == "none" && has_word(key, s)));
  if (null && (key.flags & key_nullable)) return {};
  switch (key.type) {
    case KeyType::text:
    case KeyType::path:
      known_refusals(key, s);
      return null ? std::string() : s;
    case KeyType::choice: {
      const std::string word = null ? "" : s;
      known_refusals(key, word);
      const auto legal = alternatives(key.legal);
      if (std::find(legal.begin(), legal.end(), word) == legal.end()) wrong(key, raw);
      return word;
    }
    case KeyType::boolean:
      if (has_word(key, s)) return s;
      if (const auto b = truth(s)) return *b;
      wrong(key, raw);
    case KeyType::integer:
    case KeyType::bytes:
      if (has_word(key, s)) return s;
      if (const auto i = whole(s, key.type == KeyType::bytes);
          i && (key.legal.empty() || numeric_legal(key.legal, static_cast<double>(*i))))
        return *i;
      wrong(key, raw);
    case KeyType::number:
      if (has_word(key, s)) return s;
      if (const auto x = decimal(s); x && (key.legal.empty() || numeric_legal(key.legal, *x))) return *x;
      wrong(key, raw);
    case KeyType::list:
      break;
  }
  return {};
}

bool works_now(const Key& key, const ConfigValue& value) {
  if (key.now == every || key.now == no_effect) return true;
  if (value == default_value(key_index(key.name))) return true;
  if (key.now == only_default) return false;
  const auto now = alternatives(key.now);
  const auto word = [&](std::string_view s) { return std::find(now.begin(), now.end(), s) != now.end(); };
  if (const auto* s = std::get_if<std::string>(&value)) return word(*s);
  if (const auto* b = std::get_if<bool>(&value)) return word(*b ? "true" : "false") || word("auto");
  if (const auto* i = std::get_if<int64_t>(&value)) return numeric_legal(key.now, static_cast<double>(*i));
  if (const auto* x = std::get_if<double>(&value)) return numeric_legal(key.now, *x);
  if (const auto* list = std::get_if<std::vector<std::string>>(&value))
    return std::all_of(list->begin(), list->end(), word);
  return false;
}

const ConfigValue& default_value(int index) {
  static const std::vector<ConfigValue> all = [] {
    std::vector<ConfigValue> values;
    for (int i = 0; i < key_count(); ++i) values.push_back(typed_value(key_at(i), raw_of_text(key_at(i).initial)));
    return values;
  }();
  return all[static_cast<size_t>(index)];
}

// ---- writing -------------------------------------------------------------------------------------------------------

namespace {

std::string quote(std::string_view s, bool shell) {
  std::string out = "\"";
  for (const char c : s) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (byte < 0x20 || (shell && std::string_view(" *?[]~").find(c) != std::string_view::npos))
      out += shell ? fmt::format("\\x{:02x}", byte) : fmt::format("\\u{:04x}", byte);
    else
      out += c;
  }
  return out + "\"";
}

/// A plain scalar that YAML and raw_of_text() both read back as this string, in a list too.
bool is_plain(std::string_view s) {
  if (s.empty() || is_null_word(s) || truth(s) || !(isalpha(s[0]) || s[0] == '/' || s[0] == '.' || s[0] == '_'))
    return false;
  if (decimal(s)) return false;
  return std::all_of(s.begin(), s.end(), [](char c) {
    return isalnum(static_cast<unsigned char>(c)) || std::string_view("_-./+").find(c) != std::string_view::npos;
  });
}

std::string number_text(double x) {
  if (x == std::floor(x) && std::abs(x) < 1e15) return fmt::format("{}", static_cast<int64_t>(x));
  return fmt::format("{}", x);  // shortest that reads back as x
}

template <class Quote>
std::string written(const ConfigValue& value, std::string_view separator, const Quote& text) {
  if (const auto* i = std::get_if<int64_t>(&value)) return fmt::format("{}", *i);
  if (const auto* x = std::get_if<double>(&value)) return number_text(*x);
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* s = std::get_if<std::string>(&value)) return text(*s);
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    std::string out = "[";
    for (const std::string& item : *list) (out += out.size() > 1 ? separator : "") += text(item);
    return out + "]";
  }
  return "null";
}

}  // namespace

std::string value_json(const ConfigValue& value) {
  return written(value, ", ", [](std::string_view s) { return quote(s, false); });
}
std::string value_yaml(const ConfigValue& value) {
  return written(value, ", ", [](std::string_view s) { return is_plain(s) ? std::string(s) : quote(s, false); });
}
std::string value_word(const ConfigValue& value) {
  return written(value, ",", [](std::string_view s) { return is_plain(s) ? std::string(s) : quote(s, true); });
}

}  // namespace nibble
