// The golden vectors of the 4-bit and 8-bit formats, tests/golden/nvfp4_vectors.json: exact, made with rationals.
// Floats are C99 hexadecimal text, "nan" or "inf"; zeros carry no sign where they are values, so values compare as
// numbers.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nibble::testing {

using Json = nlohmann::json;

inline const Json& vectors(const char* section) {
  static const Json all = Json::parse(std::ifstream(NIBBLE_GOLDEN_DIR "/nvfp4_vectors.json"));
  return all.at(section);
}

inline float number(const Json& text) { return std::strtof(text.get_ref<const std::string&>().c_str(), nullptr); }
/// Of a list, or of a list of rows one after the other.
inline std::vector<float> numbers(const Json& list) {
  std::vector<float> x;
  for (const Json& entry : list) {
    if (entry.is_array()) {
      for (const float v : numbers(entry)) x.push_back(v);
    } else {
      x.push_back(number(entry));
    }
  }
  return x;
}
/// "0x7e", or "7e" for words.
inline uint32_t word(const Json& text) {
  return static_cast<uint32_t>(std::strtoul(text.get_ref<const std::string&>().c_str(), nullptr, 16));
}
/// Numbers or "0x.." texts, in rows or not.
inline std::vector<int> integers(const Json& list) {
  std::vector<int> x;
  for (const Json& entry : list) {
    if (entry.is_array()) {
      for (const int v : integers(entry)) x.push_back(v);
    } else {
      x.push_back(entry.is_string() ? static_cast<int>(word(entry)) : entry.get<int>());
    }
  }
  return x;
}
inline std::string text(const Json& j) { return j.get<std::string>(); }

/// Equal as numbers, NaN being equal to NaN.
inline ::testing::AssertionResult same(double got, double want) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << got << " is not " << want;
}

}  // namespace nibble::testing
