// What quantisation did to one copy of a tensor: error, zeros, scales, shape of the distribution. Sums in float64: 16
// lanes a row of the copy, rows ascending.  Source: spec/precision.md 7.1, spec/training.md 2.11.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/attrs.h"
#include "core/type.h"

namespace nibble {

/// Of the values x given to the quantiser (after a rotation) and what the codes stand for. Fill is left out. A copy
/// that holds no value other than 0 has sqnr_db infinite and all ratios 0.
struct QuantizerStatistics {
  int64_t elements = 0, blocks = 0;
  double sqnr_db = 0, shrink = 0;  // of what a product sees, the 4/3 of spec/precision.md 2.9 included
  double zero_share = 0;           // of the values that are not 0
  double at_max_share = 0, clip_share = 0;
  double scale_zero = 0, scale_subnormal = 0, scale_max = 0;  // of the blocks; 0 where blocks have no scale
  std::array<int64_t, 16> scale_hist{};  // E4M3: by exponent field; E8M0: the 16 bytes up to scale_hist_last
  int scale_hist_last = 15;
  std::array<int64_t, 16> code_hist{};  // 4-bit formats
  double dyn_range = 0, amax = 0, crest = 0, kurtosis = 0, top_channel_share = 0, mean_ratio = 0;
  double four_share = 0;  // four over six
};

/// attrs, in: of the quantize, requantize, quantize_weight or quantize_weights node. made: its copy. A poisoned copy
/// has no statistics: amax is NaN, all else 0.
QuantizerStatistics quantizer_statistics(const Attrs& attrs, bool column, std::span<const Tensor> in,
                                         const Tensor& made);

}  // namespace nibble
