// check_tokenizer.  Source: spec/training.md 1.7 and 4.2.
#include "data/tokenizer_check.h"

#include <fmt/ranges.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace nibble {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr size_t shown_differences = 10;

std::string printable(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}
std::string printable(const Ids& ids) { return fmt::format("[{}]", fmt::join(ids, " ")); }

// Long values are cut around the first place where they differ.
template <class T>
std::string excerpt(const T& value, const T& other) {
  constexpr size_t before = 8, shown = 24;
  size_t at = 0;
  while (at < value.size() && at < other.size() && value[at] == other[at]) ++at;
  const size_t begin = at > before ? at - before : 0, end = std::min(value.size(), begin + shown);
  const T part(value.begin() + static_cast<ptrdiff_t>(begin), value.begin() + static_cast<ptrdiff_t>(end));
  return fmt::format("{}{}{}", begin > 0 ? "..." : "", printable(part), end < value.size() ? "..." : "");
}

template <class T>
void compare(CheckResult& result, int64_t line, const char* what, const T& want, const T& got) {
  ++result.comparisons;
  if (want == got) return;
  if (++result.differences <= static_cast<int64_t>(shown_differences))
    result.first.push_back(
        fmt::format("line {}, {}: expected {} got {}", line, what, excerpt(want, got), excerpt(got, want)));
}

struct Case {
  std::string text, decoded, decoded_skip_special;
  Ids ids, ids_special;
};

Case parse_case(const std::string& line, const std::filesystem::path& file, int64_t number) {
  try {
    const Json j = Json::parse(line);
    Case c;
    c.text = j.at("text").get<std::string>();
    c.ids = j.at("ids").get<Ids>();
    c.decoded = j.at("decoded").get<std::string>();
    c.ids_special = j.contains("ids_special") ? j["ids_special"].get<Ids>() : c.ids;
    c.decoded_skip_special =
        j.contains("decoded_skip_special") ? j["decoded_skip_special"].get<std::string>() : c.decoded;
    return c;
  } catch (const Json::exception& error) {
    throw Error("E307", "line is no tokenizer case: {}", error.what())
        .where("{}:{}", file.string(), number)
        .expected("{\"text\": .., \"ids\": [..], \"decoded\": ..}", line.substr(0, 60))
        .hint("remove the line or write the case anew");
  }
}

}  // namespace

CheckResult check_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& cases) {
  std::ifstream in(cases);
  if (!in || std::filesystem::is_directory(cases))
    throw Error("E202", "cases {} cannot be read", cases.string())
        .where("working folder {}", std::filesystem::current_path().string())
        .hint("give the cases.jsonl of a tokenizer");
  CheckResult result;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Case c = parse_case(line, cases, number);
    ++result.cases;
    const Ids ids = tokenizer.encode(c.text, true);
    compare(result, number, "ids", c.ids, ids);
    compare(result, number, "decoded", c.decoded, tokenizer.decode_text(c.ids, false));
    compare(result, number, "ids_special", c.ids_special, tokenizer.encode_with_template(c.text, true));
    compare(result, number, "decoded_skip_special", c.decoded_skip_special, tokenizer.decode_text(c.ids, true));
  }
  if (result.cases == 0)
    throw Error("E203", "{} holds no case", cases.string()).where("{}", cases.string()).hint("one JSON object a line");
  return result;
}

}  // namespace nibble
