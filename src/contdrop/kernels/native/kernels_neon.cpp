#include "lanes_neon.h"
#define CONTDROP_LANES neon
#include "dropconnect.h"
#include "elementwise.h"
#include "layouts.h"

namespace contdrop {
extern const Kernels kNeon = {neon::row,         neon::tiles,     neon::relu, neon::keep_where,
                              neon::dropconnect, neon::gradients, neon::sums};
}
