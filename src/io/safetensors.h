// Safetensors files: a reader over memory maps that accepts only well-formed files, and a writer with one byte sequence
// per content.  Source: spec/training.md 6.1; huggingface/safetensors src/tensor.rs.
//
//   u64 header bytes n | {"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...} |
//   data
//
// Offsets count from the end of the header. The writer pads the header with blanks to 8 bytes, so data starts aligned.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace nibble {

/// Bytes of one element of F64, I64, F32, I32, F16, BF16, U8, F8_E4M3; 0 for every other name.
int64_t dtype_bytes(std::string_view dtype);

/// A tensor in memory, row-major and contiguous: what a file is written from. `data` holds bytes() bytes.
struct TensorRef {
  std::string name;
  std::vector<int64_t> shape;  // empty: a scalar
  std::string dtype;           // "F32", "F64", ... (dtype_bytes)
  const void* data = nullptr;
  int64_t numel() const;
  int64_t bytes() const { return numel() * dtype_bytes(dtype); }
};

/// A tensor of an open file. `data` points into the map, aligned to nothing: copy or use memcpy.
struct TensorView {
  std::string name, dtype;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t begin = 0, bytes = 0;  // begin: offset in the file
  int64_t numel() const { return bytes / dtype_bytes(dtype); }
};

/// One file. Tensors in the order of their data.
class SafetensorsFile {
 public:
  /// Errors: E202 not readable; E401 truncated, or no safetensors file (which rule is broken is said); E403 a dtype
  /// that is not in this version, or a length that is not shape x dtype. All name the file and the tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return path_; }
  const MappedFile& map() const { return map_; }
  int64_t header_bytes() const { return header_bytes_; }  // with the length field: where data starts
  const std::vector<TensorView>& tensors() const { return tensors_; }

 private:
  std::filesystem::path path_;
  MappedFile map_;
  int64_t header_bytes_ = 0;
  std::vector<TensorView> tensors_;
};

/// All tensors of a model: a single file, or a folder with model.safetensors.index.json or model.safetensors.
class SafetensorsModel {
 public:
  /// Errors: as SafetensorsFile; E401 for a file that the index names and that is missing, E404 for a tensor that the
  /// index promises and its file lacks. Tensors that the index does not mention are not seen.
  explicit SafetensorsModel(const std::filesystem::path& path);
  const std::vector<TensorView>& tensors() const { return tensors_; }  // by file, then as stored
  const TensorView* find(std::string_view name) const;                 // null if absent
  const TensorView& at(std::string_view name) const;                   // E404
  /// File that holds the tensor, for messages.
  std::filesystem::path file_of(const TensorView& tensor) const;

 private:
  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

/// A parameter that a model expects.
struct WantedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

/// Checks that the wanted tensors are there, with these shapes and a dtype that read_f32 reads, and no others.
/// Tied models: a `lm_head.weight` that is not wanted is accepted if it equals `model.embed_tokens.weight` bit for bit.
/// Buffers `*.rotary_emb.inv_freq` of old files are no parameters and are passed over.
/// Errors, each listing at most ten tensors: E404 missing or surplus, E403 shapes or dtypes, E405 an untied head.
void check_tensors(const std::vector<TensorView>& tensors, const std::vector<WantedTensor>& wanted);

/// out[i] = element i as f32, exact: F32, F16, BF16 (subnormals, Inf and NaN included). Other dtypes: E403.
void read_f32(const TensorView& tensor, float* out);

/// Largest file that the writer makes, unless one tensor alone is larger.  Source: spec/training.md 6.1.
inline constexpr int64_t shard_bytes = 5'000'000'000;

/// The bytes of a tensor that is written next, for writers that make one after another: valid until the next call.
using TensorSource = std::function<const void*(const TensorRef&)>;

/// Writes <stem>-00001-of-0000N.safetensors into `folder`, tensors in the order given: a file is closed before the
/// tensor that would take its data over max_bytes. Equal tensors give equal bytes. No tensors: no file.
/// Every file is fsynced. `source`, where given, stands for TensorRef::data. Errors: E801.
std::vector<FileRecord> write_safetensors(const std::filesystem::path& folder, std::string_view stem,
                                          std::span<const TensorRef> tensors, int64_t max_bytes = shard_bytes,
                                          const TensorSource& source = {});

/// Text of <stem>.safetensors.index.json for the same split.
std::string safetensors_index(std::string_view stem, std::span<const TensorRef> tensors,
                              int64_t max_bytes = shard_bytes);

}  // namespace nibble
