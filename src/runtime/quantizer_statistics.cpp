#include "runtime/quantizer_statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/quant_spec.h"
#include "core/quantized.h"
#include "kernels/ref/quantized.h"
#include "numerics/nvfp4_rule.h"
#include "numerics/quantized_product.h"

namespace nibble {
namespace {

enum Sum { x1, x2, x3, x4, cross, error, sums };

double tree(double* lane) {
  for (int h = 8; h >= 1; h /= 2)
    for (int i = 0; i < h; ++i) lane[i] += lane[i + h];
  return lane[0];
}

class Statistics {
 public:
  // Of every `period` elements of a row the first `tokens` are values.
  Statistics(const QuantSpec& spec, bool column, int64_t tokens, int64_t period, const Tensor& made)
      : spec_(spec), q_(made), column_(column) {
    const QuantizedLayout& l = q_.layout;
    for (int code = 0; code < 256; ++code) {
      const uint8_t byte[] = {static_cast<uint8_t>(code)};
      value_[code] = element_value(spec.format, byte, 0);
    }
    rule_ = nvfp4_rule(spec);
    const bool tseng = spec.floor_scale && spec.rounding == Rounding::stochastic;
    gain_ = tseng ? 4.0 / 3 : 1, taken_ = tseng ? 0.75f : 1;
    most_.assign(static_cast<size_t>(l.blocks), 0);
    const auto columns = static_cast<size_t>(l.columns);
    decoded_.resize(columns), codes_.resize(columns), encode_.resize(columns), block_.resize(columns);
    for (size_t e = 0; e < columns; ++e) block_[e] = e / static_cast<size_t>(q_.format.columns);
    for (int64_t e = 0; e < l.columns; ++e)
      if (e % period < tokens) inside_.push_back(e);
    const auto channels = static_cast<size_t>(column ? l.rows : l.columns);
    mean_.assign(channels, 0), energy_.assign(channels, 0);
  }

  void row(int64_t i, const float* x) {
    decode(i);
    double lane[sums][16] = {};
    for (const int64_t e : inside_) {
      const double v = x[e], d = decoded_[static_cast<size_t>(e)], v2 = v * v;
      const int64_t j = e % 16;
      lane[x1][j] += v, lane[x2][j] += v2, lane[x3][j] += v2 * v, lane[x4][j] += v2 * v2;
      lane[cross][j] += v * d, lane[error][j] += (v - d) * (v - d);
      if (!column_) mean_[static_cast<size_t>(e)] += v, energy_[static_cast<size_t>(e)] += v2;
      count(e, x[e]);
    }
    double total[sums];
    for (int s = 0; s < sums; ++s) sum_[s] += total[s] = tree(lane[s]);
    if (column_) mean_[static_cast<size_t>(i)] = total[x1], energy_[static_cast<size_t>(i)] = total[x2];
    if ((i + 1) % q_.format.rows == 0 || i + 1 == q_.layout.rows) blocks(i);
  }

  QuantizerStatistics result() {
    QuantizerStatistics r = r_;
    const auto n = static_cast<double>(r.elements);
    const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
    r.amax = q_.header().amax;
    r.sqnr_db = sum_[error] > 0 ? 10 * std::log10(sum_[x2] / sum_[error]) : INFINITY;
    r.shrink = sum_[x2] > 0 ? 1 - sum_[cross] / sum_[x2] : 0;
    r.zero_share = share(zeros_, nonzero_), r.at_max_share = share(at_max_, n), r.clip_share = share(clipped_, n);
    const auto all = static_cast<double>(r.blocks);
    r.scale_zero = share(r.scale_zero, all), r.scale_subnormal = share(r.scale_subnormal, all),
    r.scale_max = share(r.scale_max, all), r.four_share = share(r.four_share, all);
    r.dyn_range = least_ > 0 ? std::log2(most_of_all_ / least_) : 0;
    r.crest = sum_[x2] > 0 ? most_of_all_ / std::sqrt(sum_[x2] / n) : 0;
    const double m = share(sum_[x1], n), second = sum_[x2] - n * m * m;
    const double fourth = sum_[x4] - 4 * m * sum_[x3] + 6 * m * m * sum_[x2] - 3 * n * m * m * m * m;
    r.kurtosis = second > 0 ? n * fourth / (second * second) : 0;
    const double tokens = n / static_cast<double>(mean_.size());
    double mean = 0, top = 0;
    for (const double s : mean_) mean += (s / tokens) * (s / tokens);
    r.mean_ratio = sum_[x2] > 0 ? mean / (sum_[x2] / tokens) : 0;
    std::ranges::sort(energy_, std::greater{});
    const size_t largest = (energy_.size() + 99) / 100;
    for (size_t c = 0; c < largest; ++c) top += energy_[c];
    r.top_channel_share = share(top, sum_[x2]);
    if (block_format(spec_.format).scales && !is_e4m3_scale()) {
      const auto last = std::find_if(bytes_.rbegin(), bytes_.rend(), [](int64_t c) { return c > 0; });
      r.scale_hist_last = std::max<int>(15, static_cast<int>(bytes_.rend() - last) - 1);
      for (int k = 0; k < 16; ++k)
        r.scale_hist[static_cast<size_t>(k)] = bytes_[static_cast<size_t>(r.scale_hist_last - 15 + k)];
    }
    return r;
  }

