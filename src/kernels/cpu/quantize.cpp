// quantize, quantize_weight and quantize_weights: numbers to codes and scale bytes, bit-equal to kernels/ref/quantized.
//
// Two visits. The first finds the largest magnitude of each copy, the second makes the codes. Both go over items of 128
// tokens x 256 columns that stay in the second-level cache while a row copy and a column copy are made from them.
//
//   row copy      a segment is `lanes` groups of 16 columns of a row. The maxima of its groups meet in one word, lane g
//                 for group g, so scales and their divisions are whole words; element words are then multiplied with
//                 the scale of their group, and four groups of codes are packed together
//   column copy   lanes are columns, 16 words are the 16 tokens of a group: maxima, rotation, scales and packing need
//                 nothing but whole words, and lane l holds the 8 bytes of codes of its column
//   turned rows   rows that are rotated are transposed in small pieces, then made like columns
//
// Values are rounded to BF16 where they are read. Rounding does not change which magnitude is largest, so maxima are
// taken before it, as unsigned integers: NaN > Inf > finite.  Source: spec/precision.md 2, 4.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantize_copy.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// ---- row copies ----

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
IntWord block_maxima(IntWord groups, int64_t block) {
  if (block >= 32) groups = most_bits(groups, swap_lanes<1>(groups));
  if (block >= 128)
    groups = most_bits(groups, swap_lanes<2>(groups)), groups = most_bits(groups, swap_lanes<4>(groups));
  return groups;
}

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
void segment_scales(const Copy& q, const RowSegment<T>& at, const float* amax, SegmentScales* out) {
  Word most = zero();
  if (scheme != Scheme::tensor && amax == nullptr) {
    const IntWord groups = at.whole() ? group_maxima<true>(at.x, 0, 1, at.n) : group_maxima<false>(at.x, 0, 1, at.n);
    most = round_word(of_bits(block_maxima(groups, block_of(scheme))));
  } else if (amax != nullptr) {
    most = load(amax);
  }
  const BlockScales s = scales_of<scheme>(q, most);
  store(out->encode, s.encode), store_bytes(out->bytes, s.bytes);
}

