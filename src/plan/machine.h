// What was measured of one machine: its limits, by threads, and what the operations of a training step take there.
// `nibble bench limits` and `bench --calibrate` write it as a file, `nibble plan` prices a run with it.
// Source: spec/plan.md 2 and 8.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_info.h"

namespace nibble {

/// The fastest of many repeats; 0: not measured, or this CPU lacks the instruction.
struct Limits {
  int threads = 1;
  double f32 = 0, bf16 = 0, int8 = 0;  // multiply-adds in registers, operations a second (a multiply-add is two)
  double l1 = 0, l2 = 0, l3 = 0;       // loads, bytes a second
  /// Main memory, bytes read plus bytes written a second; streaming stores pass by the caches.
  double read = 0, copy = 0, stream_copy = 0, stream_fill = 0;
  bool operator==(const Limits&) const = default;

  /// The peak of products with operands of this format, "f32", "bf16", "int8", "4bit" (integer dots) or "8bit" (widened
  /// to bf16): without an instruction of its own a format is expanded to f32.
  double peak(std::string_view format) const;
};

/// What a node does, as its op's cost says, and in which format its products multiply.
struct Work {
  std::string_view format = "f32";
  double flops = 0, read = 0, written = 0, functions = 0;  // functions: exponentials and the like
  double bytes() const { return read + written; }
};

/// The bytes a second with which `work` could at best be fed: of the smallest cache that holds all of it, else of main
/// memory; reading alone has a limit of its own.
double bandwidth(const Work& work, const Limits& limits, const CacheSizes& caches);
/// The roofline: the larger of flops / peak and bytes / bandwidth. 0 where the limits are not known.
double limit_seconds(const Work& work, const Limits& limits, const CacheSizes& caches);

/// Seconds of one node of an op: a linear function of its work, fitted to measured nodes of many shapes.
struct OpPrice {
  std::string op, kernel, format;
  int threads = 1;
  double fixed = 0;                                       // seconds a call
  double flop = 0, byte = 0, far_byte = 0, function = 0;  // seconds each; far bytes: far_share of all
  double error = 0;  // mean |predicted / measured - 1|, weighted by measured seconds
  int samples = 0;
  double seconds(const Work& work, double far_share) const;
  bool operator==(const OpPrice&) const = default;
};

/// A step that was predicted and then timed; none of it went into the prices.
struct Check {
  std::string what;  // "nibble-34m, 2 layers, 2 x 256 tokens"
  std::string format;
  int threads = 1;
  double predicted = 0, measured = 0;  // seconds
  bool operator==(const Check&) const = default;
};

struct Machine {
  std::string cpu, features;  // cpu_name(), cpu_features()
  CacheSizes caches;
  std::string date, version;  // of the last measurement: UTC, nibble's version and commit
  std::vector<Limits> limits;
  std::vector<OpPrice> prices;
  std::vector<Check> checks;

  /// Null: not measured with so many threads.
  const Limits* limits_of(int threads) const;
  const OpPrice* price_of(std::string_view op, std::string_view kernel, std::string_view format, int threads) const;
  /// Replaces what is there of the same threads; of prices and checks, of the same threads, kernel and format.
  void merge(const Machine& newer);
};

/// The machine of this process, nothing measured.
Machine this_machine();
/// "machine-amd-epyc-7763-1f2e3d4c.json": by processor, instruction sets and caches, so that machines that share a home
/// folder have a file each.
std::string machine_file_name(const Machine& machine);

/// Schema "nibble-machine-1"; seconds, bytes and operations without prefixes.
std::string machine_text(const Machine& machine);
/// The inverse. `origin` is named by errors. Errors: E114.
Machine parse_machine(const std::string& text, const std::string& origin);

}  // namespace nibble
