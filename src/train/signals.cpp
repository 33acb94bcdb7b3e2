#include "train/signals.h"

#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace nibble {
namespace {

volatile std::sig_atomic_t stop_signal = 0, save_request = 0, current_step = 0;
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
    print("\nfinishing step ");
    print_number(current_step);
    print(", saving; press again to stop now\n");
  }
  stop_signal = signal;
}
void on_save(int) { save_request = 1; }

}  // namespace

SignalFlags::SignalFlags() {
  stop_signal = 0;
  save_request = 0;
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

void SignalFlags::set_step(int64_t step) { current_step = static_cast<std::sig_atomic_t>(step); }

int SignalFlags::stop() const { return stop_signal; }

bool SignalFlags::take_save_request() {
  const bool asked = save_request != 0;
  save_request = 0;
  return asked;
}

}  // namespace nibble
