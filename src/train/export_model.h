// A model on disk in another form: NVFP4 weights for other programs and for nibble itself, or plain numbers in BF16.
// Source: spec/precision.md 9, spec/training.md 6.3.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/config.h"
#include "io/packed.h"
#include "passes/quantize.h"
#include "runtime/registry.h"
#include "train/open_model.h"

namespace nibble {

/// How the forward pass of a configuration quantises weights, as far as NVFP4 holds them: its recipe. Where the recipe
/// leaves the forward pass alone, or there is none: blocks of 1x16 under one scale, rounded to nearest.
/// Errors: E102 for a recipe whose weights are in another format, and for recipe_disable without one.
Recipe packing_recipe(const Config& config, int64_t layers);

struct ExportOptions {
  std::optional<PackedLayout> layout;  // none: no layer is packed
  Recipe recipe;                       // with a layout: which layers are packed, and how
  DType dtype = DType::bf16;           // of all other tensors: bf16 or f32
  bool overwrite = false;
  int threads = 1;
  CpuTarget target = CpuTarget::ref;
};

struct ExportReport {
  int64_t parameters = 0, packed_parameters = 0;
  int64_t layers = 0, packed_layers = 0;  // linear layers, without the head
  int64_t bytes = 0, packed_bytes = 0;    // of all tensors; of packed weights with their scales
  std::string packed_as;                  // "nvfp4_2d four_six=mae"; empty: nothing is packed
};

/// Writes `open` as the folder `out`, whole or not at all. A checkpoint becomes one without optimizer state, with
/// checksums; a Hugging Face directory becomes one. Weights are quantised by the kernels of training from the masters:
/// the last forward pass saw the same bytes, but for the scale of q, k, v and of gate, up, which loaders fuse: each of
/// these groups takes one largest value.
/// Errors: those of reading; E010 for a packed model that is to be packed; E104 a layer whose width is no multiple of
/// 16; E403 weights that are not finite or too small for the format; E801 to E803 of write_model_folder.
ExportReport export_model(const OpenModel& open, const std::filesystem::path& out, const ExportOptions& options);

}  // namespace nibble
