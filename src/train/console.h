// The terminal of a run: log lines go to stdout unchanged; on a terminal, stderr shows one status line that is
// redrawn at most ten times a second and cleared before each log line. No escape sequences are ever written: the
// status line is overwritten with blanks (spec/training.md 8).
#pragma once
#include <chrono>
#include <string>
#include <string_view>

namespace nibble {

class Console {
 public:
  /// quiet: only warnings and errors. A status line is shown if stderr is a terminal, TERM is not dumb, NO_COLOR is
  /// not set, and not quiet. log_file: every line goes there too, "" for none.  Errors: E803.
  explicit Console(bool quiet, const std::string& log_file = "");
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  void line(std::string_view text);     // stdout, flushed; silenced when quiet or after stdout was closed
  void result(std::string_view text);   // stdout even when quiet
  void notice(std::string_view text);   // stderr, "note: ..."
  void warning(std::string_view text);  // stderr, as given
  void status(std::string_view text);
  void clear();
  bool shows_status() const { return shows_status_; }

 private:
  void log(std::string_view text);
  bool quiet_, shows_status_;
  size_t drawn_ = 0;  // columns of the status line on the screen
  std::chrono::steady_clock::time_point last_{};
  int log_file_ = -1;
};

/// UTF-8 text of a model for a terminal: control characters other than tab and line feed become U+FFFD, so that no
/// sample can move the cursor or change a setting.
std::string printable(std::string_view text);

/// A bar of `width` characters for a share of [0, 1].
std::string progress_bar(double share, int width);

}  // namespace nibble
