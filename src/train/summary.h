// What a run prints before its first step: a dozen lines that say what will happen (spec/training.md 1.2, 5.1).
#pragma once
#include "train/console.h"
#include "train/data_setup.h"
#include "train/schedule.h"
#include "train/step.h"

namespace nibble {

void print_summary(Console& console, const Config& config, const StepConfig& step, const ProgramPlan& plan,
                   const TrainingData& data, const Schedule& schedule, const std::filesystem::path& run);
/// Quantisers and products of quantised operands that the reference computes although the target has faster kernels:
/// "14 x requantize on ref (it has no other kernel)". The bits are the same, so this is no error.
std::vector<std::string> slow_quantized_ops(const ProgramPlan& plan);
/// With -v: which kernel runs each op, and why faster ones do not.
void print_kernels(Console& console, const ProgramPlan& plan);

}  // namespace nibble
