// NVFP4 weights in Hugging Face directories, in the two layouts that loaders know:
//
//   ModelOpt             P.weight U8 [N, K/2]         P.weight_scale F8_E4M3 [N, K/16]   P.weight_scale_2 F32 []
//   compressed-tensors   P.weight_packed U8 [N, K/2]  P.weight_scale F8_E4M3 [N, K/16]   P.weight_global_scale F32 [1]
//
// A value is code x weight_scale x weight_scale_2, or code x weight_scale / weight_global_scale. config.json says which
// layout it is and which layers are not packed.  Source: spec/precision.md 9.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/type.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace nibble {

enum class PackedLayout { modelopt, compressed_tensors };

/// quantization_config of a config.json.
struct PackedFormat {
  PackedLayout layout = PackedLayout::modelopt;
  bool weight_only = true;          // false: made for products with 4-bit activations too
  std::vector<std::string> ignore;  // layers that are not packed, as written there
  bool operator==(const PackedFormat&) const = default;
};

/// Reads quantization_config, or the whole of a hf_quant_config.json; `file` is for messages. Errors: E010 for another
/// method, algorithm or group size than NVFP4 in one of the two layouts.
PackedFormat parse_packed_format(const Json& json, std::string_view file);
/// quantization_config as the loaders expect it.
Json packed_format_json(const PackedFormat& format);
/// Text of a hf_quant_config.json, which loaders of the ModelOpt layout read; final newline.
std::string hf_quant_config_text(const PackedFormat& format);

/// The weight [rows, columns] of one linear layer in open files. Pointers are into the map and aligned to nothing.
struct PackedWeight {
  std::string name;                 // "model.layers.0.mlp.up_proj.weight"
  int64_t rows = 0, columns = 0;    // columns: a multiple of 16
  const uint8_t* codes = nullptr;   // [rows, columns / 2], value 2i in the low half of byte i
  const uint8_t* scales = nullptr;  // E4M3 [rows, columns / 16]
  float multiplier = 1;             // of the tensor: weight_scale_2, or 1 / weight_global_scale
  /// Rows first .. first + count - 1 as f32: fl(code fl(scale multiplier)).
  void decode(int64_t first, int64_t count, float* out) const;
  /// The same codes and scales as a tensor in memory, nvfp4 [rows, columns], whose elements stand for the same numbers:
  /// products of quantised operands take it.
  void store(const Tensor& to) const;
};

/// The tensors of a packed model, sorted.
struct PackedTensors {
  std::vector<PackedWeight> weights;
  std::vector<TensorView> plain;  // everything else, but for scales of activations and of the KV cache: not used
};
/// Errors, each with the tensor, what was expected and what was found: E404 a scale that is missing; E403 a shape or
/// type that does not fit, a scale that is no number.
PackedTensors sort_packed(const std::vector<TensorView>& tensors, const PackedFormat& format);

}  // namespace nibble
