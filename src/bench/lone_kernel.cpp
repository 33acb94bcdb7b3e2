#include "bench/lone_kernel.h"

#include <algorithm>

#include "core/quantized.h"
#include "numerics/bf16.h"
#include "numerics/fp8.h"
#include "passes/memory.h"

namespace nibble {

LoneKernel::LoneKernel(const Op& op, const Types& in, const Attrs& attrs, int threads, CpuTarget target, int32_t ids)
    : attrs_(attrs), ids_(ids), results_(result_types({op, in, {}, attrs_, "bench"})) {
  const Types& out = results_;
  choice_ = choose_kernel(op, {in, out, attrs_, threads}, target);
  for (const Type& t : in) in_.push_back(filled(t));
  for (size_t k = 0; k < out.size(); ++k) {
    const auto shares = std::ranges::find(op.in_place, static_cast<int>(k), &InPlace::out);
    out_.push_back(shares == op.in_place.end() ? filled(out[k]) : in_[static_cast<size_t>(shares->in)]);
  }
  if (choice_.workspace != nullptr) workspace_ = allocate(choice_.workspace({in, out, attrs_, threads}));
}

void LoneKernel::run(ThreadPool& pool) { choice_.run({in_, out_, attrs_, workspace_, pool}); }

std::byte* LoneKernel::allocate(int64_t bytes) {
  memory_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes) + arena_alignment));
  const auto address = reinterpret_cast<uintptr_t>(memory_.back().get());
  return memory_.back().get() + (arena_alignment - address % arena_alignment) % arena_alignment;
}

namespace {

uint32_t word_at(int64_t i) { return static_cast<uint32_t>(i) * 2654435761u; }

// Any codes, under scales of 1; no NaN and no Inf among those of 8 bits.
void fill_quantized(const Tensor& t) {
  const QuantizedView v(t);
  v.header() = {.amax = 1, .decode = 1, .saved = 1, .by_amax = 0, .blank = 0};
  auto* bytes = reinterpret_cast<uint8_t*>(v.base);
  for (int64_t i = v.layout.codes; i < v.layout.scales; ++i)
    bytes[i] = static_cast<uint8_t>(word_at(i) >> 24 & (v.format.bits == 4 ? 0xFF : 0xFB));
  const bool e4m3 = t.type.dtype == DType::nvfp4 || t.type.dtype == DType::nvfp4_2d;
  std::fill(bytes + v.layout.scales, bytes + v.layout.bytes, static_cast<uint8_t>(e4m3 ? e4m3_one : 127));
}

}  // namespace

// Numbers in [-0.5, 0.5): values do not change the time, denormals would.
Tensor LoneKernel::filled(const Type& type) {
  Tensor t{type, allocate(type.nbytes())};
  if (is_quantized(type.dtype)) {
    fill_quantized(t);
    return t;
  }
  for (int64_t i = 0; i < type.numel(); ++i) {
    const uint32_t word = word_at(i);
    const float x = static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
    switch (type.dtype) {
      case DType::f32:
        t.as<float>()[i] = x;
        break;
      case DType::f64:
        t.as<double>()[i] = static_cast<double>(x);
        break;
      case DType::i32:
        t.as<int32_t>()[i] = ids_ == 0 ? 1 : static_cast<int32_t>((word >> 8) % static_cast<uint32_t>(ids_));
        break;
      case DType::bf16:
        t.as<BFloat16>()[i] = round_bf16(x);
        break;
      default:  // quantised
        break;
    }
  }
  return t;
}

}  // namespace nibble
