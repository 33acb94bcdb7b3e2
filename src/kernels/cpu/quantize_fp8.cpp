// Items of 8-bit copies with one scale a block of 128, or one a tensor.
#include "kernels/cpu/quantize_make.h"

namespace nibble::NIBBLE_TARGET {

template <class T>
void make_fp8(bool column, const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen) {
  if (q.format.scales)
    make_copy<Scheme::fp8_block, Element::e4m3>(column, m, item, q, tiles, seen);
  else if (q.spec.format == DType::e5m2)
    make_copy<Scheme::tensor, Element::e5m2>(column, m, item, q, tiles, seen);
  else
    make_copy<Scheme::tensor, Element::e4m3>(column, m, item, q, tiles, seen);
}
template void make_fp8(bool, const Matrix<float>&, const Item&, const Copy&, const Tiles*, Seen*);
template void make_fp8(bool, const Matrix<BFloat16>&, const Item&, const Copy&, const Tiles*, Seen*);

}  // namespace nibble::NIBBLE_TARGET
