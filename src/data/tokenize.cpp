#include "data/tokenize.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/hash.h"

namespace nibble {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

Error not_writable(const std::string& path, std::string_view reason) {
  return Error("E803", "cannot write to {}: {}", path, reason)
      .where("{}", path)
      .hint("out= or cache_directory= with a folder that can be written");
}
Error write_failed(const std::string& path) {
  return Error("E801", "writing {} failed: {}", path, std::strerror(errno))
      .where("{}", path)
      .hint("free some space, or cache_directory= on another disk");
}

void sync_folder(const std::string& folder) {
  const int handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = handle >= 0 && ::fsync(handle) == 0;
  if (handle >= 0) ::close(handle);
  if (!done) throw write_failed(folder);
}

void write_durable(const std::string& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const bool done =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(file) == 0;
  if (file >= 0) ::close(file);
  if (!done) throw write_failed(path);
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// The folder under construction: ".<name>.<process>.tmp" beside the final one, with a lock file that its owner holds.
// Folders whose owner died are recognised by the free lock and removed by the next construction of the same name.
class FolderUnderConstruction {
 public:
  explicit FolderUnderConstruction(const std::string& final_path) : final_(final_path) {
    while (final_.size() > 1 && final_.ends_with('/')) final_.pop_back();
    parent_ = parent_of(final_);
    std::error_code problem;
    fs::create_directories(parent_, problem);
    if (problem) throw not_writable(parent_, problem.message());
    const std::string prefix = "." + fs::path(final_).filename().string() + ".";
    remove_abandoned(prefix);
    for (int attempt = 0;; ++attempt) {  // another host may have a process of the same number
      path_ = fmt::format("{}/{}{}-{}.tmp", parent_, prefix, ::getpid(), attempt);
      if (::mkdir(path_.c_str(), 0777) == 0) break;
      if (errno == EEXIST) continue;
      const int reason = errno;
      path_.clear();
      throw not_writable(parent_, std::strerror(reason));
    }
    lock_ = ::open((path_ + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const Error error = not_writable(path_, std::strerror(errno));
      discard();
      throw error;
    }
  }
  ~FolderUnderConstruction() { discard(); }
  FolderUnderConstruction(const FolderUnderConstruction&) = delete;
  FolderUnderConstruction& operator=(const FolderUnderConstruction&) = delete;

  const std::string& path() const { return path_; }
  const std::string& final_path() const { return final_; }

  /// Makes it durable under its final name; a folder already there goes when `replace`.
  void publish(bool replace) {
    sync_folder(path_);
    if (replace) {
      std::error_code problem;
      fs::remove_all(final_, problem);
      if (problem) throw not_writable(final_, problem.message());
    }
    if (::rename(path_.c_str(), final_.c_str()) != 0) throw not_writable(final_, std::strerror(errno));
    path_.clear();
    ::unlink((final_ + "/.lock").c_str());
    ::close(std::exchange(lock_, -1));
    sync_folder(parent_);
  }

 private:
  void discard() {
    std::error_code ignored;  // an abandoned folder is removed by the next start
    if (!path_.empty()) fs::remove_all(path_, ignored);
    if (lock_ >= 0) ::close(lock_);
  }
  void remove_abandoned(const std::string& prefix) const {
    std::error_code problem;
    std::vector<std::string> found;
    for (fs::directory_iterator it(parent_, problem), end; !problem && it != end; it.increment(problem)) {
      const std::string name = it->path().filename().string();
      if (name.starts_with(prefix) && name.ends_with(".tmp")) found.push_back(it->path().string());
    }
    for (const std::string& folder : found) {
      const int lock = ::open((folder + "/.lock").c_str(), O_RDWR | O_CLOEXEC);
      if (lock < 0) continue;  // being made or renamed at this moment
      if (::flock(lock, LOCK_EX | LOCK_NB) == 0) fs::remove_all(folder, problem);
      ::close(lock);
    }
  }
  std::string final_, parent_, path_;
  int lock_ = -1;
};

json options_json(const TextEncoder& encoder, const TokenizeOptions& options) {
  constexpr const char* rules[] = {"file", "line", "blank_line"};
  json j = {{"add_bos", options.add_bos},
            {"add_eos", options.add_eos},
            {"text_document", rules[static_cast<int>(options.text.document)]},
            {"column", options.text.column},
            {"tokenizer_split", options.tokenizer_split}};
  const Split& split = options.text.split;
  if (split.holdout != Holdout::none) {
    j["eval_fraction"] = split.fraction;
    j["eval_holdout"] = split.holdout == Holdout::hash ? "hash" : "tail";
    j["part"] = split.part == Part::train ? "train" : "eval";
  }
  if (encoder.parse_special) j["parse_special"] = true;
  return j;
}

json sources_json(const std::vector<std::string>& files) {
  json list = json::array();
  for (const std::string& path : files) {
    const MappedFile file(path);
    list.push_back({{"name", fs::path(path).filename().string()},
                    {"bytes", file.text().size()},
                    {"XXH3-64", hex16(xxh3(file.text()))}});
  }
  return list;
}

// What becomes meta.json: everything that decides the content, and its key.
struct Description {
  json options, sources;
  std::string tokenizer_hash;
  uint64_t key;
};

Description describe(const std::vector<std::string>& files, const TextEncoder& encoder,
                     const TokenizeOptions& options) {
  Description d{options_json(encoder, options), sources_json(files), hex16(encoder.hash), 0};
  d.key = xxh3(d.tokenizer_hash + d.options.dump() + d.sources.dump());
  return d;
}

// Consecutive records encoded by one task; everything in order of the records.
struct Group {
  std::vector<std::pair<const TextFile*, std::string_view>> records;
  std::vector<int32_t> ids;
  std::vector<int64_t> lengths, bytes;  // of each document
  int64_t empty = 0, bad = 0, text_bytes = 0;
  std::exception_ptr failure;  // of the first record that failed
  std::string scratch;

  void clear() {
    records.clear(), ids.clear(), lengths.clear(), bytes.clear();
    empty = bad = text_bytes = 0;
  }
};

void encode_record(Group& group, const TextFile& file, std::string_view record, const TextEncoder& encoder,
                   const TokenizeOptions& options) {
  std::string_view text;
  try {
    text = document_text(file, record, options.text, group.scratch);
  } catch (const Error&) {
    if (options.text.on_bad_record == BadRecord::error) throw;
    ++group.bad;
    return;
  }
  const bool hashed = options.text.split.holdout == Holdout::hash;
  if (hashed && !text.empty() && !in_part(options.text.split, xxh3(text))) return;
  const size_t before = group.ids.size();
  if (options.add_bos && encoder.bos >= 0) group.ids.push_back(encoder.bos);
  const size_t begin = group.ids.size();
  if (!text.empty()) encoder.encode(text, group.ids);
  if (group.ids.size() == begin) {
    group.ids.resize(before);
    ++group.empty;
    return;
  }
  if (options.add_eos && encoder.eos >= 0) group.ids.push_back(encoder.eos);
  group.lengths.push_back(static_cast<int64_t>(group.ids.size() - before));
  group.bytes.push_back(static_cast<int64_t>(text.size()));
}

// Reads records in order, hands groups of about 64 KiB to the pool, a block of groups at a time.
class Tokenizing {
 public:
  Tokenizing(const TextEncoder& encoder, const TokenizeOptions& options, const std::string& folder, uint64_t key,
             ThreadPool& pool)
      : encoder_(encoder), options_(options), folder_(folder), key_(key), pool_(pool), groups_(64) {}

  void read(const std::string& path) {
    open_.push_back(std::make_unique<TextFile>(path, kind_of_file(path, options_.kind), options_.text.split));
    const TextFile* file = open_.back().get();
    RecordReader reader(*file, options_.text.document);
    for (std::string_view record; reader.next(record);) {
      Group& group = groups_[filled_];
      group.records.emplace_back(file, record);
      group.text_bytes += static_cast<int64_t>(record.size());
      if (group.text_bytes < group_bytes && group.records.size() < group_records) continue;
      if (++filled_ == groups_.size()) {
        run_block();
        open_.erase(open_.begin(), open_.end() - 1);  // the last file is still being read
      }
    }
    if (open_.size() >= 256) {  // mappings are a limited resource
      run_block();
      open_.clear();
    }
  }
  void finish() {
    run_block();
    end_shard();
  }
  json shards = json::array();
  int64_t tokens = 0, documents = 0, source_bytes = 0, empty = 0, bad = 0;

 private:
  static constexpr int64_t group_bytes = 64 << 10;
  static constexpr size_t group_records = 4096;

  void run_block() {
    if (options_.poll) options_.poll();
    pool_.run(static_cast<int64_t>(groups_.size()), [this](int64_t g, int) {
      Group& group = groups_[static_cast<size_t>(g)];
      try {
        for (const auto& [file, record] : group.records) encode_record(group, *file, record, encoder_, options_);
      } catch (...) {
        group.failure = std::current_exception();
      }
    });
    for (Group& group : groups_) {
      if (group.failure) std::rethrow_exception(group.failure);
      write(group);
      group.clear();
    }
    filled_ = 0;
  }
  void write(const Group& group) {
    empty += group.empty, bad += group.bad;
    const int32_t* ids = group.ids.data();
    for (size_t d = 0; d < group.lengths.size(); ++d) {
      const int64_t length = group.lengths[d];
      if (writer_ && writer_->tokens() + length > options_.max_shard_tokens) end_shard();
      if (!writer_) {
        name_ = fmt::format("{:05}.nbt", shards.size());
        writer_ = std::make_unique<ShardWriter>(folder_ + "/" + name_, shard_bytes_per_id(encoder_.vocab), key_);
      }
      writer_->add({ids, static_cast<size_t>(length)}, group.bytes[d]);
      ids += length, source_bytes += group.bytes[d], ++documents, ++shard_documents_;
    }
  }
  void end_shard() {
    if (!writer_) return;
    writer_->finish();
    tokens += writer_->tokens();
    shards.push_back({{"name", name_}, {"tokens", writer_->tokens()}, {"documents", shard_documents_}});
    writer_.reset();
    shard_documents_ = 0;
  }

  const TextEncoder& encoder_;
  const TokenizeOptions& options_;
  const std::string folder_;
  const uint64_t key_;
  ThreadPool& pool_;
  std::vector<Group> groups_;
  size_t filled_ = 0;
  std::vector<std::unique_ptr<TextFile>> open_;  // files whose records wait in a group
  std::unique_ptr<ShardWriter> writer_;
  std::string name_;
  int64_t shard_documents_ = 0;
};

TokenFolder build(const std::vector<std::string>& files, const TextEncoder& encoder, const TokenizeOptions& options,
                  const Description& description, const std::string& folder, ThreadPool& pool, bool replace) {
  FolderUnderConstruction construction(folder);
  Tokenizing work(encoder, options, construction.path(), description.key, pool);
  for (const std::string& path : files) work.read(path);
  work.finish();
  const json meta = {
      {"key", hex16(description.key)},  {"tokenizer", {{"name", encoder.name}, {"hash", description.tokenizer_hash}}},
      {"options", description.options}, {"sources", description.sources},
      {"shards", work.shards},          {"tokens", work.tokens},
      {"documents", work.documents},    {"source_bytes", work.source_bytes},
      {"empty_documents", work.empty},  {"bad_records", work.bad}};
  write_durable(construction.path() + "/meta.json", meta.dump(2) + "\n");
  construction.publish(replace);
  std::optional<TokenFolder> result = open_token_folder(construction.final_path(), description.key);
  NIBBLE_CHECK(result.has_value(), "token folder {} does not open after it was written", construction.final_path());
  result->built = true;
  return *result;
}

}  // namespace

uint64_t token_folder_key(const std::vector<std::string>& files, const TextEncoder& encoder,
                          const TokenizeOptions& options) {
  return describe(files, encoder, options).key;
}

std::optional<TokenFolder> open_token_folder(const std::string& folder, std::optional<uint64_t> key) {
  try {
    const MappedFile meta(folder + "/meta.json");
    const json j = json::parse(meta.text());
    TokenFolder result;
    result.folder = folder;
    result.key = std::stoull(j.at("key").get<std::string>(), nullptr, 16);
    if (key && *key != result.key) return {};
    for (const json& entry : j.at("shards")) {
      result.shards.push_back(folder + "/" + entry.at("name").get<std::string>());
      const Shard shard(result.shards.back());
      if (shard.key() != result.key || shard.tokens() != entry.at("tokens").get<int64_t>()) return {};
    }
    result.tokens = j.at("tokens"), result.documents = j.at("documents"), result.source_bytes = j.at("source_bytes");
    result.empty_documents = j.at("empty_documents"), result.bad_records = j.at("bad_records");
    return result;
  } catch (const std::exception&) {  // missing, unreadable or damaged: not a usable folder
    return {};
  }
}

TokenFolder tokenize_to(const std::vector<std::string>& files, const TextEncoder& encoder,
                        const TokenizeOptions& options, const std::string& folder, ThreadPool& pool, bool overwrite) {
  if (!overwrite && fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder)))
    throw Error("E802", "{} exists and is not empty", folder)
        .where("out={}", folder)
        .hint("another out=, or overwrite=true");
  return build(files, encoder, options, describe(files, encoder, options), folder, pool, overwrite);
}

