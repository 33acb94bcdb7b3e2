// Files and documents (spec/training.md 4.1; E201, E202, E302, E305, E307, E309 of 7.2), and the tail split of 4.5.
#include "data/source.h"

#include <gtest/gtest.h>

#include "corpus.h"

namespace nibble {
namespace {

using Strings = std::vector<std::string>;

struct Count {
  int64_t empty, bad;
};
Strings documents(const std::string& path, const TextOptions& options = {}, Count* count = nullptr) {
  const DocumentList list({path}, DataKind::detect, options);
  if (count != nullptr) *count = {list.empty(), list.bad()};
  return {list.documents().begin(), list.documents().end()};
}

TEST(TrainingT37, DocumentsOfText) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", "\xef\xbb\xbfone\r\ntwo\n\n \t\nthree");
  EXPECT_EQ(documents(path), (Strings{"one\r\ntwo\n\n \t\nthree"}));  // the mark is skipped
  Count count;
  EXPECT_EQ(documents(path, {.document = DocumentRule::line}, &count), (Strings{"one", "two", " \t", "three"}));
  EXPECT_EQ(count.empty, 1);
  EXPECT_EQ(documents(path, {.document = DocumentRule::blank_line}), (Strings{"one\r\ntwo", "three"}));
  EXPECT_EQ(documents(folder.write("b.txt", "\n\n\n"), {.document = DocumentRule::blank_line}), Strings{});
  EXPECT_EQ(documents(folder.write("empty.txt", "")), Strings{});
}

TEST(TrainingT37, DocumentsOfJsonLines) {
  TemporaryFolder folder;
  const std::string path = folder.write(
      "a.jsonl",
      "{\"text\": \"one\\ntwo \\u00e9\\ud83d\\ude00\", \"id\": 3}\r\n\n  \n{\"text\":\"\"}\n{\"text\":\"three\"}");
  Count count;
  EXPECT_EQ(documents(path, {}, &count), (Strings{"one\ntwo \xc3\xa9\xf0\x9f\x98\x80", "three"}));
  EXPECT_EQ(count.empty, 1);
  EXPECT_EQ(DocumentList({path, path}, DataKind::detect, {}).bytes(), 2 * (14 + 5));
  EXPECT_EQ(documents(folder.write("b.jsonl", "{\"body\": \"x\"}\n"), {.column = "body"}), (Strings{"x"}));
}

TEST(TrainingT57, E307BadRecords) {
  TemporaryFolder folder;
  const std::string text = folder.write("bad.txt", "good line\nbad \xc3( here\nlast\n");
  expect_error([&] { documents(text); }, "E307", 65, {text, "byte 14", "bad.txt:2", "on_bad_record=skip"});
  Count count;
  TextOptions skip{.document = DocumentRule::line, .on_bad_record = BadRecord::skip};
  EXPECT_EQ(documents(text, skip, &count), (Strings{"good line", "last"}));
  EXPECT_EQ(count.bad, 1);
  expect_error([&] { documents(folder.write("cut.txt", "caf\xc3")); }, "E307", 65, {"byte 3"});

  const struct {
    const char *line, *word;
  } rows[] = {{"{\"text\": \"a\"", "bad JSON"},     {"{\"text\": \"\\ud800\"}", "bad JSON"},
              {"{\"text\": \"\xff\"}", "bad JSON"}, {"{\"body\": \"a\"}", "missing field"},
              {"{\"text\": 5}", "no string"},       {"[1, 2]", "no object"}};
  for (const auto& row : rows) {
    const std::string path =
        folder.write("bad.jsonl", std::string("{\"text\":\"first\"}\n\n") + row.line + "\n{\"text\":\"last\"}\n");
    expect_error([&] { documents(path); }, "E307", 65, {row.word, "bad.jsonl:3", "\"text\"", "on_bad_record=skip"});
    EXPECT_EQ(documents(path, skip, &count), (Strings{"first", "last"}));
    EXPECT_EQ(count.bad, 1) << row.line;
  }
}

TEST(TrainingT57, E307Utf16AndUtf32Marks) {
  TemporaryFolder folder;
  using namespace std::string_literals;
  const struct {
    std::string bytes;
    const char* name;
  } rows[] = {{"\xff\xfe"
               "a\0"s,
               "UTF-16LE"},
              {"\xfe\xff\0a"s, "UTF-16BE"},
              {"\xff\xfe\0\0"s, "UTF-32LE"},
              {"\0\0\xfe\xff"s, "UTF-32BE"}};
  for (const auto& row : rows) {
    const std::string path = folder.write("a.txt", row.bytes);
    expect_error([&] { documents(path); }, "E307", 65, {path, row.name, "byte 0", "iconv -f"});
  }
}

TEST(TrainingT57, E309CompressedAndForeignFilesAreNamed) {
  TemporaryFolder folder;
  using namespace std::string_literals;
  const struct {
    std::string name, bytes, word;
  } rows[] = {{"a.jsonl.gz", "\x1f\x8b\x08\0"s, "gzip -dc"},
              {"a.zst", "\x28\xb5\x2f\xfd..."s, "zstd -dc"},
              {"skippable.zst", "\x53\x2a\x4d\x18\0\0\0\0"s, "zstd -dc"},
              {"a.idx", "MMIDIDX\0\0\1"s, "Megatron"},
              {"v1.bin", "\x88\xd8\x34\x01"s, "llm.c"}};
  for (const auto& row : rows) {
    const std::string path = folder.write(row.name, row.bytes);
    expect_error([&] { kind_of_file(path); }, "E309", 65, {path, "not in this version", row.word});
  }
  expect_error([&] { kind_of_file(folder.write("a.parquet", "PAR1....")); }, "E305", 69, {"build", "JSON lines"});
}

TEST(TrainingT37, KindsByContentAndEnding) {
  TemporaryFolder folder;
  EXPECT_EQ(kind_of_file(write_shard(folder / "tokens", {{1}})), DataKind::tokens);
  EXPECT_EQ(kind_of_file(folder.write("a.jsonl", "{}")), DataKind::jsonl);
  EXPECT_EQ(kind_of_file(folder.write("a.txt", "{}")), DataKind::text);
  EXPECT_EQ(kind_of_file(folder / "a.jsonl", DataKind::text), DataKind::text);
}

TEST(TrainingT37, FilesOfListsFoldersAndGlobs) {
  TemporaryFolder folder;
  for (const char* name : {"b.txt", "B.txt", "a.txt", ".hidden", "10.txt", "9.txt", "x,0.5"}) folder.write(name, "x");
  EXPECT_EQ(expand_files({folder / "*.txt"}),
            (Strings{folder / "10.txt", folder / "9.txt", folder / "B.txt", folder / "a.txt", folder / "b.txt"}));
  EXPECT_EQ(expand_files({folder / "b.txt", folder / "[a9].txt"}),
            (Strings{folder / "b.txt", folder / "9.txt", folder / "a.txt"}));  // the order of the list
  EXPECT_EQ(expand_files({folder.path()}).size(), 6u);
  EXPECT_EQ(expand_files({folder / "x,0.5"}), (Strings{folder / "x,0.5"}));  // an existing file is no weight
  write_shard(folder / "0.nbt", {{1}});
  EXPECT_EQ(expand_files({folder.path()}), (Strings{folder / "0.nbt"}));
}

TEST(TrainingT57, E201E202E302) {
  const Error none = no_data_error();
  EXPECT_EQ(none.id, "E201");
  EXPECT_EQ(none.exit_code(), 66);
  EXPECT_NE(none.message().find("dataset_type=synthetic"), std::string::npos);
  EXPECT_NE(none.message().find("train_files="), std::string::npos);
  const std::string here = std::filesystem::current_path().string();
  expect_error([&] { expand_files({"no_such_*.txt"}); }, "E202", 66, {"no_such_*.txt", here});
  expect_error([&] { kind_of_file("no_such.txt"); }, "E202", 66, {"no_such.txt", "No such file"});
  for (const char* remote : {"https://example.org/a.txt", "hf://datasets/a", "roneneldan/TinyStories"})
    expect_error([&] { expand_files({remote}); }, "E302", 65, {remote, "no download", "fetch the files"});
  expect_error([&] { expand_files({"a.txt,0.5"}); }, "E010", 64,
               {"a.txt,0.5", "not in this version", "train_files=a.txt"});
}

TEST(TrainingT40, TailBeginsAtALineStart) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("line {:04}\n", i);  // 10 bytes each
  const std::string path = folder.write("a.txt", text);
  const auto part = [&](double fraction, Part which) {
    const Strings d = documents(path, {.split = {Holdout::tail, fraction, which}});
    return d.empty() ? std::string() : d.front();
  };
  EXPECT_EQ(part(0.05, Part::eval), text.substr(950));  // the cut is a line start already
  EXPECT_EQ(part(0.055, Part::eval), text.substr(950));
  EXPECT_EQ(part(0.051, Part::eval), text.substr(950));
  for (const double fraction : {0.05, 0.055, 0.33, 0.999}) {
    const std::string train = part(fraction, Part::train), eval = part(fraction, Part::eval);
    EXPECT_EQ(train + eval, text) << fraction;
    EXPECT_EQ(eval.substr(0, 5), "line ");
  }
}

}  // namespace
}  // namespace nibble
