// The bytes of a token shard, and what is found when they are wrong (spec/training.md 4.6; E303, E309 of 7.2).
#include "data/shards.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/hash.h"
#include "corpus.h"
#include "data/dataset.h"

namespace nibble {
namespace {

uint64_t word_at(const std::string& bytes, size_t at) {
  uint64_t value;
  std::memcpy(&value, bytes.data() + at, 8);
  return value;
}

TEST(TrainingT37, BytesOfAShard) {
  TemporaryFolder folder;
  const std::string b = content_of(write_shard(folder / "a.nbt", {{1, 2, 3}, {4, 500}}));
  ASSERT_EQ(b.size(), 64u + 64 + 8 * 3 + 8 * 2 + 8);
  EXPECT_EQ(b.substr(0, 8), "NIBBLTOK");
  EXPECT_EQ(word_at(b, 8), 1u | uint64_t{2} << 32);  // version 1, 2 bytes an id
  EXPECT_EQ(word_at(b, 16), 5u);
  EXPECT_EQ(word_at(b, 24), 2u);
  EXPECT_EQ(word_at(b, 32), 500u);
  EXPECT_EQ(word_at(b, 40), 5u);
  EXPECT_EQ(word_at(b, 48), 7u);
  EXPECT_EQ(word_at(b, 56), xxh3(b.substr(0, 56) + b.substr(128)));
  EXPECT_EQ(b.substr(64, 10), std::string("\1\0\2\0\3\0\4\0\xf4\1", 10));
  EXPECT_EQ(b.substr(74, 54), std::string(54, '\0'));
  const uint64_t tables[] = {0, 3, 5, 3, 2, xxh3(b.substr(64, 64))};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(word_at(b, 128 + 8 * i), tables[i]) << i;
}

TEST(TrainingT37, WideIdsRoundTrip) {
  TemporaryFolder folder;
  const Shard shard(write_shard(folder / "a.nbt", {{70000, 2}, {1 << 30}}, 4));
  std::vector<int32_t> ids(3);
  shard.read(0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{70000, 2, 1 << 30}));
  EXPECT_EQ(shard.largest_id(), uint64_t{1} << 30);
  shard.verify();
}

TEST(TrainingT57, E309EveryDamagedByteAndLengthOfAShardIsFound) {
  TemporaryFolder folder;
  const std::string good = content_of(write_shard(folder / "a.nbt", {{1, 2, 3}, {4, 500}}));
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    const std::string path = folder.write("bad.nbt", bad);
    expect_error([&] { Shard(path).verify(); }, "E309", 65, {path, "expected", "got"});
  }
  for (size_t size = 0; size < good.size(); size += 7) {
    const std::string path = folder.write("short.nbt", good.substr(0, size));
    expect_error([&] { Shard{path}; }, "E309", 65, {path, "bytes"});
  }
  const std::string path = folder.write("other.nbt", std::string(200, 'x'));
  expect_error([&] { Shard{path}; }, "E309", 65, {"magic NIBBLTOK", "78 78"});
}

TEST(TrainingT57, E309AShardLeftHalfWayDoesNotOpen) {
  TemporaryFolder folder;
  {
    ShardWriter writer(folder / "a.nbt", 2, 1);
    writer.add(std::vector<int32_t>(1 << 20, 5), 1);
  }
  expect_error([&] { Shard(folder / "a.nbt"); }, "E309", 65, {"magic"});
}

TEST(TrainingT57, E303TokenIdBeyondTheVocabulary) {
  TemporaryFolder folder;
  const std::string path = write_shard(folder / "a.nbt", {{1, 2, 3}, {4, 500, 6}});
  const std::string before = content_of(path);
  TokenDataset(std::vector<std::string>{path}, 501);
  expect_error([&] { TokenDataset(std::vector<std::string>{path}, 500); }, "E303", 65,
               {"500", "vocabulary of 500", path, "token offset 4", "document 1", "vocab_size=512"});
  EXPECT_EQ(content_of(path), before);
}

TEST(TrainingT37, ADataSetJoinsShardsAndDropsEmptyDocuments) {
  TemporaryFolder folder;
  const TokenDataset data(
      {write_shard(folder / "a.nbt", {{1, 2}, {}, {3}}), write_shard(folder / "b.nbt", {{4, 5, 6}}, 4)}, 100);
  EXPECT_EQ(data.tokens(), 6);
  EXPECT_EQ(data.documents(), 3);
  EXPECT_EQ(data.empty_documents(), 1);
  EXPECT_EQ(data.longest_document(), 3);
  EXPECT_EQ(data.source_bytes(), 6);
  std::vector<int32_t> ids(5);
  data.read(1, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 3, 4, 5, 6}));
  EXPECT_EQ(data.document_at(2), 1);
  EXPECT_EQ(data.document_at(3), 2);
  EXPECT_EQ(data.document_bytes(2), 3);
}

}  // namespace
}  // namespace nibble
