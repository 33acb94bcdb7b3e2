// A run folder: its lock, its checkpoints in the order of their steps, retention, what a CKPT argument means, and what
// is checked before step 0.  Source: spec/training.md 1.7, 6.1, 6.2, 8.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

/// Name of a checkpoint directory: the number of completed steps, at least eight digits.
std::string step_name(int64_t step);

struct CheckpointEntry {
  int64_t step = 0;
  std::filesystem::path path;
  int64_t bytes = 0;    // of the listed files; 0 if not valid
  std::string problem;  // empty: valid (nibble.json parses, has its hash, and the sizes match)
  bool valid() const { return problem.empty(); }
};

/// The checkpoints of a run by ascending step. A folder without checkpoints/ has none.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& run);

/// Newest valid checkpoint, with `before` >= 0 the newest of a smaller step; an empty path if there is none.
std::filesystem::path newest_valid_checkpoint(const std::filesystem::path& run, int64_t before = -1);

/// Removes what interrupted saves left (.tmp-*, .trash-*). Call it under the lock. Returns how many.
int64_t clean_run(const std::filesystem::path& run);

/// Deletes valid checkpoints: keeps the newest `keep` (absent: all) and every one whose step is a multiple of
/// `keep_period` (0: none). Before anything is deleted the newest one is verified by all its checksums; one that fails
/// does not count. Invalid ones are never deleted, and with no verified one nothing is. Returns the deleted steps.
std::vector<int64_t> apply_retention(const std::filesystem::path& run, std::optional<int64_t> keep,
                                     int64_t keep_period);

/// Before step 0: creates <run>/checkpoints, writes, fsyncs and renames a probe, and asks for the space of two
/// checkpoints. Errors: E803.
void preflight_run(const std::filesystem::path& run, int64_t checkpoint_bytes);

/// What a CKPT argument names.
struct ModelSource {
  enum Kind { checkpoint, hugging_face } kind;
  std::filesystem::path path;  // directory with config.json and the tensors
};

/// A checkpoint directory, a run folder (its newest valid checkpoint) or a Hugging Face directory (config.json and
/// safetensors). Errors: E204 listing what was looked for, E406 for pickles and Orbax directories with the way to
/// convert them, and what Checkpoint says of a checkpoint directory that is damaged.
ModelSource resolve_model(const std::filesystem::path& path);

/// Holds <run>/.lock for as long as it lives. The lock is the kernel's (flock), so one of a dead process is free; the
/// file's text says who holds it. Errors: E605 with the owner's process and start time, E803.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace nibble
