// MS-EDEN copies of numbers (quantize) and of a saved NVFP4 operand (requantize), bit-equal to kernels/ref/quantized.
//
// Lanes are vectors, 128 words a group of 128 elements: columns as they lie in memory, rows transposed. The rotation is
// 64 butterflies a stage on whole words, in two passes that hold 16 and 8 words; sums over a block of 16 add words in
// the order of the lane tree. Two visits: the largest magnitude of what is rotated, then the codes.
// Source: spec/precision.md 3.6, 4.1; arXiv 2601.22813.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/quantize_items.h"
#include "numerics/eden.h"

namespace nibble::NIBBLE_TARGET {
namespace {

constexpr int64_t eden_blocks = eden_group / group;
static_assert(item_tokens == eden_group && item_columns % eden_group == 0);

// Sign bits of the elements of group g of 128.
struct Signs {
  alignas(64) int32_t of[eden_group];
  Signs(const Copy& q, int64_t g) {
    const PhiloxWords w =
        philox4x32({static_cast<uint32_t>(g), 0, q.key.step, q.spec.sign_stream}, q.key.k0[0], q.key.k1[0]);
    for (size_t i = 0; i < eden_group; ++i) of[i] = (w[i / 32] >> (i % 32) & 1u) != 0 ? INT32_MIN : 0;
  }
  Word flip(Word a, int64_t i) const { return of_bits(exclusive_or(bits_of(a), all_int(of[i]), all_int(0))); }
};

// A saved 4-bit operand: its exact products of element and block scale.
struct SavedMatrix {
  const uint8_t *codes, *scales;
  int64_t code_pitch, scale_pitch;
  int64_t rows, width, tokens;
  float values[256];  // of scale bytes
  int64_t sequences() const { return rows / tokens; }
  explicit SavedMatrix(const Tensor& x, int64_t sequence) : rows(x.type.rows()), width(x.dim(-1)), tokens(sequence) {
    const QuantizedView v(x);
    codes = v.codes(0), scales = v.scales(0), code_pitch = v.layout.code_pitch, scale_pitch = v.layout.scale_pitch;
    for (int i = 0; i < 256; ++i) values[i] = e4m3_decode(i);
  }
};

// ---- groups of columns: v[e] is element e of `lanes` columns from c on, signs flipped, zeros past the tokens ----

template <class T>
void load_columns(const Matrix<T>& m, int64_t row, int64_t there, int64_t c, const Signs& signs, Word* v) {
  const T* const x = m.at(row, c);
  const int64_t n = smaller(lanes, m.width - c);
  prefetch_next_columns(m, x, c, there);
  const auto put = [&](int64_t e, Word a) {
    if constexpr (sizeof(T) == 4) a = round_word(a);
    v[e] = signs.flip(a, e);
  };
  if (n == lanes)
    for (int64_t e = 0; e < there; ++e) put(e, load(x + e * m.width));
  else
    for (int64_t e = 0; e < there; ++e) put(e, load_first(x + e * m.width, n));
}
void load_columns(const SavedMatrix& m, int64_t row, int64_t there, int64_t c, const Signs& signs, Word* v) {
  const uint8_t *codes = m.codes + row * m.code_pitch + c / 2, *scales = m.scales + row * m.scale_pitch + c / group;
  for (int64_t e = 0; e < there; ++e, codes += m.code_pitch, scales += m.scale_pitch)
    v[e] = signs.flip(mul(e2m1_values_of(codes_at(codes)), all(m.values[*scales])), e);
}

// The same of `lanes` rows, n of which exist, and 128 columns.
template <class T>
void load_rows(const Matrix<T>& m, int64_t row, int64_t n, int64_t c, const Signs& signs, Word* v) {
  const T* const x = m.at(row, c);
  const int64_t there = smaller(eden_group, m.width - c);
  for (int64_t k = 0; k < eden_group; k += lanes) {
    Word turned[lanes];
    for (int64_t l = 0; l < lanes; ++l)
      turned[l] = l >= n || k >= there ? zero()
                  : there - k >= lanes ? load(x + l * m.width + k)
                                       : load_first(x + l * m.width + k, there - k);
    transpose(turned);
    for (int64_t e = 0; e < lanes; ++e) {
      if constexpr (sizeof(T) == 4) turned[e] = round_word(turned[e]);
      v[k + e] = signs.flip(turned[e], k + e);
    }
  }
}

// ---- arithmetic ----

// The butterflies of 128, and after the last one see(i, word).
template <class See>
inline void rotate128(Word* v, const See& see) {
  for (int i = 0; i < eden_group; i += 16) butterfly16(v + i);
  for (int i = 0; i < 16; ++i) {
    Word t[8];
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) t[k] = v[16 * k + i];
#pragma GCC unroll 4
    for (int k = 0; k < 8; k += 2) cross(t[k], t[k + 1]);
    cross(t[0], t[2]), cross(t[1], t[3]), cross(t[4], t[6]), cross(t[5], t[7]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) cross(t[k], t[k + 4]);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) see(k, i, t[k]);
  }
}

