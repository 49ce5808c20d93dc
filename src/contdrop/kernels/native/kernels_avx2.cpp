#include "lanes_avx2.h"
#define CONTDROP_LANES avx2
#include "dropconnect.h"
#include "elementwise.h"

namespace contdrop {
extern const Kernels kAvx2 = {avx2::dropout, avx2::relu, avx2::keep_where, avx2::normal, avx2::dropconnect};
}
