// Shared by the tests of src/io: a folder that goes away, a tiny checkpoint, and what an Error says.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "io/checkpoint.h"

namespace nibble {

class TempFolder {
 public:
  TempFolder() {  // in memory where there is such a folder: fsync on a disk takes milliseconds
    const std::filesystem::path memory = "/dev/shm";
    const bool there = ::access(memory.c_str(), W_OK) == 0;
    std::string name = ((there ? memory : std::filesystem::temp_directory_path()) / "nibble-io-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void put_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline void flip_byte(const std::filesystem::path& path, int64_t at, uint8_t mask = 0xff) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ mask));
}

/// Calls f and returns the message of the Error that it must throw with this id.
template <class F>
std::string error_of(std::string_view id, const F& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.id, id) << e.message();
    return e.message();
  }
  ADD_FAILURE() << "no error, wanted " << id;
  return "";
}

/// A checkpoint of a few hundred bytes of tensors whose values follow from the step, with the arrays it points into.
struct TinyRun {
  std::vector<float> w, norm, m, v;
  std::vector<double> spike;
  CheckpointContent content;

  explicit TinyRun(int64_t step) : w(24), norm(4), m(24), v(24), spike(3) {
    const auto fill = [&](auto& list, double scale) {
      for (size_t i = 0; i < list.size(); ++i)
        list[i] = static_cast<float>(scale * (static_cast<double>(step) + static_cast<double>(i) / 8));
    };
    fill(w, 1), fill(norm, 0.5), fill(m, 0.25), fill(v, 0.125), fill(spike, 3);
    content.step = content.updates = step;
    content.position = 16 * step, content.tokens = 4096 * step, content.global_batch = 16;
    content.config = {{"seed", 1}, {"adam_b1", 0.9}, {"learning_rate", 3e-5}, {"weights", 1.0}};
    content.config_hash = 0x0123456789abcdef;
    content.mixture = {{"a.txt", 0.7, 11, 0}};
    content.skipped = {3, 5};
    content.tokenizer_name = "bpe-1024", content.tokenizer_hash = 0xfedcba9876543210;
    content.data = {{"a.txt", 12, 7}};
    content.sites = {"layers.0/self_attn/q_proj", "lm_head"};
    content.tensors = {{"model.embed_tokens.weight", {6, 4}, "F32", w.data()},
                       {"model.norm.weight", {4}, "F32", norm.data()}};
    content.state = {{"m.model.embed_tokens.weight", {6, 4}, "F32", m.data()},
                     {"v.model.embed_tokens.weight", {6, 4}, "F32", v.data()},
                     {"spike.loss", {3}, "F64", spike.data()}};
    content.config_json = "{\"model_type\": \"llama\"}\n";
    content.generation_config_json = "{}\n";
    content.tokenizer_files = {{"tokenizer.json", "{\"version\": \"1.0\"}"}};
    content.run_info = {{"host", "somewhere"}, {"seconds", 0.25}};
  }
};

/// Reads all of a TinyRun back and compares every value.
inline void expect_restores(const std::filesystem::path& directory, int64_t step) {
  const TinyRun want(step);
  TinyRun got(step + 1);
  Checkpoint checkpoint(directory);
  ASSERT_EQ(checkpoint.info().step, step);
  std::vector<TensorTarget> targets;
  for (const auto* list : {&got.content.tensors, &got.content.state})
    for (const TensorRef& t : *list) targets.push_back({t.name, t.shape, t.dtype, const_cast<void*>(t.data)});
  checkpoint.read(targets);
  EXPECT_EQ(got.w, want.w);
  EXPECT_EQ(got.norm, want.norm);
  EXPECT_EQ(got.m, want.m);
  EXPECT_EQ(got.v, want.v);
  EXPECT_EQ(got.spike, want.spike);
  EXPECT_EQ(checkpoint.read_file("tokenizer.json"), "{\"version\": \"1.0\"}");
}

}  // namespace nibble
