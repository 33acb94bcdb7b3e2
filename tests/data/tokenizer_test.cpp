// Tokenizers against what the original libraries give, their files, and what is refused: obligations T38 of
// spec/training.md and G8 of spec/generation.md.
#include "data/tokenizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "data/tokenizer_check.h"
#include "data/utf8.h"
#include "io/file.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr const char* golden_names[] = {"gpt2_bpe", "llama3_bpe", "qwen2_bpe"};

fs::path golden(const std::string& name) { return fs::path(NIBBLE_GOLDEN_DIR "/tokenizers") / name; }

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> texts_of(const std::string& name) {
  std::vector<std::string> texts;
  std::ifstream in(golden(name) / "cases.jsonl");
  for (std::string line; std::getline(in, line);) texts.push_back(Json::parse(line).at("text"));
  return texts;
}

class Folder {  // a temporary folder that goes away
 public:
  Folder() : path_(fs::temp_directory_path() / fmt::format("nibble-tokenizer-test-{}-{}", getpid(), next_++)) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  static inline int next_ = 0;
  fs::path path_;
};

Tokenizer trained(const std::string& split = "gpt2", int64_t vocab = 400) {
  std::string text;
  for (const std::string& t : texts_of("gpt2_bpe")) text += t + "\n";
  const std::vector<std::string_view> documents = {text};
  return Tokenizer::from_trained(train_bpe(documents, {.vocab_size = vocab, .split = split}));
}

std::vector<Tokenizer> all_tokenizers() {
  std::vector<Tokenizer> all = {Tokenizer::byte_level(), trained("gpt2"), trained("llama3"), trained("qwen2")};
  for (const char* name : golden_names) all.push_back(Tokenizer::load(golden(name)));
  return all;
}

TEST(TrainingT38, GoldenCases) {
  for (const char* name : golden_names) {
    const CheckResult result = check_tokenizer(Tokenizer::load(golden(name)), golden(name) / "cases.jsonl");
    EXPECT_EQ(result.cases, static_cast<int64_t>(texts_of(name).size()));
    EXPECT_GE(result.cases, 220) << name;
    EXPECT_EQ(result.comparisons, 4 * result.cases);
    EXPECT_EQ(result.differences, 0) << name << ": " << (result.first.empty() ? "" : result.first[0]);
  }
}

TEST(TrainingT38, CheckReportsDifferences) {
  const CheckResult result = check_tokenizer(Tokenizer::load(golden("gpt2_bpe")), golden("qwen2_bpe") / "cases.jsonl");
  EXPECT_FALSE(result.equal());
  ASSERT_EQ(result.first.size(), 10u);
  EXPECT_EQ(result.first[0].substr(0, 5), "line ");
  EXPECT_NE(result.first[0].find("expected"), std::string::npos);
}

TEST(TrainingT38, DecodeReturnsTheText) {  // qwen2 apart, whose normaliser changes the text
  for (const Tokenizer& t : {Tokenizer::byte_level(), trained(), trained("llama3"), Tokenizer::load(golden("gpt2_bpe")),
                             Tokenizer::load(golden("llama3_bpe"))})
    for (const std::string& text : texts_of("llama3_bpe"))
      for (const bool parse_special : {false, true})
        ASSERT_EQ(t.decode(t.encode(text, parse_special), false), text) << t.name();
}

TEST(TrainingT38, IllFormedTextIsKeptByteForByte) {
  const std::string bytes = "ok \xff\xfe\xe6\x9d caf\xc3\xa9 \xf0\x9f\x91 \xed\xa0\x80 end\xc3";
  for (const Tokenizer& t : all_tokenizers()) {
    EXPECT_EQ(t.decode(t.encode(bytes, false), false), bytes) << t.name();
    std::string every;
    for (int b = 255; b >= 0; --b) every.push_back(static_cast<char>(b));
    EXPECT_EQ(t.decode(t.encode(every, false), false), every) << t.name();
  }
}

