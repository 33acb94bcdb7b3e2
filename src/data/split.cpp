// Split patterns on PCRE2-JIT.  Source: spec/training.md 4.2.
#include "data/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"
#include "data/utf8.h"

namespace nibble {
namespace {

constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// Walks a pattern once. What means the same in both libraries is copied; \s becomes White_Space (PCRE2's own \s adds
// U+180E), a script name gets "sc:" (PCRE2 would also take script extensions); the rest is refused.
class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else {
        plain_character(c);
      }
    }
    return out_;
  }

 private:
  char peek(size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void copy(size_t n) {
    out_ += pattern_.substr(at_, n);
    at_ += n;
  }
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error("E308", "split pattern with {} is not supported", what)
        .where("{}, offset {} of {}", where_, at_, pattern_)
        .hint("write the pattern with \\s, \\p{{..}}, classes without nesting, groups (?:..) (?i:..) and look-arounds");
  }

  void escape() {
    const char c = peek(1);
    if (c == 's' || c == 'S') {
      out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'u') {
      for (int i = 2; i < 6; ++i)
        if (!is_hex(peek(i))) refuse("\\u without four hexadecimal digits");
      out_ += fmt::format("\\x{{{}}}", pattern_.substr(at_ + 2, 4));
      at_ += 6;
    } else if (c == 'x') {
      if (peek(2) != '{' && !(peek(2) >= '0' && peek(2) <= '7' && is_hex(peek(3)))) refuse("\\x of a single byte");
      copy(2);
    } else if (c == 'd' || c == 'D' || c == 'r' || c == 'n' || c == 't' || c == 'f' ||
               (c > ' ' && c < 0x7f && !is_letter(c) && !is_digit(c)) || c == ' ') {
      copy(2);
    } else {
      refuse(fmt::format("\\{}", c == '\0' ? ' ' : c));
    }
  }

  void property() {
    const size_t close = pattern_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) refuse("\\p without {..}");
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    const bool negated = name.starts_with('^') != (peek(1) == 'P');
    if (name.starts_with('^')) name.remove_prefix(1);
    out_ += fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', name.size() > 2 ? "sc:" : "", name);
    at_ = close + 1;
  }

  void class_character(char c) {
    if (c == '[') refuse("a class inside a class");
    if (c == '&' && peek(1) == '&') refuse("&& in a class");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void plain_character(char c) {
    if (c == '[') {
      in_class_ = true;
      copy(peek(1) == '^' ? 2 : 1);
      if (peek(0) == ']') refuse("] as the first character of a class");
    } else if (c == '(' && peek(1) == '*') {
      refuse("(*");
    } else if (c == '(' && peek(1) == '?') {
      size_t n = 0;
      for (const std::string_view group : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"})
        if (pattern_.substr(at_).starts_with(group)) n = group.size();
      if (n == 0) refuse(pattern_.substr(at_, 3));
      copy(n);
    } else if (c == '{') {
      size_t n = 1;
      while (is_digit(peek(n)) || peek(n) == ',') ++n;
      if (!is_digit(peek(1)) || peek(n) != '}') refuse("a { that opens no count");
      if (peek(n + 1) == '+') refuse("a + after a count");
      copy(n + 1);
    } else {
      copy(1);
    }
  }

  std::string_view pattern_, where_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

// What a thread needs to match: reused for every pattern.
struct MatchState {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(64 << 10, 8 << 20, nullptr);
  MatchState() {
    NIBBLE_CHECK(data && context, "PCRE2 has no memory for a match");
    pcre2_set_match_limit(context, UINT32_MAX);
    if (stack) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack) pcre2_jit_stack_free(stack);
  }
};

MatchState& thread_match_state() {
  thread_local MatchState state;
  return state;
}

}  // namespace

std::string_view split_pattern(std::string_view rule) {
  if (rule == "gpt2") return gpt2_pattern;
  if (rule == "llama3") return llama3_pattern;
  if (rule == "qwen2") return qwen2_pattern;
  throw Error("E002", "tokenizer_split={} is no split rule", rule)
      .expected("gpt2, llama3 or qwen2", std::string(rule))
      .hint("tokenizer_split=gpt2");
}

std::string translate_pattern(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

struct Splitter::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  bool jit = false;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Splitter::Splitter(std::string_view pattern, std::string_view where) {
  auto code = std::make_shared<Code>();
  code->pattern = pattern;
  const std::string translated = translate_pattern(pattern, where);
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (!code->code) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    throw Error("E308", "split pattern is not supported: {}", reinterpret_cast<const char*>(message))
        .where("{}, offset {} of {}", where, offset, translated)
        .hint("write the pattern with \\s, \\p{{..}}, classes without nesting, groups (?:..) (?i:..) and look-arounds");
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;  // without JIT: the interpreter, same result
  code_ = std::move(code);
}

const std::string& Splitter::pattern() const { return code_->pattern; }

bool Splitter::find(std::string_view text, size_t from, size_t& begin, size_t& end) const {
  MatchState& state = thread_match_state();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int result = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->jit) result = pcre2_jit_match(code_->code, subject, text.size(), from, 0, state.data, state.context);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT)  // the interpreter keeps its stack on the heap
    result = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data,
                         state.context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  NIBBLE_CHECK(result >= 0, "PCRE2 error {} in split pattern {}", result, code_->pattern);
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state.data);
  begin = offsets[0];
  end = offsets[1];
  return true;
}

size_t Splitter::after_character(std::string_view text, size_t at) {
  return at < text.size() ? at + utf8_step(text.substr(at)).bytes : at + 1;
}

}  // namespace nibble
