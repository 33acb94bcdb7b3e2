// UTF-8 steps, Utf8Stream and StopStream.  Source: spec/generation.md 1.8; Unicode 15 section 3.9.
#include "data/utf8.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace nibble {

// Table 3-7 of the Unicode standard: only the second byte has a range that depends on the first, which is what makes
// "maximal subpart" a one-pass notion.
Utf8Step utf8_step(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t b0 = byte(0);
  if (b0 < 0x80) return {Utf8Step::character, 1, b0};
  if (b0 < 0xc2 || b0 > 0xf4) return {Utf8Step::ill_formed, 1, 0xfffd};
  const int length = b0 < 0xe0 ? 2 : b0 < 0xf0 ? 3 : 4;
  const uint8_t low = b0 == 0xe0 ? 0xa0 : b0 == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = b0 == 0xed ? 0x9f : b0 == 0xf4 ? 0x8f : 0xbf;
  char32_t code_point = b0 & (0xff >> (length + 1));
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == s.size()) return {Utf8Step::incomplete, i, 0xfffd};
    const uint8_t b = byte(i);
    const bool fits = i == 1 ? b >= low && b <= high : (b & 0xc0) == 0x80;
    if (!fits) return {Utf8Step::ill_formed, i, 0xfffd};
    code_point = code_point << 6 | (b & 0x3f);
  }
  return {Utf8Step::character, length, code_point};
}

size_t utf8_valid_prefix(std::string_view s) {
  size_t i = 0;
  while (i < s.size()) {
    uint64_t word = 0;
    while (i + 8 <= s.size() && (std::memcpy(&word, s.data() + i, 8), (word & 0x8080808080808080u) == 0)) i += 8;
    if (i == s.size()) break;
    const Utf8Step step = utf8_step(s.substr(i));
    if (step.kind != Utf8Step::character) break;
    i += step.bytes;
  }
  return i;
}

void utf8_append(std::string& out, char32_t c) {
  const auto put = [&](uint32_t b) { out.push_back(static_cast<char>(b)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xe0 | c >> 12);
    } else {
      put(0xf0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3f));
    }
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

std::string utf8_lossy(std::string_view s) {
  Utf8Stream stream;
  std::string out = stream.feed(s);
  return out += stream.finish();
}

std::string Utf8Stream::feed(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t valid = utf8_valid_prefix(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    const Utf8Step step = utf8_step(bytes);
    if (step.kind == Utf8Step::incomplete) {
      held_ = bytes;
      break;
    }
    utf8_append(out, 0xfffd);
    bytes.remove_prefix(step.bytes);
  }
  return out;
}

std::string Utf8Stream::finish() {
  std::string out;
  if (!held_.empty()) utf8_append(out, 0xfffd);
  held_.clear();
  return out;
}

StopStream::StopStream(std::vector<std::string> stops) : stops_(std::move(stops)), state_(stops_.size(), 0) {
  for (const std::string& stop : stops_) {
    NIBBLE_CHECK(!stop.empty(), "an empty stop string");
    std::vector<int> border(stop.size() + 1, 0);
    for (size_t i = 1, k = 0; i < stop.size(); ++i) {
      while (k > 0 && stop[i] != stop[k]) k = border[k];
      if (stop[i] == stop[k]) ++k;
      border[i + 1] = static_cast<int>(k);
    }
    border_.push_back(std::move(border));
  }
}

std::string StopStream::feed(std::string_view piece) {
  std::string out;
  if (finished()) return out;
  for (const char c : piece) {
    held_.push_back(c);
    size_t keep = 0;
    for (size_t s = 0; s < stops_.size(); ++s) {
      const std::string& stop = stops_[s];
      int k = state_[s];
      while (k > 0 && stop[k] != c) k = border_[s][k];
      if (stop[k] == c) ++k;
      state_[s] = k;
      keep = std::max(keep, static_cast<size_t>(k));
      const bool longer = matched_ < 0 || stop.size() > stops_[matched_].size();
      if (static_cast<size_t>(k) == stop.size() && longer) matched_ = static_cast<int>(s);
    }
    if (finished()) {  // every byte of the match is still held: a stop string's own prefixes are held back
      out.append(held_, 0, held_.size() - stops_[matched_].size());
      held_.clear();
      return out;
    }
    out.append(held_, 0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
  }
  return out;
}

std::string StopStream::finish() {
  std::string out = finished() ? std::string() : held_;
  held_.clear();
  std::fill(state_.begin(), state_.end(), 0);
  return out;
}

}  // namespace nibble
