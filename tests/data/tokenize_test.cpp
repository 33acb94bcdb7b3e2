// T37, T39 and T40 of spec/training.md 9: text to shards.
#include "data/tokenize.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/hash.h"
#include "corpus.h"
#include "data/loader.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> texts = {"The first document.", "caf\xc3\xa9", "a", "one \xf0\x9f\x98\x80 more",
                                        "The end of it"};

std::vector<uint64_t> row_hashes(const std::vector<std::string>& shards) {
  BatchSource source(concat_then_split(std::make_shared<TokenDataset>(shards, 259), {.length = 7, .pad = 258}),
                     {.epochs = 0});
  Batch batch(source.rows(), 7);
  source.fill(batch, 0);
  return batch.row_hashes;
}

TEST(TrainingT37, TheSameDocumentsGiveTheSameRows) {
  TemporaryFolder folder;
  ThreadPool pool(2);
  std::string lines, blocks, json;
  for (const std::string& t : texts) {
    lines += t + "\n", blocks += t + "\n\n";
    json += nlohmann::json({{"text", t}}).dump() + "\n";
  }
  std::vector<std::string> files;
  for (size_t i = 0; i < texts.size(); ++i) files.push_back(folder.write(fmt::format("{}.txt", i), texts[i]));
  const auto tokenized = [&](const std::vector<std::string>& from, DocumentRule rule) {
    const TokenFolder t =
        tokenize_cached(from, byte_encoder(), {.text = {.document = rule}}, folder / "cache", "", pool);
    EXPECT_EQ(t.documents, 5);
    EXPECT_TRUE(t.built);
    return row_hashes(t.shards);
  };
  std::vector<std::vector<int32_t>> documents;
  for (const std::string& t : texts) {
    documents.push_back({256});
    for (const char c : t) documents.back().push_back(static_cast<unsigned char>(c));
    documents.back().push_back(257);
  }
  const auto expected = row_hashes({write_shard(folder / "direct.nbt", documents)});
  EXPECT_EQ(tokenized(files, DocumentRule::file), expected);
  EXPECT_EQ(tokenized({folder.write("lines.txt", lines)}, DocumentRule::line), expected);
  EXPECT_EQ(tokenized({folder.write("blocks.txt", blocks)}, DocumentRule::blank_line), expected);
  EXPECT_EQ(tokenized({folder.write("all.jsonl", json)}, DocumentRule::file), expected);
}

// Enough documents for several blocks of 64 groups.
std::string many_lines(int count) {
  std::string s;
  for (int i = 0; i < count; ++i) s += fmt::format("line {} {}\n", i, std::string(static_cast<size_t>(i % 97), 'x'));
  return s;
}

TEST(TrainingT37, ShardsAreTheSameForAnyThreadCountAndNeverSplitADocument) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", many_lines(150000));
  TokenizeOptions options{.text = {.document = DocumentRule::line}, .max_shard_tokens = 3000000};
  std::vector<std::string> first;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    const std::string out = folder / fmt::format("out{}", threads);
    const TokenFolder t = tokenize_to({path}, byte_encoder(), options, out, pool);
    EXPECT_EQ(t.documents, 150000);
    EXPECT_EQ(t.tokens, static_cast<int64_t>(fs::file_size(path)) + 150000);  // LF goes, BOS and EOS come
    ASSERT_EQ(t.shards.size(), 4u);
    std::vector<std::string> content;
    for (const std::string& shard : t.shards) {
      content.push_back(content_of(shard));
      Shard(shard).verify();
      EXPECT_LE(Shard(shard).tokens(), 3000000);
    }
    content.push_back(content_of(out + "/meta.json"));
    if (first.empty()) first = content;
    EXPECT_EQ(content, first) << threads << " threads";
  }
}

TEST(TrainingT37, MetaAndOptions) {
  TemporaryFolder folder;
  ThreadPool pool(1);
  const std::string path = folder.write("a.txt", "ab\n\ncd\n");
  TokenizeOptions options{.text = {.document = DocumentRule::line}, .add_bos = false};
  const TokenFolder t = tokenize_to({path}, byte_encoder(), options, folder / "out", pool);
  const auto meta = nlohmann::json::parse(content_of(folder / "out/meta.json"));
  EXPECT_EQ(meta["key"], hex16(t.key));
  EXPECT_EQ(t.key, token_folder_key({path}, byte_encoder(), options));
  EXPECT_EQ(t.key, xxh3(hex16(1) + meta["options"].dump() + meta["sources"].dump()));
  EXPECT_EQ(meta["sources"][0]["name"], "a.txt");
  EXPECT_EQ(meta["sources"][0]["bytes"], 7);
  EXPECT_EQ(meta["sources"][0]["XXH3-64"], hex16(xxh3("ab\n\ncd\n")));
  EXPECT_EQ(meta["empty_documents"], 1);
  EXPECT_EQ(meta["options"], nlohmann::json({{"add_bos", false},
                                             {"add_eos", true},
                                             {"column", "text"},
                                             {"text_document", "line"},
                                             {"tokenizer_split", ""}}));
  std::vector<int32_t> ids(6);
  const TokenDataset data(t.shards, 259);
  ASSERT_EQ(data.tokens(), 6);
  data.read(0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{'a', 'b', 257, 'c', 'd', 257}));
  EXPECT_EQ(data.source_bytes(), 4);
}

