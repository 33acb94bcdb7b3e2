#include "kernels/ref/lists.h"

#include "kernels/ref/attention.h"
#include "kernels/ref/cross_entropy.h"
#include "kernels/ref/elementwise.h"
#include "kernels/ref/embedding.h"
#include "kernels/ref/fused.h"
#include "kernels/ref/linear.h"
#include "kernels/ref/linear_w4.h"
#include "kernels/ref/norm.h"
#include "kernels/ref/optimizer.h"
#include "kernels/ref/quantized.h"
#include "kernels/ref/quest.h"
#include "kernels/ref/row_scaled.h"
#include "kernels/widened.h"

namespace nibble {

namespace {

struct Convert {
  static void widen(const BFloat16* from, float* to, int64_t n, ThreadPool&) {
    for (int64_t i = 0; i < n; ++i) to[i] = nibble::widen(from[i]);
  }
  static void round(const float* from, BFloat16* to, int64_t n, ThreadPool&) {
    for (int64_t i = 0; i < n; ++i) to[i] = round_bf16(from[i]);
  }
};
template <KernelRun run>
void bf16(const KernelCall& c) {
  run_widened<Convert>(c, run);
}
template <KernelWorkspace own>
int64_t bf16_workspace(const KernelShape& s) {
  return widened_bytes<Convert>(s) + (own == nullptr ? 0 : own(s));
}

// What fused ops are made of.
template <class S>
struct Parts {
  static constexpr KernelRun add = ref::add<S>, norm = ref::rms_norm<S>, norm_grad = ref::rms_norm_grad<S>,
                             rope = ref::rope<S>;
};
template <>
struct Parts<BFloat16> {
  static constexpr KernelRun add = bf16<ref::add<float>>, norm = bf16<ref::rms_norm<float>>,
                             norm_grad = bf16<ref::rms_norm_grad<float>>, rope = bf16<ref::rope<float>>;
};

}  // namespace

#define NIBBLE_REF(name)                                                                           \
  constinit const RefKernel name##_ref {                                                           \
    ref::name<float>, ref::name<double>, ref::name<ref::Complex>, nullptr, bf16<ref::name<float>>, \
        bf16_workspace<nullptr>                                                                    \
  }
NIBBLE_REF(embedding);
NIBBLE_REF(embedding_grad);
NIBBLE_REF(linear);
NIBBLE_REF(linear_dgrad);
NIBBLE_REF(linear_wgrad);
NIBBLE_REF(rms_norm);
NIBBLE_REF(rms_norm_grad);
NIBBLE_REF(rope);
NIBBLE_REF(attention);
NIBBLE_REF(attention_grad);
NIBBLE_REF(swiglu);
NIBBLE_REF(swiglu_grad);
NIBBLE_REF(add);
NIBBLE_REF(scale);
NIBBLE_REF(zeros);
NIBBLE_REF(ones);
NIBBLE_REF(append);
NIBBLE_REF(attention_cached);
NIBBLE_REF(take_row);
#undef NIBBLE_REF

// A fused op has all operands and results of its parts, so its workspace is enough for each.
#define NIBBLE_FUSED_REF(name)                                                                  \
  constinit const RefKernel name##_ref {                                                        \
    ref::name<Parts<float>>, ref::name<Parts<double>>, ref::name<Parts<ref::Complex>>, nullptr, \
        ref::name<Parts<BFloat16>>, bf16_workspace<nullptr>                                     \
  }
NIBBLE_FUSED_REF(residual_rms_norm);
NIBBLE_FUSED_REF(residual_rms_norm_grad);
NIBBLE_FUSED_REF(rope_pair);
#undef NIBBLE_FUSED_REF
constinit const RefKernel cross_entropy_ref{ref::cross_entropy<float>,        ref::cross_entropy<double>,
                                            ref::cross_entropy<ref::Complex>, ref::token_workspace,
                                            bf16<ref::cross_entropy<float>>,  bf16_workspace<ref::token_workspace>};
constinit const RefKernel cross_entropy_grad_ref{ref::cross_entropy_grad<float>,
                                                 ref::cross_entropy_grad<double>,
                                                 ref::cross_entropy_grad<ref::Complex>,
                                                 ref::token_gradient_workspace,
                                                 bf16<ref::cross_entropy_grad<float, ref::ToBf16>>,
                                                 bf16_workspace<ref::token_gradient_workspace>};
constinit const RefKernel recast_ref{
    .f32 = ref::recast, .bf16 = bf16<ref::recast>, .bf16_workspace = bf16_workspace<nullptr>};
// Numbers may be f32 or bf16 throughout: these read both.
constexpr RefKernel both(KernelRun run, KernelWorkspace space = nullptr) {
  return {.f32 = run, .workspace = space, .bf16 = run, .bf16_workspace = space};
}
constinit const RefKernel quantize_ref = both(ref::quantize, ref::quantize_workspace),
                          requantize_ref = both(ref::requantize, ref::quantize_workspace),
                          quantize_weights_ref = both(ref::quantize_weights, ref::quantize_workspace),
                          qlinear_ref = both(ref::qlinear), qlinear_dgrad_ref = both(ref::qlinear_dgrad),
                          qlinear_wgrad_ref = both(ref::qlinear_wgrad), record_amax_ref = both(ref::record_amax),
                          advance_scale_ref = both(ref::advance_scale);
constinit const RefKernel quest_mask_ref = both(ref::quest_mask), quest_back_ref = both(ref::quest_back),
                          quest_back_add_ref = both(ref::quest_back_add);
constinit const RefKernel linear_w4_ref = both(ref::linear_w4), embedding_w4_ref = both(ref::embedding_w4);
constinit const RefKernel quantize_rows_ref = both(ref::quantize_rows, ref::quantize_rows_workspace),
                          qlinear_rows_ref = both(ref::qlinear_rows, ref::qlinear_rows_workspace);
constinit const RefKernel adamw_ref{ref::adamw};
constinit const RefKernel adamw_squares_ref{ref::adamw_squares};
constinit const RefKernel sgd_ref{ref::sgd};
constinit const RefKernel sum_squares_ref{ref::sum_squares};
constinit const RefKernel norm_ref{ref::norm};

}  // namespace nibble
