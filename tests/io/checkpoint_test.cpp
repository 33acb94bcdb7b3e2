// Checkpoints: byte equality (T46, file layer), kills and faults (T48, T49), flipped bytes (T50), background writer.
#include "io/checkpoint.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

#include "core/hash.h"
#include "io/checkpoint_writer.h"
#include "io/run_folder.h"
#include "io_fixture.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

TEST(TrainingCheckpoint, RestoresEverything) {
  const TempFolder run;
  const fs::path path = save_checkpoint(run.path(), TinyRun(1000).content);
  EXPECT_EQ(path, run / "checkpoints/00001000");
  expect_restores(path, 1000);
  Checkpoint checkpoint(path);
  const CheckpointInfo& info = checkpoint.info();
  EXPECT_EQ(info.updates, 1000);
  EXPECT_EQ(info.position, 16000);
  EXPECT_EQ(info.tokens, 4096000);
  EXPECT_EQ(info.global_batch, 16);
  ASSERT_EQ(info.config.size(), 4u);
  EXPECT_EQ(info.config[0], (std::pair<std::string, Json>("adam_b1", 0.9)));
  EXPECT_EQ(info.config_hash, 0x0123456789abcdefu);
  EXPECT_EQ(info.mixture[0].source, "a.txt");
  EXPECT_EQ(info.mixture[0].weight, 0.7);
  EXPECT_EQ(info.skipped, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(info.tokenizer_hash, 0xfedcba9876543210u);
  EXPECT_EQ(info.data[0], (CheckpointInfo::DataFile{"a.txt", 12, 7}));
  EXPECT_EQ(info.parameters[0].shape, (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(info.sites[1], "lm_head");
  EXPECT_EQ(checkpoint.tokenizer_files(), (std::vector<std::string>{"tokenizer.json"}));
  EXPECT_TRUE(checkpoint.verify().empty());
  EXPECT_EQ(checkpoint.tensors().size(), 5u);
  const SafetensorsModel model(path);  // as a Hugging Face directory
  EXPECT_EQ(model.tensors().size(), 2u);
}

TEST(TrainingCheckpoint, NibbleJsonIsSpelledAsSpecified) {
  const TempFolder run;
  TinyRun tiny(1000);
  const fs::path path = save_checkpoint(run.path(), tiny.content);
  const std::string text = read_file(path / "nibble.json");
  EXPECT_TRUE(text.starts_with(
      "{\n  \"format\": 1,\n  \"program\": \"nibble 0.1.0\",\n  \"step\": 1000,\n  \"updates\": 1000,\n"
      "  \"position\": 16000,\n  \"tokens\": 4096000,\n  \"global_batch\": 16,\n  \"config\": {\n"
      "    \"adam_b1\": 0.9,\n    \"learning_rate\": 3e-05,\n    \"seed\": 1,\n    \"weights\": 1.0\n  },\n"
      "  \"config_hash\": \"0123456789abcdef\",\n  \"mixture\": [\n"))
      << text;
  std::vector<std::string> keys;
  const Json json = Json::parse(text);
  for (const auto& item : json.items()) keys.push_back(item.key());
  EXPECT_EQ(keys, (std::vector<std::string>{"format", "program", "step", "updates", "position", "tokens",
                                            "global_batch", "config", "config_hash", "mixture", "skipped", "tokenizer",
                                            "data", "parameters", "sites", "files", "hash"}));
  const size_t line = text.find("  \"hash\": \"", text.size() - 31);
  EXPECT_EQ(json["hash"], hex16(xxh3(std::string_view(text).substr(0, line))));
  for (const Json& file : json["files"]) {
    const std::string bytes = read_file(path / file["name"].get<std::string>());
    EXPECT_EQ(file["bytes"], bytes.size());
    EXPECT_EQ(file["chunks"], Json::array({hex16(xxh3(bytes))}));
  }
  EXPECT_EQ(json["files"].size(), 6u);
}

TEST(TrainingCheckpoint, ChunksAre64MiB) {
  const TempFolder folder;
  std::string bytes(static_cast<size_t>(hash_chunk_bytes) + 5, 'a');
  for (size_t i = 0; i < bytes.size(); i += 4096) bytes[i] = static_cast<char>(i >> 12);
  FileWriter writer(folder / "x");
  const size_t cuts[] = {0, 3, 1 << 20, (9 << 20) + 1, static_cast<size_t>(hash_chunk_bytes) + 2, bytes.size()};
  for (size_t i = 0; i + 1 < std::size(cuts); ++i)
    writer.write(std::string_view(bytes).substr(cuts[i], cuts[i + 1] - cuts[i]));
  const FileRecord record = writer.finish();
  EXPECT_EQ(record.chunks, (std::vector<uint64_t>{xxh3(std::string_view(bytes).substr(0, hash_chunk_bytes)),
                                                  xxh3(std::string_view(bytes).substr(hash_chunk_bytes))}));
  EXPECT_TRUE(MappedFile(folder / "x").text() == bytes);
}

std::map<std::string, std::string> all_files(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) files[fs::relative(entry.path(), directory).string()] = read_file(entry.path());
  return files;
}

TEST(TrainingT46, EqualContentGivesEqualBytes) {
  const TempFolder a, b;
  TinyRun one(12), two(12);
  std::reverse(two.content.config.begin(), two.content.config.end());
  two.content.run_info = {{"host", "elsewhere"}};
  auto left = all_files(save_checkpoint(a.path(), one.content)),
       right = all_files(save_checkpoint(b.path(), two.content));
  EXPECT_NE(left["run_info.json"], right["run_info.json"]);
  left.erase("run_info.json"), right.erase("run_info.json");
  EXPECT_EQ(left.size(), 7u);
  EXPECT_EQ(left, right);
  two.w[5] += 1;
  EXPECT_NE(all_files(save_checkpoint(b.path(), two.content))["nibble.json"], right["nibble.json"]);
}

TEST(TrainingT50, EveryFlippedByteIsFoundByVerifyAndByRestore) {
  const TempFolder run;
  save_checkpoint(run.path(), TinyRun(900).content);
  const fs::path path = save_checkpoint(run.path(), TinyRun(1000).content);
  const std::string older = (run / "checkpoints/00000900").string();
  int64_t flips = 0;
  for (const auto& [name, bytes] : all_files(path)) {
    if (name == "run_info.json") continue;
    std::unique_ptr<SafetensorsFile> tensors;
    if (name.ends_with(".safetensors")) tensors = std::make_unique<SafetensorsFile>(path / name);
    for (size_t at = 0; at < bytes.size(); ++at) {
      const uint8_t mask = at % 2 ? 0xff : static_cast<uint8_t>(1 << (at / 2 % 8));
      flip_byte(path / name, static_cast<int64_t>(at), mask);
      std::string verified, restored;
      try {
        const std::vector<Error> found = Checkpoint(path).verify();
        ASSERT_EQ(found.size(), 1u) << name << " byte " << at;
        verified = found[0].message();
      } catch (const Error& e) {  // of nibble.json itself
        ASSERT_EQ(name, "nibble.json");
        verified = e.message();
      }
      restored = error_of("E402", [&] { expect_restores(path, 1000); });
      ASSERT_EQ(verified, restored);
      ASSERT_NE(restored.find(name), std::string::npos) << restored;
      const auto names = [&](std::string_view words) { return restored.find(words) != std::string::npos; };
      const int64_t byte = static_cast<int64_t>(at);
      if (tensors && byte >= tensors->header_bytes()) {
        for (const TensorView& t : tensors->tensors())
          ASSERT_TRUE(byte < t.begin || byte >= t.begin + t.bytes || names(t.name)) << t.name << restored;
        ASSERT_TRUE(names("chunk 0 of 1")) << restored;
      }
      ASSERT_TRUE(name == "nibble.json" || names(older)) << restored;
      flip_byte(path / name, static_cast<int64_t>(at), mask);
      ++flips;
    }
  }
  EXPECT_GT(flips, 2500);
  expect_restores(path, 1000);
  flip_byte(path / "run_info.json", 3);
  EXPECT_TRUE(Checkpoint(path).verify().empty());
}

TEST(TrainingT50, OnlyTheDamagedChunkIsRefused) {
  const TempFolder run;
  TinyRun tiny(1);
  std::vector<float> large(static_cast<size_t>(hash_chunk_bytes / 4), 1.5f);
  tiny.content.tensors = {{"first", {24}, "F32", tiny.w.data()},
                          {"large", {hash_chunk_bytes / 4}, "F32", large.data()},
                          {"last", {4}, "F32", tiny.norm.data()}};
  const fs::path path = save_checkpoint(run.path(), tiny.content);
  const std::string file = "model-00001-of-00001.safetensors";
  flip_byte(path / file, static_cast<int64_t>(fs::file_size(path / file)) - 1);
  Checkpoint checkpoint(path);
  std::vector<float> got(24);
  checkpoint.read({{"first", {24}, "F32", got.data()}});
  EXPECT_EQ(got, tiny.w);
  for (const char* name : {"large", "last"}) {
    const std::vector<int64_t> shape = checkpoint.find(name)->shape;
    std::vector<float> target(large.size());
    const std::string message = error_of("E402", [&] { checkpoint.read({{name, shape, "F32", target.data()}}); });
    EXPECT_NE(message.find("chunk 1 of 2, tensors: large, last\n"), std::string::npos) << message;
  }
  EXPECT_EQ(checkpoint.verify().size(), 1u);
}

TEST(TrainingT50, CutMissingAndGrownFiles) {
  const TempFolder run;
  const fs::path path = save_checkpoint(run.path(), TinyRun(10).content);
  for (const auto& [name, bytes] : all_files(path)) {
    if (name == "run_info.json") continue;
    const char* id = name == "nibble.json" ? "E402" : "E401";
    put_file(path / name, bytes.substr(0, bytes.size() - 1));
    error_of(id, [&] { Checkpoint{path}; });
    EXPECT_FALSE(list_checkpoints(run.path())[0].valid());
    put_file(path / name, bytes + "x");
    error_of(id, [&] { Checkpoint{path}; });
    fs::remove(path / name);
    const std::string message = error_of(name == "nibble.json" ? "E204" : "E401", [&] { Checkpoint{path}; });
    EXPECT_NE(message.find(name), std::string::npos) << message;
    put_file(path / name, bytes);
  }
  expect_restores(path, 10);
}

TEST(TrainingCheckpoint, WantedTensorsThatAreNotThere) {
  const TempFolder run;
  Checkpoint checkpoint(save_checkpoint(run.path(), TinyRun(10).content));
  std::vector<float> x(24);
  EXPECT_NE(error_of("E404",
                     [&] {
                       checkpoint.read({{"m.lm_head", {1}, "F32", x.data()}});
                     })
                .find("m.lm_head"),
            std::string::npos);
  const std::string message = error_of("E403", [&] {
    checkpoint.read({{"model.norm.weight", {2, 2}, "F32", x.data()}});
  });
  EXPECT_NE(message.find("model.norm.weight is F32 [4], wanted F32 [2, 2]"), std::string::npos) << message;
  error_of("E403", [&] { checkpoint.read({{"spike.loss", {3}, "F32", x.data()}}); });
  checkpoint.read({{"model.norm.weight", {4}, "F32", x.data()}});  // a part is fine
  EXPECT_EQ(x[0], 5.0f);
}

/// After a failed save of `step` the older checkpoint restores, the failed one is absent or whole, leftovers go away,
/// and the next save succeeds.
void expect_recovers(const fs::path& run, int64_t older, int64_t step, const std::string& where) {
  SCOPED_TRACE(where);
  expect_restores(run / "checkpoints" / step_name(older), older);
  for (const CheckpointEntry& entry : list_checkpoints(run)) {
    EXPECT_TRUE(entry.valid()) << entry.path << entry.problem;
    expect_restores(entry.path, entry.step);
  }
  clean_run(run);
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    EXPECT_NE(entry.path().filename().string()[0], '.');
  expect_restores(save_checkpoint(run, TinyRun(step).content), step);
}

TEST(TrainingT49, EverySystemCallMayFail) {
  for (const bool all_later : {false, true})
    for (const bool exists : {false, true}) {  // the step already has a valid checkpoint: it is replaced
      int64_t failures = 0;
      for (int64_t nth = 1;; ++nth) {
        const TempFolder run;
        save_checkpoint(run.path(), TinyRun(1).content);
        if (exists) save_checkpoint(run.path(), TinyRun(2).content);
        bool failed = false;
        FaultInjection::arm(nth, ENOSPC, all_later);
        try {
          save_checkpoint(run.path(), TinyRun(2).content);
        } catch (const Error& e) {
          failed = true;
          EXPECT_EQ(e.id, "E801") << e.message();
          EXPECT_EQ(e.exit_code(), exit_io);
          EXPECT_NE(e.message().find(run.path().string()), std::string::npos);
        }
        const int64_t calls = FaultInjection::disarm();
        if (exists) {
          expect_restores(run / "checkpoints/00000002", 2);  // at no moment is there none
        }
        expect_recovers(run.path(), 1, 2, fmt::format("call {}, later ones fail too: {}", nth, all_later));
        failures += failed;
        if (calls < nth) break;
      }
      EXPECT_GT(failures, 25);
    }
}

TEST(TrainingT48, KilledAtAnyMoment) {
  const TempFolder run;
  save_checkpoint(run.path(), TinyRun(1).content);
  int64_t newest = 1, killed_in_save = 0;
  for (uint32_t kill = 0; kill < 200 || (killed_in_save <= 20 && kill < 1000); ++kill) {
    int started[2];
    ASSERT_EQ(::pipe2(started, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        clean_run(run.path());
        if (::write(started[1], "", 1) != 1) ::_exit(1);
        for (int64_t step = newest + 1;; ++step) {
          save_checkpoint(run.path(), TinyRun(step).content);
          apply_retention(run.path(), 2, 0);
        }
      } catch (...) {
      }
      ::_exit(1);
    }
    const uint32_t random = kill * 2654435761u >> 8;
    timespec wait{0, 1'000'000 + static_cast<long>(random % 12'000'000)};
    ::close(started[1]);
    if (kill % 2 == 0) {  // soon after its first save began
      char byte;
      ASSERT_EQ(::read(started[0], &byte, 1), 1);
      wait.tv_nsec = static_cast<long>(random % 1'000'000);
    }
    ::close(started[0]);
    ::nanosleep(&wait, nullptr);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
      if (entry.path().filename().string().starts_with(".tmp-")) {
        ++killed_in_save;
        break;
      }
    const std::vector<CheckpointEntry> list = list_checkpoints(run.path());
    ASSERT_FALSE(list.empty());
    for (const CheckpointEntry& entry : list) ASSERT_TRUE(entry.valid()) << entry.problem;
    ASSERT_GE(list.back().step, newest);  // a committed checkpoint never disappears
    newest = list.back().step;
    expect_restores(list.back().path, newest);
  }
  EXPECT_GT(killed_in_save, 20);
  EXPECT_GT(newest, 2);
}

TEST(TrainingCheckpoint, WhatIsDamagedIsSetAsideNotDeleted) {
  const TempFolder run;
  const fs::path path = save_checkpoint(run.path(), TinyRun(5).content);
  fs::remove(path / "tokenizer.json");
  save_checkpoint(run.path(), TinyRun(5).content);
  expect_restores(path, 5);
  int64_t aside = 0;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    aside += entry.path().filename().string().starts_with("00000005.damaged-");
  EXPECT_EQ(aside, 1);
  EXPECT_EQ(list_checkpoints(run.path()).size(), 1u);
}

TEST(TrainingCheckpointWriter, WritesTheStateOfTheMomentOfSubmit) {
  const TempFolder run;
  TinyRun tiny(1);
  const int64_t bytes = CheckpointWriter::snapshot_bytes(tiny.content.tensors, tiny.content.state);
  EXPECT_EQ(bytes, 128 + 64 + 128 + 128 + 64);
  CheckpointWriter writer(run.path(), bytes, {.keep = 2});
  for (int64_t step = 1; step <= 5; ++step) {
    TinyRun next(step);
    writer.submit(next.content);
    for (auto* list : {&next.w, &next.m, &next.v}) std::fill(list->begin(), list->end(), -1.0f);  // training goes on
  }
  writer.finish();
  EXPECT_EQ(writer.saved_step(), 5);
  const auto list = list_checkpoints(run.path());
  ASSERT_EQ(list.size(), 2u);
  expect_restores(list[0].path, 4);
  expect_restores(list[1].path, 5);
}

TEST(TrainingT49, BackgroundFailureSurfacesOnceAndCanBeRetriedElsewhere) {
  const TempFolder run, other;
  TinyRun tiny(1);
  CheckpointWriter writer(run.path(), CheckpointWriter::snapshot_bytes(tiny.content.tensors, tiny.content.state), {});
  writer.submit(tiny.content);
  writer.finish();
  FaultInjection::arm(4, ENOSPC, true);
  writer.submit(TinyRun(2).content);
  const std::string message = error_of("E801", [&] { writer.submit(TinyRun(3).content); });
  FaultInjection::disarm();
  EXPECT_NE(message.find("No space left"), std::string::npos) << message;
  EXPECT_EQ(writer.saved_step(), 1);
  writer.poll();
  writer.finish();
  writer.retry(other.path());  // step 2 is still in the buffer
  expect_restores(other / "checkpoints/00000002", 2);
  expect_restores(run / "checkpoints/00000001", 1);
  writer.submit(TinyRun(3).content);
  writer.finish();
  expect_restores(run / "checkpoints/00000003", 3);
}

TEST(TrainingCheckpointWriter, WithoutAThread) {
  const TempFolder run;
  CheckpointWriter writer(run.path(), 0, {.async = false});
  writer.submit(TinyRun(1).content);
  expect_restores(run / "checkpoints/00000001", 1);
  FaultInjection::arm(3, EIO, false);
  error_of("E801", [&] { writer.submit(TinyRun(2).content); });
  FaultInjection::disarm();
  writer.submit(TinyRun(2).content);
  EXPECT_EQ(writer.saved_step(), 2);
}

}  // namespace
}  // namespace nibble
