#include "lanes_avx512.h"
#define CONTDROP_LANES avx512
#include "dropconnect.h"
#include "elementwise.h"
#include "layouts.h"

namespace contdrop {
extern const Kernels kAvx512 = {avx512::row,         avx512::tiles,     avx512::relu, avx512::keep_where,
                                avx512::dropconnect, avx512::gradients, avx512::sums};
}
