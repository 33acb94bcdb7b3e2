#include "kernels/ref/lists.h"

#include "kernels/ref/attention.h"
#include "kernels/ref/cross_entropy.h"
#include "kernels/ref/elementwise.h"
#include "kernels/ref/embedding.h"
#include "kernels/ref/linear.h"
#include "kernels/ref/norm.h"
#include "kernels/ref/optimizer.h"

namespace nibble {

#define NIBBLE_REF(name, ...) \
  constinit const RefKernel name##_ref { ref::name<float>, ref::name<double>, ref::name<ref::Complex>, __VA_ARGS__ }
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
NIBBLE_REF(cross_entropy, ref::token_workspace);
NIBBLE_REF(cross_entropy_grad, ref::token_gradient_workspace);
NIBBLE_REF(append);
NIBBLE_REF(attention_cached);
NIBBLE_REF(take_row);
#undef NIBBLE_REF
constinit const RefKernel adamw_ref{ref::adamw};
constinit const RefKernel sgd_ref{ref::sgd};
constinit const RefKernel sum_squares_ref{ref::sum_squares};
constinit const RefKernel norm_ref{ref::norm};

}  // namespace nibble
