// The rules of spec/training.md 6.1 on safetensors files, one row each; sharding; equal bytes; golden models.
#include "io/safetensors.h"

#include <cmath>
#include <cstring>

#include "io/json.h"
#include "io_fixture.h"

namespace nibble {
namespace {

std::string with_header(std::string header, int64_t data_bytes) {
  const uint64_t n = header.size();
  std::string s(8, '\0');
  std::memcpy(s.data(), &n, 8);
  return s + header + std::string(static_cast<size_t>(data_bytes), '\1');
}

struct Rule {
  const char *why, *id, *words, *header;
  int64_t data;
};
// clang-format off
const Rule rules[] = {
    {"not an object",       "E401", "does not begin with {", R"( {})", 0},
    {"not JSON",            "E401", "no JSON at byte",       R"({"a":)", 0},
    {"trailing garbage",    "E401", "no JSON at byte",       R"({}x)", 0},
    {"name twice",          "E401", "\"a\" occurs twice",    R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2},
    {"field twice",         "E401", "\"dtype\" occurs twice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
    {"unknown field",       "E401", "exactly dtype",         R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1},
    {"missing field",       "E401", "exactly dtype",         R"({"a":{"dtype":"U8","shape":[1]}})", 1},
    {"negative dimension",  "E401", "bad shape of tensor a", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1},
    {"offsets backwards",   "E401", "bad data_offsets of tensor a", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1},
    {"fractional offset",   "E401", "bad data_offsets of tensor a", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}})", 1},
    {"hole",                "E401", "tensor b begins at 2",  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", 3},
    {"overlap",             "E401", "tensor b begins at 0",  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2},
    {"hole at the front",   "E401", "tensor a begins at 1",  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2},
    {"bytes after the end", "E401", "bytes after the last",  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2},
    {"cut off",             "E401", "1 tensors: b",          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})", 8},
    {"length is not shape x dtype", "E403", "shape [2, 2] and dtype F32 has 8 bytes", R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,8]}})", 8},
    {"shape overflows",     "E403", "tensor a",              R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0},
    {"dtype not in this version", "E403", "dtype F8_E5M2, which is not in this version", R"({"a":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}})", 1},
    {"metadata no object",  "E401", "__metadata__",          R"({"__metadata__":1})", 0},
};
// clang-format on

TEST(TrainingSafetensors, EveryRuleIsEnforced) {
  const TempFolder folder;
  for (const Rule& rule : rules) {
    put_file(folder / "x.safetensors", with_header(rule.header, rule.data));
    const std::string message = error_of(rule.id, [&] { SafetensorsFile file(folder / "x.safetensors"); });
    EXPECT_NE(message.find(rule.words), std::string::npos) << rule.why << "\n" << message;
    EXPECT_NE(message.find("x.safetensors"), std::string::npos) << rule.why;
  }
}

TEST(TrainingSafetensors, LengthField) {
  const TempFolder folder;
  const auto message = [&](std::string bytes) {
    put_file(folder / "x", bytes);
    return error_of("E401", [&] { SafetensorsFile file(folder / "x"); });
  };
  EXPECT_NE(message("").find("0 bytes"), std::string::npos);
  EXPECT_NE(message("1234567").find("7 bytes"), std::string::npos);
  EXPECT_NE(message(std::string("\x03\0\0\0\0\0\0\0{}", 10)).find("at least 11 bytes   got: 10"), std::string::npos);
  EXPECT_NE(message(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)).find("header of 100000001 bytes"),
            std::string::npos);
  error_of("E202", [&] { SafetensorsFile file(folder / "absent"); });
}

TEST(TrainingSafetensors, AnyTruncationAndAnyHeaderByteIsSafe) {  // an Error or a well-formed file, never a crash
  const TempFolder folder;
  const TinyRun run(7);
  const std::string name = write_safetensors(folder.path(), "x", run.content.tensors)[0].name;
  const std::string whole = read_file(folder / name);
  for (size_t n = 0; n < whole.size(); ++n) {
    put_file(folder / "cut", whole.substr(0, n));
    error_of("E401", [&] { SafetensorsFile file(folder / "cut"); });
  }
  int accepted = 0;
  for (size_t at = 0; at < whole.size() - 112; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      put_file(folder / "flip", bytes);
      try {
        const SafetensorsFile file(folder / "flip");
        for (const TensorView& t : file.tensors()) ASSERT_LE(t.begin + t.bytes, static_cast<int64_t>(bytes.size()));
        ++accepted;
      } catch (const Error& e) {
        ASSERT_TRUE(e.id == "E401" || e.id == "E403") << e.message();
      }
    }
  EXPECT_GT(accepted, 0);  // a changed letter of a name is still a name
}

