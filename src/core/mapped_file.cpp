#include "core/mapped_file.h"

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
  throw Error("E202", "cannot read {}: {}", path, reason).where("{}", path).hint("check the path and its permissions");
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) unreadable(path_, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const int problem = errno;
    ::close(file);
    unreadable(path_, known ? "not a regular file" : std::strerror(problem));
  }
  size_ = status.st_size;
  void* mapping = size_ > 0 ? ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
  const int problem = errno;
  ::close(file);
  if (mapping == MAP_FAILED) unreadable(path_, std::strerror(problem));
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_), std::swap(data_, other.data_), std::swap(size_, other.size_);
  return *this;
}

}  // namespace nibble
