// A file mapped read-only into memory: how corpora and token shards are read.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

/// Owns one read-only mapping; movable. An empty file maps to an empty view.
class InputFile {
 public:
  InputFile() = default;
  /// Errors: E202 with the reason of the system when the file is missing, unreadable or no regular file.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace nibble