 private:
  bool is_e4m3_scale() const { return spec_.format == DType::nvfp4 || spec_.format == DType::nvfp4_2d; }

  int scale_byte(int64_t i, int64_t e) const { return q_.format.scales ? q_.scales(i)[e / q_.format.columns] : 0; }

  // What the codes of row i stand for, in the units of the values.
  void decode(int64_t i) {
    const QuantizedHeader& h = q_.header();
    const uint8_t* const codes = q_.codes(i);
    for (int64_t first = 0; first < q_.layout.columns; first += q_.format.columns) {
      const int64_t end = std::min(q_.layout.columns, first + q_.format.columns);
      const float scale = block_scale_value(spec_.format, scale_byte(i, first));
      const float whole = h.by_amax != 0 ? (scale * h.amax) * rcp_2688 : scale * h.decode;
      std::fill(encode_.begin() + first, encode_.begin() + end, at_most_max(1 / (scale * h.decode)) * taken_);
      for (int64_t e = first; e < end; ++e) {
        const int code = q_.format.bits == 4 ? codes[e / 2] >> (e % 2 * 4) & 15 : codes[e];
        codes_[static_cast<size_t>(e)] = static_cast<uint8_t>(code);
        decoded_[static_cast<size_t>(e)] = static_cast<double>(value_[code] * whole) * gain_;
      }
    }
  }

  void count(int64_t e, float x) {
    const int code = codes_[static_cast<size_t>(e)];
    const bool four_bits = q_.format.bits == 4;
    const int magnitude = four_bits ? code & 7 : code & 0x7F;
    const int largest = four_bits ? 7 : spec_.format == DType::e5m2 ? 0x7B : 0x7E;
    ++r_.elements;
    nonzero_ += x != 0, zeros_ += x != 0 && decoded_[static_cast<size_t>(e)] == 0, at_max_ += magnitude == largest;
    if (four_bits) ++r_.code_hist[static_cast<size_t>(code)];
    clipped_ += std::fabs(x * encode_[static_cast<size_t>(e)]) > value_[largest];
    float& most = most_[block_[static_cast<size_t>(e)]];
    most = std::max(most, std::fabs(x));
  }

  // A row of blocks (of tiles) that ends with row i.
  void blocks(int64_t i) {
    for (int64_t j = 0; j < q_.layout.blocks; ++j) {
      const float most = std::exchange(most_[static_cast<size_t>(j)], 0.0f);
      ++r_.blocks;
      most_of_all_ = std::max(most_of_all_, static_cast<double>(most));
      if (most > 0) least_ = least_ > 0 ? std::min(least_, static_cast<double>(most)) : static_cast<double>(most);
      if (!q_.format.scales) continue;
      const int byte = q_.scales(i)[j];
      if (!is_e4m3_scale()) {
        ++bytes_[static_cast<size_t>(byte)];
        continue;
      }
      ++r_.scale_hist[static_cast<size_t>(byte >> 3 & 15)];
      r_.scale_zero += byte == 0 && most > 0, r_.scale_subnormal += byte >= 1 && byte <= 7;
      const bool four_six = spec_.four_six != FourSix::off;
      r_.scale_max += four_six ? byte == 0x78 || byte == 0x7C : byte == 0x7E;
      if (!four_six) continue;
      const auto [six, four] = four_six_bytes(most, nvfp4_scale(q_.header().amax, rule_));
      r_.four_share += byte == four && four != six;
    }
  }

  const QuantSpec& spec_;
  QuantizedView q_;
  bool column_;
  std::vector<int64_t> inside_;  // elements of a row that are values; the rest is fill
  std::vector<size_t> block_;    // of each element of a row
  std::vector<float> encode_;    // what each is multiplied with before it is rounded
  Nvfp4Rule rule_;
  double gain_ = 1;
  float taken_ = 1;
  float value_[256];
  double sum_[sums] = {};
  double nonzero_ = 0, zeros_ = 0, at_max_ = 0, clipped_ = 0, most_of_all_ = 0, least_ = 0;
  std::vector<float> most_;
  std::vector<double> decoded_, mean_, energy_;
  std::vector<uint8_t> codes_;
  std::array<int64_t, 256> bytes_{};
  QuantizerStatistics r_;
};

}  // namespace

QuantizerStatistics quantizer_statistics(const Attrs& attrs, bool column, std::span<const Tensor> in,
                                         const Tensor& made) {
  const QuantizedView q(made);
  if (std::isnan(q.header().amax)) return {.amax = NAN};
  const QuantSpec spec = parse_quant_spec(attrs.get_string(column ? "column" : "row"));
  // The states that quantise_weight(s) writes stand before the tensor; a delayed scale stands behind the random words.
  size_t x = 0;
  while (in[x + 1].type.dtype != DType::i32) ++x;
  const int64_t tokens = attrs.get_int("tokens"), width = in[x].dim(-1);
  Statistics s(spec, column, column ? tokens : width, column ? filled(spec, tokens) : q.layout.columns, made);
  std::vector<float> buffer(static_cast<size_t>(q.layout.columns));
  const auto see = [](void* to, int64_t i, const float* values) { static_cast<Statistics*>(to)->row(i, values); };
  ref::visit_values(attrs, column, in[x], in[x + 1].as<int32_t>(), {buffer.data(), &s, see});
  return s.result();
}

}  // namespace nibble
