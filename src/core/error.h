// Errors a user can meet: an id of the error table (docs/errors.md), what happened with its value, where, what was
// expected and found, and one way out. Every function of the library that can fail throws Error (or Errors, when
// several independent mistakes are reported together); main prints them and leaves with exit_code().
#pragma once
#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Exit codes: the numbers of BSD sysexits.h where one fits.  Source: spec/training.md 7.1.
enum ExitCode : int {
  exit_done = 0,
  exit_no = 1,              // ran correctly, the answer is no
  exit_usage = 64,          // command line, unknown key, wrong type
  exit_data = 65,           // input data or checkpoint content is wrong
  exit_no_input = 66,       // input missing, unreadable or empty
  exit_unavailable = 69,    // a device, kernel, format, library or peer asked for is not there
  exit_internal = 70,       // broken invariant
  exit_cannot_create = 73,  // output cannot be created or would be overwritten
  exit_io = 74,             // disk full, failed write
  exit_stopped = 75,        // stopped by request, state saved
  exit_ranks = 76,
  exit_config = 78,        // legal values that do not fit together, or do not fit the machine
  exit_numeric = 81,       // non-finite values, too many skips
  exit_interrupted = 130,  // SIGINT
};

/// One error. Build it with the chained setters:
///   throw Error("E005", "configuration {} does not exist", path).where("argument 1").hint("nibble config keys");
class Error : public std::exception {
 public:
  template <class... A>
  Error(std::string_view error_id, fmt::format_string<A...> text, A&&... a)
      : id(error_id), what_text(fmt::format(text, std::forward<A>(a)...)) {}
  template <class... A>
  Error&& where(fmt::format_string<A...> text, A&&... a) && {
    where_text = fmt::format(text, std::forward<A>(a)...);
    return std::move(*this);
  }
  Error&& expected(std::string expected_value, std::string got_value) && {
    expected_text = std::move(expected_value);
    got_text = std::move(got_value);
    return std::move(*this);
  }
  template <class... A>
  Error&& hint(fmt::format_string<A...> text, A&&... a) && {
    hint_text = fmt::format(text, std::forward<A>(a)...);
    return std::move(*this);
  }
  /// The four-line form of spec/training.md 7.1, no trailing newline: "error[E001]: ...\n  where: ...\n ...".
  std::string message() const;
  const char* what() const noexcept override;
  /// By id: E0xx 64, E1xx 78, ...; exceptions as in the table of spec/training.md 7.2.
  int exit_code() const;

  std::string id, what_text, where_text, expected_text, got_text, hint_text;

 private:
  mutable std::string cached_;
};

/// Several errors of one input, reported together (at most 20 are printed); the exit code is that of the first.
class Errors : public std::exception {
 public:
  explicit Errors(std::vector<Error> list) : errors(std::move(list)) {}
  const char* what() const noexcept override { return errors.empty() ? "no error" : errors.front().what(); }
  std::vector<Error> errors;
};

/// A broken invariant of nibble itself: E901, exit 70.
[[noreturn]] void internal_error(std::string_view what, std::string_view file, int line);
#define NIBBLE_CHECK(condition, ...)                                                          \
  do {                                                                                        \
    if (!(condition)) ::nibble::internal_error(fmt::format(__VA_ARGS__), __FILE__, __LINE__); \
  } while (0)

}  // namespace nibble
