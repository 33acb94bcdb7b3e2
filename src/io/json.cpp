// JSON text with one spelling, and a parser that refuses double names.  Source: spec/training.md 6.1, 6.4.
#include "io/json.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"

namespace nibble {
namespace {

std::string number_text(double x) {
  NIBBLE_CHECK(std::isfinite(x), "a number in JSON that is not finite");
  std::string s = fmt::format("{}", x);  // shortest decimals that read back to the same bits
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

void append(std::string& out, const Json& v, size_t indent) {
  const auto new_line = [&](size_t n) { out.append("\n").append(n, ' '); };
  if (v.is_structured()) {
    const bool object = v.is_object();
    out += object ? '{' : '[';
    bool first = true;
    for (const auto& item : v.items()) {
      if (!first) out += ',';
      first = false;
      new_line(indent + 2);
      if (object) out += Json(item.key()).dump() + ": ";
      append(out, item.value(), indent + 2);
    }
    if (!first) new_line(indent);
    out += object ? '}' : ']';
  } else if (v.is_number_float()) {
    out += number_text(v.get<double>());
  } else {
    out += v.dump();
  }
}

}  // namespace

std::string json_text(const Json& value) {
  std::string out;
  try {
    append(out, value, 0);
  } catch (const nlohmann::json::exception& e) {
    internal_error(e.what(), __FILE__, __LINE__);
  }
  return out;
}

Json parse_json(std::string_view text, std::string& problem) {
  problem.clear();
  std::vector<std::set<std::string>> names;  // of the objects that are open
  std::string twice;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, Json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) names.emplace_back();
    if (event == Event::object_end) names.pop_back();
    if (event == Event::key && !names.back().insert(parsed.get<std::string>()).second && twice.empty())
      twice = parsed.get<std::string>();
    return true;
  };
  try {
    Json value = Json::parse(text.begin(), text.end(), watch);
    if (twice.empty()) return value;
    problem = fmt::format("the name \"{}\" occurs twice", twice);
  } catch (const nlohmann::json::parse_error& e) {
    problem = fmt::format("no JSON at byte {}", e.byte);
  } catch (const nlohmann::json::exception& e) {
    problem = e.what();
  }
  return Json(nlohmann::json::value_t::discarded);
}

}  // namespace nibble
