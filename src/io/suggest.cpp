// Edit distance with transpositions, and the choice of suggestions.  Source: spec/training.md 1.3.
#include "io/suggest.h"

#include <algorithm>
#include <utility>

namespace nibble {
namespace {

std::vector<std::string_view> parts(std::string_view name) {
  std::vector<std::string_view> out;
  for (size_t begin = 0; begin <= name.size();) {
    size_t end = name.find_first_of("_-.", begin);
    if (end == name.npos) end = name.size();
    if (end - begin >= 3) out.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  const size_t n = a.size(), m = b.size();
  std::vector<int> before(m + 1), last(m + 1), row(m + 1);  // rows i-2, i-1, i
  for (size_t j = 0; j <= m; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= n; ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= m; ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[m];
}

std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& names, size_t most) {
  const int limit = std::max(2, static_cast<int>(word.size()) / 4);
  const auto own = parts(word);
  std::vector<std::pair<int, size_t>> found;  // rank, place
  for (size_t i = 0; i < names.size(); ++i) {
    const int distance = edit_distance(word, names[i]);
    if (distance <= limit && distance < static_cast<int>(word.size())) {
      found.emplace_back(distance, i);
      continue;
    }
    int shared = 0;
    for (std::string_view part : parts(names[i])) shared += std::count(own.begin(), own.end(), part) > 0;
    if (shared > 0) found.emplace_back(1000 - shared, i);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> out;
  for (const auto& [rank, i] : found) {
    if (out.size() == most) break;
    out.push_back(names[i]);
  }
  return out;
}

std::string either(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out += names[i];
  }
  return out;
}

}  // namespace nibble
