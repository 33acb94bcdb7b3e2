// The ordered kernel lists: for each op, fastest first.
#include "kernels/kernel.h"

namespace nibble {

constinit const std::span<const Kernel> embedding_cpu, embedding_grad_cpu, linear_cpu, linear_dgrad_cpu, linear_wgrad_cpu,
    rms_norm_cpu, rms_norm_grad_cpu, rope_cpu, attention_cpu, attention_grad_cpu, swiglu_cpu, swiglu_grad_cpu, add_cpu,
    scale_cpu, cross_entropy_cpu, cross_entropy_grad_cpu, attention_cached_cpu, adamw_cpu, sgd_cpu, sum_squares_cpu,
    norm_cpu;

}  // namespace nibble
