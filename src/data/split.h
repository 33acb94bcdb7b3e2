// Splitting text into the pieces that a BPE works on, by the regular expression of a tokenizer file. The expressions
// are written for Oniguruma (Ruby syntax, Unicode); they run on PCRE2-JIT after a translation that keeps their meaning
// and refuses what it would change.  Source: spec/training.md 4.2.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace nibble {

/// Pattern of a named split rule: gpt2, llama3 or qwen2.  Error: E002 for another name.
std::string_view split_pattern(std::string_view rule);

/// A compiled split pattern. Copies share it; all calls are safe from several threads.
class Splitter {
 public:
  /// `where` names the place of the pattern in messages.
  /// Errors: E308 for syntax that PCRE2 does not have or that means something else there.
  explicit Splitter(std::string_view pattern, std::string_view where = "the split pattern");

  /// The pattern as given.
  const std::string& pattern() const;

  /// Calls f(piece) for every match and every stretch between matches, in order; the pieces joined are the text.
  /// text must be well-formed UTF-8. Allocates only on a thread's first use.
  template <class F>
  void split(std::string_view text, const F& f) const {
    size_t done = 0;  // start of what has not been handed out
    size_t from = 0;  // start of the search: ahead of `done` only after an empty match
    while (done < text.size()) {
      size_t begin = 0, end = 0;
      if (from > text.size() || !find(text, from, begin, end)) return f(text.substr(done));
      if (begin > done) f(text.substr(done, begin - done));
      if (end > begin) f(text.substr(begin, end - begin));
      done = end;
      from = end > begin ? end : after_character(text, end);
    }
  }

 private:
  struct Code;
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end) const;
  static size_t after_character(std::string_view text, size_t at);
  std::shared_ptr<const Code> code_;
};

/// The pattern in PCRE2's syntax.  Errors: E308 as above. Exposed for its test.
std::string translate_pattern(std::string_view pattern, std::string_view where);

}  // namespace nibble
