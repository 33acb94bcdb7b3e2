// The ordered kernel lists: for each op, fastest first.
#include <array>

#include "core/quant_spec.h"
#include "kernels/cpu/kernels.h"
#include "kernels/kernel.h"

namespace nibble {
namespace {

constexpr std::array<Kernel, 2> both(KernelRun wide, KernelRun narrow) {
  return {{{"avx512", CpuTarget::avx512, wide}, {"avx2", CpuTarget::avx2, narrow}}};
}
constexpr std::array<Kernel, 2> both(KernelRun wide, KernelRun narrow, KernelWorkspace wide_space,
                                     KernelWorkspace narrow_space) {
  return {{{"avx512", CpuTarget::avx512, wide, wide_space}, {"avx2", CpuTarget::avx2, narrow, narrow_space}}};
}

// The operand that tells a bf16 node from an f32 one.
template <size_t operand>
const char* refuses_f32(const KernelShape& s) {
  return s.in[operand].dtype == DType::bf16 ? nullptr : "takes bf16 only";
}
constexpr std::array<Kernel, 3> with_bf16(const Kernel& fastest, const std::array<Kernel, 2>& others) {
  return {{fastest, others[0], others[1]}};
}
template <size_t operand>
constexpr Kernel vdpbf16ps(KernelRun run, KernelWorkspace space) {
  return {"avx512_bf16", CpuTarget::avx512_bf16, run, space, refuses_f32<operand>};
}

constexpr auto embedding_list = both(avx512::embedding, avx2::embedding);
constexpr auto embedding_grad_list = both(avx512::embedding_grad, avx2::embedding_grad);
constexpr auto linear_list =
    with_bf16(vdpbf16ps<0>(avx512_bf16::linear_bf16, avx512_bf16::linear_bf16_workspace),
              both(avx512::linear, avx2::linear, avx512::linear_workspace, avx2::linear_workspace));
constexpr auto linear_dgrad_list = with_bf16(
    vdpbf16ps<0>(avx512_bf16::linear_dgrad_bf16, avx512_bf16::linear_dgrad_bf16_workspace),
    both(avx512::linear_dgrad, avx2::linear_dgrad, avx512::linear_dgrad_workspace, avx2::linear_dgrad_workspace));
constexpr auto linear_wgrad_list = with_bf16(
    vdpbf16ps<1>(avx512_bf16::linear_wgrad_bf16, avx512_bf16::linear_wgrad_bf16_workspace),
    both(avx512::linear_wgrad, avx2::linear_wgrad, avx512::linear_wgrad_workspace, avx2::linear_wgrad_workspace));
constexpr auto rms_norm_list = both(avx512::rms_norm, avx2::rms_norm);
constexpr auto rms_norm_grad_list =
    both(avx512::rms_norm_grad, avx2::rms_norm_grad, avx512::rms_norm_grad_workspace, avx2::rms_norm_grad_workspace);
constexpr auto rope_list = both(avx512::rope, avx2::rope);
constexpr auto attention_list =
    with_bf16(vdpbf16ps<0>(avx512_bf16::attention_bf16, avx512_bf16::attention_bf16_workspace),
              both(avx512::attention, avx2::attention, avx512::attention_workspace, avx2::attention_workspace));
constexpr auto attention_grad_list =
    with_bf16(vdpbf16ps<1>(avx512_bf16::attention_grad_bf16, avx512_bf16::attention_grad_bf16_workspace),
              both(avx512::attention_grad, avx2::attention_grad, avx512::attention_grad_workspace,
                   avx2::attention_grad_workspace));
constexpr auto swiglu_list = both(avx512::swiglu, avx2::swiglu);
constexpr auto swiglu_grad_list = both(avx512::swiglu_grad, avx2::swiglu_grad);
constexpr auto add_list = both(avx512::add, avx2::add);
constexpr auto scale_list = both(avx512::scale, avx2::scale);
constexpr auto cross_entropy_list = with_bf16(
    vdpbf16ps<0>(avx512_bf16::cross_entropy_bf16, avx512_bf16::cross_entropy_bf16_workspace),
    both(avx512::cross_entropy, avx2::cross_entropy, avx512::cross_entropy_workspace, avx2::cross_entropy_workspace));
constexpr auto cross_entropy_grad_list =
    with_bf16(vdpbf16ps<1>(avx512_bf16::cross_entropy_grad_bf16, avx512_bf16::cross_entropy_grad_bf16_workspace),
              both(avx512::cross_entropy_grad, avx2::cross_entropy_grad, avx512::cross_entropy_grad_workspace,
                   avx2::cross_entropy_grad_workspace));
constexpr auto attention_cached_list = both(avx512::attention_cached, avx2::attention_cached,
                                            avx512::attention_cached_workspace, avx2::attention_cached_workspace);
constexpr auto adamw_list = both(avx512::adamw, avx2::adamw);
constexpr auto sgd_list = both(avx512::sgd, avx2::sgd);
constexpr auto sum_squares_list = both(avx512::sum_squares, avx2::sum_squares);
constexpr auto norm_list = both(avx512::norm, avx2::norm);
constexpr auto recast_list = both(avx512::recast, avx2::recast);
constexpr auto residual_rms_norm_list = both(avx512::residual_rms_norm, avx2::residual_rms_norm);
constexpr auto residual_rms_norm_grad_list = both(avx512::residual_rms_norm_grad, avx2::residual_rms_norm_grad,
                                                  avx512::rms_norm_grad_workspace, avx2::rms_norm_grad_workspace);
constexpr auto rope_pair_list = both(avx512::rope_pair, avx2::rope_pair);
constexpr auto adamw_squares_list = both(avx512::adamw_squares, avx2::adamw_squares);
constexpr auto quest_mask_list = both(avx512::quest_mask, avx2::quest_mask);
constexpr auto quest_back_list = both(avx512::quest_back, avx2::quest_back);
constexpr auto quest_back_add_list = both(avx512::quest_back_add, avx2::quest_back_add);

// What kernels/cpu/quantize*.cpp leave to the reference.
const char* refuses_copy(const QuantSpec& spec, int64_t rows, int64_t tokens) {
  if (!spec.active()) return nullptr;
  const BlockFormat f = block_format(spec.format);
  if (spec.quest) return "no QuEST scale";
  if (spec.rounding == Rounding::eden) return nullptr;
  if (f.rows > 1 && rows != tokens && tokens % f.rows != 0) return "its tiles straddle no sequences";
  const bool turns = (spec.format == DType::nvfp4 && spec.hadamard == 16) ||
                     (spec.format == DType::mxfp4 && (spec.hadamard == 32 || spec.hadamard == 64));
  return spec.hadamard == 0 || turns ? nullptr : "rotates NVFP4 by 16 and MXFP4 by 32 and 64 only";
}
const char* refuses_copies(const KernelShape& s, const Type& x) {
  const QuantSpec row = spec_of(s.attrs, "row"), column = spec_of(s.attrs, "column");
  const int64_t tokens = s.attrs.get_int("tokens");
  if (const char* reason = refuses_copy(row, x.rows(), tokens)) return reason;
  if (const char* reason = refuses_copy(column, x.rows(), tokens)) return reason;
  if (block_format(row.format).rows == 1 || block_format(column.format).rows == 1) return nullptr;
  const bool alike =
      row.format == column.format && row.four_six == column.four_six && row.tensor_scale == column.tensor_scale;
  return alike ? nullptr : "tiles of one kind only";
}
constexpr std::array<Kernel, 2> quantizers(KernelRun wide, KernelRun narrow,
                                           const char* (*refuses)(const KernelShape&)) {
  return {{{"avx512", CpuTarget::avx512, wide, avx512::quantize_workspace, refuses},
           {"avx2", CpuTarget::avx2, narrow, avx2::quantize_workspace, refuses}}};
}
constexpr auto quantize_list =
    quantizers(avx512::quantize, avx2::quantize, [](const KernelShape& s) { return refuses_copies(s, s.in[0]); });
constexpr auto quantize_weights_list =
    quantizers(avx512::quantize_weights, avx2::quantize_weights,
               [](const KernelShape& s) { return refuses_copies(s, s.in[s.in.size() - 2]); });
const char* refuses_requantize(const KernelShape& s) {
  return s.in[0].dtype == DType::nvfp4 ? nullptr : "turns NVFP4 only";
}
constexpr std::array<Kernel, 2> requantize_list = {
    {{"avx512", CpuTarget::avx512, avx512::requantize, nullptr, refuses_requantize},
     {"avx2", CpuTarget::avx2, avx2::requantize, nullptr, refuses_requantize}}};

// Products of quantised operands: all terms of 4 bits under one kind of scale, or all of 8. `first`: their first
// operand.
template <size_t first>
const char* refuses_formats(const KernelShape& s) {
  const BlockFormat f = block_format(s.in[first].dtype);
  if (f.bits == 0) return "takes quantised operands only";
  for (const Type& t : s.in.subspan(first)) {
    const BlockFormat g = block_format(t.dtype);
    if (g.bits != f.bits || (f.bits == 4 && g.columns != f.columns)) return "takes terms of one kind only";
  }
  return nullptr;
}
template <size_t first>
constexpr std::array<Kernel, 3> quantized(KernelRun vnni, KernelRun wide, KernelRun narrow, KernelWorkspace vnni_space,
                                          KernelWorkspace wide_space, KernelWorkspace narrow_space) {
  return {{{"avx512_bf16", CpuTarget::avx512_bf16, vnni, vnni_space, refuses_formats<first>},
           {"avx512", CpuTarget::avx512, wide, wide_space, refuses_formats<first>},
           {"avx2", CpuTarget::avx2, narrow, narrow_space, refuses_formats<first>}}};
}
constexpr auto qlinear_list =
    quantized<0>(avx512_bf16::qlinear, avx512::qlinear, avx2::qlinear, avx512_bf16::qlinear_workspace,
                 avx512::qlinear_workspace, avx2::qlinear_workspace);
constexpr auto qlinear_dgrad_list =
    quantized<0>(avx512_bf16::qlinear_dgrad, avx512::qlinear_dgrad, avx2::qlinear_dgrad,
                 avx512_bf16::qlinear_dgrad_workspace, avx512::qlinear_dgrad_workspace, avx2::qlinear_dgrad_workspace);
constexpr auto qlinear_wgrad_list =
    quantized<1>(avx512_bf16::qlinear_wgrad, avx512::qlinear_wgrad, avx2::qlinear_wgrad,
                 avx512_bf16::qlinear_wgrad_workspace, avx512::qlinear_wgrad_workspace, avx2::qlinear_wgrad_workspace);

// One row through quantize.cpp, as a tensor of its own: what that leaves to the reference, this does too.
const char* refuses_rows(const KernelShape& s) {
  return refuses_copy(parse_quant_spec(s.attrs.get_string("row")), 1, 1);
}
constexpr std::array<Kernel, 2> quantize_rows_list = {
    {{"avx512", CpuTarget::avx512, avx512::quantize_rows, avx512::quantize_rows_workspace, refuses_rows},
     {"avx2", CpuTarget::avx2, avx2::quantize_rows, avx2::quantize_rows_workspace, refuses_rows}}};
const char* refuses_row_product(const KernelShape& s) {
  return s.attrs.has("accumulation") ? "adds blocks one after the other only" : nullptr;
}
constexpr std::array<Kernel, 3> qlinear_rows_list = {
    {{"avx512_bf16", CpuTarget::avx512_bf16, avx512_bf16::qlinear_rows, avx512_bf16::qlinear_rows_workspace,
      refuses_row_product},
     {"avx512", CpuTarget::avx512, avx512::qlinear_rows, avx512::qlinear_rows_workspace, refuses_row_product},
     {"avx2", CpuTarget::avx2, avx2::qlinear_rows, avx2::qlinear_rows_workspace, refuses_row_product}}};
constexpr auto linear_w4_list =
    both(avx512::linear_w4, avx2::linear_w4, avx512::linear_w4_workspace, avx2::linear_w4_workspace);

}  // namespace

constinit const std::span<const Kernel> linear_w4_cpu = linear_w4_list, quantize_rows_cpu = quantize_rows_list,
                                        qlinear_rows_cpu = qlinear_rows_list;
constinit const std::span<const Kernel> quantize_cpu = quantize_list, requantize_cpu = requantize_list,
                                        quantize_weights_cpu = quantize_weights_list, qlinear_cpu = qlinear_list,
                                        qlinear_dgrad_cpu = qlinear_dgrad_list, qlinear_wgrad_cpu = qlinear_wgrad_list;
constinit const std::span<const Kernel> embedding_cpu = embedding_list, embedding_grad_cpu = embedding_grad_list,
                                        linear_cpu = linear_list, linear_dgrad_cpu = linear_dgrad_list,
                                        linear_wgrad_cpu = linear_wgrad_list, rms_norm_cpu = rms_norm_list,
                                        rms_norm_grad_cpu = rms_norm_grad_list, rope_cpu = rope_list,
                                        attention_cpu = attention_list, attention_grad_cpu = attention_grad_list,
                                        swiglu_cpu = swiglu_list, swiglu_grad_cpu = swiglu_grad_list,
                                        add_cpu = add_list, scale_cpu = scale_list,
                                        cross_entropy_cpu = cross_entropy_list,
                                        cross_entropy_grad_cpu = cross_entropy_grad_list,
                                        attention_cached_cpu = attention_cached_list, adamw_cpu = adamw_list,
                                        sgd_cpu = sgd_list, sum_squares_cpu = sum_squares_list, norm_cpu = norm_list,
                                        recast_cpu = recast_list, residual_rms_norm_cpu = residual_rms_norm_list,
                                        residual_rms_norm_grad_cpu = residual_rms_norm_grad_list,
                                        rope_pair_cpu = rope_pair_list, adamw_squares_cpu = adamw_squares_list,
                                        quest_mask_cpu = quest_mask_list, quest_back_cpu = quest_back_list,
                                        quest_back_add_cpu = quest_back_add_list;

}  // namespace nibble