// Largest magnitudes of rotated groups, not yet scaled.
IntWord largest_of(Word* v) {
  IntWord most[8];
  for (IntWord& m : most) m = all_int(0);
  rotate128(v, [&](int k, int, Word a) { most[k] = most_bits(most[k], magnitudes(a)); });
  for (int k = 1; k < 8; ++k) most[0] = most_bits(most[0], most[k]);
  return most[0];
}

// e4m3_encode_stochastic of 0 <= t <= 448.
IntWord e4m3_stochastic_bytes(Word t, IntWord random) {
  const IntWord nearest = e4m3_bytes(t);
  const IntWord lo = select_int(less(t, e4m3_values(nearest)), sub(nearest, all_int(1)), nearest);
  const Word low = e4m3_values(lo), step = sub(e4m3_values(add(lo, all_int(1))), low);  // a power of two
  const Word draw = mul(to_float(shift_right_zero<8>(random)), all(0x1p-24f));
  const IntWord byte = select_int(less(draw, div(sub(t, low), step)), add(lo, all_int(1)), lo);
  return least_int(byte, all_int(0x7E));
}

// What a group of every lane becomes: 64 bytes of codes and 8 scale bytes a lane.
struct GroupCodes {
  alignas(64) uint8_t codes[lanes * eden_group / 2];
  alignas(64) uint32_t scales[2][lanes];  // lane's bytes 0 to 3, 4 to 7
};

// v: before the rotation. index: of the random bits of the first block. Returns whether any element is not zero.
bool encode_group(const Copy& q, Word* v, int64_t index, GroupCodes* to) {
  IntWord most[eden_blocks], before[eden_blocks], any[eden_blocks];
  Word encode[eden_blocks];
  for (IntWord& m : most) m = all_int(0);
  rotate128(v, [&](int k, int i, Word a) {
    const Word z = add(mul(a, all(rht128_scale)), zero());
    v[16 * k + i] = z;
    most[k] = most_bits(most[k], magnitudes(z));
  });
  for (int k = 0; k < eden_blocks; ++k) {
    const IntWord byte = e4m3_bytes(least(mul(of_bits(most[k]), all(q.tensor.multiplier)), all(FLT_MAX)));
    before[k] = select_int(equal_int(byte, all_int(0)), all_int(e4m3_one), byte);
    encode[k] = encode_scales(q, before[k]);
  }
  Word num = zero(), den = zero();
  for (int k = 0; k < eden_blocks; k += 2) {
    IntWord packed[4];
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b) {
      const Word* const z = v + 16 * (k + b);
      IntWord code[16];
      Word squares[8], products[8];
#pragma GCC unroll 16
      for (int e = 0; e < 16; ++e) {
        const Word u = mul(z[e], encode[k + b]);
        code[e] = e2m1_codes(absolute(u), u);
        const Word square = mul(u, u), product = mul(u, e2m1_values_of(code[e]));
        if (e < 8)
          squares[e] = square, products[e] = product;
        else
          squares[e - 8] = add(squares[e - 8], square), products[e - 8] = add(products[e - 8], product);
      }
#pragma GCC unroll 3
      for (int h = 4; h > 0; h /= 2)
        for (int i = 0; i < h; ++i)
          squares[i] = add(squares[i], squares[i + h]), products[i] = add(products[i], products[i + h]);
      num = add(num, squares[0]), den = add(den, products[0]);
      pack_lanes<4>(code, packed + 2 * b);
      any[k + b] = bit_and(bit_or(packed[2 * b], packed[2 * b + 1]), all_int(0x77777777));
    }
    store_each_lane(packed, to->codes + 8 * k, eden_group / 2);
  }
  const Word ratio = select(equal(den, zero()), all(1.0f), div(num, den));
  IntWord found = all_int(0);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    IntWord four = all_int(0);
    for (int k = 3; k >= 0; --k) {
      const int b = 4 * half + k;
      const IntWord random = philox(q.key, static_cast<uint64_t>(index + b * q.per_block)).word[0];
      const IntWord byte = e4m3_stochastic_bytes(least(mul(e4m3_values(before[b]), ratio), all(e4m3_max)), random);
      four = bit_or(shift_left<8>(four), byte);
      found = bit_or(found, where_not(equal_int(byte, all_int(0)), any[b]));
    }
    store_int(to->scales[half], four);
  }
  return any_bits(found);
}

