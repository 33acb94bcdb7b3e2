// Corpora as files: which files a list names, which documents a file holds. Text and JSON lines, memory-mapped;
// token shards are read by shards.h.  Source: spec/training.md 4.1 and 4.5.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/mapped_file.h"

namespace nibble {

enum class DataKind { detect, text, jsonl, tokens };
enum class DocumentRule { file, line, blank_line };
enum class BadRecord { error, skip };
enum class Holdout { none, hash, tail };
enum class Part { train, eval };

/// Which documents of a corpus are meant. hash: a document belongs to the evaluation part iff
/// XXH3-64(its bytes) mod 10^6 < fraction * 10^6. tail: the last fraction of the bytes of every text file, from the
/// next line start, is the evaluation part. none: all documents, whatever the part.
struct Split {
  Holdout holdout = Holdout::none;
  double fraction = 0;
  Part part = Part::train;
};
/// Whether a document of this content belongs to the part, for Holdout::hash; true for the other kinds.
bool in_part(const Split& split, uint64_t content_hash);

/// How text and JSON-lines files are cut into documents.
struct TextOptions {
  DocumentRule document = DocumentRule::file;
  std::string column = "text";  // the string field of a JSON line
  BadRecord on_bad_record = BadRecord::error;
  Split split;
};

/// The error of a command that was given no data at all: E201.
Error no_data_error();

/// Files named by paths, folders and globs, in the order of the list; a glob or a folder gives its files in byte order
/// (a folder: its .nbt files if it has any, else every regular file that is not hidden; not recursive).
/// Errors: E202 nothing found (pattern and working folder), E302 URL or hub id, E010 a weight (`path,0.5`).
std::vector<std::string> expand_files(const std::vector<std::string>& patterns);

/// What a file holds: by magic for token shards, by the endings .jsonl, .ndjson and .json for JSON lines, else text.
/// `wanted` other than detect is taken as it is, but compressed and foreign token files are always recognised.
/// Errors: E309 gzip, zstd, Megatron and llm.c files (not in this version), E305 Parquet, E202 unreadable.
DataKind kind_of_file(const std::string& path, DataKind wanted = DataKind::detect);

/// One text or JSON-lines file, mapped, without its byte-order mark, and the range of it that a split means.
/// Errors: E307 for UTF-16 and UTF-32 marks; those of kind_of_file.
class TextFile {
 public:
  TextFile(const std::string& path, DataKind kind, const Split& split);
  const std::string& path() const { return file_.path(); }
  DataKind kind() const { return kind_; }
  std::string_view bytes() const { return file_.text(); }  // the whole file
  std::string_view range() const { return range_; }        // what is read
  /// Byte offset and line (from 1) of a place in bytes().
  int64_t offset_of(const char* place) const { return place - file_.text().data(); }
  int64_t line_of(const char* place) const;

 private:
  MappedFile file_;
  DataKind kind_;
  std::string_view range_;
};

/// Walks the records of a file in order: a JSON line, or the raw bytes of a document of text.
class RecordReader {
 public:
  RecordReader(const TextFile& file, DocumentRule rule);
  /// The next record, false at the end. Empty lines of text are records (empty documents), blank JSON lines are not.
  bool next(std::string_view& record);

 private:
  std::string_view next_line();
  std::string_view rest_;
  bool whole_file_, skip_blank_, blocks_;
};

/// The text of the document in a record: the record itself, checked to be UTF-8, or the field of a JSON line, decoded
/// into `scratch`. Errors: E307 with file, line or byte, and field.
std::string_view document_text(const TextFile& file, std::string_view record, const TextOptions& options,
                               std::string& scratch);

/// The documents of text and JSON-lines files in order: what training a tokenizer reads. Views stay valid as long as
/// the object. Empty documents and those of another part are left out.
class DocumentList {
 public:
  /// files: paths as expand_files gives them. Errors: E307 (unless bad records are skipped), E010 for token shards, and
  /// those of kind_of_file.
  DocumentList(const std::vector<std::string>& files, DataKind kind, const TextOptions& options);
  const std::vector<std::string_view>& documents() const { return documents_; }
  int64_t bytes() const { return bytes_; }
  int64_t empty() const { return empty_; }
  int64_t bad() const { return bad_; }

 private:
  std::vector<TextFile> files_;
  std::deque<std::string> decoded_;  // of JSON lines
  std::vector<std::string_view> documents_;
  int64_t bytes_ = 0, empty_ = 0, bad_ = 0;
};

}  // namespace nibble
