// Items of MXFP4 and MXFP8 copies.
#include "kernels/cpu/quantize_make.h"

namespace nibble::NIBBLE_TARGET {

template <class T>
void make_mx(bool column, const Matrix<T>& m, const Item& item, const Copy& q, const Tiles* tiles, Seen* seen) {
  if (q.format.bits == 8)
    make_copy<Scheme::mx, Element::e4m3>(column, m, item, q, tiles, seen);
  else if (q.spec.rounding == Rounding::stochastic)
    make_copy<Scheme::mx, Element::e2m1_stochastic>(column, m, item, q, tiles, seen);
  else
    make_copy<Scheme::mx, Element::e2m1>(column, m, item, q, tiles, seen);
}
template void make_mx(bool, const Matrix<float>&, const Item&, const Copy&, const Tiles*, Seen*);
template void make_mx(bool, const Matrix<BFloat16>&, const Item&, const Copy&, const Tiles*, Seen*);

}  // namespace nibble::NIBBLE_TARGET
