#include "train/console.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace nibble {
namespace {

bool status_wanted() {
  const char *term = std::getenv("TERM"), *no_color = std::getenv("NO_COLOR");
  return isatty(STDERR_FILENO) != 0 && term != nullptr && std::string_view(term) != "dumb" &&
         (no_color == nullptr || *no_color == 0);
}

size_t terminal_width() {
  winsize w{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

}  // namespace

Console::Console(bool quiet, const std::string& log_file) : quiet_(quiet), shows_status_(!quiet && status_wanted()) {
  if (log_file.empty()) return;
  log_file_ = open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log_file_ < 0)
    throw Error("E803", "cannot write {}: {}", log_file, std::strerror(errno)).where("--log-file").hint("another path");
}

Console::~Console() {
  clear();
  if (log_file_ >= 0) close(log_file_);
}

void Console::log(std::string_view text) {
  if (log_file_ < 0) return;
  const std::string line = std::string(text) + "\n";
  [[maybe_unused]] const auto n = write(log_file_, line.data(), line.size());
}

void Console::line(std::string_view text) {
  if (quiet_)
    log(text);
  else
    result(text);
}

void Console::result(std::string_view text) {
  clear();
  log(text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);  // a closed pipe is no reason to stop training
}

void Console::notice(std::string_view text) {
  if (quiet_) return;
  warning(fmt::format("note: {}", text));
}

void Console::warning(std::string_view text) {
  clear();
  log(text);
  const std::string line = std::string(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);  // like stdout: never a reason to stop
}

void Console::status(std::string_view text) {
  if (!shows_status_) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ > 0 && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  const size_t n = std::min(text.size(), terminal_width() - 1);
  std::string line = "\r" + std::string(text.substr(0, n));
  if (drawn_ > n) line += std::string(drawn_ - n, ' ');
  drawn_ = n;
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

void Console::clear() {
  if (drawn_ == 0) return;
  const std::string blank = "\r" + std::string(drawn_, ' ') + "\r";
  std::fwrite(blank.data(), 1, blank.size(), stderr);
  std::fflush(stderr);
  drawn_ = 0;
}

std::string printable(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]),
               next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool c1 = c == 0xc2 && next >= 0x80 && next < 0xa0;  // U+0080 to U+009F
    if (c1 || c == 0x7f || (c < 0x20 && c != '\n' && c != '\t'))
      shown += "\xef\xbf\xbd";
    else
      shown += text[i];
    i += c1;
  }
  return shown;
}

std::string progress_bar(double share, int width) {
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width));
  return "[" + std::string(static_cast<size_t>(full), '#') + std::string(static_cast<size_t>(width - full), '.') + "]";
}

}  // namespace nibble