TEST(TrainingT38, ByteTokenizer) {
  const Tokenizer t = Tokenizer::byte_level();
  EXPECT_EQ(t.vocab_size(), 259);
  EXPECT_EQ(t.bos(), 256);
  EXPECT_EQ(t.eos(), 257);
  EXPECT_EQ(t.pad(), 258);
  EXPECT_EQ(t.name(), "byte");
  EXPECT_EQ(t.encode("a\xc3\xa9<|eos|>", true), (Ids{'a', 0xc3, 0xa9, 257}));
  EXPECT_EQ(t.encode("<|eos|>", false), (Ids{'<', '|', 'e', 'o', 's', '|', '>'}));
  EXPECT_EQ(t.decode(Ids{256, 'h', 'i', 257, 258, 9999, -1}, true), "hi");
  EXPECT_EQ(t.decode(Ids{256, 'h', 257}, false), "<|bos|>h<|eos|>");
  EXPECT_EQ(t.bytes_of(257), "");
  EXPECT_EQ(t.text_of(257), "<|eos|>");
  EXPECT_EQ(t.bytes_of(0xc3), "\xc3");
  EXPECT_EQ(t.decode_text(Ids{0xc3}, true), "\ufffd");
  EXPECT_TRUE(t.is_special(258));
  EXPECT_FALSE(t.is_special(255));
  EXPECT_FALSE(t.is_special(259));
  EXPECT_EQ(t.id_of("<|pad|>"), 258);
  EXPECT_EQ(t.id_of("a"), 'a');
  EXPECT_EQ(t.id_of("ab"), -1);
}

TEST(TrainingT38, SpecialTokensOfTheGoldenFiles) {
  const Tokenizer llama = Tokenizer::load(golden("llama3_bpe"));
  EXPECT_EQ(llama.vocab_size(), 1024);
  EXPECT_EQ(llama.bos(), 1019);
  EXPECT_EQ(llama.eos(), 1020);
  EXPECT_EQ(llama.pad(), -1);
  EXPECT_EQ(Ids(llama.template_prefix().begin(), llama.template_prefix().end()), Ids{1019});
  EXPECT_TRUE(llama.template_suffix().empty());
  EXPECT_EQ(llama.encode("<|eot_id|>", true), Ids{1023});
  EXPECT_GT(llama.encode("<|eot_id|>", false).size(), 1u);
  EXPECT_EQ(Tokenizer::load(golden("gpt2_bpe")).eos(), 1023);
}

TEST(TrainingT38, OwnFilesLoadAgain) {
  for (const Tokenizer& t : {Tokenizer::byte_level(), trained("gpt2"), trained("llama3"), trained("qwen2")}) {
    const Folder folder, again;
    t.save(folder.path(), 512);
    const Tokenizer loaded = Tokenizer::load(folder.path());
    EXPECT_EQ(loaded.hash(), t.hash());
    EXPECT_EQ(loaded.name(), t.name());
    EXPECT_EQ(loaded.bos(), t.vocab_size() - 3);
    EXPECT_EQ(loaded.pad(), t.vocab_size() - 1);
    for (const std::string& text : texts_of("gpt2_bpe")) ASSERT_EQ(loaded.encode(text, true), t.encode(text, true));
    const Json config = Json::parse(slurp(folder.path() / "tokenizer_config.json"));
    EXPECT_EQ(config, (Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                            {"bos_token", "<|bos|>"},
                            {"eos_token", "<|eos|>"},
                            {"pad_token", "<|pad|>"},
                            {"model_max_length", 512}}));
    loaded.save(again.path(), 999);  // files of a loaded tokenizer are copied, not written anew
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      EXPECT_EQ(slurp(again.path() / name), slurp(folder.path() / name));
  }
}

