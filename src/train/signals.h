// Stop signals as flags that the training loop reads at step boundaries (spec/training.md 8).
//   SIGTERM, SIGUSR1, SIGHUP: stop after this step and save (exit 75).   SIGINT: the same (exit 130); again: leave at
//   once. SIGUSR2: save now, go on.   SIGPIPE: ignored, a closed stdout only silences.
#pragma once
#include <cstdint>

namespace nibble {

/// Installed while it lives; the previous handlers come back afterwards.
class SignalFlags {
 public:
  SignalFlags();
  ~SignalFlags();
  SignalFlags(const SignalFlags&) = delete;
  SignalFlags& operator=(const SignalFlags&) = delete;
  /// The step under way, for the line that the first SIGINT prints.
  void set_step(int64_t step);
  /// 0, or the number of the latest stop signal.
  int stop() const;
  /// True once for each SIGUSR2 (several in a row may count as one).
  bool take_save_request();
};

}  // namespace nibble