TEST(TrainingT39, ChangingOneByteRebuildsAndTheSameIsFoundAgain) {
  TemporaryFolder folder;
  ThreadPool pool(1);
  const std::string path = folder.write("a.txt", "one document");
  const auto run = [&](const TokenizeOptions& o = {}) {
    return tokenize_cached({path}, byte_encoder(), o, "", "", pool);
  };
  const TokenFolder first = run();
  EXPECT_TRUE(first.built);
  EXPECT_EQ(fs::path(first.folder).parent_path(), folder.path());
  EXPECT_EQ(fs::path(first.folder).filename(), "nibble-" + hex16(first.key));
  EXPECT_FALSE(run().built);
  EXPECT_TRUE(run({.add_eos = false}).built);
  folder.write("a.txt", "One document");
  const TokenFolder second = run();
  EXPECT_TRUE(second.built);
  EXPECT_NE(second.key, first.key);
  std::string shard = content_of(second.shards[0]);  // a damaged shard is not taken: it is made again
  std::ofstream(second.shards[0], std::ios::binary) << shard.substr(0, shard.size() - 8);
  EXPECT_TRUE(run().built);
  EXPECT_EQ(content_of(second.shards[0]), shard);
  TextEncoder other = byte_encoder();
  other.hash = 2;
  EXPECT_TRUE(tokenize_cached({path}, other, {}, "", "", pool).built);
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST(TrainingT39, KillingAtAnyMomentLeavesAllOrNothing) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", many_lines(60000)), cache = folder / "cache";
  const TokenizeOptions options{.text = {.document = DocumentRule::line}, .max_shard_tokens = 500000};
  int left_nothing = 0, left_all = 0;
  std::string expected;
  for (int delay_us = 0; delay_us < 120000; delay_us += 4000) {
    fs::remove_all(cache);
    const pid_t child = ::fork();
    if (child == 0) {
      ThreadPool pool(2);
      tokenize_cached({path}, byte_encoder(), options, cache, "", pool);
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(delay_us));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    std::string folder_found;
    for (const std::string& name : fs::exists(cache) ? names_in(cache) : std::set<std::string>{})
      if (name.starts_with("nibble-")) folder_found = cache + "/" + name;
    if (folder_found.empty()) {
      ++left_nothing;
    } else {
      ++left_all;
      const auto found = open_token_folder(folder_found);
      ASSERT_TRUE(found) << "killed after " << delay_us << " us";
      EXPECT_EQ(found->documents, 60000);
      for (const std::string& shard : found->shards) Shard(shard).verify();
    }
    if (delay_us % 20000 == 0) {  // the next start completes, and clears away what the killed one left
      ThreadPool pool(2);
      const TokenFolder t = tokenize_cached({path}, byte_encoder(), options, cache, "", pool);
      EXPECT_EQ(t.documents, 60000);
      EXPECT_EQ(t.built, folder_found.empty());
      EXPECT_EQ(names_in(cache), std::set<std::string>{"nibble-" + hex16(t.key)});
    }
  }
  EXPECT_GT(left_nothing, 0);
}

TEST(TrainingT39, AStopOrAnErrorLeavesNothing) {
  TemporaryFolder folder;
  ThreadPool pool(2);
  const std::string path = folder.write("a.txt", many_lines(150000)), cache = folder / "cache";
  TokenizeOptions options{.text = {.document = DocumentRule::line}};
  int calls = 0;
  options.poll = [&] {
    if (++calls == 2) throw Error("E901", "stopped");
  };
  expect_error([&] { tokenize_cached({path}, byte_encoder(), options, cache, "", pool); }, "E901", 70, {"stopped"});
  EXPECT_EQ(names_in(cache), std::set<std::string>{});
}

TEST(TrainingT57, E307LeavesNoShardAndNamesTheFirstBadRecord) {
  TemporaryFolder folder;
  ThreadPool pool(3);
  std::string text = many_lines(20000);
  text[text.size() / 2] = '\xff', text[text.size() - 3] = '\xff';
  const std::string path = folder.write("a.txt", text), cache = folder / "cache";
  TokenizeOptions options{.text = {.document = DocumentRule::line}};
  expect_error([&] { tokenize_cached({path}, byte_encoder(), options, cache, "", pool); }, "E307", 65,
               {path, fmt::format("byte {}", text.size() / 2)});
  EXPECT_EQ(names_in(cache), std::set<std::string>{});
  options.text.on_bad_record = BadRecord::skip;
  const TokenFolder t = tokenize_cached({path}, byte_encoder(), options, cache, "", pool);
  EXPECT_EQ(t.bad_records, 2);
  EXPECT_EQ(t.documents, 19998);
  options.text.on_bad_record = BadRecord::error;  // the folder that skips them is not taken
  expect_error([&] { tokenize_cached({path}, byte_encoder(), options, cache, "", pool); }, "E307", 65, {path});
}