TEST(TrainingT38, OwnByteFileIsAsSpecified) {
  const Json j = Json::parse(Tokenizer::byte_level().files(1).at(0).second);
  EXPECT_EQ(j["model"]["type"], "BPE");
  EXPECT_EQ(j["model"]["merges"], Json::array());
  EXPECT_EQ(j["model"]["vocab"].size(), 256u);
  EXPECT_EQ(j["model"]["vocab"]["A"], 65);
  EXPECT_EQ(j["model"]["vocab"]["\u0120"], 32);
  EXPECT_EQ(j["model"]["vocab"]["\u0100"], 0);
  EXPECT_EQ(j["pre_tokenizer"]["add_prefix_space"], false);
  EXPECT_EQ(j["pre_tokenizer"]["use_regex"], false);
  EXPECT_EQ(j["decoder"]["type"], "ByteLevel");
  EXPECT_EQ(j["added_tokens"][2]["content"], "<|pad|>");
  EXPECT_EQ(j["added_tokens"][2]["id"], 258);
}

TEST(TrainingT38, ForeignFilesAreCopiedUnchanged) {
  const Folder source, target;
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt"})
    source.write(name, slurp(golden("gpt2_bpe") / name));
  source.write("tokenizer.model", "not looked into");
  source.write("README.md", "not a tokenizer file");
  Tokenizer::load(source.path()).save(target.path(), 7);
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model"})
    EXPECT_EQ(slurp(target.path() / name), slurp(source.path() / name)) << name;
  EXPECT_FALSE(fs::exists(target.path() / "README.md"));
  EXPECT_FALSE(fs::exists(target.path() / "tokenizer_config.json"));
}

TEST(TrainingT38, ConfigurationNamesBosEosPad) {
  const std::string json = slurp(golden("qwen2_bpe") / "tokenizer.json");
  const Tokenizer t = Tokenizer::from_json(
      json, R"({"bos_token": null, "eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"})");
  EXPECT_EQ(t.bos(), -1);
  EXPECT_EQ(t.eos(), 1023);
  EXPECT_EQ(t.pad(), 1021);
  EXPECT_NE(t.hash(), Tokenizer::from_json(json).hash());
  EXPECT_EQ(Tokenizer::from_json(json + "\n").hash(), Tokenizer::from_json(json).hash());  // formatting does not count
}

TEST(TrainingT38, ThreadsEncodeTheSame) {
  const std::vector<std::string> texts = texts_of("llama3_bpe");
  const Tokenizer a = Tokenizer::load(golden("llama3_bpe")), b = Tokenizer::load(golden("qwen2_bpe"));
  const auto all = [&] {
    Ids ids;
    for (const std::string& text : texts)
      for (const Tokenizer* t : {&a, &b}) t->encode(text, true, ids);
    return ids;
  };
  const Ids want = all();
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& ids : got) threads.emplace_back([&] { ids = all(); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, want);
}

TEST(TrainingT38, EncoderOfTheDataPipeline) {
  const Tokenizer t = Tokenizer::byte_level();
  const TextEncoder encoder = t.encoder(true);
  Ids ids;
  encoder.encode("x<|eos|>", ids);
  EXPECT_EQ(ids, (Ids{'x', 257}));
  EXPECT_EQ(encoder.vocab, 259);
  EXPECT_EQ(encoder.bos, 256);
  EXPECT_EQ(encoder.hash, t.hash());
  EXPECT_TRUE(encoder.parse_special);
}

TEST(GenerationG8, RandomIdsStreamToTheOneShotText) {
  uint32_t x = 1;
  for (const Tokenizer& t : all_tokenizers())
    for (int sequence = 0; sequence < 2000; ++sequence) {
      Ids ids(1 + sequence % 24);
      for (int32_t& id : ids) id = static_cast<int32_t>((x = x * 1664525u + 1013904223u) >> 8) % t.vocab_size();
      for (const bool skip_special : {false, true}) {
        Utf8Stream stream;
        std::string text;
        for (const int32_t id : ids) {
          const std::string delta = stream.feed(skip_special ? t.bytes_of(id) : t.text_of(id));
          ASSERT_EQ(utf8_valid_prefix(delta), delta.size());
          text += delta;
        }
        ASSERT_EQ(text + stream.finish(), t.decode_text(ids, skip_special)) << t.name() << ", sequence " << sequence;
      }
    }
}

