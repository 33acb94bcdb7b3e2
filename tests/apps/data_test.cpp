// nibble data, run as the program runs it: results, exit codes and error rows of spec/training.md 1.7 and 7.2.
#include "../../apps/nibble/data.cpp"  // the command is no library

#include <gtest/gtest.h>

#include "data/corpus.h"

namespace nibble {
namespace {

struct Outcome {
  int exit;
  std::string out;
};
Outcome data(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  int exit = -1;
  try {
    exit = data_command.run(arguments);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  std::fflush(stdout);
  return {exit, testing::internal::GetCapturedStdout()};
}

// The first error, whether the command threw one or several.
void expect_data_error(const std::vector<std::string>& arguments, const std::string& id, int exit,
                       const std::vector<std::string>& words) {
  expect_error(
      [&] {
        try {
          data(arguments);
        } catch (const Errors& list) {
          throw Error(list.errors.at(0));
        }
      },
      id, exit, words);
}

TEST(TrainingT38, TrainTokenizeInspectVerify) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("the quick brown fox number {} jumps\n", i);
  const std::string book = folder.write("book.txt", text), tokenizer = folder / "tok", shards = folder / "shards";
  Outcome r = data({"train-tokenizer", book, "vocab_size=300", "out=" + tokenizer, "threads=1"});
  EXPECT_EQ(r.exit, 0);
  EXPECT_NE(r.out.find("300 tokens, 41 merges"), std::string::npos) << r.out;

  r = data({"tokenize", book, "out=" + shards, "tokenizer_path=" + tokenizer, "text_document=line", "--json"});
  EXPECT_EQ(r.exit, 0);
  const auto made = nlohmann::json::parse(r.out);
  EXPECT_EQ(made["documents"], 200);
  EXPECT_EQ(made["source_bytes"], static_cast<int64_t>(text.size()) - 200);
  EXPECT_EQ(made["vocab_size"], 300);

  r = data({"inspect", shards, "--json"});
  const auto seen = nlohmann::json::parse(r.out);
  EXPECT_EQ(seen["documents"], 200);
  EXPECT_EQ(seen["tokens"], made["tokens"]);
  EXPECT_EQ(seen["largest_id"], 298);  // <|eos|>
  EXPECT_EQ(seen["first"][1]["text"], "<|bos|>the quick brown fox number 1 jumps<|eos|>");
  EXPECT_NE(data({"inspect", shards}).out.find("200 documents"), std::string::npos);
  EXPECT_NE(data({"inspect", book, "text_document=line"}).out.find("200 documents"), std::string::npos);

  EXPECT_EQ(data({"verify", shards}).exit, 0);
  std::string shard = content_of(shards + "/00000.nbt");
  shard[70] = static_cast<char>(shard[70] ^ 1);
  std::ofstream(shards + "/00000.nbt", std::ios::binary) << shard;
  r = data({"verify", shards});
  EXPECT_EQ(r.exit, 1);
  EXPECT_NE(r.out.find("BAD"), std::string::npos);
  EXPECT_NE(r.out.find("E309"), std::string::npos) << r.out;
}

TEST(TrainingT38, CheckTokenizer) {
  TemporaryFolder folder;
  const std::string golden = std::string(NIBBLE_GOLDEN_DIR) + "/tokenizers/gpt2_bpe";
  Outcome r = data({"check-tokenizer", golden, golden + "/cases.jsonl"});
  EXPECT_EQ(r.exit, 0) << r.out;
  EXPECT_TRUE(r.out.starts_with("equal")) << r.out;
  r = data({"check-tokenizer", "byte", golden + "/cases.jsonl", "--json"});
  EXPECT_EQ(r.exit, 1);
  EXPECT_FALSE(nlohmann::json::parse(r.out)["equal"]);
}

TEST(TrainingT37, TokenizingWithBytes) {
  TemporaryFolder folder;
  const std::string lines = folder.write("a.jsonl", "{\"body\": \"hi\"}\n{\"body\": \"\"}\n");
  const Outcome r = data({"tokenize", lines, "out=" + (folder / "out"), "--tokenizer_type=byte", "add-bos=false",
                          "train_data_columns=[body]", "--json"});
  const auto made = nlohmann::json::parse(r.out);
  EXPECT_EQ(made["documents"], 1);
  EXPECT_EQ(made["empty_documents"], 1);
  std::vector<int32_t> ids(3);
  Shard(folder / "out/00000.nbt").read(0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{'h', 'i', 257}));
}

TEST(TrainingT57, DataCommandErrors) {
  TemporaryFolder folder;
  const std::string book = folder.write("book.txt", "text"), out = "out=" + (folder / "new");
  expect_data_error({"tokenise"}, "E007", 64, {"tokenise", "tokenize", "train-tokenizer"});
  expect_data_error({}, "E007", 64, {"verify"});
  expect_data_error({"tokenize", book, out, "tokenizer_type=byte", "add_boss=false"}, "E001", 64,
                    {"add_boss", "add_bos"});
  expect_data_error({"tokenize", book, out, "tokenizer_type=byte", "steps=5"}, "E001", 64, {"steps", "argument 5"});
  expect_data_error({"tokenize", "no_such.txt", out}, "E004", 64, {"no_such.txt", "key=value"});
  expect_data_error({"tokenize", out, "tokenizer_type=byte"}, "E201", 66, {"train_files="});
  expect_data_error({"tokenize", book, "tokenizer_type=byte"}, "E002", 64, {"out=VALUE"});
  expect_data_error({"tokenize", book, out}, "E002", 64, {"tokenizer_path", "train-tokenizer"});
  expect_data_error({"tokenize", book, "out=" + folder.path(), "tokenizer_type=byte"}, "E802", 73, {"overwrite=true"});
  expect_data_error({"train-tokenizer", book, out}, "E002", 64, {"vocab_size"});
  expect_data_error({"check-tokenizer", "byte"}, "E004", 64, {"CASES"});
  expect_data_error({"inspect"}, "E004", 64, {"PATH"});
  expect_data_error({"inspect", folder / "none.nbt"}, "E202", 66, {"none.nbt"});
  folder.write("bad.nbt", std::string(100, 'x'));
  expect_data_error({"inspect", folder / "bad.nbt"}, "E309", 65, {"NIBBLTOK"});
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));  // kept: nothing was made
}

}  // namespace
}  // namespace nibble