TEST(TrainingSafetensors, WriterGivesTheseBytes) {
  const TempFolder folder;
  const float a[2] = {1, -2};
  const double b[1] = {0.5};
  const std::vector<TensorRef> tensors = {
      {"z", {2}, "F32", a}, {"a\"", {}, "F64", b}, {"empty", {0, 3}, "F32", nullptr}};
  const auto records = write_safetensors(folder.path(), "model", tensors);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].name, "model-00001-of-00001.safetensors");
  const std::string bytes = read_file(folder / records[0].name);
  EXPECT_EQ(records[0].bytes, static_cast<int64_t>(bytes.size()));
  std::string header =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a\"":{"dtype":"F64","shape":[],"data_offsets":[8,16]},"empty":{"dtype":"F32","shape":[0,3],"data_offsets":[16,16]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]), header.size());
  const SafetensorsFile file(folder / records[0].name);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.header_bytes() % 8, 0);
  EXPECT_EQ(std::memcmp(file.tensors()[0].data, a, 8), 0);
  EXPECT_EQ(std::memcmp(file.tensors()[1].data, b, 8), 0);
  EXPECT_EQ(file.tensors()[1].numel(), 1);
  EXPECT_EQ(file.tensors()[2].numel(), 0);
}

TEST(TrainingSafetensors, ShardsAndIndex) {
  const TempFolder folder;
  std::vector<float> data(10);
  for (size_t i = 0; i < 10; ++i) data[i] = static_cast<float>(i);
  const std::vector<TensorRef> tensors = {{"c", {3}, "F32", &data[0]},
                                          {"b", {1}, "F32", &data[3]},
                                          {"a", {5}, "F32", &data[4]},
                                          {"d", {1}, "F32", &data[9]}};
  EXPECT_EQ(write_safetensors(folder.path(), "model", tensors, 16).size(), 3u);  // 12 + 4 | 20, alone too large | 4
  const std::string index = safetensors_index("model", tensors, 16);
  EXPECT_EQ(
      index,
      "{\n  \"metadata\": {\n    \"total_size\": 40\n  },\n  \"weight_map\": {\n"
      "    \"c\": \"model-00001-of-00003.safetensors\",\n    \"b\": \"model-00001-of-00003.safetensors\",\n"
      "    \"a\": \"model-00002-of-00003.safetensors\",\n    \"d\": \"model-00003-of-00003.safetensors\"\n  }\n}\n");
  put_file(folder / "model.safetensors.index.json", index);
  const SafetensorsModel model(folder.path());
  ASSERT_EQ(model.tensors().size(), 4u);
  std::vector<float> got(5);
  read_f32(model.at("a"), got.data());
  EXPECT_EQ(got, (std::vector<float>{4, 5, 6, 7, 8}));
  EXPECT_EQ(model.file_of(model.at("d")).filename(), "model-00003-of-00003.safetensors");
  EXPECT_EQ(model.find("e"), nullptr);
  error_of("E404", [&] { model.at("e"); });

  put_file(folder / "model.safetensors.index.json", R"({"weight_map":{"e":"model-00001-of-00003.safetensors"}})");
  EXPECT_NE(error_of("E404", [&] { SafetensorsModel m(folder.path()); }).find("no tensor e"), std::string::npos);
  for (const char* bad :
       {R"({"weight_map":{"a":"../x.safetensors"}})", R"({"weight_map":{"a":1}})", R"({"a":1})", "{"}) {
    put_file(folder / "model.safetensors.index.json", bad);
    error_of("E401", [&] { SafetensorsModel m(folder.path()); });
  }
  put_file(folder / "model.safetensors.index.json", index);
  std::filesystem::remove(folder / "model-00002-of-00003.safetensors");
  const std::string message = error_of("E401", [&] { SafetensorsModel m(folder.path()); });
  EXPECT_NE(message.find("model-00002-of-00003.safetensors is missing"), std::string::npos) << message;
  EXPECT_NE(message.find("1 tensors: a"), std::string::npos) << message;
}

