// Reads the sharding string of an op and tries it: cuts the operands along every axis it allows, runs the op on the
// parts, puts the results together and compares them with the whole. Grammar: docs/adding-an-op.md.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "graph/graph.h"

namespace nibble {

/// An operand or a result: its type and its elements, as doubles.
struct Dense {
  Type type;
  std::vector<double> x;
};
/// Runs an op.
using RunOp = std::function<std::vector<Dense>(const std::vector<Dense>& in)>;

class Sharding {
 public:
  explicit Sharding(std::string_view text) {
    const size_t arrow = text.find("->"), bar = text.find('|');
    if (arrow == text.npos) throw std::runtime_error("no ->");
    for (const auto& word : split(text.substr(0, arrow))) in_.push_back(pattern(word));
    for (const auto& word : split(text.substr(arrow + 2, bar == text.npos ? bar : bar - arrow - 2)))
      out_.push_back(pattern(word));
    if (bar == text.npos) return;
    for (const std::string& note : split(text.substr(bar + 1))) {
      const std::string axis = note.substr(0, note.find(' ')), rest = note.substr(note.find(' ') + 1);
      if (rest == "whole")
        whole_.insert(axis);
      else if (rest == "sum")
        sum_.insert(axis);
      else if (rest.starts_with("with "))
        with_[axis] = rest.substr(5);
      else
        throw std::runtime_error("no note: " + note);
    }
  }

  /// "" if every cut gives the whole's results to `tolerance` (relative to each result's largest element); else what
  /// went wrong. `cuts`: how many axes were cut.
  std::string check(const std::vector<Dense>& in, double tolerance, const RunOp& run, int* cuts) {
    const std::vector<Dense> whole = run(in);
    if (in.size() != in_.size() || whole.size() != out_.size())
      return "the number of patterns is not that of operands and results";
    for (size_t i = 0; i < in.size(); ++i) bind(in_[i], in[i].type, false);
    for (size_t i = 0; i < whole.size(); ++i) bind(out_[i], whole[i].type, false);
    for (size_t i = 0; i < in.size(); ++i) bind(in_[i], in[i].type, true);
    for (size_t i = 0; i < whole.size(); ++i) bind(out_[i], whole[i].type, true);
    for (const auto& axes : {whole_, sum_})
      for (const std::string& axis : axes)
        if (axis == "..." ? !leading_bound_ : !size_.count(axis))
          return "a note names " + axis + ", which no pattern has";
    for (const std::string& axis : sum_)
      if (whole_.count(axis)) return axis + " is both whole and sum";
    *cuts = 0;
    std::vector<std::string> axes;
    for (const auto& [axis, size] : size_)
      if (axis[0] == '.' ? !whole_.count("...") : !whole_.count(axis)) axes.push_back(axis);
    for (const std::string& axis : axes) {
      bool follows = false;  // cut together with another axis, never alone
      for (const auto& [first, second] : with_) follows |= second == axis;
      if (follows) continue;
      ++*cuts;
      if (const std::string wrong = try_cut(axis, in, whole, tolerance, run); !wrong.empty())
        return "cut along " + axis + ": " + wrong;
    }
    return "";
  }

 private:
  struct Pattern {
    bool accumulator = false, leading = false;
    std::vector<std::string> axes;  // "h", "8", "hd" (joined)
  };
  using Cut = std::map<std::string, std::pair<int64_t, int64_t>>;  // axis -> [from, to) of this part

  static std::vector<std::string> split(std::string_view text) {
    std::vector<std::string> words;
    while (!text.empty()) {
      const size_t comma = std::min(text.find(','), text.size());
      std::string_view word = text.substr(0, comma);
      text.remove_prefix(std::min(comma + 1, text.size()));
      while (word.starts_with(' ')) word.remove_prefix(1);
      while (word.ends_with(' ')) word.remove_suffix(1);
      if (!word.empty()) words.emplace_back(word);
    }
    return words;
  }

  static Pattern pattern(std::string_view word) {
    Pattern p;
    if (word.starts_with('+')) p.accumulator = true, word.remove_prefix(1);
    if (word.starts_with("...")) p.leading = true, word.remove_prefix(3);
    while (!word.empty()) {
      if (word[0] == '(') {
        const size_t close = word.find(')');
        p.axes.emplace_back(word.substr(1, close - 1));
        word.remove_prefix(close + 1);
      } else if (std::isalnum(static_cast<unsigned char>(word[0]))) {
        p.axes.emplace_back(word.substr(0, 1));
        word.remove_prefix(1);
      } else {
        throw std::runtime_error("no pattern: " + std::string(word));
      }
    }
    return p;
  }

  // The axes of a pattern by dimension of the type; a leading axis is ".0", ".1", ...
  std::vector<std::string> axes_of(const Pattern& p, const Type& type) const {
    const int leading = type.rank() - static_cast<int>(p.axes.size());
    if (leading < 0 || (!p.leading && leading > 0))
      throw std::runtime_error("a pattern does not fit " + to_string(type));
    std::vector<std::string> axes;
    for (int i = 0; i < leading; ++i) axes.push_back("." + std::to_string(i));
    axes.insert(axes.end(), p.axes.begin(), p.axes.end());
    return axes;
  }

