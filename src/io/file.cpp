// Files on disk. Every system call that changes the disk goes through checked(), where tests make one fail.
// Source: spec/training.md 6.2.
#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace nibble {
namespace fs = std::filesystem;
namespace {

std::atomic<int64_t> calls_seen{0}, failing_call{0};
std::atomic<int> failing_errno{0};
std::atomic<bool> failing_later{false};

bool injected_fault() {
  if (failing_call.load(std::memory_order_relaxed) == 0) return false;
  const int64_t call = calls_seen.fetch_add(1) + 1, first = failing_call.load();
  if (call < first || (call > first && !failing_later.load())) return false;
  errno = failing_errno.load();
  return true;
}

template <class Call>
auto checked(const Call& call) -> decltype(call()) {  // -1 and errno, as the calls themselves
  if (injected_fault()) return -1;
  decltype(call()) result;
  do result = call();
  while (result == -1 && errno == EINTR);
  return result;
}

std::string reason(int error_number) { return std::generic_category().message(error_number); }

[[noreturn]] void fail_save(std::string_view action, const fs::path& path, int64_t bytes_done = -1) {
  const int error_number = errno;
  Error error("E801", "cannot {} {}: {}", action, path.string(), reason(error_number));
  if (bytes_done >= 0) error.where_text = fmt::format("after {} bytes of this file", bytes_done);
  error.hint_text =
      error_number == ENOSPC || error_number == EDQUOT
          ? "free space on that file system and start the same command again; older checkpoints are intact"
          : "make that folder writable and start the same command again; older checkpoints are intact";
  throw error;
}

/// Calls make(candidate) with parent/<prefix>-<nonce> until one did not exist. The nonce is the process and a count.
template <class Make>
fs::path with_nonce(const fs::path& parent, const std::string& prefix, std::string_view action, const Make& make) {
  for (int attempt = 0;; ++attempt) {
    fs::path candidate = parent / fmt::format("{}-{}-{}", prefix, ::getpid(), attempt);
    if (checked([&] { return make(candidate.c_str()); }) == 0) return candidate;
    if ((errno != EEXIST && errno != ENOTEMPTY) || attempt == 10000) fail_save(action, candidate);
  }
}

int rename_new(const char* from, const char* to) {  // never replaces
  return ::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
}

}  // namespace

void FaultInjection::arm(int64_t nth, int error_number, bool all_later) {
  calls_seen = 0, failing_errno = error_number, failing_later = all_later, failing_call = nth;
}

int64_t FaultInjection::disarm() {
  failing_call = 0;
  return calls_seen;
}

std::string read_file(const fs::path& path) { return std::string(MappedFile(path).text()); }

struct FileWriter::Hasher {
  XXH3_state_t* state = XXH3_createState();
  int64_t in_chunk = 0;
  Hasher() { XXH3_64bits_reset(state); }
  ~Hasher() { XXH3_freeState(state); }
  void update(const char* data, int64_t bytes, std::vector<uint64_t>& chunks) {
    while (bytes > 0) {
      const int64_t n = std::min(bytes, hash_chunk_bytes - in_chunk);
      XXH3_64bits_update(state, data, static_cast<size_t>(n));
      data += n, bytes -= n, in_chunk += n;
      if (in_chunk == hash_chunk_bytes) close(chunks);
    }
  }
  void close(std::vector<uint64_t>& chunks) {
    if (in_chunk == 0) return;
    chunks.push_back(XXH3_64bits_digest(state));
    XXH3_64bits_reset(state);
    in_chunk = 0;
  }
};

