// "Did you mean": the names nearest to one that was not found.  Source: spec/training.md 1.3.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Damerau-Levenshtein distance in bytes (restricted: no edit between two swapped neighbours).
int edit_distance(std::string_view a, std::string_view b);

/// Up to `most` of the names: first those within max(2, length of word / 4) edits, nearest first, then those that share
/// a part between underscores of three letters or more, most shared parts first. Ties keep the order of `names`.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& names, size_t most = 3);

/// "a", "a or b", "a, b or c".
std::string either(const std::vector<std::string>& names);

}  // namespace nibble
