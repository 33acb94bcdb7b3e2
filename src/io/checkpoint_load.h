// What eval, generate, a new run and `ckpt diff` read from a checkpoint, a run or a Hugging Face directory alike.
// Source: spec/training.md 1.7, 6.2, 6.3.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/hf_config.h"
#include "io/packed.h"
#include "io/run_folder.h"
#include "io/safetensors.h"

namespace nibble {

/// Where to put a parameter as f32, and who else wants its elements. Null and `take`: they last for the call only.
struct ParameterTarget {
  std::string name;  // Hugging Face name
  std::vector<int64_t> shape;
  float* data = nullptr;
  std::function<void(float* elements)> take = {};
};

/// config.json of the model, of a checkpoint with its checksum verified; a hf_quant_config.json beside it stands in for
/// a missing quantization_config. Errors: as read_hf_config, E402.
LlamaShape load_shape(const ModelSource& source);

/// The parameters of an open model, one at a time: F32, F16, BF16, and packed weights where config.json says that there
/// are some.
class ParameterReader {
 public:
  /// Opens the files, verifies all checksums of a checkpoint's parameters, and checks that the model has exactly the
  /// wanted parameters. Errors: E402, E401, E010; E403, E404, E405 of check_tensors and sort_packed.
  ParameterReader(const ModelSource& source, const std::vector<WantedTensor>& wanted);
  ~ParameterReader();
  /// The weight as it lies in the file; null: it is not packed.
  const PackedWeight* packed(std::string_view name) const;
  /// All elements as f32: exact, or as PackedWeight::decode.
  void read(const std::string& name, float* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads these parameters of an open model.
void load_parameters(const ParameterReader& reader, const std::vector<ParameterTarget>& targets);
/// Reads exactly these parameters. Errors: those of ParameterReader.
void load_parameters(const ModelSource& source, const std::vector<ParameterTarget>& targets);

/// How two models differ.
struct ModelDifference {
  struct Key {
    std::string key, a, b;  // JSON texts; empty: absent
  };
  struct Tensor {
    std::string name;
    std::string problem;  // "only in A", "only in B", "F32 [4] and F32 [5]"; empty: `largest` counts
    double largest = 0;   // max |a - b|; NaN if a difference is not a number
  };
  std::vector<Key> keys;        // by name
  std::vector<Tensor> tensors;  // those with any differing bit, in the order of A
  bool none() const { return keys.empty() && tensors.empty(); }
};

/// Two checkpoints: the keys of nibble.json (step, config.*, ...) and every tensor, state included. If one of them is a
/// Hugging Face directory: the keys of config.json and the parameters. Errors: those of reading either.
ModelDifference compare_models(const ModelSource& a, const ModelSource& b);

}  // namespace nibble