void put_lanes(const GroupCodes& g, int64_t n, uint8_t* codes, int64_t code_pitch, uint8_t* scales,
               int64_t scale_pitch) {
  for (int64_t l = 0; l < n; ++l, codes += code_pitch, scales += scale_pitch) {
    std::memcpy(codes, g.codes + l * (eden_group / 2), eden_group / 2);
    std::memcpy(scales, &g.scales[0][l], 4), std::memcpy(scales + 4, &g.scales[1][l], 4);
  }
}

// ---- the visits ----

// f(v, n, vector, position) for each group of an item: n lanes of which the first is vector `vector`, elements from
// `position` on.
template <class M, class F>
void for_column_groups(const M& m, const Copy& q, const Item& item, const F& f) {
  const int64_t position = item.sequence * q.sequence + item.t, first = q.first / q.per_block * group + position;
  const Signs signs(q, first / eden_group);
  Word v[eden_group];
  for (int64_t c = item.c; c < item.c + item.width; c += lanes) {
    for (int64_t e = item.height; e < eden_group; ++e) v[e] = zero();
    load_columns(m, item.sequence * m.tokens + item.t, item.height, c, signs, v);
    f(v, smaller(lanes, m.width - c), c, position);
  }
}
template <class M, class F>
void for_row_groups(const M& m, const Copy& q, const Item& item, const F& f) {
  Word v[eden_group];
  for (int64_t c = item.c; c < item.c + item.width; c += eden_group) {
    const Signs signs(q, c / eden_group);
    for (int64_t t = 0; t < item.height; t += lanes) {
      const int64_t row = item.sequence * m.tokens + item.t + t, n = smaller(lanes, item.height - t);
      load_rows(m, row, n, c, signs, v);
      f(v, n, row, c);
    }
  }
}

template <class M, class ForGroups>
void make(ThreadPool& pool, const M& m, Copy& q, const ForGroups& for_groups) {
  q.most = 0;
  for_items(pool, m, false, [&](const Item& item) {
    IntWord most = all_int(0);
    for_groups(m, q, item, [&](Word* v, int64_t, int64_t, int64_t) { most = most_bits(most, largest_of(v)); });
    raise(q.most, reduce_most(most));
  });
  q.most = magnitude_bits(std::bit_cast<float>(q.most) * rht128_scale);
  if (!q.begin(1)) return;
  for_items(pool, m, false, [&](const Item& item) {
    bool found = false;
    for_groups(m, q, item, [&](Word* v, int64_t n, int64_t vector, int64_t position) {
      GroupCodes g;
      found |= encode_group(q, v, q.first + vector * q.per_vector + position / group * q.per_block, &g);
      put_lanes(g, n, q.codes + vector * q.code_pitch + position / 2, q.code_pitch,
                q.scales + vector * q.scale_pitch + position / group, q.scale_pitch);
    });
    if (found) __atomic_store_n(&q.header->blank, 0u, __ATOMIC_RELAXED);
  });
}

template <class M>
void make_columns(ThreadPool& pool, const M& m, Copy& q) {
  make(pool, m, q, [](const auto&... call) { for_column_groups(call...); });
}
template <class T>
void make_copy(ThreadPool& pool, const Matrix<T>& m, Copy& q, bool column) {
  if (column) return make_columns(pool, m, q);
  make(pool, m, q, [](const auto&... call) { for_row_groups(call...); });
}

}  // namespace

void make_eden(ThreadPool& pool, const Matrix<float>& m, Copy* q, bool column) { make_copy(pool, m, *q, column); }
void make_eden(ThreadPool& pool, const Matrix<BFloat16>& m, Copy* q, bool column) { make_copy(pool, m, *q, column); }

void requantize(const KernelCall& c) {
  const Tensor& x = c.in[0];
  const SavedMatrix m(x, c.attrs.get_int("tokens"));
  Copy q = column_copy(c, spec_of(c.attrs, "column"), c.out.data(), m.width, c.in[1].as<int32_t>());
  make_columns(c.pool, m, q);
  q.header->saved = QuantizedView(x).header().decode;
}

}  // namespace nibble::NIBBLE_TARGET
