// Byte alphabet, NFC and character classes: part of obligation T38 of spec/training.md.
#include "data/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>

#include "data/utf8.h"

namespace nibble {
namespace {

TEST(TrainingT38, ByteAlphabetIsOneToOne) {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  const std::string written = to_byte_alphabet(all);
  EXPECT_EQ(utf8_valid_prefix(written), written.size());
  EXPECT_EQ(from_byte_alphabet(written), all);
  EXPECT_EQ(to_byte_alphabet(std::string_view("\0 \n\x7f\xad!~\xff", 8)), "\u0100\u0120\u010a\u0121\u0143!~\u00ff");
  EXPECT_FALSE(from_byte_alphabet("a b"));  // a space is not of the alphabet
  EXPECT_FALSE(from_byte_alphabet("\u0144"));
  EXPECT_FALSE(from_byte_alphabet("\xff"));
}

std::string nfc(std::string_view s) {
  std::string storage;
  return std::string(normalize_nfc(s, storage));
}

std::string nfc_of_the_whole(const std::string& s) {
  utf8proc_uint8_t* result = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(s.c_str()));
  std::string out(reinterpret_cast<const char*>(result));
  std::free(result);
  return out;
}

// clang-format off
struct Row { const char* why; const char* text; const char* want; };
const Row rows[] = {
    {"ASCII stays", "plain", "plain"},
    {"the mark joins the letter before it", "xe\u0301y", "x\u00e9y"},
    {"at the start there is no letter", "\u0301a", "\u0301a"},
    {"marks are put in order first", "q\u0307\u0323", "q\u0323\u0307"},
    {"a mark after a composed letter", "\u00e2\u0301", "\u1ea5"},
    {"after an ideograph nothing joins", "\u4e00\u0301", "\u4e00\u0301"},
    {"Hangul", "\u1112\u1161\u11ab\uae00", "\ud55c\uae00"},
    {"a singleton", "10 \u212b", "10 \u00c5"},
    {"compatibility ideograph", "\uf900", "\u8c48"},
    {"excluded from composition", "\u0958", "\u0915\u093c"}};
// clang-format on

TEST(TrainingT38, NfcByHand) {
  for (const Row& row : rows) EXPECT_EQ(nfc(row.text), row.want) << row.why;
  const std::string_view zero("a\0e\u0301", 5);
  EXPECT_EQ(nfc(zero), std::string("a\0\u00e9", 4));
}

TEST(TrainingT38, NfcByStretchesEqualsNfcOfTheWhole) {
  static constexpr char32_t pool[] = {'a',    'e',    ' ',    0xe2,   0x300,  0x301,  0x323, 0x2019, 0x4e00,
                                      0x1112, 0x1161, 0x11ab, 0x212b, 0xf900, 0x9fff, 0x93c, 0x915,  0x1d15e};
  uint32_t x = 5;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int n = 0; n < 1 + i % 12; ++n) {
      x = x * 1664525u + 1013904223u;
      utf8_append(text, pool[(x >> 16) % std::size(pool)]);
    }
    ASSERT_EQ(nfc(text), nfc_of_the_whole(text)) << text;
  }
  for (char32_t c = 1; c < 0x110000; ++c) {  // every character, before and after others
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text = "e";
    utf8_append(text, c);
    text += "\u0301a";
    ASSERT_EQ(nfc(text), nfc_of_the_whole(text)) << static_cast<uint32_t>(c);
  }
}

TEST(TrainingT38, CharacterClasses) {
  for (const char32_t c : {0x9, 0xd, 0x20, 0x85, 0xa0, 0x1680, 0x2003, 0x2029, 0x3000}) EXPECT_TRUE(is_white_space(c));
  for (const char32_t c : {0x8, 0xe, 0x180e, 0x200b, 0xfeff, 'a' + 0}) EXPECT_FALSE(is_white_space(c));
  for (const char32_t c : {'a' + 0, '_' + 0, '7' + 0, 0xe9, 0x301, 0x4e00, 0x200d}) EXPECT_TRUE(is_word_character(c));
  for (const char32_t c : {' ' + 0, '-' + 0, 0x2019, 0x1f44b}) EXPECT_FALSE(is_word_character(c));
}

}  // namespace
}  // namespace nibble
