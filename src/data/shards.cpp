#include "data/shards.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/hash.h"

namespace nibble {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and mapped as they are");

constexpr int64_t header_bytes = 64, id_alignment = 64, chunk_bytes = int64_t{64} << 20;
constexpr std::string_view magic = "NIBBLTOK";

struct Header {
  char magic[8];
  uint32_t version, bytes_per_id;
  uint64_t tokens, documents, largest_id, source_bytes, key, hash;
};
static_assert(sizeof(Header) == header_bytes);

int64_t padded(int64_t bytes) { return (bytes + id_alignment - 1) / id_alignment * id_alignment; }
int64_t chunks_of(int64_t bytes) { return (bytes + chunk_bytes - 1) / chunk_bytes; }

// XXH3 of the header without its hash, then of the tables: both are small beside the ids.
uint64_t header_hash(const Header& header, std::string_view tables) {
  std::string bytes(reinterpret_cast<const char*>(&header), offsetof(Header, hash));
  bytes += tables;
  return xxh3(bytes);
}

Error damaged(const std::string& path, std::string what, std::string expected, std::string got) {
  return Error("E309", "{} is damaged or no token shard: {}", path, what)
      .where("{}", path)
      .expected(std::move(expected), std::move(got))
      .hint("delete it and tokenise again: nibble data tokenize FILES out=DIR");
}

}  // namespace

struct ShardWriter::Impl {
  std::string path;
  int file = -1;
  Header header{};
  std::vector<char> buffer;  // ids on their way to the file
  int64_t written = 0, chunk_filled = 0;
  std::vector<uint64_t> begins, source_bytes, chunk_hashes;
  XXH3_state_t* hash = XXH3_createState();

  ~Impl() {
    XXH3_freeState(hash);
    if (file >= 0) ::close(file);
  }
  [[noreturn]] void failed() const {
    throw Error("E801", "writing {} failed after {} bytes: {}", path, written, std::strerror(errno))
        .where("{}", path)
        .hint("free some space, or cache_directory= on another disk");
  }
  void write(const char* data, size_t bytes) {
    while (bytes > 0) {
      const ssize_t done = ::write(file, data, bytes);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) failed();
      data += done, bytes -= static_cast<size_t>(done), written += done;
    }
  }
  void flush_ids() {
    const char* data = buffer.data();
    int64_t left = static_cast<int64_t>(buffer.size());
    while (left > 0) {
      const int64_t piece = std::min(left, chunk_bytes - chunk_filled);
      XXH3_64bits_update(hash, data, static_cast<size_t>(piece));
      data += piece, left -= piece, chunk_filled += piece;
      if (chunk_filled == chunk_bytes) end_chunk();
    }
    write(buffer.data(), buffer.size());
    buffer.clear();
  }
  void end_chunk() {
    chunk_hashes.push_back(XXH3_64bits_digest(hash));
    XXH3_64bits_reset(hash);
    chunk_filled = 0;
  }
};

ShardWriter::ShardWriter(const std::string& path, int bytes_per_id, uint64_t key) : impl_(new Impl) {
  impl_->path = path;
  impl_->file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (impl_->file < 0)
    throw Error("E803", "cannot create {}: {}", path, std::strerror(errno))
        .where("{}", path)
        .hint("out= or cache_directory= with a folder that can be written");
  impl_->header.version = 1, impl_->header.bytes_per_id = static_cast<uint32_t>(bytes_per_id), impl_->header.key = key;
  XXH3_64bits_reset(impl_->hash);
  const Header empty{};  // no magic: a file left half-way never opens
  impl_->write(reinterpret_cast<const char*>(&empty), sizeof empty);
}

ShardWriter::~ShardWriter() = default;

int64_t ShardWriter::tokens() const { return static_cast<int64_t>(impl_->header.tokens); }

void ShardWriter::add(std::span<const int32_t> ids, int64_t source_bytes) {
  Impl& w = *impl_;
  const size_t width = w.header.bytes_per_id, before = w.buffer.size();
  w.buffer.resize(before + ids.size() * width);
  char* out = w.buffer.data() + before;
  uint32_t largest = 0;
  for (const int32_t id : ids) {
    const uint32_t value = static_cast<uint32_t>(id);
    largest = std::max(largest, value);
    std::memcpy(out, &value, width);  // little-endian: the low bytes come first
    out += width;
  }
  NIBBLE_CHECK(width == 4 ? largest <= 0x7fffffff : largest <= 0xffff, "token id {} does not fit {} bytes", largest,
               width);
  w.begins.push_back(w.header.tokens);
  w.source_bytes.push_back(static_cast<uint64_t>(source_bytes));
  w.header.largest_id = std::max<uint64_t>(w.header.largest_id, largest);
  w.header.tokens += ids.size();
  w.header.documents += 1;
  w.header.source_bytes += static_cast<uint64_t>(source_bytes);
  if (w.buffer.size() >= size_t{1} << 20) w.flush_ids();
}