TokenFolder tokenize_cached(const std::vector<std::string>& files, const TextEncoder& encoder,
                            const TokenizeOptions& options, const std::string& cache_directory,
                            const std::string& fallback, ThreadPool& pool) {
  NIBBLE_CHECK(!files.empty(), "tokenising needs at least one file");
  const Description description = describe(files, encoder, options);
  const std::string name = "nibble-" + hex16(description.key);
  const std::string preferred = (cache_directory.empty() ? parent_of(files.front()) : cache_directory) + "/" + name;
  std::vector<std::string> places = {preferred};
  if (!fallback.empty()) places.push_back(fallback + "/" + name);
  for (const std::string& place : places) {
    std::optional<TokenFolder> found = open_token_folder(place, description.key);
    const bool wanted = found && (found->bad_records == 0 || options.text.on_bad_record == BadRecord::skip);
    if (wanted) return *found;
  }
  try {
    return build(files, encoder, options, description, preferred, pool, true);
  } catch (const Error& error) {
    if (error.id != "E803" || fallback.empty()) throw;
    TokenFolder result = build(files, encoder, options, description, places.back(), pool, true);
    result.notice = fmt::format("{} cannot be written: token shards are in {}", parent_of(preferred), result.folder);
    return result;
  }
}

}  // namespace nibble
