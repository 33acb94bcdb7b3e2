// Byte alphabet, NFC and character classes.  Source: spec/training.md 4.2.
#include "data/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "core/error.h"
#include "data/utf8.h"

namespace nibble {
namespace {

bool is_printable_byte(int b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae; }

struct ByteAlphabet {
  std::array<char32_t, 256> letter;
  std::array<int, 0x144> byte;  // by letter, -1 where there is none
  ByteAlphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      letter[b] = is_printable_byte(b) ? static_cast<char32_t>(b) : next++;
      byte[letter[b]] = b;
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) utf8_append(out, byte_alphabet().letter[static_cast<uint8_t>(c)]);
  return out;
}

std::optional<std::string> from_byte_alphabet(std::string_view s) {
  const ByteAlphabet& alphabet = byte_alphabet();
  std::string out;
  while (!s.empty()) {
    const Utf8Step step = utf8_step(s);
    if (step.kind != Utf8Step::character || step.code_point >= alphabet.byte.size()) return std::nullopt;
    const int byte = alphabet.byte[step.code_point];
    if (byte < 0) return std::nullopt;
    out.push_back(static_cast<char>(byte));
    s.remove_prefix(step.bytes);
  }
  return out;
}

// Characters that are NFC as they stand and never join with the one before: below U+0300, common punctuation,
// ideographs.
static bool is_inert(char32_t c) { return c < 0x300 || (c >= 0x2010 && c <= 0x2027) || (c >= 0x4e00 && c <= 0x9fff); }

static void append_nfc(std::string_view s, std::string& out) {
  utf8proc_uint8_t* result = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(s.data()),
                                             static_cast<utf8proc_ssize_t>(s.size()), &result, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  NIBBLE_CHECK(size >= 0, "utf8proc: {}", utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
}

// utf8proc sees only the stretches that may change: characters that are not inert, and the one before them.
std::string_view normalize_nfc(std::string_view s, std::string& storage) {
  storage.clear();
  size_t copied = 0, before = 0, at = 0;  // before: start of the character that precedes `at`
  while (at < s.size()) {
    const Utf8Step step = utf8_step(s.substr(at));
    if (is_inert(step.code_point)) {
      before = at;
      at += step.bytes;
      continue;
    }
    size_t end = at;
    while (end < s.size()) {
      const Utf8Step next = utf8_step(s.substr(end));
      if (is_inert(next.code_point)) break;
      end += next.bytes;
    }
    storage += s.substr(copied, before - copied);
    append_nfc(s.substr(before, end - before), storage);
    copied = before = at = end;
  }
  if (copied == 0) return s;
  storage += s.substr(copied);
  return storage;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200c || c == 0x200d;
  }
}

}  // namespace nibble
