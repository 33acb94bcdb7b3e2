// quantize, quantize_weight and quantize_weights: numbers to codes and scale bytes, bit-equal to kernels/ref/quantized.
//
// Two visits. The first finds the largest magnitude of each copy, the second makes the codes. Both go over items of 128
// tokens x 256 columns that stay in the second-level cache while a row copy and a column copy are made from them. MX
// copies need one visit: their largest magnitude decides nothing but the header.
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
#include "kernels/cpu/quantize_make.h"

namespace nibble::NIBBLE_TARGET {
namespace {

// ---- tiles ----

// The byte of a tile of 16 x 16: errors of its rows, which are the lanes of words16 words, added by the lane tree.
template <class T>
uint8_t tile_byte(const Copy& q, const T* x, int64_t pitch, int64_t rows, int64_t columns, float amax) {
  Word turned[16][words16];
  for (int w = 0; w < words16; ++w)
    for (int64_t k = 0; k < 16; k += lanes) {
      Word v[lanes];
      for (int64_t l = 0; l < lanes; ++l) {
        const int64_t r = w * lanes + l;
        v[l] = r < rows && k < columns ? load_first(x + r * pitch + k, smaller(lanes, columns - k)) : zero();
      }
      transpose(v);
      for (int64_t e = 0; e < lanes; ++e) turned[k + e][w] = rounded_finite<T>(v[e]);
    }
  const Candidates c(q, all(amax));
  const auto error = [&](IntWord bytes) {
    Lanes16 rows_of;
    for (int w = 0; w < words16; ++w) rows_of.w[w] = four_six_errors(q, bytes, [&](int64_t e) { return turned[e][w]; });
    return lane_sum(rows_of);
  };
  uint8_t bytes[2][lanes];
  store_bytes(bytes[0], c.six), store_bytes(bytes[1], c.four);
  return bytes[error(c.four) < error(c.six)][0];
}

// Returns the largest magnitudes of the item. q: a copy in these tiles.
template <class T>
IntWord fill_tiles(const Matrix<T>& m, const Item& item, const Copy& q, Tiles* tiles) {
  const int64_t side = q.format.rows;
  IntWord most = all_int(0);
  tiles->side = side, tiles->c = item.c;
  std::memset(tiles->bytes, 0, sizeof tiles->bytes);
  for (int64_t t = 0; t < item.height; t += side)
    for (int64_t c = 0; c < item.width; c += segment) {
      const T* const x = m.at(item.sequence * m.tokens + item.t + t, item.c + c);
      const int64_t n = smaller(segment, item.width - c), rows = smaller(side, item.height - t);
      const IntWord groups =
          n == segment ? group_maxima<true>(x, m.width, rows, n) : group_maxima<false>(x, m.width, rows, n);
      most = most_bits(most, groups);
      float* const amax = &tiles->amax[t / side][c / 16];
      store(amax, round_word(of_bits(block_maxima(groups, side))));
      if (q.spec.four_six == FourSix::off) continue;
      for (int64_t g = 0; g * group < n; ++g)
        tiles->bytes[t / side][c / 16 + g] =
            tile_byte(q, x + g * group, m.width, rows, smaller(group, n - g * group), amax[g]);
    }
  return most;
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

// Takes the largest magnitudes of an item of columns or rows that are rotated; plain: of what is not.
template <class T>
void rotated_most(const Matrix<T>& m, const Item& item, Copy* q, bool column, uint32_t* plain) {
  IntWord most = all_int(0), most_plain = most;
  const auto take = [&](const RotatedMaxima& maxima) {
    most = most_bits(most, maxima.rotated), most_plain = most_bits(most_plain, maxima.plain);
    return maxima.sums;
  };
  if (column)
    for (int64_t t = item.t; t < item.t + item.height; t += group) {  // along the rows, as the hardware expects
      const Item strip{item.sequence, t, smaller(group, item.t + item.height - t), item.c, item.width};
      for (int64_t c = item.c; c < item.c + item.width; c += lanes)
        for_column_blocks<group, 1>(m, strip, c, q->sequence, q->sums, [&](const auto& read, const Place& place, auto) {
          *place.sums = take(rotated_maxima<T>(read));
        });
    }
  else
    for_turned_blocks<group>(m, item, [&](const auto& read, const Place&, auto) { take(rotated_maxima<T>(read)); });
  raise(q->most, reduce_most(most)), raise(*plain, reduce_most(most_plain));
}

template <class T>
void find_most(ThreadPool& pool, const Matrix<T>& m, Copy* row, Copy* column) {
  uint32_t plain = 0;
  bool known = false;
  for (Copy* q : {row, column}) {
    if (!q->active || q->spec.hadamard != 16) continue;
    const bool whole_rows = m.rows >= 4 * item_tokens * pool.size();
    for_items(pool, m, whole_rows, [&](const Item& item) { rotated_most(m, item, q, q == column, &plain); });
    known = true;
  }
  for (Copy* q : {row, column}) {
    if (!q->active || q->spec.hadamard != 0 || q->mx()) continue;
    if (!known) plain = plain_most(pool, m), known = true;
    q->most = magnitude_bits(widen(round_bf16(std::bit_cast<float>(plain))));
  }
}

// ---- the whole ----

template <class T>
void make_copies(const KernelCall& c, const Tensor& x, const int32_t* random, float delayed) {
  Matrix<T> m{x.as<T>(), x.type.rows(), x.dim(-1), c.attrs.get_int("tokens")};
  const QuantSpec row_spec = spec_of(c.attrs, "row");
  Copy row = row_copy(c, row_spec, c.out.data(), m.width, random);
  Copy column = column_copy(c, spec_of(c.attrs, "column"), c.out.data() + (row.active ? 1 : 0), m.width, random);
  m.far = m.is_large();
  for (Copy* q : {&row, &column})
    if (q->spec.rounding == Rounding::eden) make_eden(c.pool, m, q, q == &column), q->active = false;
  if (!row.active && !column.active) return;
  if (column.spec.hadamard == 16) column.sums = reinterpret_cast<Sums*>(c.workspace);
  find_most(c.pool, m, &row, &column);
  m.far = !row.active && m.is_large();
  // What MX copies are made of is known only afterwards; it decides nothing but their headers.
  for (Copy* q : {&row, &column})
    if (q->active && !q->mx()) q->active = q->begin(delayed);
  if (!row.active && !column.active) return;
  const Copy* const square = row.active && row.square() ? &row : column.active && column.square() ? &column : nullptr;
  const bool along = !column.active && square == nullptr && row.spec.hadamard == 0 && row.spec.four_six == FourSix::off;
  for_items(c.pool, m, along, [&](const Item& item) {
    Tiles tiles;
    Seen of_tiles;
    if (square != nullptr) of_tiles.most = fill_tiles(m, item, *square, &tiles);
    for (Copy* const copy : {&row, &column}) {
      Copy& q = *copy;
      if (!q.active) continue;
      Seen seen = q.square() ? of_tiles : Seen{};
      const auto make = q.nvfp4() ? make_nvfp4<T> : q.mx() ? make_mx<T> : make_fp8<T>;
      make(&q == &column, m, item, q, q.square() ? &tiles : nullptr, &seen);
      if (seen.value) __atomic_store_n(&q.found, true, __ATOMIC_RELAXED);
      if (q.mx()) raise(q.most, reduce_most(seen.most));
    }
  });
  for (Copy* q : {&row, &column}) {
    if (!q->active) continue;
    if (q->mx()) q->most = magnitude_bits(widen(round_bf16(std::bit_cast<float>(q->most)))), q->begin(delayed);
    if (q->found) q->header->blank = 0;
  }
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
