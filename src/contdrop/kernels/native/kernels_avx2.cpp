#include "lanes_avx2.h"
#define CONTDROP_LANES avx2
#include "dropconnect.h"
#include "elementwise.h"
#include "layouts.h"

namespace contdrop {
extern const Kernels kAvx2 = {avx2::row,         avx2::tiles,     avx2::relu, avx2::keep_where,
                              avx2::dropconnect, avx2::gradients, avx2::sums};
}
