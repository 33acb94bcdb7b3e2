// Loading and comparing models of both kinds.  Source: spec/training.md 1.7, 6.3.
#include "io/checkpoint_load.h"

#include <cmath>

#include "io_fixture.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::vector<ParameterTarget> targets_of(const SafetensorsModel& model, std::vector<std::vector<float>>& data) {
  std::vector<ParameterTarget> targets;
  data.reserve(model.tensors().size());
  for (const TensorView& t : model.tensors()) {
    data.emplace_back(static_cast<size_t>(t.numel()));
    targets.push_back({t.name, t.shape, data.back().data()});
  }
  return targets;
}

TEST(TrainingLoad, GoldenModelThroughACheckpointIsTheSame) {
  const ModelSource hf = resolve_model(fs::path(NIBBLE_GOLDEN_DIR) / "hf/llama");
  const SafetensorsModel model(hf.path);
  std::vector<std::vector<float>> data, again;
  const std::vector<ParameterTarget> targets = targets_of(model, data);
  load_parameters(hf, targets);

  const TempFolder run;
  CheckpointContent content;
  content.step = 3;
  for (const ParameterTarget& t : targets) content.tensors.push_back({t.name, t.shape, "F32", t.data});
  content.config_json = write_hf_config(load_shape(hf));
  content.generation_config_json = write_generation_config(load_shape(hf));
  save_checkpoint(run.path(), content);
  const ModelSource saved = resolve_model(run.path());
  EXPECT_EQ(load_shape(saved), load_shape(hf));
  load_parameters(saved, targets_of(model, again));
  EXPECT_EQ(again, data);
  const ModelDifference difference = compare_models(hf, saved);
  EXPECT_TRUE(difference.tensors.empty());
  std::vector<std::string> keys;  // the two spellings
  for (const auto& key : difference.keys) keys.push_back(key.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"dtype", "rope_parameters", "rope_scaling", "rope_theta", "torch_dtype",
                                            "transformers_version"}));

  flip_byte(saved.path / "model-00001-of-00001.safetensors", 100'000);
  error_of("E402", [&] { load_parameters(saved, targets); });
  error_of("E402", [&] { compare_models(hf, saved); });
}

TEST(TrainingLoad, OtherTensorsThanTheConfiguration) {
  const ModelSource hf = resolve_model(fs::path(NIBBLE_GOLDEN_DIR) / "hf/llama");
  std::vector<std::vector<float>> data;
  std::vector<ParameterTarget> targets = targets_of(SafetensorsModel(hf.path), data);
  targets[0].shape.push_back(1);
  error_of("E403", [&] { load_parameters(hf, targets); });
  targets[0].name = "absent";
  EXPECT_NE(error_of("E404", [&] { load_parameters(hf, targets); }).find("1 missing (absent)"), std::string::npos);
}

TEST(TrainingLoad, DifferencesOfCheckpoints) {
  const TempFolder a, b;
  TinyRun one(5), two(5);
  const auto compare = [&] {
    return compare_models({ModelSource::checkpoint, save_checkpoint(a.path(), one.content)},
                          {ModelSource::checkpoint, save_checkpoint(b.path(), two.content)});
  };
  EXPECT_TRUE(compare().none());
  two.w[7] += 0.5f, two.w[8] -= 2, two.spike[1] += 0.25, two.norm[0] = NAN;
  two.content.step = 6;
  two.content.config[0].second = 2;
  two.content.config.emplace_back("extra", "x");
  two.content.state[0].name = "m.other";
  const ModelDifference d = compare();
  ASSERT_EQ(d.keys.size(), 3u);
  EXPECT_EQ(d.keys[0].key, "config.extra");
  EXPECT_EQ(d.keys[0].a, "");
  EXPECT_EQ(d.keys[1].key, "config.seed");
  EXPECT_EQ(d.keys[1].a, "1");
  EXPECT_EQ(d.keys[1].b, "2");
  EXPECT_EQ(d.keys[2].key, "step");
  ASSERT_EQ(d.tensors.size(), 5u);
  EXPECT_EQ(d.tensors[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(d.tensors[0].largest, 2);
  EXPECT_TRUE(std::isnan(d.tensors[1].largest));
  EXPECT_EQ(d.tensors[2].problem, "only in A");
  EXPECT_EQ(d.tensors[3].name, "spike.loss");
  EXPECT_EQ(d.tensors[3].largest, 0.25);
  EXPECT_EQ(d.tensors[4].problem, "only in B");
}

}  // namespace
}  // namespace nibble