template <Scheme scheme, Element element, bool whole, class T>
void segment_codes(const Copy& q, const RowSegment<T>& at, const SegmentScales& s, bool* found) {
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
  if (!*found) *found = any_value<scheme, element>(codes, s.bytes);
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

// Where a block of vectors goes: lane l is vector `vector` + l, of which the first n count.
struct Place {
  int64_t vector, n;
  int64_t position;  // of its first element along the vectors
  int64_t end;       // of what is stored along them
  Sums* sums;        // of the first block's groups of 16, those of the next `sums_pitch` on; nullptr: not known
  int64_t sums_pitch;
  // Of lane 0, from `position` on; the next lane's lie a pitch further.
  uint8_t *codes = nullptr, *scales = nullptr;
  int64_t code_pitch = 0, scale_pitch = 0;
};

// Squares of a part of the matrix that share a scale: side, and the largest magnitudes of groups of 16 columns.
struct Tiles {
  float amax[item_tokens / 16][item_columns / 16];
  int64_t side = 0, c = 0;
  const float* at(int64_t t, int64_t column) const { return &amax[t / side][(column - c) / 16]; }
};

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
      if constexpr (rotation == 32) rotate32(part, turned + i);
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

// Four over six: of each lane's two candidates the byte with the smaller error, summed in ascending order.
template <class V>
BlockScales four_or_six(const Copy& q, const V& values, int64_t first, Word amax) {
  const Word most = all(FLT_MAX), t = least(mul(div(amax, all(6.0f)), all(q.tensor.encode)), most);
  const IntWord six = e4m3_bytes(t), four = e4m3_bytes(least(mul(all(1.5f), t), most));
  const auto error_of = [&](IntWord bytes) {
    const Word scale = e4m3_values(bytes), encode = encode_scales(q, bytes);
    Word sum = zero();
    for (int64_t e = first; e < first + group; ++e) {
      const Word x = values.rounded(e), product = mul(e2m1_values_of(e2m1_codes(mul(absolute(x), encode), x)), scale);
      const Word d = sub(div(mul(product, all(q.tensor.amax)), all(1536.0f)), x);
      sum = add(sum, q.spec.four_six == FourSix::mse ? mul(d, d) : absolute(d));
    }
    return sum;
  };
  const IntWord bytes = select_int(less(error_of(four), error_of(six)), four, six);
  return {bytes, encode_scales(q, bytes)};
}

// `batch` blocks of every lane, one after the other: scales first, since their divisions then overlap. tiles: of square
// formats, else nullptr; t: the token within them.
template <Scheme scheme, Element element, int rotation, int batch, class T, class Load>
void lane_blocks(const Copy& q, const Load& load, const Place& place, const Tiles* tiles, int64_t t, bool* found) {
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
    amax[b] = tiles != nullptr ? all(*tiles->at(t + b * block, place.vector)) : round_word(of_bits(most));
  }
#pragma GCC unroll 4
  for (int b = 0; b < batch; ++b) {
    if (scheme == Scheme::nvfp4 && q.spec.four_six != FourSix::off)
      s[b] = four_or_six(q, values, b * block, amax[b]);
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
      if (!*found) {
        IntWord any = all_int(0);
        for (int i = 0; i < count; ++i) any = bit_or(any, words[i]);
        any = bit_and(any, all_int(code_bits(element) == 4 ? 0x77777777 : 0x7F7F7F7F));
        if constexpr (scheme == Scheme::nvfp4) any = where_not(equal_int(own.bytes, all_int(0)), any);
        *found = any_bits(any);
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

// ---- items ----

// The matrix and how it is cut. Rows of a sequence are its tokens.
template <class T>
struct Matrix {
  const T* x;
  int64_t rows, width, tokens;
  int64_t sequences() const { return rows / tokens; }
  const T* at(int64_t row, int64_t column) const { return x + row * width + column; }
};

// A part of one sequence: tokens t .. t + height - 1, columns c .. c + width - 1. `height` counts tokens that exist.
struct Item {
  int64_t sequence, t, height, c, width;
};

template <class T, class F>
void for_items(ThreadPool& pool, const Matrix<T>& m, bool whole_rows, const F& f) {
  const int64_t across = whole_rows ? 1 : ceil_div(m.width, item_columns), down = ceil_div(m.tokens, item_tokens);
  run_tasks(pool, m.sequences() * down * across, m.rows * m.width, [&](int64_t task, int) {
    Item item{};
    item.sequence = task / (down * across), item.t = task / across % down * item_tokens;
    item.height = smaller(item_tokens, m.tokens - item.t);
    item.c = whole_rows ? 0 : task % across * item_columns;
    item.width = whole_rows ? m.width : smaller(item_columns, m.width - item.c);
    f(item);
  });
}

template <int n>
struct Count {
  static constexpr int value = n;
};

// f(load, place, count) for a word of columns of an item, `batch` blocks at a time (count), the last ones singly.
// sums: of all words of groups of 16, groups outside, or nullptr.
template <int64_t block, int batch, class T, class F>
void for_column_blocks(const Matrix<T>& m, const Item& item, int64_t c, int64_t sequence, Sums* sums, const F& f) {
  const int64_t words = ceil_div(m.width, lanes), n = smaller(lanes, m.width - c), pitch = m.width;
  for (int64_t t = item.t; t < item.t + item.height;) {
    const T* const x = m.at(item.sequence * m.tokens + t, c);
    const int64_t there = item.t + item.height - t;
    Sums* const own = sums == nullptr ? nullptr : sums + (item.sequence * sequence + t) / group * words + c / lanes;
    const Place place{c, n, item.sequence * sequence + t, (item.sequence + 1) * sequence, own, words};
    if (n == lanes && there >= batch * block) {
      f([=](int64_t e) { return load(x + e * pitch); }, place, Count<batch>{});
      t += batch * block;
    } else {
      f([=](int64_t e) { return e < there ? load_first(x + e * pitch, n) : zero(); }, place, Count<1>{});
      t += block;
    }
  }
}

// The same for rows whose blocks are rotated: `lanes` rows at a time, transposed.
template <int64_t block, class T, class F>
void for_turned_blocks(const Matrix<T>& m, const Item& item, const F& f) {
  const int64_t first = item.sequence * m.tokens + item.t, length = ceil_div(m.width, block) * block;
  for (int64_t r = 0; r < item.height; r += lanes)
    for (int64_t c = item.c; c < item.c + item.width; c += block) {
      const int64_t n = smaller(lanes, item.height - r), there = smaller(block, m.width - c);
      float turned[block * lanes];
      const T* const x = m.at(first + r, c);
      for (int64_t k = 0; k < block; k += lanes) {
        Word v[lanes];
        for (int64_t l = 0; l < lanes; ++l)
          v[l] = l >= n || k >= there ? zero()
                 : there - k >= lanes ? load(x + l * m.width + k)
                                      : load_first(x + l * m.width + k, there - k);
        transpose(v);
        for (int64_t e = 0; e < lanes; ++e) store(turned + (k + e) * lanes, v[e]);
      }
      f([&](int64_t e) { return load(turned + e * lanes); }, Place{first + r, n, c, length, nullptr, 0}, Count<1>{});
    }
}

template <class T>
void fill_tiles(const Matrix<T>& m, const Item& item, int64_t side, Tiles* tiles) {
  tiles->side = side, tiles->c = item.c;
  for (int64_t t = 0; t < item.height; t += side)
    for (int64_t c = 0; c < item.width; c += segment) {
      const T* const x = m.at(item.sequence * m.tokens + item.t + t, item.c + c);
      const int64_t n = smaller(segment, item.width - c), rows = smaller(side, item.height - t);
      const IntWord groups =
          n == segment ? group_maxima<true>(x, m.width, rows, n) : group_maxima<false>(x, m.width, rows, n);
      store(&tiles->amax[t / side][c / 16], round_word(of_bits(block_maxima(groups, side))));
    }
}

template <Scheme scheme, Element element, class T>
void make_rows(const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, bool* found) {
  constexpr int batch = 4;  // the scales of one segment wait for divisions; those of several overlap
  RowSegment<T> segments[batch];
  SegmentScales scales[batch];
  int n = 0;
  const auto finish = [&] {
    for (int i = 0; i < n; ++i)
      segment_scales<scheme>(q, segments[i],
                             tiles == nullptr ? nullptr : tiles->at(segments[i].row % m.tokens - item.t, segments[i].c),
                             &scales[i]);
    for (int i = 0; i < n; ++i) {
      if (segments[i].whole())
        segment_codes<scheme, element, true>(q, segments[i], scales[i], found);
      else
        segment_codes<scheme, element, false>(q, segments[i], scales[i], found);
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
void make_columns(const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, bool* found) {
  constexpr int64_t block = block_of(scheme), line = item_tokens * code_bits(element) / 8;
  constexpr int batch = block == 16 ? 4 : block == 32 ? 2 : 1;
  const int64_t blocks = ceil_div(item.height, block), position = item.sequence * q.sequence + item.t;
  const int64_t bytes = smaller(blocks * block, q.sequence - item.t) * code_bits(element) / 8;
  for (int64_t c = item.c; c < item.c + item.width; c += lanes) {
    alignas(64) uint8_t codes[lanes * line], scales[lanes * item_tokens / block];
    for_column_blocks<block, batch>(m, item, c, q.sequence, q.sums, [&](const auto& read, Place place, auto count) {
      const int64_t t = place.position - position;
      place.codes = codes + t * code_bits(element) / 8, place.code_pitch = line;
      place.scales = scales + t / block, place.scale_pitch = item_tokens / block;
      lane_blocks<scheme, element, rotation, decltype(count)::value, T>(q, read, place, tiles, t, found);
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
void make_turned(const Matrix<T>& m, const Item& item, const Copy& q, bool* found) {
  for_turned_blocks<block_of(scheme)>(m, item, [&](const auto& read, Place place, auto count) {
    place.codes = q.codes + place.vector * q.code_pitch + place.position * code_bits(element) / 8;
    place.scales = q.scales + place.vector * q.scale_pitch + place.position / block_of(scheme);
    place.code_pitch = q.code_pitch, place.scale_pitch = q.scale_pitch;
    lane_blocks<scheme, element, rotation, decltype(count)::value, float>(q, read, place, nullptr, 0, found);
  });
}

template <bool column, Scheme scheme, Element element, class T>
void make_item(const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, bool* found) {
  constexpr int rotation = scheme == Scheme::nvfp4 ? 16 : 32;
  constexpr bool rotates = scheme == Scheme::nvfp4 || (scheme == Scheme::mx && code_bits(element) == 4);
  if constexpr (rotates) {
    if (q.spec.hadamard == rotation) {
      if constexpr (column)
        return make_columns<scheme, element, rotation>(m, item, q, nullptr, found);
      else
        return make_turned<scheme, element, rotation>(m, item, q, found);
    }
  }
  if constexpr (column)
    make_columns<scheme, element, 0>(m, item, q, tiles, found);
  else if (scheme == Scheme::nvfp4 && q.spec.four_six != FourSix::off)
    make_turned<scheme, element, 0>(m, item, q, found);
  else
    make_rows<scheme, element>(m, item, q, tiles, found);
}

template <bool column, class T>
void make_copy(const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, bool* found) {
  const bool stochastic = q.spec.rounding == Rounding::stochastic;
  const auto make = [&]<Scheme scheme, Element element>() {
    make_item<column, scheme, element>(m, item, q, tiles, found);
  };
  using enum Scheme;
  using enum Element;
  if (q.nvfp4()) {
    if (stochastic) return make.template operator()<nvfp4, e2m1_stochastic>();
    return make.template operator()<nvfp4, e2m1>();
  }
  if (q.mx()) {
    if (q.format.bits == 8) return make.template operator()<mx, e4m3>();
    if (stochastic) return make.template operator()<mx, e2m1_stochastic>();
    return make.template operator()<mx, e2m1>();
  }
  if (q.format.scales) return make.template operator()<fp8_block, e4m3>();
  if (q.spec.format == DType::e5m2) return make.template operator()<tensor, e5m2>();
  make.template operator()<tensor, e4m3>();
}

// ---- the first visit ----

template <class T>
uint32_t plain_most(ThreadPool& pool, const Matrix<T>& m) {
  uint32_t most = 0;
  for_ranges(pool, m.rows * m.width, 1, 64, [&](int64_t begin, int64_t end) {
    IntWord a = all_int(0), b = a;
    int64_t i = begin;
    for (; i + 2 * lanes <= end; i += 2 * lanes)
      a = most_bits(a, magnitudes(load(m.x + i))), b = most_bits(b, magnitudes(load(m.x + i + lanes)));
    words_of(i, end, [&](int64_t j, auto io) { a = most_bits(a, magnitudes(io.get(m.x + j))); });
    raise(most, reduce_most(most_bits(a, b)));
  });
  return most;
}

// Takes the largest magnitudes of an item of columns or rows that are rotated; plain: of what is not, by 16 only.
template <int rotation, class T>
void rotated_most(const Matrix<T>& m, const Item& item, Copy* q, bool column, uint32_t* plain) {
  IntWord most = all_int(0), most_plain = most;
  const auto take = [&](const RotatedMaxima& maxima) {
    most = most_bits(most, maxima.rotated), most_plain = most_bits(most_plain, maxima.plain);
    return maxima.sums;
  };
  if (column)
    for (int64_t t = item.t; t < item.t + item.height; t += rotation) {  // along the rows, as the hardware expects
      const Item strip{item.sequence, t, smaller(rotation, item.t + item.height - t), item.c, item.width};
      for (int64_t c = item.c; c < item.c + item.width; c += lanes)
        for_column_blocks<rotation, 1>(m, strip, c, q->sequence, q->sums,
                                       [&](const auto& read, const Place& place, auto) {
                                         const Sums sums = take(rotated_maxima<rotation, T>(read));
                                         if (rotation == 16) *place.sums = sums;
                                       });
    }
  else
    for_turned_blocks<rotation>(
        m, item, [&](const auto& read, const Place&, auto) { take(rotated_maxima<rotation, float>(read)); });
  raise(q->most, reduce_most(most)), raise(*plain, reduce_most(most_plain));
}

template <class T>
void find_most(ThreadPool& pool, const Matrix<T>& m, Copy* row, Copy* column) {
  uint32_t plain = 0;
  bool known = false;
  for (Copy* q : {row, column}) {
    if (!q->active || q->spec.hadamard == 0) continue;
    const bool whole_rows = m.rows >= 4 * item_tokens * pool.size();
    for_items(pool, m, whole_rows, [&](const Item& item) {
      if (q->spec.hadamard == 16)
        rotated_most<16>(m, item, q, q == column, &plain);
      else
        rotated_most<32>(m, item, q, q == column, &plain);
    });
    known = known || q->spec.hadamard == 16;
  }
  for (Copy* q : {row, column}) {
    if (!q->active || q->spec.hadamard != 0) continue;
    if (!known) plain = plain_most(pool, m), known = true;
    q->most = magnitude_bits(widen(round_bf16(std::bit_cast<float>(plain))));
  }
}

// ---- the whole ----

// The header and what follows from the largest magnitude. false: the tensor is poisoned, and all of it written.
bool begin(Copy& q, float delayed) {
  QuantizedHeader& h = *q.header;
  h = {.amax = stored_amax(q.most), .decode = 1, .saved = 1, .by_amax = 0, .blank = q.most != 0};
  const QuantSpec& spec = q.spec;
  if (q.nvfp4()) {
    const Nvfp4Rule rule = nvfp4_rule(spec);
    q.tensor = nvfp4_scale(h.amax, rule);
    h.decode = q.tensor.decode, h.by_amax = factor_by_amax(rule);
  } else if (!q.format.scales) {
    const float largest = spec.format == DType::e5m2 ? e5m2_max : e4m3_max;
    q.element_scale = spec.tensor_scale == TensorScale::delayed
                          ? delayed
                          : fp8_scale(h.amax, largest, spec.tensor_scale == TensorScale::pow2);
    h.decode = 1 / q.element_scale;
  }
  if (h.amax == h.amax) return true;
  h.blank = 0;
  if (q.mx()) return true;  // only the blocks at fault are poisoned
  std::memset(q.codes, 0, static_cast<size_t>(q.rows * q.code_pitch));
  std::memset(q.scales, q.nvfp4() ? e4m3_nan : e8m0_nan, static_cast<size_t>(q.scale_rows * q.scale_pitch));
  h.decode = h.amax;
  return false;
}

QuantSpec spec_of(const Attrs& attrs, std::string_view name) {
  return attrs.has(name) ? parse_quant_spec(attrs.get_string(name)) : QuantSpec{};
}

template <class T>
void make_copies(const KernelCall& c, const Tensor& x, const int32_t* random, float delayed) {
  const Matrix<T> m{x.as<T>(), x.type.rows(), x.dim(-1), c.attrs.get_int("tokens")};
  Copy row, column;
  row.spec = spec_of(c.attrs, "row"), column.spec = spec_of(c.attrs, "column");
  size_t k = 0;
  for (Copy* q : {&row, &column}) {
    if (!q->spec.active()) continue;
    q->open(c.out[k++]);
  }
  row.per_vector = ceil_div(row.spec.hadamard > 0 ? filled(row.spec, m.width) : m.width, group), row.per_block = 1;
  row.first = random[2] * row.per_vector;
  if (column.active) {
    column.sequence = filled(column.spec, m.tokens);
    column.per_vector = 1, column.per_block = m.width;
    column.first = random[2] / m.tokens * column.sequence / group * m.width;
  }
  for (Copy* q : {&row, &column})  // lanes are groups of a row, or vectors
    q->key = PhiloxKey(static_cast<uint32_t>(random[0]), static_cast<uint32_t>(c.attrs.get_int("site")),
                       static_cast<uint32_t>(random[1]), q->spec.stream,
                       q == &row && row.spec.hadamard == 0 ? 1 : q->per_vector);
  if (column.spec.hadamard == 16) column.sums = reinterpret_cast<Sums*>(c.workspace);
  find_most(c.pool, m, &row, &column);
  const bool rows = row.active && begin(row, delayed), columns = column.active && begin(column, delayed);
  if (!rows && !columns) return;
  const int64_t side = rows && row.square() ? row.format.rows : columns && column.square() ? column.format.rows : 0;
  const bool along = !columns && side == 0 && row.spec.hadamard == 0 && row.spec.four_six == FourSix::off;
  for_items(c.pool, m, along, [&](const Item& item) {
    bool found_row = false, found_column = false;
    Tiles tiles;
    if (side > 0) fill_tiles(m, item, side, &tiles);
    if (rows) make_copy<false>(m, item, row, row.square() ? &tiles : nullptr, &found_row);
    if (columns) make_copy<true>(m, item, column, column.square() ? &tiles : nullptr, &found_column);
    if (found_row) __atomic_store_n(&row.header->blank, 0u, __ATOMIC_RELAXED);
    if (found_column) __atomic_store_n(&column.header->blank, 0u, __ATOMIC_RELAXED);
  });
}

}  // namespace

// A byte for each group of 16 tokens and word of columns, as many as the narrower words are.
int64_t quantize_workspace(const KernelShape& s) {
  const QuantSpec column = spec_of(s.attrs, "column");
  if (column.hadamard != 16) return 0;
  const Type& made = s.out[s.out.size() - 1];  // [columns, tokens with the fill]
  return ceil_div(made.dim(-1) / group * ceil_div(made.dim(0), 8), 64) * 64;
}

void quantize(const KernelCall& c) {
  const float delayed = c.in.size() > 2 ? c.in[2].as<float>()[0] : 1;
  with_storage(c.in[0].type.dtype, [&]<class T>() { make_copies<T>(c, c.in[0], c.in[1].as<int32_t>(), delayed); });
}

void quantize_weights(const KernelCall& c) {
  const Tensor &x = c.in[c.in.size() - 2], &random = c.in[c.in.size() - 1];
  with_storage(x.type.dtype, [&]<class T>() { make_copies<T>(c, x, random.as<int32_t>(), 1); });
}

}  // namespace nibble::NIBBLE_TARGET
