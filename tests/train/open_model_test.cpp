// What generation_config.json of a model's folder sets: spec/generation.md 1.3.
#include "train/open_model.h"

#include <fstream>

#include "tiny.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::pair<std::string, std::string>>;

OpenModel open_with(const std::string& generation_config) {
  const TemporaryFolder folder;
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(fs::path(NIBBLE_GOLDEN_DIR) / "hf/llama" / name, fs::path(folder / name));
  if (!generation_config.empty()) std::ofstream(folder / "generation_config.json") << generation_config;
  return open_model(fs::path(folder / "config.json").parent_path());
}

std::string failure_with(const std::string& generation_config) {
  try {
    open_with(generation_config);
    return "none";
  } catch (const Error& e) {
    return e.id;
  }
}

TEST(GenerationConfig, ItsSamplingKeysAndEosAreRead) {
  const OpenModel open = open_with(
      R"({"temperature": 0.6, "top_p": 0.9, "top_k": null, "eos_token_id": [7, 9], "transformers_version": "4"})");
  EXPECT_EQ(open.generation, (Keys{{"temperature", "0.6"}, {"top_p", "0.9"}}));
  EXPECT_EQ(open.eos(), (std::vector<int32_t>{7, 9})) << "before those of config.json";
}

TEST(GenerationConfig, WithoutSamplingItIsGreedy) {
  EXPECT_EQ(open_with(R"({"do_sample": false, "temperature": 0.6, "top_k": 50})").generation,
            (Keys{{"temperature", "0"}}));
  EXPECT_EQ(open_with(R"({"do_sample": true, "top_k": 50, "eos_token_id": 3})").generation, (Keys{{"top_k", "50"}}));
}

TEST(GenerationConfig, WithoutTheFileNothingIsSet) {
  EXPECT_EQ(open_with("").generation, Keys{});
  EXPECT_EQ(open_with("").eos(), open_with("{}").eos());
}

TEST(GenerationConfig, ADamagedFileIsNamed) {
  EXPECT_EQ(failure_with("{\"temperature\": "), "E401");
  EXPECT_EQ(failure_with("[1]"), "E401");
  EXPECT_EQ(failure_with(R"({"eos_token_id": "</s>"})"), "E403");
}

}  // namespace
}  // namespace nibble