  void bind(const Pattern& p, const Type& type, bool joined) {
    const std::vector<std::string> axes = axes_of(p, type);
    leading_bound_ |= p.leading;
    for (int i = 0; i < type.rank(); ++i) {
      const std::string& axis = axes[static_cast<size_t>(i)];
      const bool is_joined = axis.size() > 1 && axis[0] != '.';
      if (is_joined != joined) continue;
      int64_t size = 1;
      if (joined)
        for (const char c : axis) size *= size_.at(std::string(1, c));
      else if (std::isdigit(static_cast<unsigned char>(axis[0])))
        size = axis[0] - '0';
      else
        size = size_.emplace(axis, type.dim(i)).first->second;
      if (size != type.dim(i))
        throw std::runtime_error("axis " + axis + " of " + to_string(type) + " is " + std::to_string(size) +
                                 " elsewhere");
    }
  }

  std::string try_cut(const std::string& axis, const std::vector<Dense>& in, const std::vector<Dense>& whole,
                      double tolerance, const RunOp& run) const {
    std::vector<Dense> parts[2];
    Cut cut[2];
    for (int part = 0; part < 2; ++part) {
      const auto half = [&](const std::string& a) {
        const int64_t n = size_.at(a), middle = n / 2;
        cut[part][a] = part == 0 ? std::pair<int64_t, int64_t>{0, middle} : std::pair{middle, n};
      };
      half(axis);
      if (with_.count(axis)) half(with_.at(axis));
      std::vector<Dense> operands;
      for (size_t i = 0; i < in.size(); ++i) {
        operands.push_back(sliced(in[i], axes_of(in_[i], in[i].type), cut[part]));
        if (in_[i].accumulator && part == 1 && operands.back().type == in[i].type)
          std::ranges::fill(operands.back().x, 0.0);
      }
      parts[part] = run(operands);
    }
    const bool adds = sum_.count(axis[0] == '.' ? "..." : axis) > 0;
    for (size_t r = 0; r < whole.size(); ++r) {
      const std::vector<std::string> axes = axes_of(out_[r], whole[r].type);
      double largest = 0;
      for (const double x : whole[r].x) largest = std::max(largest, std::abs(x));
      for (int part = 0; part < 2; ++part) {
        Dense want = sliced(whole[r], axes, cut[part]);
        Dense got = parts[part][r];
        if (got.type != want.type)
          return "result " + std::to_string(r) + " is " + to_string(got.type) + ", not " + to_string(want.type);
        if (want.type == whole[r].type && adds)
          for (size_t i = 0; i < got.x.size(); ++i) got.x[i] = parts[0][r].x[i] + parts[1][r].x[i];
        for (size_t i = 0; i < got.x.size(); ++i)
          if (!(std::abs(got.x[i] - want.x[i]) <= tolerance * largest))
            return "result " + std::to_string(r) + "[" + std::to_string(i) + "] is " + std::to_string(got.x[i]) +
                   ", not " + std::to_string(want.x[i]);
      }
    }
    return "";
  }

  Dense sliced(const Dense& d, const std::vector<std::string>& axes, const Cut& cut) const {
    Dense result = d;
    for (int i = 0; i < d.type.rank(); ++i) {
      const std::string& axis = axes[static_cast<size_t>(i)];
      const auto found = cut.find(axis[0] == '.' ? axis : axis.substr(0, 1));
      if (found == cut.end()) continue;
      const int64_t scale = result.type.dim(i) / size_.at(found->first);  // > 1 for a joined axis
      result = slice(result, i, found->second.first * scale, found->second.second * scale);
    }
    return result;
  }

  static Dense slice(const Dense& d, int axis, int64_t from, int64_t to) {
    std::vector<int64_t> dims(d.type.shape.dims().begin(), d.type.shape.dims().end());
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < axis; ++i) outer *= dims[static_cast<size_t>(i)];
    for (size_t i = static_cast<size_t>(axis) + 1; i < dims.size(); ++i) inner *= dims[i];
    const int64_t n = dims[static_cast<size_t>(axis)];
    dims[static_cast<size_t>(axis)] = to - from;
    Dense part{{d.type.dtype, Shape(std::span<const int64_t>(dims))}, {}};
    for (int64_t o = 0; o < outer; ++o)
      part.x.insert(part.x.end(), d.x.begin() + (o * n + from) * inner, d.x.begin() + (o * n + to) * inner);
    return part;
  }

  std::vector<Pattern> in_, out_;
  std::set<std::string> whole_, sum_;
  std::map<std::string, std::string> with_;
  std::map<std::string, int64_t> size_;
  bool leading_bound_ = false;
};

}  // namespace nibble
