// What tokenising a corpus needs to know of a tokenizer.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Turns text into token ids. BOS and EOS are added by the caller, per document.
struct TextEncoder {
  /// Appends the ids of a text. Called by several threads at once; the text is valid UTF-8.
  std::function<void(std::string_view text, std::vector<int32_t>& ids)> encode;
  int bos = -1, eos = -1, pad = -1;  // -1: the tokenizer has none
  int64_t vocab = 0;                 // every id is below this
  uint64_t hash = 0;                 // of the tokenizer's content; part of the key of a token folder
  std::string name;                  // for messages and meta.json
  bool parse_special = false;        // strings of special tokens in the text become those tokens
};

}  // namespace nibble
