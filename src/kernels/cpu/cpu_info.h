// What this CPU can run, asked once at start-up. The kernel lists name their needs with these.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

/// One kernel target; each includes the ones before it.  auto_ means the best this CPU has.
enum class CpuTarget { ref, avx2, avx512, avx512_bf16 };

const char* name_of(CpuTarget target);  // "ref", "avx2", "avx512", "avx512_bf16"
/// True if this CPU and operating system run the target.
bool cpu_runs(CpuTarget target);
/// True if this CPU has AVX512_VNNI and runs the target avx512.
bool cpu_has_vnni();
/// All targets with kernels that this CPU runs, plainest first. avx512_bf16 has kernels of bf16 operands; for all else
/// it is avx512.
std::vector<CpuTarget> cpu_targets();
/// Bytes of the data caches that core 0 sees: one core's own first and second level, and of the last level all that
/// this machine has. 0 where the system does not say.
struct CacheSizes {
  int64_t l1 = 0, l2 = 0, l3 = 0;
};
CacheSizes cache_sizes();
/// Brand string of the processor, "AMD EPYC 7763" or the like.
std::string cpu_name();
/// Instruction sets found among those nibble has a use for, for `nibble doctor`: "avx2 fma f16c avx512f ...".
std::string cpu_features();

}  // namespace nibble
