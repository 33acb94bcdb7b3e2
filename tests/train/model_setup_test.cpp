// Initial weights: obligation T11 of spec/training.md.
#include "train/model_setup.h"

#include "tiny.h"

namespace nibble {
namespace {

std::string initial_hash(const LlamaConfig& model, int threads, CpuTarget target, uint32_t seed = 0) {
  StepConfig c;
  c.model = model, c.microbatch = {1, 2};
  c.decayed.assign(llama_parameters(model).size(), false);
  Stepper s(c, plan_training(c, threads, target));
  initialize_parameters(s.program(), s.parameters(), seed);
  return hex16(hash_of_states(s, StateRole::parameter));
}

LlamaConfig packaged_model(const std::string& name) {
  const std::vector<std::string> none;
  ResolveOptions options;
  options.environment = &none;
  return llama_of(resolve({"model_name=" + name, "dataset_type=synthetic"}, options).config);
}

struct Case {
  const char* name;
  LlamaConfig model;
  const char* want;  // committed: a change of a single bit of a single weight is a change of every run
};

TEST(TrainingT11, InitialWeightsEqualStoredHashes) {
  const Case cases[] = {{"nibble-1m", packaged_model("nibble-1m"), "79fece319648ffb0"},
                        {"nibble-10m", packaged_model("nibble-10m"), "35921199fc65ee6a"},
                        {"tiny, untied", tiny_model(), "1cf6bec6f9f5309c"}};
  for (const Case& c : cases)
    for (const CpuTarget target : cpu_targets())
      EXPECT_EQ(initial_hash(c.model, 2, target), c.want) << c.name << " " << name_of(target);
}

TEST(TrainingT11, ThreadsChangeNothing) {
  const LlamaConfig model = packaged_model("nibble-1m");
  for (const int threads : {1, 3})
    EXPECT_EQ(initial_hash(model, threads, cpu_targets().back()), initial_hash(model, 2, cpu_targets().back()))
        << threads;
}

TEST(TrainingT11, SeedsDiffer) {
  EXPECT_NE(initial_hash(tiny_model(), 1, CpuTarget::ref, 0), initial_hash(tiny_model(), 1, CpuTarget::ref, 1));
}

}  // namespace
}  // namespace nibble
