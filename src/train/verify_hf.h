// Comparison with another implementation: a folder with config.json, model.safetensors and golden.safetensors
// (input_ids, logits, loss, grad.<name>, generated), as transformers wrote them (spec/training.md 1.7).
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/program.h"

namespace nibble {

/// One compared tensor: largest difference over largest value of the golden tensor, and what is fair.
struct Comparison {
  std::string name;
  double relative = 0, limit = 0;
  int64_t differing = 0;  // greedy ids that differ
  bool fits() const { return relative <= limit && differing == 0; }
};

/// Limits of the golden data: logits 1e-5, loss 2e-6, each gradient tensor 2e-5, greedy ids equal.
/// Errors: E204 without golden.safetensors, E404 a tensor of it is missing, and those of open_model.
std::vector<Comparison> compare_with_golden(const std::filesystem::path& folder, int threads, CpuTarget target);

}  // namespace nibble
