// Items of NVFP4 copies but MS-EDEN (quantize_eden.cpp).
#include "kernels/cpu/quantize_make.h"

namespace nibble::NIBBLE_TARGET {

template <class T>
void make_nvfp4(bool column, const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen) {
  if (q.spec.rounding == Rounding::stochastic)
    make_copy<Scheme::nvfp4, Element::e2m1_stochastic>(column, m, item, q, tiles, seen);
  else
    make_copy<Scheme::nvfp4, Element::e2m1>(column, m, item, q, tiles, seen);
}
template void make_nvfp4(bool, const Matrix<float>&, const Item&, const Copy&, const Tiles*, Seen*);
template void make_nvfp4(bool, const Matrix<BFloat16>&, const Item&, const Copy&, const Tiles*, Seen*);

}  // namespace nibble::NIBBLE_TARGET
