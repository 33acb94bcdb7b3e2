// qlinear, qlinear_dgrad, qlinear_wgrad, qlinear_rows: products of quantised operands, both along their last axes
// (src/ops).
#include <new>

#include "core/quantized.h"
#include "kernels/cpu/gemm_4bit.h"
#include "kernels/cpu/gemm_8bit.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/row_scaled.h"
#include "numerics/quantized_product.h"

namespace nibble::NIBBLE_TARGET {
namespace {

FourBitOperand four_bit_operand(const QuantizedView& v) {
  return {v.codes(0), v.scales(0), v.layout.code_pitch, v.layout.scale_pitch, v.format.rows};
}
EightBitOperand eight_bit_operand(const QuantizedView& v, DType format) {
  return {v.codes(0), v.scales(0), v.layout.code_pitch, v.layout.scale_pitch, format};
}
float alpha_of(const QuantizedView& a, const QuantizedView& b, const Attrs& attrs) {
  return product_factor(a.header(), b.header(), attrs.has("factor") ? attrs.get_float("factor") : 1);
}
FourBitTerm four_bit_term(const Tensor& a, const Tensor& b, const Attrs& attrs) {
  const QuantizedView x(a), y(b);
  return {four_bit_operand(x), four_bit_operand(y), x.layout.blocks, alpha_of(x, y, attrs)};
}
EightBitTerm eight_bit_term(const Tensor& a, const Tensor& b, const Attrs& attrs) {
  const QuantizedView x(a), y(b);
  return {eight_bit_operand(x, a.type.dtype), eight_bit_operand(y, b.type.dtype), x.layout.columns,
          alpha_of(x, y, attrs)};
}

bool is_4bit(const Type& t) { return block_format(t.dtype).bits == 4; }
// Sums as a Blackwell GPU rounds them.
bool in_groups(const Attrs& attrs) {
  return attrs.has("accumulation") && attrs.get_string("accumulation") == "blackwell";
}
bool is_mx(const Type& t) { return block_format(t.dtype).columns == 32; }

// The terms of a product lie at the start of the workspace.
template <class Term>
int64_t term_bytes(size_t terms) {
  return ceil_div(static_cast<int64_t>(terms * sizeof(Term)), 64) * 64;
}

// row_alphas: of each row of the first operand of the one term, or null.
void product(const KernelCall& c, std::span<const Tensor> in, Onto onto, std::byte* space,
             const float* row_alphas = nullptr) {
  const Tensor& y = c.out[0];
  const size_t count = in.size() / 2;
  const int64_t m = y.type.rows(), n = y.dim(-1);
  float* sums = is_bf16(y.type) ? nullptr : y.as<float>();
  BFloat16* rounded = is_bf16(y.type) ? y.as<BFloat16>() : nullptr;
  if (is_4bit(in[0].type)) {
    auto* terms = reinterpret_cast<FourBitTerm*>(space);
    for (size_t t = 0; t < count; ++t) {
      new (terms + t) FourBitTerm(four_bit_term(in[2 * t], in[2 * t + 1], c.attrs));
      terms[t].row_alphas = row_alphas;
    }
    return (in_groups(c.attrs) ? gemm_groups_4bit : gemm_4bit)(
        {{terms, count}, m, n, is_mx(in[0].type), sums, rounded, onto}, c.pool, space + term_bytes<FourBitTerm>(count));
  }
  auto* terms = reinterpret_cast<EightBitTerm*>(space);
  for (size_t t = 0; t < count; ++t) {
    new (terms + t) EightBitTerm(eight_bit_term(in[2 * t], in[2 * t + 1], c.attrs));
    terms[t].row_alphas = row_alphas;
  }
  gemm_8bit({{terms, count}, m, n, sums, rounded, onto}, c.pool, space + term_bytes<EightBitTerm>(count));
}

int64_t workspace(const KernelShape& s, std::span<const Type> in) {
  const int64_t m = s.out[0].rows(), n = s.out[0].dim(-1), count = static_cast<int64_t>(in.size() / 2);
  int64_t blocks = 0, most = 0;
  for (size_t t = 0; t < in.size(); t += 2) {
    blocks += ceil_div(in[t].dim(-1), block_format(in[t].dtype).columns);
    most = larger(most, in[t].dim(-1));
  }
  if (is_4bit(in[0]))
    return term_bytes<FourBitTerm>(in.size() / 2) +
           (in_groups(s.attrs) ? gemm_groups_4bit_workspace_bytes : gemm_4bit_workspace_bytes)(m, n, blocks, count,
                                                                                               is_mx(in[0]), s.threads);
  return term_bytes<EightBitTerm>(in.size() / 2) + gemm_8bit_workspace_bytes(m, n, most, count, s.threads);
}

}  // namespace

void qlinear(const KernelCall& c) { product(c, c.in, Onto::nothing, c.workspace); }
void qlinear_dgrad(const KernelCall& c) { product(c, c.in, Onto::nothing, c.workspace); }
void qlinear_wgrad(const KernelCall& c) {
  product(c, c.in.subspan(1), c.from_zero ? Onto::zero : Onto::sums, c.workspace);
}

// The rows' factors lie at the start of the workspace.
static int64_t alpha_bytes(int64_t rows) { return ceil_div(rows, 16) * 64; }
void qlinear_rows(const KernelCall& c) {
  const int64_t rows = c.in[0].type.rows();
  auto* alphas = reinterpret_cast<float*>(c.workspace);
  for (int64_t i = 0; i < rows; ++i) alphas[i] = row_factor(c, i);
  const Tensor in[] = {c.in[0], c.in[2]};
  product(c, in, Onto::nothing, c.workspace + alpha_bytes(rows), alphas);
}
int64_t qlinear_rows_workspace(const KernelShape& s) {
  const Type in[] = {s.in[0], s.in[2]};
  return alpha_bytes(s.in[0].rows()) + workspace(s, in);
}

int64_t qlinear_workspace(const KernelShape& s) { return workspace(s, s.in); }
int64_t qlinear_dgrad_workspace(const KernelShape& s) { return workspace(s, s.in); }
int64_t qlinear_wgrad_workspace(const KernelShape& s) { return workspace(s, s.in.subspan(1)); }

}  // namespace nibble::NIBBLE_TARGET
