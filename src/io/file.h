// Files on disk: memory maps, writes that check every system call, and directories that appear whole or not at all.
// Source: spec/training.md 6.2 (atomic saves), 7.2 (E202, E801, E803).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"

namespace nibble {

/// The bytes of a file. Errors: E202.
std::string read_file(const std::filesystem::path& path);

/// A written file as nibble.json lists it: XXH3-64 of each piece of hash_chunk_bytes, the last one shorter.
/// An empty file has no chunk.
struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  std::vector<uint64_t> chunks;
};
inline constexpr int64_t hash_chunk_bytes = int64_t{64} << 20;

/// Writes a new file from front to back and hashes it on the way, so that the bytes are touched once.
/// The file counts as written only after finish(); without it the destructor closes and leaves what there is.
/// Errors: E801 with the path, the bytes written so far and the system's reason; also when the file already exists.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  void write(const void* data, int64_t bytes);
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }
  /// Flushes, fsyncs, closes. The record's name is the last component of the path.
  FileRecord finish();

 private:
  void flush();
  void put(const char* data, int64_t bytes);
  struct Hasher;
  std::filesystem::path path_;
  int fd_ = -1;
  std::string buffer_;
  std::unique_ptr<Hasher> hasher_;
  FileRecord record_;
};

/// A whole file at once, fsynced. Errors: E801.
FileRecord write_file(const std::filesystem::path& path, std::string_view bytes);

/// The same for a file that may exist: written beside it under a temporary name and renamed. Errors: E801.
void replace_file(const std::filesystem::path& path, std::string_view bytes);

/// Creates a directory and its missing parents; one that exists is fine. Errors: E803.
void make_directories(const std::filesystem::path& path);
/// Makes the entries of a directory durable. Errors: E801.
void sync_directory(const std::filesystem::path& path);
/// rename(2). Errors: E801.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
/// Removes a file or a tree. Best effort: what cannot be removed is left for the next start. True if it is gone.
bool remove_tree(const std::filesystem::path& path) noexcept;
/// Renames `path` to `.trash-<name>-<nonce>` beside it, then removes that, so that a half removed directory is never
/// taken for a whole one. Errors: E801 if the rename fails.
void trash(const std::filesystem::path& path);
/// Renames `path` to <prefix>-<nonce> beside it, durably. Returns the new path. Errors: E801.
std::filesystem::path rename_aside(const std::filesystem::path& path, const std::string& prefix);
/// Removes what interrupted saves and removals left: entries `.tmp-*` and `.trash-*` of a directory. Returns how many.
int64_t remove_leftovers(const std::filesystem::path& directory);
/// Bytes that an unprivileged process may still write to the file system of `path`. Errors: E803.
int64_t free_bytes(const std::filesystem::path& path);
/// Writes, fsyncs, renames and removes a small file in `directory`. Errors: E803, so that a run learns at its start.
void probe_writable(const std::filesystem::path& directory);

/// A directory that appears whole or not at all:  parent/.tmp-<name>-<nonce>/  becomes  parent/<name>/  on commit().
class StagedDirectory {
 public:
  /// Creates the temporary directory; `parent` must exist. Errors: E801.
  StagedDirectory(std::filesystem::path parent, std::string name);
  ~StagedDirectory();  ///< not committed: removes the temporary directory, best effort
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }
  /// Creates a folder in it. Errors: E801.
  std::filesystem::path subdirectory(std::string_view name);
  /// Fsyncs the directories (FileWriter fsynced the files), renames, fsyncs the parent. A directory of that name is
  /// exchanged in one step and then removed, so at no moment is there none. Errors: E801, the old one is still there.
  void commit();

 private:
  std::filesystem::path parent_, path_;
  std::string name_;
  std::vector<std::filesystem::path> subdirectories_;
  bool committed_ = false;
};

/// For tests: makes the n-th system call that changes the disk (open for writing, mkdir, write, fsync, rename, unlink)
/// fail with `error_number`, counted from 1 since arm(). A failing write first writes half of its bytes. `all_later`:
/// every call after it fails too, which looks like a process that was killed there.
struct FaultInjection {
  static void arm(int64_t nth, int error_number, bool all_later);
  /// Ends the injection. Returns the number of calls seen since arm().
  static int64_t disarm();
};

}  // namespace nibble