void ShardWriter::finish() {
  Impl& w = *impl_;
  const int64_t id_bytes = static_cast<int64_t>(w.header.tokens) * w.header.bytes_per_id;
  w.buffer.resize(w.buffer.size() + static_cast<size_t>(padded(id_bytes) - id_bytes), 0);
  w.flush_ids();
  if (w.chunk_filled > 0) w.end_chunk();
  w.begins.push_back(w.header.tokens);
  std::string tables;
  for (const auto* table : {&w.begins, &w.source_bytes, &w.chunk_hashes})
    tables.append(reinterpret_cast<const char*>(table->data()), table->size() * sizeof(uint64_t));
  w.write(tables.data(), tables.size());
  std::memcpy(w.header.magic, magic.data(), magic.size());
  w.header.hash = header_hash(w.header, tables);
  if (::fsync(w.file) != 0) w.failed();
  std::array<char, header_bytes> header;
  std::memcpy(header.data(), &w.header, header.size());
  if (::pwrite(w.file, header.data(), header.size(), 0) != header_bytes || ::fsync(w.file) != 0) w.failed();
}

Shard::Shard(const std::string& path) : file_(path) {
  const std::string_view bytes = file_.text();
  if (static_cast<int64_t>(bytes.size()) < header_bytes)
    throw damaged(path, "truncated header", "at least 64 bytes", fmt::format("{} bytes", bytes.size()));
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (bytes.substr(0, 8) != magic) {
    std::string got;
    for (const char c : bytes.substr(0, 8)) got += fmt::format("{:02x} ", static_cast<unsigned char>(c));
    throw damaged(path, "wrong magic", "magic NIBBLTOK", "magic " + got);
  }
  if (header.version != 1 || (header.bytes_per_id != 2 && header.bytes_per_id != 4))
    throw damaged(path, "unknown version", "version 1 with 2 or 4 bytes an id",
                  fmt::format("version {} with {} bytes an id", header.version, header.bytes_per_id));
  constexpr uint64_t most = uint64_t{1} << 48;  // far above any file, far below overflow
  const bool plausible = header.tokens < most && header.documents < most;
  tokens_ = static_cast<int64_t>(header.tokens), documents_ = static_cast<int64_t>(header.documents);
  bytes_per_id_ = static_cast<int>(header.bytes_per_id);
  const int64_t area = plausible ? padded(tokens_ * bytes_per_id_) : 0;
  chunks_ = chunks_of(area), table_ = header_bytes + area;
  const int64_t expected = plausible ? table_ + 8 * (2 * documents_ + 1 + chunks_) : 0;
  if (!plausible || static_cast<int64_t>(bytes.size()) != expected)
    throw damaged(path, "wrong size", plausible ? fmt::format("{} bytes", expected) : "a plausible header",
                  fmt::format("{} bytes", bytes.size()));
  const uint64_t hash = header_hash(header, bytes.substr(static_cast<size_t>(table_)));
  if (hash != header.hash) throw damaged(path, "header checksum", hex16(header.hash), hex16(hash));
  for (int64_t d = 0; d < documents_; ++d)
    if (document_begin(d) > document_begin(d + 1)) throw damaged(path, "documents out of order", "ascending", "not");
  if (document_begin(0) != 0 || document_begin(documents_) != tokens_)
    throw damaged(path, "documents do not cover the tokens", fmt::format("0 to {}", tokens_),
                  fmt::format("{} to {}", document_begin(0), document_begin(documents_)));
  source_bytes_ = static_cast<int64_t>(header.source_bytes);
  largest_id_ = header.largest_id, key_ = header.key;
}

int64_t Shard::word(int64_t byte) const {
  int64_t value;
  std::memcpy(&value, file_.text().data() + byte, sizeof value);
  return value;
}
int64_t Shard::document_begin(int64_t d) const { return word(table_ + 8 * d); }
int64_t Shard::document_bytes(int64_t d) const { return word(table_ + 8 * (documents_ + 1 + d)); }

std::string_view Shard::id_bytes(int64_t first, int64_t count) const {
  return file_.text().substr(static_cast<size_t>(header_bytes + first * bytes_per_id_),
                             static_cast<size_t>(count * bytes_per_id_));
}

void Shard::read(int64_t first, std::span<int32_t> out) const {
  const char* in = id_bytes(first, static_cast<int64_t>(out.size())).data();
  if (bytes_per_id_ == 4) {
    std::memcpy(out.data(), in, out.size() * 4);
    return;
  }
  for (int32_t& id : out) {
    uint16_t value;
    std::memcpy(&value, in, 2);
    id = value, in += 2;
  }
}

void Shard::verify() const {
  const std::string_view area = file_.text().substr(header_bytes, static_cast<size_t>(table_ - header_bytes));
  const int64_t stored = table_ + 8 * (2 * documents_ + 1);
  for (int64_t c = 0; c < chunks_; ++c) {
    const uint64_t hash = xxh3(area.substr(static_cast<size_t>(c * chunk_bytes), chunk_bytes));
    const uint64_t wanted = static_cast<uint64_t>(word(stored + 8 * c));
    if (hash != wanted) throw damaged(path(), fmt::format("checksum of id piece {}", c), hex16(wanted), hex16(hash));
  }
}

}  // namespace nibble
