#include "sample/decoder.h"

#include <algorithm>
#include <cstring>

namespace nibble {

std::vector<int64_t> row_buckets(int64_t most) {
  std::vector<int64_t> rows;
  for (int64_t r = 1; r < most; r *= 2) rows.push_back(r);
  rows.push_back(most);
  return rows;
}

std::vector<NamedGraph> decode_graphs(const LlamaConfig& c, const std::vector<int64_t>& buckets, int64_t positions) {
  std::vector<NamedGraph> graphs;
  graphs.reserve(buckets.size());
  for (const int64_t rows : buckets)
    graphs.push_back({fmt::format("decode_{}", rows), llama_decode_graph(c, rows, positions)});
  return graphs;
}

int64_t cache_bytes(const LlamaConfig& c, int64_t positions) {
  return 2 * c.layers * Type{DType::f32, {positions, c.kv_heads, c.head_size}}.nbytes();
}

Decoder::Decoder(Program& program, std::vector<int64_t> buckets, int64_t positions) : capacity_(positions) {
  std::ranges::sort(buckets);
  for (const int64_t rows : buckets) buckets_.push_back({rows, &program.executable(fmt::format("decode_{}", rows))});
}

std::span<const float> Decoder::encode(std::span<const int32_t> ids, int64_t chunk) {
  NIBBLE_CHECK(!ids.empty() && length_ + static_cast<int64_t>(ids.size()) <= capacity_,
               "{} ids at position {} of a cache of {}", ids.size(), length_, capacity_);
  const int64_t most = std::min(chunk > 0 ? chunk : buckets_.back().rows, buckets_.back().rows);
  Tensor logits;
  while (!ids.empty()) {
    const int64_t count = std::min<int64_t>(most, static_cast<int64_t>(ids.size()));
    const Bucket& bucket = *std::ranges::find_if(buckets_, [&](const Bucket& b) { return b.rows >= count; });
    Executable& x = *bucket.run;
    int32_t *tokens = x.input("tokens").as<int32_t>(), *positions = x.input("positions").as<int32_t>(),
            *span = x.input("span").as<int32_t>();
    for (int64_t i = 0; i < bucket.rows; ++i) {
      tokens[i] = i < count ? ids[static_cast<size_t>(i)] : 0;
      positions[i] = i < count ? static_cast<int32_t>(length_ + i) : 0;
    }
    span[0] = static_cast<int32_t>(length_), span[1] = static_cast<int32_t>(count);
    if (x.has_input("random")) std::memset(x.input("random").data, 0, quantize_words * sizeof(int32_t));  // to nearest
    x.input("last").as<int32_t>()[0] = static_cast<int32_t>(count - 1);
    x.run();
    logits = x.output("logits");
    length_ += count;
    ids = ids.subspan(static_cast<size_t>(count));
  }
  return {logits.as<float>(), static_cast<size_t>(logits.numel())};
}

void Decoder::truncate(int64_t n) {
  NIBBLE_CHECK(n >= 0 && n <= length_, "cannot truncate {} positions to {}", length_, n);
  length_ = n;
}

}  // namespace nibble
