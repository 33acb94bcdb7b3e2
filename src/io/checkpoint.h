// A checkpoint: one folder per step that transformers and vLLM read as it is, that restores to the bit, and in which
// every flipped byte is found.  Source: spec/training.md 6.1, 6.2, 6.4.
//
//   <run>/checkpoints/00001000/
//     model-00001-of-00001.safetensors  model.safetensors.index.json  config.json  generation_config.json  tokenizer
//     files state/optim-00001-of-00001.safetensors      moments, spike ring run_info.json what does not determine the
//     result; outside the checksums nibble.json                                 what the state is, a hash of every 64
//     MiB of every file; written last
//
// Equal content gives equal bytes, run_info.json apart. Run folders (list, resolve, retention, lock): io/run_folder.h.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace nibble {

/// What nibble.json says about the state.  Source: spec/training.md 6.4.
struct CheckpointInfo {
  int64_t step = 0;                                  // completed steps
  int64_t updates = 0;                               // the optimizer's t
  int64_t position = 0;                              // g of spec/training.md 4.4
  int64_t tokens = 0;                                // targets trained on
  int64_t global_batch = 0;                          // sequences
  std::vector<std::pair<std::string, Json>> config;  // keys that determine the result; save() sorts them
  uint64_t config_hash = 0;
  struct Source {
    std::string source;
    double weight = 1;
    int64_t count = 0, base = 0;
  };
  std::vector<Source> mixture;
  std::vector<int64_t> skipped;  // steps
  std::string tokenizer_name;
  uint64_t tokenizer_hash = 0;
  struct DataFile {
    std::string name;  // without folders
    int64_t bytes = 0;
    uint64_t hash = 0;
    bool operator==(const DataFile&) const = default;
  };
  std::vector<DataFile> data;
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    std::string dtype;
  };
  std::vector<Parameter> parameters;  // save() fills it from CheckpointContent::tensors
  std::vector<std::string> sites;     // in ordinal order
  Json recipe = Json::object();       // how the linear layers are quantised, operand by operand; empty: they are not
};

/// All that a checkpoint holds. Tensor names must be unique over both lists.
struct CheckpointContent : CheckpointInfo {
  std::vector<TensorRef> tensors;  // parameters under Hugging Face names, in the order of the parameter table
  std::vector<TensorRef> state;    // "m.<name>", "v.<name>", ..., "spike.loss", "spike.norm" (F64)
  TensorSource source;             // stands for TensorRef::data of `tensors`
  std::string config_json, generation_config_json;                   // texts of the files (io/hf_config.h)
  std::string hf_quant_config_json;                                  // empty: no such file
  std::vector<std::pair<std::string, std::string>> tokenizer_files;  // name and bytes, as they lie beside the model
  Json run_info = Json::object();
};

/// Writes <run>/checkpoints/<step as %08d>, all or nothing: temporary name, every file fsynced, renamed, parent
/// fsynced. A directory of that step is replaced in the same instant. Returns the path of the checkpoint. Errors: E801
/// (all older checkpoints are intact, nothing half written is visible), E803.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const CheckpointContent& content);

/// Writes the same files but `state` as the folder `out`, all or nothing. `checkpoint`: with nibble.json and
/// run_info.json; without them it is a Hugging Face directory. A folder `out` is replaced in the same instant if it is
/// empty or, with `overwrite`, holds nothing but files of a model. Errors: E801, E802, E803.
void write_model_folder(const std::filesystem::path& out, const CheckpointContent& content, bool checkpoint,
                        bool overwrite);

/// Bytes that a checkpoint of these tensors takes, rounded up for headers and texts.
int64_t predicted_checkpoint_bytes(const std::vector<TensorRef>& tensors, const std::vector<TensorRef>& state);

/// Where to put a restored tensor; dtype and shape must be the stored ones.
struct TensorTarget {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;
  void* data = nullptr;
};

/// An open checkpoint. Reading verifies: a chunk is hashed before the first byte of it is used.
class Checkpoint {
 public:
  /// Accepts a directory whose nibble.json parses, has the right hash, and whose files have the listed sizes.
  /// Errors: E204 no nibble.json, E401 missing or cut files, E402 damaged nibble.json, E010 another format number.
  explicit Checkpoint(std::filesystem::path directory);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const std::filesystem::path& path() const;
  const CheckpointInfo& info() const;
  const std::vector<FileRecord>& files() const;  // in the order of nibble.json
  int64_t bytes() const;                         // of all listed files

  /// Every tensor, parameters first. `data` points into a map whose chunk may not be verified yet: use read().
  /// Errors: E402 if a header is damaged.
  std::vector<TensorView> tensors();
  /// The tensor if there is one of that name, parameter or state, else null. Not verified either.
  const TensorView* find(std::string_view name);
  /// The tensor, all its bytes verified. Errors: E404, E402.
  const TensorView& at(std::string_view name);
  /// Copies the wanted tensors, and verifies what it reads and all files that hold no tensors: a resume with a damaged
  /// tokenizer is no resume. Nothing is required to be read: a subset is fine.
  /// Errors: E402 with file, chunk and the tensors in it; E404 missing tensors; E403 shapes or dtypes.
  void read(const std::vector<TensorTarget>& targets);
  /// Bytes of a listed file that holds no tensors ("config.json", "tokenizer.json"). Errors: E404, E402.
  std::string read_file(std::string_view name);
  /// Names of the listed files that are neither tensors nor written by this module: the tokenizer's.
  std::vector<std::string> tokenizer_files() const;
  /// Hashes everything, and read() does not hash it again. One error (E402) per damaged chunk, none if all is well.
  std::vector<Error> verify();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
