#include "data/source.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/hash.h"
#include "data/utf8.h"

namespace nibble {
namespace fs = std::filesystem;
namespace {

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

// "path,0.25": a weight follows the last comma. Source: spec/training.md 4.1.
bool has_weight(const std::string& entry) {
  const size_t comma = entry.rfind(',');
  if (comma == std::string::npos || comma + 1 == entry.size()) return false;
  char* end = nullptr;
  std::strtod(entry.c_str() + comma + 1, &end);
  return *end == '\0';
}

void refuse_remote(const std::string& entry) {
  const size_t slash = entry.find('/');
  const bool hub = slash != std::string::npos && slash > 0 && entry.find('/', slash + 1) == std::string::npos &&
                   entry.find('.') == std::string::npos && entry.find_first_of("*?[") == std::string::npos &&
                   !exists(entry.substr(0, slash));
  if (entry.find("://") == std::string::npos && !hub) return;
  throw Error("E302",
              "{} is no file here; it looks like a URL or a hub id, and there is no download: nothing is fetched",
              entry)
      .where("train_files or eval_files")
      .hint("fetch the files yourself, export them as JSON lines or text, and give train_files=file.jsonl");
}

std::vector<std::string> files_of_folder(const std::string& folder) {
  std::vector<std::string> shards, others;
  std::error_code problem;
  for (fs::directory_iterator it(folder, problem), end; !problem && it != end; it.increment(problem)) {
    const std::string name = it->path().filename().string();
    if (name.front() == '.' || !it->is_regular_file(problem)) continue;
    (name.ends_with(".nbt") ? shards : others).push_back(it->path().string());
  }
  std::vector<std::string>& files = shards.empty() ? others : shards;
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> files_of_glob(const std::string& pattern) {
  std::vector<std::string> files;
  glob_t found{};
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i)
      if (fs::is_regular_file(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  std::sort(files.begin(), files.end());  // byte order, whatever the locale
  return files;
}

Error not_utf8(const std::string& path, std::string_view mark, std::string_view encoding) {
  return Error("E307", "{} is {} text, not UTF-8 (byte-order mark {} at byte 0)", path, encoding, mark)
      .where("{}, byte 0", path)
      .hint("iconv -f {} -t UTF-8 '{}' > converted.txt", encoding, path);
}

// UTF-16 and UTF-32 are recognised by their marks; returns the length of a UTF-8 mark.
size_t check_mark(const std::string& path, std::string_view bytes) {
  using namespace std::string_view_literals;
  if (bytes.starts_with("\xff\xfe\0\0"sv)) throw not_utf8(path, "ff fe 00 00", "UTF-32LE");
  if (bytes.starts_with("\0\0\xfe\xff"sv)) throw not_utf8(path, "00 00 fe ff", "UTF-32BE");
  if (bytes.starts_with("\xff\xfe"sv)) throw not_utf8(path, "ff fe", "UTF-16LE");
  if (bytes.starts_with("\xfe\xff"sv)) throw not_utf8(path, "fe ff", "UTF-16BE");
  return bytes.starts_with("\xef\xbb\xbf"sv) ? 3 : 0;
}

Error not_here(const std::string& path, std::string_view what, std::string hint) {
  return Error("E309", "{} is {}, which is not in this version", path, what)
      .where("{}, first bytes", path)
      .expected("text, JSON lines or .nbt token shards", std::string(what))
      .hint("{}", hint);
}

void refuse_foreign(const std::string& path, std::string_view bytes) {
  using namespace std::string_view_literals;
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    if (bytes.size() >= at + 4) std::memcpy(&value, bytes.data() + at, 4);
    return value;
  };
  if (bytes.starts_with("\x1f\x8b"sv))
    throw not_here(path, "gzip data (magic 1f 8b)", fmt::format("gzip -dc '{}' > data.jsonl", path));
  if (word(0) == 0xFD2FB528 || (word(0) & 0xFFFFFFF0) == 0x184D2A50)
    throw not_here(path, "zstd data (magic 28 b5 2f fd)", fmt::format("zstd -dc '{}' > data.jsonl", path));
  if (bytes.starts_with("MMIDIDX\0\0"sv))
    throw not_here(path, "a Megatron index (magic MMIDIDX)", "nibble data tokenize TEXT out=DIR makes .nbt shards");
  if (word(0) == 20240520 || word(0) == 20240801)
    throw not_here(path, fmt::format("an llm.c token file (magic {})", word(0)),
                   "nibble data tokenize TEXT out=DIR makes .nbt shards");
  if (path.ends_with(".bin") && exists(path.substr(0, path.size() - 4) + ".idx"))
    throw not_here(path, "a Megatron token file (it has an .idx beside it)",
                   "nibble data tokenize TEXT out=DIR makes .nbt shards");
  if (bytes.starts_with("PAR1"sv))
    throw Error("E305", "{} is a Parquet file, and this nibble was built without Arrow", path)
        .where("{}, magic PAR1", path)
        .hint(
            "convert it to JSON lines (one object per line) and give the .jsonl file; the build option is not in "
            "this version");
}

std::string_view without_cr(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// The beginning of a bad record for a message, itself always valid UTF-8.
std::string preview(std::string_view record) {
  std::string_view head = record.substr(0, 60);
  head = head.substr(0, utf8_valid_prefix(head));
  return std::string(head) + (head.size() < record.size() ? "..." : "");
}

bool blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

Error no_data_error() {
  return Error("E201", "no data given")
      .where("dataset_type=auto, train_files=[]")
      .expected("train_files= with text, JSON lines or token shards", "nothing")
      .hint("train_files=book.txt, or dataset_type=synthetic for random tokens");
}

bool in_part(const Split& split, uint64_t content_hash) {
  if (split.holdout != Holdout::hash) return true;
  const bool held_out = static_cast<double>(content_hash % 1000000) < split.fraction * 1e6;
  return held_out == (split.part == Part::eval);
}

std::vector<std::string> expand_files(const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  for (const std::string& entry : patterns) {
    std::vector<std::string> found;
    if (fs::is_directory(entry)) {
      found = files_of_folder(entry);
    } else if (exists(entry)) {
      found = {entry};
    } else {
      if (has_weight(entry))
        throw Error("E010", "weight in {}: mixing data sets by weight is not in this version", entry)
            .where("train_files")
            .hint("train_files={} uses the files in order", entry.substr(0, entry.rfind(',')));
      refuse_remote(entry);
      found = files_of_glob(entry);
    }
    if (found.empty())
      throw Error("E202", "{} matches no file", entry)
          .where("working folder {}", fs::current_path().string())
          .hint("check the path; quote a pattern so that the shell leaves it to nibble");
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

DataKind kind_of_file(const std::string& path, DataKind wanted) {
  const MappedFile file(path);
  refuse_foreign(path, file.text());
  if (wanted != DataKind::detect) return wanted;
  if (file.text().starts_with("NIBBLTOK") || path.ends_with(".nbt")) return DataKind::tokens;
  for (const char* ending : {".jsonl", ".ndjson", ".json"})
    if (path.ends_with(ending)) return DataKind::jsonl;
  return DataKind::text;
}

TextFile::TextFile(const std::string& path, DataKind kind, const Split& split) : file_(path), kind_(kind) {
  const std::string_view all = file_.text();
  const size_t begin = check_mark(path, all);
  range_ = all.substr(begin);
  if (split.holdout != Holdout::tail) return;
  const double kept = std::floor(static_cast<double>(all.size()) * (1 - split.fraction));
  size_t cut = std::clamp(static_cast<size_t>(std::max(kept, 0.0)), begin, all.size());
  if (cut > begin && all[cut - 1] != '\n') {  // to the next line start
    const size_t line_end = all.find('\n', cut);
    cut = line_end == std::string_view::npos ? all.size() : line_end + 1;
  }
  range_ = split.part == Part::eval ? all.substr(cut) : all.substr(begin, cut - begin);
}

int64_t TextFile::line_of(const char* place) const { return 1 + std::count(file_.text().data(), place, '\n'); }

RecordReader::RecordReader(const TextFile& file, DocumentRule rule)
    : rest_(file.range()),
      whole_file_(file.kind() == DataKind::text && rule == DocumentRule::file),
      skip_blank_(file.kind() == DataKind::jsonl),
      blocks_(file.kind() == DataKind::text && rule == DocumentRule::blank_line) {}

std::string_view RecordReader::next_line() {
  const size_t end = rest_.find('\n');
  const std::string_view line = rest_.substr(0, end);
  rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
  return without_cr(line);
}

bool RecordReader::next(std::string_view& record) {
  if (rest_.empty()) return false;
  if (whole_file_) {
    record = rest_, rest_ = {};
    return true;
  }
  if (!blocks_ && !skip_blank_) {
    record = next_line();
    return true;
  }
  do {
    if (rest_.empty()) return false;
    record = next_line();
  } while (blank(record));
  while (blocks_ && !rest_.empty()) {  // the block ends at its last line that is not blank
    const std::string_view line = next_line();
    if (blank(line)) break;
    record = {record.data(), static_cast<size_t>(line.data() + line.size() - record.data())};
  }
  return true;
}

std::string_view document_text(const TextFile& file, std::string_view record, const TextOptions& options,
                               std::string& scratch) {
  if (file.kind() == DataKind::text) {
    const size_t valid = utf8_valid_prefix(record);
    if (valid == record.size()) return record;
    const char* place = record.data() + valid;
    throw Error("E307", "{} is not valid UTF-8 at byte {} (value 0x{:02x})", file.path(), file.offset_of(place),
                static_cast<unsigned char>(*place))
        .where("{}:{}, byte {}", file.path(), file.line_of(place), file.offset_of(place))
        .hint("iconv -f LATIN1 -t UTF-8 '{}' > converted.txt, or on_bad_record=skip", file.path());
  }
  const auto fail = [&](std::string_view what) {
    return Error("E307", "{} in {}, line {} (field \"{}\")", what, file.path(), file.line_of(record.data()),
                 options.column)
        .where("{}:{}", file.path(), file.line_of(record.data()))
        .expected(fmt::format("one object per line with the string field \"{}\"", options.column), preview(record))
        .hint("correct the line or train_data_columns=[name], or on_bad_record=skip");
  };
  const nlohmann::json line = nlohmann::json::parse(record, nullptr, false);  // refuses bad UTF-8 and lone surrogates
  if (line.is_discarded()) throw fail("bad JSON");
  if (!line.is_object()) throw fail("the JSON value is no object");
  const auto field = line.find(options.column);
  if (field == line.end()) throw fail("missing field");
  if (!field->is_string()) throw fail("the field is no string");
  scratch = field->get<std::string>();
  return scratch;
}

DocumentList::DocumentList(const std::vector<std::string>& files, DataKind kind, const TextOptions& options) {
  std::string scratch;
  for (const std::string& path : files) {
    const DataKind found = kind_of_file(path, kind);
    if (found == DataKind::tokens)
      throw Error("E010", "{} holds tokens, and text is needed: turning tokens back is not in this version", path)
          .where("{}", path)
          .hint("give the text or JSON-lines files that the shards were made from");
    const TextFile& file = files_.emplace_back(path, found, options.split);  // moving a mapping keeps its address
    RecordReader reader(file, options.document);
    for (std::string_view record; reader.next(record);) {
      std::string_view text;
      try {
        text = document_text(file, record, options, scratch);
      } catch (const Error&) {
        if (options.on_bad_record == BadRecord::error) throw;
        ++bad_;
        continue;
      }
      empty_ += text.empty();
      if (text.empty() || (options.split.holdout == Holdout::hash && !in_part(options.split, xxh3(text)))) continue;
      documents_.push_back(found == DataKind::jsonl ? decoded_.emplace_back(text) : text);
      bytes_ += static_cast<int64_t>(text.size());
    }
  }
}

}  // namespace nibble