FileWriter::FileWriter(fs::path path) : path_(std::move(path)), hasher_(std::make_unique<Hasher>()) {
  fd_ = checked([&] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (fd_ < 0) fail_save("create", path_);
  record_.name = path_.filename().string();
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::put(const char* data, int64_t bytes) {
  constexpr int64_t largest = int64_t{8} << 20;  // one call; a signal then waits for milliseconds only
  hasher_->update(data, bytes, record_.chunks);
  while (bytes > 0) {
    const size_t n = static_cast<size_t>(std::min(bytes, largest));
    ssize_t written;
    if (injected_fault()) {  // a full disk takes a part first
      const int error_number = errno;
      if (::write(fd_, data, n / 2) < 0) fail_save("write", path_, record_.bytes);
      errno = error_number;
      written = -1;
    } else {
      do written = ::write(fd_, data, n);
      while (written == -1 && errno == EINTR);
    }
    if (written < 0) fail_save("write", path_, record_.bytes);
    data += written, bytes -= written, record_.bytes += written;
  }
}

void FileWriter::flush() {
  put(buffer_.data(), static_cast<int64_t>(buffer_.size()));
  buffer_.clear();
}

void FileWriter::write(const void* data, int64_t bytes) {
  constexpr int64_t small = int64_t{1} << 20;
  if (static_cast<int64_t>(buffer_.size()) + bytes > small) flush();
  if (bytes > small)
    put(static_cast<const char*>(data), bytes);
  else
    buffer_.append(static_cast<const char*>(data), static_cast<size_t>(bytes));
}

FileRecord FileWriter::finish() {
  flush();
  hasher_->close(record_.chunks);
  if (checked([&] { return ::fsync(fd_); }) != 0) fail_save("fsync", path_, record_.bytes);
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail_save("close", path_, record_.bytes);
  return record_;
}

FileRecord write_file(const fs::path& path, std::string_view bytes) {
  FileWriter file(path);
  file.write(bytes);
  return file.finish();
}

void replace_file(const std::filesystem::path& path, std::string_view bytes) {
  const std::filesystem::path temporary =
      path.parent_path() / fmt::format(".tmp-{}-{}", path.filename().string(), getpid());
  remove_tree(temporary);
  write_file(temporary, bytes);
  rename_path(temporary, path);
}

void make_directories(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  if (injected_fault())
    error = std::error_code(errno, std::generic_category());
  else
    fs::create_directories(path, error);
  if (error || !fs::is_directory(path))
    throw Error("E803", "cannot create the folder {}: {}", path.string(),
                error ? error.message() : "a file is in the way")
        .hint("choose another base_output_directory");
}

void sync_directory(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_save("open", path);
  const int result = checked([&] { return ::fsync(fd); });
  const int error_number = errno;
  ::close(fd);
  errno = error_number;
  if (result != 0) fail_save("fsync", path);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (checked([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) fail_save("rename to", to);
}

bool remove_tree(const fs::path& path) noexcept {
  if (injected_fault()) return false;
  std::error_code error;
  fs::remove_all(path, error);
  return !error;
}

fs::path rename_aside(const fs::path& path, const std::string& prefix) {
  const fs::path parent = path.parent_path();
  const fs::path away =
      with_nonce(parent, prefix, "rename to", [&](const char* to) { return rename_new(path.c_str(), to); });
  sync_directory(parent);
  return away;
}

void trash(const fs::path& path) { remove_tree(rename_aside(path, ".trash-" + path.filename().string())); }

int64_t remove_leftovers(const fs::path& directory) {
  int64_t removed = 0;
  std::error_code error;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".tmp-") || name.starts_with(".trash-")) found.push_back(entry.path());
  }
  for (const fs::path& path : found) removed += remove_tree(path);
  return removed;
}

int64_t free_bytes(const fs::path& path) {
  struct statvfs s {};
  if (::statvfs(path.c_str(), &s) != 0)
    throw Error("E803", "cannot ask for the free space of {}: {}", path.string(), reason(errno))
        .hint("choose another base_output_directory");
  return static_cast<int64_t>(s.f_bavail) * static_cast<int64_t>(s.f_frsize);
}

void probe_writable(const fs::path& directory) {
  const fs::path probe = directory / fmt::format(".tmp-probe-{}", ::getpid());
  const fs::path renamed = probe.string() + "-renamed";
  try {
    write_file(probe, "probe");
    rename_path(probe, renamed);
    sync_directory(directory);
  } catch (const Error& error) {
    remove_tree(probe);
    remove_tree(renamed);
    throw Error("E803", "the output folder {} is not writable: {}", directory.string(), error.what_text)
        .hint("choose another base_output_directory");
  }
  remove_tree(renamed);
}

StagedDirectory::StagedDirectory(fs::path parent, std::string name)
    : parent_(std::move(parent)), name_(std::move(name)) {
  path_ = with_nonce(parent_, ".tmp-" + name_, "create the folder", [](const char* p) { return ::mkdir(p, 0777); });
}

StagedDirectory::~StagedDirectory() {
  if (!committed_) remove_tree(path_);
}

fs::path StagedDirectory::subdirectory(std::string_view name) {
  fs::path folder = path_ / name;
  if (checked([&] { return ::mkdir(folder.c_str(), 0777); }) != 0) fail_save("create the folder", folder);
  subdirectories_.push_back(folder);
  return folder;
}

void StagedDirectory::commit() {
  for (const fs::path& folder : subdirectories_) sync_directory(folder);
  sync_directory(path_);
  const fs::path target = parent_ / name_;
  const auto move = [&](unsigned flags) {
    return checked([&] { return ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), flags); });
  };
  bool replaced = false;
  if (move(RENAME_NOREPLACE) != 0) {
    if (errno != EEXIST || move(RENAME_EXCHANGE) != 0) fail_save("rename to", target);
    replaced = true;
  }
  committed_ = true;
  sync_directory(parent_);
  if (replaced) remove_tree(path_);  // the former directory, under the temporary name
}

}  // namespace nibble
