// Saves checkpoints while training goes on: the state is copied at the step boundary into a buffer that was allocated
// once, and a thread writes the copy.  Source: spec/training.md 6.2 (Async).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "io/checkpoint.h"

namespace nibble {

struct CheckpointWriterOptions {
  std::optional<int64_t> keep;  // max_num_checkpoints_to_keep; absent: all
  int64_t keep_period = 0;      // checkpoint_keep_period
  bool async = true;            // false: submit() returns when the checkpoint is on disk, and no buffer is held
};

/// One save at a time. Not for several threads at once.
class CheckpointWriter {
 public:
  /// snapshot_bytes: of the largest content that submit() will get; allocated and touched here, so that no save can
  /// run out of memory.
  CheckpointWriter(std::filesystem::path run, int64_t snapshot_bytes, CheckpointWriterOptions options);
  ~CheckpointWriter();  ///< waits; a failure that nobody asked for is lost
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  static int64_t snapshot_bytes(const std::vector<TensorRef>& tensors, const std::vector<TensorRef>& state);

  /// Waits for the save before this one and throws its failure, if any, instead of taking the new one. Then copies the
  /// tensors and returns. After a save retention runs.
  void submit(CheckpointContent content);
  /// Throws the failure of a save that has ended, once: E801. Does not wait.
  void poll();
  /// Waits for the save in progress and throws its failure.
  void finish();
  /// Writes the last submitted state once more, into another run folder, and waits. Errors: E801. Async only: without a
  /// snapshot the caller still holds the state.
  void retry(const std::filesystem::path& run);
  /// Step of the newest checkpoint this writer has committed, -1 for none.
  int64_t saved_step() const { return saved_step_.load(); }

 private:
  void save(const std::filesystem::path& run);
  void start(const std::filesystem::path& run);
  void throw_failure();
  std::filesystem::path run_;
  CheckpointWriterOptions options_;
  std::vector<std::byte> snapshot_;
  CheckpointContent content_;  // its tensors point into snapshot_
  std::thread thread_;
  std::atomic<bool> done_{true};
  std::atomic<int64_t> saved_step_{-1};
  std::exception_ptr failure_;  // written by the thread before done_
};

}  // namespace nibble
