// The little of Unicode that tokenizers need: GPT-2's byte alphabet, NFC, and the two character classes that flags of
// added tokens ask for.  Source: spec/training.md 4.2; byte alphabet: openai/gpt-2 encoder.py bytes_to_unicode.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

/// Writes bytes in the byte alphabet: printable bytes as themselves, the other 68 as U+0100, U+0101, ... in order.
std::string to_byte_alphabet(std::string_view bytes);

/// The inverse; nothing if a character of s is not of the alphabet (or s is not UTF-8).
std::optional<std::string> from_byte_alphabet(std::string_view s);

/// NFC of well-formed UTF-8, by utf8proc. `storage` holds the result if any character may change, else s is returned.
std::string_view normalize_nfc(std::string_view s, std::string& storage);

/// White_Space of Unicode: what \s means to the libraries that tokenizer files were written for.
bool is_white_space(char32_t c);

/// A word character: Alphabetic (by general category L, Nl), mark, decimal digit, connector, joiner.
bool is_word_character(char32_t c);

}  // namespace nibble
