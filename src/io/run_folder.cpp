// Run folders: lock, list, retention, resolution of CKPT arguments.  Source: spec/training.md 1.7, 6.1, 6.2, 8.
#include "io/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <system_error>

#include "core/error.h"
#include "io/checkpoint.h"
#include "io/file.h"

namespace nibble {
namespace fs = std::filesystem;

std::string step_name(int64_t step) { return fmt::format("{:08}", step); }

namespace {

/// -1 if the name is not what step_name() writes.
int64_t step_of(const std::string& name) {
  if (name.size() < 8 || name.size() > 18 || name.find_first_not_of("0123456789") != std::string::npos) return -1;
  const int64_t step = std::stoll(name);
  return step_name(step) == name ? step : -1;
}

CheckpointEntry examine(int64_t step, const fs::path& path) {
  CheckpointEntry entry{step, path, 0, ""};
  try {
    const Checkpoint checkpoint(path);
    entry.bytes = checkpoint.bytes();
    if (checkpoint.info().step != step)
      entry.problem = fmt::format("nibble.json is of step {}", checkpoint.info().step), entry.bytes = 0;
  } catch (const Error& error) {
    entry.problem = error.what_text;
  }
  return entry;
}

/// (step, path) by ascending step.
std::vector<std::pair<int64_t, fs::path>> step_folders(const fs::path& run) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run / "checkpoints", error)) {
    const int64_t step = step_of(entry.path().filename().string());
    if (step >= 0 && entry.is_directory(error)) found.emplace_back(step, entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<CheckpointEntry> list_checkpoints(const fs::path& run) {
  std::vector<CheckpointEntry> list;
  for (const auto& [step, path] : step_folders(run)) list.push_back(examine(step, path));
  return list;
}

fs::path newest_valid_checkpoint(const fs::path& run, int64_t before) {
  auto folders = step_folders(run);
  for (auto it = folders.rbegin(); it != folders.rend(); ++it)
    if ((before < 0 || it->first < before) && examine(it->first, it->second).valid()) return it->second;
  return {};
}

int64_t clean_run(const fs::path& run) { return remove_leftovers(run) + remove_leftovers(run / "checkpoints"); }

std::vector<int64_t> apply_retention(const fs::path& run, std::optional<int64_t> keep, int64_t keep_period) {
  if (!keep) return {};
  NIBBLE_CHECK(*keep >= 1, "keep {} checkpoints", *keep);
  std::vector<CheckpointEntry> list = list_checkpoints(run), surplus;
  std::reverse(list.begin(), list.end());
  int64_t kept = 0;
  for (const CheckpointEntry& entry : list) {
    if (!entry.valid()) continue;
    if (kept == 0 && !Checkpoint(entry.path).verify().empty()) continue;  // sizes match, bytes do not
    if (kept < *keep)
      ++kept;
    else if (keep_period == 0 || entry.step % keep_period != 0)
      surplus.push_back(entry);
  }
  std::vector<int64_t> deleted;
  for (auto it = surplus.rbegin(); it != surplus.rend(); ++it) {  // oldest first
    trash(it->path);
    deleted.push_back(it->step);
  }
  return deleted;
}

void preflight_run(const fs::path& run, int64_t checkpoint_bytes) {
  const fs::path folder = run / "checkpoints";
  make_directories(folder);
  probe_writable(folder);
  const int64_t there = free_bytes(folder), needed = 2 * checkpoint_bytes;
  if (there < needed)
    throw Error("E803", "too little space for two checkpoints in {}", folder.string())
        .expected(fmt::format("{} bytes", needed), fmt::format("{} free", there))
        .hint("free {} bytes, or choose another base_output_directory", needed - there);
}

namespace {

bool is_pickle(const fs::path& path) {
  const std::string e = path.extension().string();
  return e == ".bin" || e == ".pt" || e == ".pth" || e == ".ckpt" || e == ".pkl";
}

bool is_orbax(const fs::path& path) {
  std::error_code error;
  for (const char* name : {"_CHECKPOINT_METADATA", "_METADATA", "_sharding", "manifest.ocdbt", "commit_success.txt"})
    for (const char* folder : {"", "items", "default", "params"})
      if (fs::exists(path / folder / name, error)) return true;
  return false;
}

[[noreturn]] void refuse(const fs::path& path, std::string_view kind, std::string_view way) {
  throw Error("E406", "{} is {}, which nibble does not read", path.string(), kind)
      .expected("safetensors", std::string(kind))
      .hint("{}", way);
}

void refuse_foreign(const fs::path& path) {
  constexpr std::string_view save =
      "load it with transformers and call save_pretrained(folder, safe_serialization=True)";
  std::error_code error;
  if (fs::is_regular_file(path, error) && is_pickle(path)) refuse(path, "a PyTorch pickle", save);
  if (!fs::is_directory(path, error)) return;
  if (is_orbax(path))
    refuse(path, "an Orbax directory",
           "convert it with maxtext.checkpoint_conversion.to_huggingface, then name its output");
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error))
    if (is_pickle(entry.path())) refuse(entry.path(), "a PyTorch pickle", save);
}

}  // namespace

