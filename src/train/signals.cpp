#include "train/signals.h"

#include <csignal>
#include <cstdlib>
#include <unistd.h>

namespace nibble {
namespace {

volatile std::sig_atomic_t stop_signal = 0, save_request = 0;
constexpr int stops[] = {SIGTERM, SIGUSR1, SIGHUP, SIGINT};
struct sigaction previous[6];

void on_stop(int signal) {
  // A second SIGINT leaves at once: files become visible by rename only, so none is half written.
  if (signal == SIGINT && stop_signal == SIGINT) _exit(130);
  if (signal == SIGINT) {
    constexpr char line[] = "\nfinishing this step, saving; press again to stop now\n";
    [[maybe_unused]] const auto n = write(STDERR_FILENO, line, sizeof line - 1);
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

int SignalFlags::stop() const { return stop_signal; }

bool SignalFlags::take_save_request() {
  const bool asked = save_request != 0;
  save_request = 0;
  return asked;
}

}  // namespace nibble
