// How one item becomes codes and scale bytes. quantize.cpp has the whole; quantize_nvfp4.cpp, quantize_mx.cpp and
// quantize_fp8.cpp compile these templates for their formats.
#pragma once
#include "kernels/cpu/quantize_scales.h"

namespace nibble::NIBBLE_TARGET {

/// Writes an item of a row or column copy. tiles: of square formats, else nullptr.
template <class T>
void make_nvfp4(bool column, const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen);
template <class T>
void make_mx(bool column, const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen);
template <class T>
void make_fp8(bool column, const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen);

// ---- row copies ----

// Whether codes of a row segment are not all zero, blocks of scale 0 left out.
template <Scheme scheme, Element element>
bool any_value(const uint8_t* codes, const uint8_t* group_bytes) {
  constexpr int width = code_bits(element) * 2;  // bytes of a group
  for (int g = 0; g < lanes; ++g) {
    if (scheme == Scheme::nvfp4 && group_bytes[g] == 0) continue;
    if (scheme == Scheme::mx && group_bytes[g] == e8m0_nan) continue;
    for (int k = 0; k < width; k += 8) {
      uint64_t eight;
      std::memcpy(&eight, codes + g * width + k, 8);
      if ((eight & (width == 8 ? 0x7777777777777777u : 0x7F7F7F7F7F7F7F7Fu)) != 0) return true;
    }
  }
  return false;
}

// A segment of a row: elements c .. c + n - 1, n <= segment; x is where they begin.
template <class T>
struct RowSegment {
  const T* x;
  int64_t n, row, c;
  bool whole() const { return n == segment; }
};
struct SegmentScales {
  float encode[lanes];
  uint8_t bytes[lanes];  // of every group
};

template <Scheme scheme, class T>
void segment_scales(const Copy& q, const RowSegment<T>& at, const Tiles::Group* tile, SegmentScales* out, Seen* seen) {
  Word most = zero();
  if (scheme != Scheme::tensor && tile == nullptr) {
    const IntWord groups = at.whole() ? group_maxima<true>(at.x, 0, 1, at.n) : group_maxima<false>(at.x, 0, 1, at.n);
    if (scheme == Scheme::mx) seen->most = most_bits(seen->most, groups);
    most = round_word(of_bits(block_maxima(groups, block_of(scheme))));
  } else if (tile != nullptr) {
    most = load(tile->amax);
  }
  const BlockScales s = scheme == Scheme::nvfp4 && q.spec.four_six != FourSix::off
                            ? known_scales(q, bytes_at(tile->byte))
                            : scales_of<scheme>(q, most);
  store(out->encode, s.encode), store_bytes(out->bytes, s.bytes);
}

template <Scheme scheme, Element element, bool whole, class T>
void segment_codes(const Copy& q, const RowSegment<T>& at, const SegmentScales& s, Seen* seen) {
  constexpr int64_t block = block_of(scheme), width = code_bits(element) * 2;  // bytes of a group
  uint8_t random[lanes * 16], own[lanes * width];
  if constexpr (element == Element::e2m1_stochastic)
    store_by_lane(philox(q.key, static_cast<uint64_t>(q.first + at.row * q.per_vector + at.c / group)).word, random);
  uint8_t* const to = q.codes + at.row * q.code_pitch + at.c * code_bits(element) / 8;
  uint8_t* codes = whole ? to : own;
  constexpr int step = 4 * words16;  // words of four groups
#pragma GCC unroll 4
  for (int i = 0; i < segment_words; i += step) {
    IntWord code[step];
#pragma GCC unroll 8
    for (int k = 0; k < step; ++k) {
      const int g = (i + k) / words16;
      const Word raw = word_at<whole>(at.x, (i + k) * lanes, at.n);
      const Word scaled = mul(rounded_magnitude<T>(raw), all(s.encode[g]));
      if constexpr (element == Element::e2m1_stochastic)
        code[k] = e2m1_stochastic_codes(scaled, raw, bytes_at(random + by_lane(g) + k % words16 * lanes));
      else
        code[k] = nearest_codes<element>(scaled, raw);
    }
    if constexpr (code_bits(element) == 4)
      pack_four_groups(code, codes + i / words16 * width);
    else
      pack_bytes(code, codes + i / words16 * width);
  }
  if constexpr (scheme == Scheme::mx)
    for (int g = 0; g < lanes; ++g)
      if (s.bytes[g] == e8m0_nan) std::memset(codes + g * width, 0, width);
  if (!seen->value) seen->value = any_value<scheme, element>(codes, s.bytes);
  if constexpr (!whole)
    std::memcpy(to, own, static_cast<size_t>(smaller(sizeof own, q.code_pitch - at.c * code_bits(element) / 8)));
  if (scheme == Scheme::tensor || (q.square() && at.row % q.format.rows != 0)) return;
  uint8_t* const scale = q.scales + at.row / q.format.rows * q.scale_pitch + at.c / block;
  if (whole && block == group)
    std::memcpy(scale, s.bytes, lanes);
  else
    for (int64_t j = 0; j < smaller(segment / block, q.scale_pitch - at.c / block); ++j)
      scale[j] = s.bytes[j * block / group];
}

// ---- column copies, and rows that were turned ----

// The words of `count` elements: load(e) is element e of every lane, not rounded. What is rotated is kept.
template <int rotation, int count, class T, class Load>
struct Values {
  Word turned[rotation == 0 ? 1 : count];
  const Load& load;
  Values(const Load& l, const Place& place) : load(l) {
    for (int i = 0; rotation != 0 && i < count; i += rotation) {
      const auto part = [&](int64_t e) { return load(i + e); };
      if constexpr (rotation == 16)
        rotate16<T>(part, turned + i, place.sums == nullptr ? Sums::unknown : place.sums[i / group * place.sums_pitch]);
      if constexpr (rotation == 32 || rotation == 64) rotate_safely<rotation, T>(part, turned + i);
    }
  }
  Word raw(int64_t e) const {
    if constexpr (rotation == 0) return load(e);
    return turned[e];
  }
  Word rounded(int64_t e) const {
    if constexpr (rotation == 0) return rounded_finite<T>(load(e));
    return turned[e];
  }
  Word magnitude(int64_t e) const {
    if constexpr (rotation == 0) return rounded_magnitude<T>(load(e));
    return absolute(turned[e]);
  }
};

template <class V>
BlockScales four_or_six(const Copy& q, const V& values, int64_t first, Word amax) {
  const Candidates c(q, amax);
  const auto rounded = [&](int64_t e) { return values.rounded(first + e); };
  const Word six = four_six_errors(q, c.six, rounded), four = four_six_errors(q, c.four, rounded);
  return known_scales(q, select_int(less(four, six), c.four, c.six));
}

// `batch` blocks of every lane, one after the other: scales first, since their divisions then overlap. tiles: of square
// formats, else nullptr; t: the token within them.
template <Scheme scheme, Element element, int rotation, int batch, class T, class Load>
void lane_blocks(const Copy& q, const Load& load, const Place& place, const Tiles* tiles, int64_t t, Seen* seen) {
  constexpr int64_t block = block_of(scheme);
  const Values<rotation, batch * block, T, Load> values(load, place);
  Word amax[batch];
  BlockScales s[batch];
  uint8_t bytes[batch][lanes];
  for (int b = 0; b < batch && scheme != Scheme::tensor; ++b) {
    IntWord most = all_int(0);
    if (tiles == nullptr)
#pragma GCC unroll 16
      for (int64_t e = 0; e < block; ++e) most = most_bits(most, magnitudes(values.raw(b * block + e)));
    if (scheme == Scheme::mx) seen->most = most_bits(seen->most, most);
    amax[b] = tiles != nullptr ? all(*tiles->at(t + b * block, place.vector).amax) : round_word(of_bits(most));
  }
#pragma GCC unroll 4
  for (int b = 0; b < batch; ++b) {
    if (scheme == Scheme::nvfp4 && q.spec.four_six != FourSix::off)
      s[b] = tiles != nullptr ? known_scales(q, all_int(*tiles->at(t + b * block, place.vector).byte))
                              : four_or_six(q, values, b * block, amax[b]);
    else
      s[b] = scales_of<scheme>(q, amax[b]);
    store_bytes(bytes[b], s[b].bytes);
  }
  if constexpr (scheme != Scheme::tensor) {
    uint8_t* scale = place.scales;
    for (int64_t l = 0; l < place.n; ++l, scale += place.scale_pitch)
      for (int b = 0; b < batch; ++b) scale[b] = bytes[b][l];
  }
  constexpr int groups = code_bits(element) == 4 ? 2 : 1;  // in 16 bytes of a lane
  for (int64_t first = 0; first < batch * block && place.position + first < place.end; first += groups * group) {
    IntWord packed[4];
#pragma GCC unroll 2
    for (int g = 0; g < groups; ++g) {
      const int64_t from = first + g * group;
      if (from >= batch * block) {  // an odd group
        packed[2] = packed[3] = all_int(0);
        break;
      }
      const BlockScales& own = s[from / block];
      PhiloxLanes random;
      if constexpr (element == Element::e2m1_stochastic)
        random = philox(q.key, static_cast<uint64_t>(q.first + place.vector * q.per_vector +
                                                     (place.position + from) / group * q.per_block));
      IntWord code[group];
#pragma GCC unroll 16
      for (int e = 0; e < group; ++e) {
        const Word raw = values.raw(from + e), scaled = mul(values.magnitude(from + e), own.encode);
        if constexpr (element == Element::e2m1_stochastic)
          code[e] = e2m1_stochastic_codes(scaled, raw, random.byte(e));
        else
          code[e] = nearest_codes<element>(scaled, raw);
      }
      IntWord* const words = packed + 2 * g;
      constexpr int count = 4 / groups;
      pack_lanes<code_bits(element)>(code, words);
      if constexpr (scheme == Scheme::mx)
        for (int i = 0; i < count; ++i) words[i] = where_not(equal_int(own.bytes, all_int(e8m0_nan)), words[i]);
      if (!seen->value) {
        IntWord any = all_int(0);
        for (int i = 0; i < count; ++i) any = bit_or(any, words[i]);
        any = bit_and(any, all_int(code_bits(element) == 4 ? 0x77777777 : 0x7F7F7F7F));
        if constexpr (scheme == Scheme::nvfp4) any = where_not(equal_int(own.bytes, all_int(0)), any);
        seen->value = any_bits(any);
      }
    }
    uint8_t* at = place.codes + first * code_bits(element) / 8;
    const int64_t size =
        smaller(16, (smaller(place.end - place.position, batch * block) - first) * code_bits(element) / 8);
    if (size == 16 && place.n == lanes) {
      store_each_lane(packed, at, place.code_pitch);
    } else {
      uint8_t by[lanes * 16];
      store_by_lane(packed, by);
      for (int64_t l = 0; l < place.n; ++l, at += place.code_pitch)
        std::memcpy(at, by + by_lane(static_cast<int>(l)), static_cast<size_t>(size));
    }
  }
}

template <Scheme scheme, Element element, class T>
void make_rows(const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen) {
  constexpr int batch = 4;  // the scales of one segment wait for divisions; those of several overlap
  RowSegment<T> segments[batch];
  SegmentScales scales[batch];
  int n = 0;
  const auto finish = [&] {
    for (int i = 0; i < n; ++i) {
      Tiles::Group tile{};
      if (tiles != nullptr) tile = tiles->at(segments[i].row % m.tokens - item.t, segments[i].c);
      segment_scales<scheme>(q, segments[i], tiles == nullptr ? nullptr : &tile, &scales[i], seen);
    }
    for (int i = 0; i < n; ++i) {
      if (segments[i].whole())
        segment_codes<scheme, element, true>(q, segments[i], scales[i], seen);
      else
        segment_codes<scheme, element, false>(q, segments[i], scales[i], seen);
    }
    n = 0;
  };
  for (int64_t t = 0; t < item.height; ++t) {
    const int64_t row = item.sequence * m.tokens + item.t + t;
    for (int64_t c = item.c; c < item.c + item.width; c += segment) {
      segments[n++] = {m.at(row, c), smaller(segment, m.width - c), row, c};
      if (n == batch) finish();
    }
  }
  finish();
}

// Codes and scales of an item's column gather in a line of their own, then go to their places, which lie far apart.
template <Scheme scheme, Element element, int rotation, class T>
void make_columns(const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen) {
  constexpr int64_t block = block_of(scheme), line = item_tokens * code_bits(element) / 8;
  constexpr int64_t unit = unit_of(scheme, rotation);
  constexpr int batch = 64 / unit > 0 ? 64 / unit : 1;
  const int64_t blocks = ceil_div(item.height, unit) * (unit / block);
  const int64_t position = item.sequence * q.sequence + item.t;
  const int64_t bytes = smaller(blocks * block, q.sequence - item.t) * code_bits(element) / 8;
  for (int64_t c = item.c; c < item.c + item.width; c += lanes) {
    alignas(64) uint8_t codes[lanes * line], scales[lanes * item_tokens / block];
    for_column_blocks<unit, batch>(m, item, c, q.sequence, q.sums, [&](const auto& read, Place place, auto count) {
      const int64_t t = place.position - position;
      place.codes = codes + t * code_bits(element) / 8, place.code_pitch = line;
      place.scales = scales + t / block, place.scale_pitch = item_tokens / block;
      lane_blocks<scheme, element, rotation, decltype(count)::value * unit / block, T>(q, read, place, tiles, t, seen);
    });
    const int64_t n = smaller(lanes, m.width - c);
    uint8_t* to = q.codes + c * q.code_pitch + position * code_bits(element) / 8;
    for (int64_t l = 0; l < n; ++l, to += q.code_pitch) {
      if (bytes == line)
        std::memcpy(to, codes + l * line, line);
      else
        std::memcpy(to, codes + l * line, static_cast<size_t>(bytes));
    }
    if (scheme == Scheme::tensor || c % q.format.rows != 0) continue;  // of a square, its first column
    to = q.scales + c / q.format.rows * q.scale_pitch + position / block;
    for (int64_t l = 0; l < (q.square() ? 1 : n); ++l, to += q.scale_pitch)
      std::memcpy(to, scales + l * (item_tokens / block), static_cast<size_t>(blocks));
  }
}

template <Scheme scheme, Element element, int rotation, class T>
void make_turned(const Matrix<T>& m, const Item& item, const Copy& q, Seen* seen) {
  constexpr int64_t unit = unit_of(scheme, rotation);
  for_turned_blocks<unit>(m, item, [&](const auto& read, Place place, auto count) {
    place.codes = q.codes + place.vector * q.code_pitch + place.position * code_bits(element) / 8;
    place.scales = q.scales + place.vector * q.scale_pitch + place.position / block_of(scheme);
    place.code_pitch = q.code_pitch, place.scale_pitch = q.scale_pitch;
    lane_blocks<scheme, element, rotation, decltype(count)::value * unit / block_of(scheme), T>(q, read, place, nullptr,
                                                                                                0, seen);
  });
}

template <bool column, Scheme scheme, Element element, class T>
void make_item(const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen) {
  const auto rotated = [&]<int rotation>() {
    if constexpr (column)
      make_columns<scheme, element, rotation>(m, item, q, nullptr, seen);
    else
      make_turned<scheme, element, rotation>(m, item, q, seen);
  };
  if constexpr (scheme == Scheme::nvfp4)
    if (q.spec.hadamard == 16) return rotated.template operator()<16>();
  if constexpr (scheme == Scheme::mx && code_bits(element) == 4) {
    if (q.spec.hadamard == 32) return rotated.template operator()<32>();
    if (q.spec.hadamard == 64) return rotated.template operator()<64>();
  }
  if constexpr (column)
    make_columns<scheme, element, 0>(m, item, q, tiles, seen);
  else if (scheme == Scheme::nvfp4 && q.spec.four_six != FourSix::off && tiles == nullptr)
    make_turned<scheme, element, 0>(m, item, q, seen);
  else
    make_rows<scheme, element>(m, item, q, tiles, seen);
}

template <Scheme scheme, Element element, class T>
void make_copy(bool column, const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen) {
  if (column)
    make_item<true, scheme, element>(m, item, q, tiles, seen);
  else
    make_item<false, scheme, element>(m, item, q, tiles, seen);
}

}  // namespace nibble::NIBBLE_TARGET