TEST(TrainingT57, E802AndE803WhereShardsGo) {
  TemporaryFolder folder;
  ThreadPool pool(1);
  const std::string path = folder.write("a.txt", "text");
  expect_error([&] { tokenize_to({path}, byte_encoder(), {}, folder.path(), pool); }, "E802", 73,
               {folder.path(), "overwrite=true"});
  const std::string blocked = path + "/cache";  // below a file no folder can be made
  expect_error([&] { tokenize_cached({path}, byte_encoder(), {}, blocked, "", pool); }, "E803", 73, {blocked});
  const TokenFolder t = tokenize_cached({path}, byte_encoder(), {}, blocked, folder / "run/cache", pool);
  EXPECT_TRUE(t.folder.starts_with(folder / "run/cache/nibble-"));
  EXPECT_NE(t.notice.find(blocked), std::string::npos);
  EXPECT_FALSE(tokenize_cached({path}, byte_encoder(), {}, blocked, folder / "run/cache", pool).built);
}

std::set<std::string> part_of(const TemporaryFolder& folder, const std::vector<std::string>& files, Part part,
                              ThreadPool& pool) {
  TokenizeOptions options{.text = {.document = DocumentRule::line, .split = {Holdout::hash, 0.2, part}}};
  const TokenFolder t = tokenize_cached(files, byte_encoder(), options, folder / "cache", "", pool);
  const TokenDataset data(t.shards, 259);
  std::set<std::string> found;
  for (int64_t d = 0; d < data.documents(); ++d) {
    std::vector<int32_t> ids(static_cast<size_t>(data.document_end(d) - data.document_begin(d)));
    data.read(data.document_begin(d), ids);
    found.emplace(ids.begin() + 1, ids.end() - 1);
  }
  return found;
}

TEST(TrainingT40, HashSplitIsStableAndKeepsDuplicatesTogether) {
  TemporaryFolder folder;
  ThreadPool pool(1);
  std::string a, b;
  for (int i = 0; i < 1000; ++i) a += fmt::format("document {}\n", i), b += fmt::format("document {}\n", 500 + i);
  const std::string one = folder.write("a.txt", a), two = folder.write("b.txt", b);
  const auto eval_one = part_of(folder, {one}, Part::eval, pool), train_one = part_of(folder, {one}, Part::train, pool);
  const auto eval_both = part_of(folder, {two, one}, Part::eval, pool),
             train_both = part_of(folder, {two, one}, Part::train, pool);
  EXPECT_EQ(eval_one.size() + train_one.size(), 1000u);
  EXPECT_NEAR(static_cast<double>(eval_one.size()), 200, 50);
  for (const std::string& d : eval_one) EXPECT_TRUE(eval_both.contains(d)) << d;
  for (const std::string& d : train_one) EXPECT_TRUE(train_both.contains(d)) << d;
  for (const std::string& d : eval_both) EXPECT_FALSE(train_both.contains(d)) << d;
  EXPECT_EQ(eval_both.size() + train_both.size(), 1500u);
  EXPECT_EQ(eval_one.contains("document 7"), xxh3("document 7") % 1000000 < 200000);
}

TEST(TrainingT40, HashSplitOfShards) {
  TemporaryFolder folder;
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < 500; ++d) documents.push_back({d % 250, 7, 8});
  const std::string path = write_shard(folder / "a.nbt", documents);
  const TokenDataset eval({path}, 300, {Holdout::hash, 0.3, Part::eval}),
      train({path}, 300, {Holdout::hash, 0.3, Part::train});
  EXPECT_EQ(eval.documents() + train.documents(), 500);
  EXPECT_NEAR(static_cast<double>(eval.documents()), 150, 60);
  const auto firsts = [](const TokenDataset& data) {
    std::set<int32_t> ids;
    for (int64_t d = 0; d < data.documents(); ++d) {
      int32_t id;
      data.read(data.document_begin(d), {&id, 1});
      ids.insert(id);
    }
    return ids;
  };
  for (const int32_t id : firsts(eval)) EXPECT_FALSE(firsts(train).contains(id));
  std::vector<int32_t> ids(
      static_cast<size_t>(eval.tokens()));  // reading goes over documents that are not next to each other
  eval.read(0, ids);
  for (size_t i = 1; i < ids.size(); i += 3) EXPECT_EQ(ids[i], 7);
  expect_error(
      [&] {
        TokenDataset({path}, 300, {Holdout::tail, 0.3, Part::eval});
      },
      "E010", 64, {"eval_holdout=tail", "not in this version"});
}

}  // namespace
}  // namespace nibble
