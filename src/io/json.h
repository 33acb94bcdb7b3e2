// JSON text with one spelling: two-space indentation, keys in the order given, integers or shortest round-trip
// decimals, UTF-8 unescaped. Source: spec/training.md 6.4. (The library's own numbers are not always the shortest.)
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

using Json = nlohmann::ordered_json;

/// No newline at the end. Errors: E901 for a number that is not finite or a string that is not UTF-8.
std::string json_text(const Json& value);

/// Parses, and refuses what JSON leaves open: a name that occurs twice in one object. On failure returns the reason
/// with its byte in `problem` and a discarded value; `problem` is empty on success.
Json parse_json(std::string_view text, std::string& problem);

}  // namespace nibble
