// Comparing a tokenizer with what another library gave for the same texts: `nibble data check-tokenizer`.
// Source: spec/training.md 1.7 and 4.2; format of the cases: README of the golden tokenizers.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace nibble {

struct CheckResult {
  int64_t cases = 0;
  int64_t comparisons = 0;         // up to 4 a case: ids, decoded, ids_special, decoded_skip_special
  int64_t differences = 0;         // comparisons that failed
  std::vector<std::string> first;  // the first 10 differences, one printable line each
  bool equal() const { return differences == 0; }
};

/// Runs every line of a cases.jsonl: encode(text, parse_special=true) against `ids`, decode_text against `decoded`, and
/// the same with the template against `ids_special` and without special tokens against `decoded_skip_special` (where a
/// case lacks one of these two it must equal the plain form).
/// Errors: E202 unreadable, E203 no case, E307 a line that is no case.
CheckResult check_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& cases);

}  // namespace nibble
