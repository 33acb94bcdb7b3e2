// A regular file mapped read-only into memory: how corpora, token shards, tensors and checkpoints are read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

/// Owns one mapping; movable, not copyable. An empty file gives an empty view.
class MappedFile {
 public:
  MappedFile() = default;
  /// Errors: E202 with the system's reason if the file is missing, unreadable or no regular file.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), static_cast<size_t>(size_)}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace nibble
