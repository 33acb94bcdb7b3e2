#include "train/signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace nibble {
namespace {

// Any thread may run a handler, so the flags are atomics, and without locks because it is a handler.
std::atomic<int> stop_signal{0};
std::atomic<bool> save_request{false};
std::atomic<int64_t> current_step{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);
constexpr int stops[] = {SIGTERM, SIGUSR1, SIGHUP, SIGINT};
struct sigaction previous[6];

// Async-signal-safe printing.
void print(const char* text) { [[maybe_unused]] const auto n = write(STDERR_FILENO, text, std::strlen(text)); }
void print_number(int64_t number) {
  char digits[24] = {};
  char* first = digits + sizeof digits - 1;
  do *--first = static_cast<char>('0' + number % 10);
  while ((number /= 10) > 0);
  print(first);
}

void on_stop(int signal) {
  // A second SIGINT leaves at once: files become visible by rename only, so none is half written.
  if (signal == SIGINT && stop_signal == SIGINT) _exit(130);
  if (signal == SIGINT) {
    const int error = errno;  // of whatever this interrupts
    print("\nfinishing step ");
    print_number(current_step);
    print(", saving; press again to stop now\n");
    errno = error;
  }
  stop_signal = signal;
}
void on_save(int) { save_request = true; }

}  // namespace

SignalFlags::SignalFlags() {
  stop_signal = 0;
  save_request = false;
  struct sigaction action = {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;
  for (int i = 0; i < 4; ++i) sigaction(stops[i], &action, &previous[i]);
  action.sa_handler = on_save;
  sigaction(SIGUSR2, &action, &previous[4]);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &previous[5]);
}

SignalFlags::~SignalFlags() {
  for (int i = 0; i < 4; ++i) sigaction(stops[i], &previous[i], nullptr);
  sigaction(SIGUSR2, &previous[4], nullptr);
  sigaction(SIGPIPE, &previous[5], nullptr);
}

void SignalFlags::set_step(int64_t step) { current_step = step; }

int SignalFlags::stop() const { return stop_signal; }

bool SignalFlags::take_save_request() { return save_request.exchange(false); }

}  // namespace nibble