TEST(TrainingSafetensors, HalfTypesToFloat) {
  // clang-format off
  const uint16_t f16[] = {0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0400, 0x03ff, 0x0001, 0x8001, 0x7c00, 0xfc00, 0x7e01};
  const float want[] = {0, -0.0f, 1, -2, 65504, 0x1p-14f, 1023 * 0x1p-24f, 0x1p-24f, -0x1p-24f, INFINITY, -INFINITY, NAN};
  const uint16_t bf16[] = {0x3f80, 0xc040, 0x0001, 0x7f80};
  // clang-format on
  float got[12];
  read_f32({"x", "F16", {12}, reinterpret_cast<const std::byte*>(f16), 0, 24}, got);
  for (int i = 0; i < 11; ++i) {
    EXPECT_EQ(got[i], want[i]) << i;
    EXPECT_EQ(std::signbit(got[i]), std::signbit(want[i])) << i;
  }
  EXPECT_TRUE(std::isnan(got[11]));
  read_f32({"x", "BF16", {4}, reinterpret_cast<const std::byte*>(bf16), 0, 8}, got);
  EXPECT_EQ(got[0], 1.0f);
  EXPECT_EQ(got[1], -3.0f);
  EXPECT_EQ(got[2], 0x1p-133f);
  EXPECT_EQ(got[3], INFINITY);
  error_of("E403", [&] { read_f32({"x", "I64", {1}, reinterpret_cast<const std::byte*>(f16), 0, 8}, got); });
}

SafetensorsModel write_model(const TempFolder& folder, const std::vector<TensorRef>& tensors) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) std::filesystem::remove(entry.path());
  write_safetensors(folder.path(), "model", tensors);
  std::filesystem::rename(folder / "model-00001-of-00001.safetensors", folder / "model.safetensors");
  return SafetensorsModel(folder.path());
}

TEST(TrainingSafetensors, TensorsOfTheModel) {
  const TempFolder folder;
  std::vector<float> e = {1, 2, 3, 4}, h = e;
  const TensorRef embed{"model.embed_tokens.weight", {2, 2}, "F32", e.data()},
      head{"lm_head.weight", {2, 2}, "F32", h.data()};
  const TensorRef buffer{"model.layers.0.self_attn.rotary_emb.inv_freq", {1}, "F32", e.data()},
      other{"other", {1}, "F32", e.data()};
  const TensorRef ids{"model.embed_tokens.weight", {2, 1}, "I64", e.data()};
  const std::vector<WantedTensor> tied = {{"model.embed_tokens.weight", {2, 2}}};
  const std::vector<WantedTensor> untied = {{"model.embed_tokens.weight", {2, 2}}, {"lm_head.weight", {2, 2}}};
  check_tensors(write_model(folder, {embed}).tensors(), tied);
  check_tensors(write_model(folder, {embed, head, buffer}).tensors(), tied);
  check_tensors(write_model(folder, {embed, head, buffer}).tensors(), untied);
  std::string message = error_of("E404", [&] { check_tensors(write_model(folder, {embed, other}).tensors(), untied); });
  EXPECT_NE(message.find("1 missing (lm_head.weight), 1 surplus (other)"), std::string::npos) << message;
  message = error_of("E403", [&] {
    check_tensors(write_model(folder, {embed}).tensors(), {{"model.embed_tokens.weight", {4, 1}}});
  });
  EXPECT_NE(message.find("model.embed_tokens.weight is [2, 2], wanted [4, 1]"), std::string::npos) << message;
  message = error_of("E403", [&] {
    check_tensors(write_model(folder, {ids}).tensors(), {{"model.embed_tokens.weight", {2, 1}}});
  });
  EXPECT_NE(message.find("is I64"), std::string::npos) << message;
  h[3] = 4.5f;
  message = error_of("E405", [&] { check_tensors(write_model(folder, {embed, head}).tensors(), tied); });
  EXPECT_NE(message.find("by at most 0.5"), std::string::npos) << message;
}

TEST(TrainingSafetensors, GoldenModelsOpen) {
  for (const char* name : {"llama", "llama_tied", "llama3"}) {
    const std::filesystem::path folder = std::filesystem::path(NIBBLE_GOLDEN_DIR) / "hf" / name;
    const SafetensorsModel model(folder);
    const TensorView& embed = model.at("model.embed_tokens.weight");
    EXPECT_EQ(embed.shape, (std::vector<int64_t>{256, 64}));
    int64_t parameters = 0;
    for (const TensorView& t : model.tensors()) parameters += t.numel();
    EXPECT_EQ(parameters, Json::parse(read_file(folder / "meta.json"))["params"].get<int64_t>());
    EXPECT_EQ(model.find("lm_head.weight") == nullptr, std::string_view(name) == "llama_tied");
    const SafetensorsModel golden(folder / "golden.safetensors");
    EXPECT_EQ(golden.at("logits").shape, (std::vector<int64_t>{2, 48, 256}));
    EXPECT_EQ(golden.at("input_ids").dtype, "I64");
    EXPECT_EQ(golden.at("loss_f64").dtype, "F64");
  }
}

}  // namespace
}  // namespace nibble
