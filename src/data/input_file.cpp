#include "data/input_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace nibble {
namespace {

[[noreturn]] void unreadable(const std::string& path, const char* reason) {
  throw Error("E202", "cannot read {}: {}", path, reason)
      .where("train_files or eval_files")
      .hint("check the path and its permissions");
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) unreadable(path, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(file);
    unreadable(path, known ? "not a regular file" : std::strerror(errno));
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ > 0) {
    void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    const int problem = errno;
    ::close(file);
    if (mapping == MAP_FAILED) unreadable(path, std::strerror(problem));
    data_ = static_cast<const char*>(mapping);
  } else {
    ::close(file);
  }
}

InputFile::~InputFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_), std::swap(data_, other.data_), std::swap(size_, other.size_);
  return *this;
}

}  // namespace nibble
