// The background writer of checkpoints.  Source: spec/training.md 6.2.
#include "io/checkpoint_writer.h"

#include <cstring>
#include <utility>

#include "io/run_folder.h"

namespace nibble {
namespace {

constexpr int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }  // a cache line: tensors do not share one

}  // namespace

int64_t CheckpointWriter::snapshot_bytes(const std::vector<TensorRef>& tensors, const std::vector<TensorRef>& state) {
  int64_t bytes = 0;
  for (const auto* list : {&tensors, &state})
    for (const TensorRef& t : *list) bytes += aligned(t.bytes());
  return bytes;
}

CheckpointWriter::CheckpointWriter(std::filesystem::path run, int64_t snapshot_bytes, CheckpointWriterOptions options)
    : run_(std::move(run)),
      options_(options),
      snapshot_(options.async ? static_cast<size_t>(snapshot_bytes) : size_t{0}) {}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::save(const std::filesystem::path& run) {
  save_checkpoint(run, content_);
  saved_step_ = content_.step;
  apply_retention(run, options_.keep, options_.keep_period);
}

void CheckpointWriter::start(const std::filesystem::path& run) {
  done_ = false;
  thread_ = std::thread([this, run] {
    try {
      save(run);
    } catch (...) {
      failure_ = std::current_exception();
    }
    done_ = true;
  });
}

void CheckpointWriter::throw_failure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void CheckpointWriter::finish() {
  if (thread_.joinable()) thread_.join();
  throw_failure();
}

void CheckpointWriter::poll() {
  if (done_) finish();
}

void CheckpointWriter::submit(CheckpointContent content) {
  finish();
  content_ = std::move(content);
  if (!options_.async) return save(run_);
  const int64_t needed = snapshot_bytes(content_.tensors, content_.state);
  NIBBLE_CHECK(needed <= static_cast<int64_t>(snapshot_.size()), "a snapshot of {} bytes for a state of {}",
               snapshot_.size(), needed);
  std::byte* at = snapshot_.data();
  for (auto* list : {&content_.tensors, &content_.state})
    for (TensorRef& t : *list) {
      if (t.bytes() > 0) std::memcpy(at, t.data, static_cast<size_t>(t.bytes()));
      t.data = at;
      at += aligned(t.bytes());
    }
  start(run_);
}

void CheckpointWriter::retry(const std::filesystem::path& run) {
  if (thread_.joinable()) thread_.join();
  failure_ = nullptr;
  NIBBLE_CHECK(options_.async && !content_.tensors.empty(), "retry without a snapshot");
  start(run);
  finish();
}

}  // namespace nibble