// clang-format off
struct FlagRow { const char* why; Json token; const char* text; Ids want; };  // the token has id 1024 in gpt2_bpe
// clang-format on
Tokenizer gpt2_with(const Json& added) {
  Json j = Json::parse(slurp(golden("gpt2_bpe") / "tokenizer.json"));
  Json token = {{"id", 1024},      {"content", "TOK"},    {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", false}};
  if (!added.is_null()) token.update(added);
  j["added_tokens"].push_back(token);
  return Tokenizer::from_json(j.dump());
}

TEST(TrainingT38, FlagsOfAddedTokens) {
  const Tokenizer plain = Tokenizer::load(golden("gpt2_bpe"));
  const auto id = [&](const char* text) { return plain.encode(text, false); };
  const auto with = [&](const char* before, const char* after) {
    Ids ids = id(before);
    ids.push_back(1024);
    for (const int32_t i : id(after)) ids.push_back(i);
    return ids;
  };
  const FlagRow rows[] = {{"found anywhere", {}, "a TOKb", with("a ", "b")},
                          {"takes the space before", {{"lstrip", true}}, "a \t\u3000TOKb", with("a", "b")},
                          {"takes the space after", {{"rstrip", true}}, "aTOK \n b", with("a", "b")},
                          {"not within a word", {{"single_word", true}}, "aTOK b", id("aTOK b")},
                          {"between non-words", {{"single_word", true}}, "a TOK, b", with("a ", ", b")},
                          {"not special: also in documents", {{"special", false}}, "TOK", {1024}}};
  for (const FlagRow& row : rows) EXPECT_EQ(gpt2_with(row.token).encode(row.text, false), row.want) << row.why;
  EXPECT_EQ(gpt2_with({{"special", true}}).encode("a TOK", false), id("a TOK"));
  EXPECT_EQ(gpt2_with({{"content", "<|endoftext|>!"}}).encode("<|endoftext|>!", true), Ids{1024});  // the longest
  EXPECT_EQ(gpt2_with({}).bytes_of(1024), "TOK");  // not special: part of the text
}

TEST(TrainingT38, NormalizedAddedTokensAreFoundInNormalizedText) {
  Json j = Json::parse(slurp(golden("qwen2_bpe") / "tokenizer.json"));
  for (const bool normalized : {false, true})
    j["added_tokens"].push_back({{"id", normalized ? 1025 : 1024},
                                 {"content", normalized ? "\u00e9\u00e9" : "e\u0301!"},
                                 {"normalized", normalized},
                                 {"special", false}});
  const Tokenizer t = Tokenizer::from_json(j.dump());
  EXPECT_EQ(t.encode("e\u0301e\u0301", false), Ids{1025});
  EXPECT_EQ(t.encode("\u00e9\u00e9", false), Ids{1025});
  EXPECT_EQ(t.encode("e\u0301!", false), Ids{1024});
  EXPECT_EQ(t.encode("\u00e9!", false).size(), Tokenizer::load(golden("qwen2_bpe")).encode("\u00e9!", false).size());
}

TEST(TrainingT38, PrefixSpaceAndStringMerges) {
  Json j = Json::parse(slurp(golden("gpt2_bpe") / "tokenizer.json"));
  const Tokenizer plain = Tokenizer::from_json(j.dump());
  j["pre_tokenizer"]["add_prefix_space"] = true;
  for (Json& merge : j["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const Tokenizer t = Tokenizer::from_json(j.dump());
  EXPECT_EQ(t.encode("the law", false), plain.encode(" the law", false));
  EXPECT_EQ(t.encode(" the law", false), plain.encode(" the law", false));
  EXPECT_EQ(t.encode("", false), Ids{});
}

// What is refused: a change to a good file, and the place that the message must name.
struct RefusalRow {
  const char* pointer;
  Json value;
  const char* component;
  const char* path;
};
const RefusalRow refusals[] = {
    {"/model/type", "Unigram", "Unigram", "model.type"},
    {"/model/type", "WordPiece", "WordPiece", "model.type"},
    {"/model/dropout", 0.1, "dropout", "model.dropout"},
    {"/model/byte_fallback", true, "byte_fallback", "model.byte_fallback"},
    {"/model/end_of_word_suffix", "</w>", "</w>", "model.end_of_word_suffix"},
    {"/model/continuing_subword_prefix", "##", "##", "model.continuing_subword_prefix"},
    {"/model/merges/3", Json::array({"q", "zzz"}), "zzz", "model.merges[3]"},
    {"/model/merges/3", "one", "merges[3]", "model.merges[3]"},
    {"/model/vocab", Json::array(), "model.vocab", "model.vocab"},
    {"/model/vocab/q", -3, "model.vocab", "model.vocab"},
    {"/model", nullptr, "model", "model"},
    {"/version", "2.0", "2.0", "version"},
    {"/normalizer", {{"type", "NFKC"}}, "NFKC", "normalizer"},
    {"/normalizer",
     {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Lowercase"}}}}},
     "Lowercase",
     "normalizer.normalizers[1]"},
    {"/pre_tokenizer", nullptr, "without ByteLevel", "pre_tokenizer"},
    {"/pre_tokenizer", {{"type", "Metaspace"}}, "Metaspace", "pre_tokenizer"},
    {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "Removed", "pre_tokenizer.pretokenizers[0].behavior"},
    {"/pre_tokenizer/pretokenizers/0/invert", true, "invert", "pre_tokenizer.pretokenizers[0].invert"},
    {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "Split", "pre_tokenizer.pretokenizers[0].pattern"},
    {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+", "\\w", "pre_tokenizer.pretokenizers[0].pattern.Regex"},
    {"/pre_tokenizer/pretokenizers/2", {{"type", "Digits"}}, "Digits", "pre_tokenizer.pretokenizers[2]"},
    {"/decoder", {{"type", "WordPiece"}}, "WordPiece", "decoder"},
    {"/decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}}}}, "Fuse", "decoder.decoders[0]"},
    {"/post_processor", {{"type", "BertProcessing"}}, "BertProcessing", "post_processor"},
    {"/post_processor/processors/1/single/1/Sequence/id", "B", "template", "post_processor.processors[1].single[1]"},
    {"/added_tokens/0/id", 7, "id 7", "added_tokens[0]"},
    {"/added_tokens/0/lstrip", "yes", "lstrip", "added_tokens[0].lstrip"}};

TEST(TrainingT38, UnsupportedComponentsAreNamedWithTheirPlace) {
  const Json good = Json::parse(slurp(golden("llama3_bpe") / "tokenizer.json"));
  EXPECT_NO_THROW(Tokenizer::from_json(good.dump()));
  for (const RefusalRow& row : refusals) {
    Json j = good;
    j[Json::json_pointer(row.pointer)] = row.value;
    try {
      Tokenizer::from_json(j.dump(), {}, "some/tokenizer.json");
      ADD_FAILURE() << row.pointer << " " << row.value.dump();
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E308") << e.message();
      EXPECT_EQ(e.exit_code(), exit_data);
      EXPECT_NE(e.what_text.find(row.component), std::string::npos) << e.message();
      EXPECT_NE(e.where_text.find(std::string("some/tokenizer.json, ") + row.path), std::string::npos) << e.message();
      EXPECT_FALSE(e.hint_text.empty());
    }
  }
}

std::string error_of(const fs::path& path, std::string_view must_contain) {
  try {
    Tokenizer::load(path);
  } catch (const Error& e) {
    EXPECT_NE(e.message().find(must_contain), std::string::npos) << e.message();
    EXPECT_FALSE(e.hint_text.empty());
    return e.id;
  }
  return "none";
}

TEST(TrainingT38, PathsThatAreNoTokenizer) {
  const Folder folder, empty;
  EXPECT_EQ(error_of(folder.path() / "absent.json", "does not exist"), "E202");
  EXPECT_EQ(error_of("no_such_folder/tokenizer.json", "working folder"), "E202");
  EXPECT_EQ(error_of(empty.path(), "holds no tokenizer.json"), "E202");
  EXPECT_EQ(error_of("meta-llama/Llama-3.2-1B", "nothing is downloaded"), "E302");
  EXPECT_EQ(error_of("https://huggingface.co/gpt2/resolve/main/tokenizer.json", "nothing is downloaded"), "E302");
  EXPECT_EQ(error_of("gs://bucket/tokenizer.model", "nothing is downloaded"), "E302");
  EXPECT_EQ(error_of(folder.write("spm.model", "\x0a\x0e\x0a\x05<unk>"), "SentencePiece"), "E308");
  EXPECT_EQ(error_of(folder.write("ranks.tiktoken", "IQ== 0\nIg== 1\n"), "tiktoken"), "E308");
  EXPECT_EQ(error_of(folder.write("notes.txt", "hello"), "no tokenizer.json"), "E308");
  EXPECT_EQ(error_of(folder.write("empty.json", ""), "empty"), "E309");
  EXPECT_EQ(error_of(golden("gpt2_bpe") / "vocab.json", "without a model"), "E308");
  const std::string json = slurp(golden("gpt2_bpe") / "tokenizer.json");
  EXPECT_EQ(error_of(folder.write("cut.json", json.substr(0, 5000)), "at byte 5001 of 5000"), "E309");
  EXPECT_EQ(error_of(golden("gpt2_bpe") / "tokenizer.json", ""), "none");
}

TEST(TrainingT38, TruncatedFilesNeverCrash) {  // every cut of a small file, and every byte changed
  const std::string json = Tokenizer::byte_level().files(1).at(0).second;
  for (size_t n = 0; n < json.size(); n += 41) {
    EXPECT_THROW(Tokenizer::from_json(json.substr(0, n)), Error) << n;
    std::string changed = json;
    changed[n] = '0';
    try {
      Tokenizer::from_json(changed);
    } catch (const Error& e) {
      EXPECT_TRUE(e.id == "E308" || e.id == "E309") << e.message();
    }
  }
}

TEST(TrainingT38, CasesThatCannotBeRead) {
  const Folder folder;
  const Tokenizer t = Tokenizer::byte_level();
  const auto id_of = [&](const fs::path& cases) {
    try {
      check_tokenizer(t, cases);
    } catch (const Error& e) {
      return e.id;
    }
    return std::string("none");
  };
  EXPECT_EQ(id_of(folder.path() / "absent.jsonl"), "E202");
  EXPECT_EQ(id_of(folder.path()), "E202");
  EXPECT_EQ(id_of(folder.write("blank.jsonl", "\n")), "E203");
  EXPECT_EQ(id_of(folder.write("bad.jsonl", "{\"text\": \"a\"}\n")), "E307");
  EXPECT_EQ(id_of(folder.write("good.jsonl", R"({"text": "a", "ids": [97], "decoded": "a"})")), "none");
  EXPECT_THROW(t.save(folder.path() / "absent", 1), Error);
}

// A run that is killed while it writes its tokenizer finds none at its next start, or all of it.
TEST(DataT48, TokenizerAppearsWholeOrNotAtAll) {
  const Tokenizer t = Tokenizer::byte_level();
  int64_t failures = 0;
  for (bool saved = false; !saved; ++failures) {
    ASSERT_LT(failures, 50);
    const Folder folder;
    FaultInjection::arm(failures + 1, EIO, true);
    try {
      t.save(folder.path(), 64);
      saved = true;
    } catch (const Error& e) {
      EXPECT_EQ(e.id, "E801");
    }
    FaultInjection::disarm();
    if (fs::exists(folder.path() / "tokenizer.json")) {
      EXPECT_TRUE(fs::exists(folder.path() / "tokenizer_config.json")) << failures;
      EXPECT_EQ(Tokenizer::load(folder.path()).hash(), t.hash()) << failures;
    } else {
      EXPECT_FALSE(saved);
    }
  }
  EXPECT_GT(failures, 8);  // two files, each opened, written, fsynced and renamed
}

}  // namespace
}  // namespace nibble
