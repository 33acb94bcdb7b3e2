// The plain x86-64 build of the initial draws, and PHI^-1 for any probability.  Source: spec/training.md 2.2.
#include "numerics/normal.h"

#include "core/hash.h"
#include "numerics/normal_fill.h"

namespace nibble {

double normal_quantile(double p) {
  if (!(p > 0.0 && p < 1.0)) return p == 0.0 ? -double{inf_f64} : p == 1.0 ? inf_f64 : nan_f64;
  const double q = p - 0.5;
  if (q >= -0.425 && q <= 0.425) return normal_centre(q);
  const double side = q < 0.0 ? p : 1.0 - p;
  const double r = sqrt_of(-log_f64(side));
  const double far = r - 5.0;
  const double size =
      r <= 5.0 ? normal_tail(side) : plain_polynomial(far, normal_far_e) / plain_polynomial(far, normal_far_f);
  return q < 0.0 ? -size : size;
}

uint32_t init_name_hash(std::string_view name) { return static_cast<uint32_t>(xxh3(name)); }

void fill_normal(float* out, int64_t first, int64_t count, uint32_t seed, std::string_view name, double std,
                 bool truncated) {
  fill_normal_words<double>(out, first, count, seed, init_name_hash(name), std, truncated);
}

}  // namespace nibble
