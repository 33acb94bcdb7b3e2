// Initial draws at the width of the target: the loop of numerics/normal_fill.h, bit-equal to fill_normal.
#include "numerics/normal_fill.h"

namespace nibble::NIBBLE_TARGET {

/// fill_normal (numerics/normal.h) with name_hash = init_name_hash(name).
void init_normal(float* out, int64_t first, int64_t count, uint32_t seed, uint32_t name_hash, double std,
                 bool truncated) {
#ifdef __AVX512F__
  fill_normal_words<F64x8>(out, first, count, seed, name_hash, std, truncated);
#else
  fill_normal_words<F64x4>(out, first, count, seed, name_hash, std, truncated);
#endif
}

}  // namespace nibble::NIBBLE_TARGET