ModelSource resolve_model(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "nibble.json", error)) {
    Checkpoint{path};
    return {ModelSource::checkpoint, path};
  }
  const bool config = fs::exists(path / "config.json", error);
  if (config &&
      (fs::exists(path / "model.safetensors", error) || fs::exists(path / "model.safetensors.index.json", error)))
    return {ModelSource::hugging_face, path};
  const std::vector<CheckpointEntry> list = list_checkpoints(path);
  for (auto it = list.rbegin(); it != list.rend(); ++it)
    if (it->valid()) return {ModelSource::checkpoint, it->path};
  if (list.empty()) refuse_foreign(path);
  const char* got = !fs::exists(path, error) ? "no such file or folder"
                    : !list.empty()          ? "no valid checkpoint"
                    : config                 ? "config.json without tensors"
                                             : "none of them";
  Error e("E204", "{} holds no checkpoint, run or Hugging Face model", path.string());
  if (!list.empty())
    e.where_text = fmt::format("newest checkpoint {}: {}", list.back().path.string(), list.back().problem);
  e.expected_text =
      "nibble.json (a checkpoint), checkpoints/<step>/nibble.json (a run), or config.json with model.safetensors or "
      "model.safetensors.index.json (Hugging Face)";
  e.got_text = got;
  e.hint_text = "nibble ckpt ls RUN lists the checkpoints of a run";
  throw e;
}

RunLock::RunLock(const fs::path& run) {
  make_directories(run);
  const fs::path path = run / ".lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0)
    throw Error("E803", "cannot open {}: {}", path.string(), std::generic_category().message(errno))
        .hint("choose another base_output_directory");
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error_number = errno;
    char text[256] = {};
    const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
    ::close(fd);
    if (error_number != EWOULDBLOCK)
      throw Error("E803", "cannot lock {}: {}", path.string(), std::generic_category().message(error_number))
          .hint("choose a base_output_directory on a file system with locks");
    std::string owner(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    while (owner.ends_with('\n')) owner.pop_back();
    throw Error("E605", "another run is using {}", run.string())
        .where("{}", owner.empty() ? "its owner is just starting" : owner)
        .hint("wait until it ends, or set another run_name");
  }
  char host[128] = {}, start[32] = {};
  ::gethostname(host, sizeof host - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::strftime(start, sizeof start, "%Y-%m-%dT%H:%M:%SZ", &utc);
  const std::string owner = fmt::format("process {} on {}, started {}\n", ::getpid(), host, start);
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, owner.data(), owner.size(), 0) != static_cast<ssize_t>(owner.size())) {
    const int error_number = errno;
    ::close(fd);
    throw Error("E803", "cannot write {}: {}", path.string(), std::generic_category().message(error_number))
        .hint("free space or choose another base_output_directory");
  }
  fd_ = fd;
}

RunLock::~RunLock() {
  // The file stays: removing it would let two processes lock two files of one name.
  if (::ftruncate(fd_, 0) == 0) ::fsync(fd_);
  ::close(fd_);
}

}  // namespace nibble
