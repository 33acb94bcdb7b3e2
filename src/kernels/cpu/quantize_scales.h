// What blocks of a matrix share: largest magnitudes of groups and tiles, and the two scales of four over six.
#pragma once
#include "kernels/cpu/quantize_items.h"

namespace nibble::NIBBLE_TARGET {

template <bool whole, class T>
Word word_at(const T* p, int64_t at, int64_t n) {
  if constexpr (whole) return load(p + at);
  return at < n ? load_first(p + at, n - at) : zero();
}

// Lane g: the largest magnitude of group g of `rows` rows.
template <bool whole, class T>
IntWord group_maxima(const T* x, int64_t pitch, int64_t rows, int64_t n) {
  IntWord m[lanes];
  for (IntWord& w : m) w = all_int(0);
  for (int64_t r = 0; r < rows; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < segment_words; ++i)
      m[i / words16] = most_bits(m[i / words16], magnitudes(word_at<whole>(x + r * pitch, i * lanes, n)));
  return transposed_maxima(m);
}

// Elements 1 .. `block` of a segment share a scale: every lane gets the maximum of its block.
inline IntWord block_maxima(IntWord groups, int64_t block) {
  if (block >= 32) groups = most_bits(groups, swap_lanes<1>(groups));
  if (block >= 128)
    groups = most_bits(groups, swap_lanes<2>(groups)), groups = most_bits(groups, swap_lanes<4>(groups));
  return groups;
}

// Squares of a part of the matrix that share a scale: for groups of 16 columns the largest magnitude and, of four over
// six, the byte.
struct Tiles {
  float amax[item_tokens / 16][item_columns / 16];
  uint8_t bytes[item_tokens / 16][item_columns / 16];
  int64_t side = 0, c = 0;
  struct Group {
    const float* amax;  // of this group; those of the next columns lie behind it
    const uint8_t* byte;
  };
  Group at(int64_t t, int64_t column) const {
    return {&amax[t / side][(column - c) / 16], &bytes[t / side][(column - c) / 16]};
  }
};

// What an item holds: whether any element is not zero, and of MX copies the largest magnitudes.
struct Seen {
  bool value = false;
  IntWord most = all_int(0);
};

// Four over six: two candidates of a block, and their errors over sixteen elements a lane, added in ascending order.
struct Candidates {
  IntWord six, four;
  Candidates(const Copy& q, Word amax) {
    const Word most = all(FLT_MAX), t = least(mul(div(amax, all(6.0f)), all(q.tensor.encode)), most);
    six = e4m3_bytes(t), four = e4m3_bytes(least(mul(all(1.5f), t), most));
  }
};
template <class F>
Word four_six_errors(const Copy& q, IntWord bytes, const F& rounded) {
  const Word scale = e4m3_values(bytes), encode = encode_scales(q, bytes);
  Word sum = zero();
  for (int64_t e = 0; e < group; ++e) {
    const Word x = rounded(e), product = mul(e2m1_values_of(e2m1_codes(mul(absolute(x), encode), x)), scale);
    const Word value =
        q.tensor.exact ? div(mul(product, all(q.tensor.amax)), all(1536.0f)) : mul(product, all(q.tensor.decode));
    const Word d = sub(value, x);
    sum = add(sum, q.spec.four_six == FourSix::mse ? mul(d, d) : absolute(d));
  }
  return sum;
}
}  // namespace nibble::NIBBLE_TARGET
