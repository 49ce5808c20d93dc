// Plain loops may well be calls; forcing them inline takes a compiler minutes.
#define CONTDROP_INLINE static inline
#define CONTDROP_INLINE_LAMBDA

#include "lanes_portable.h"
#define CONTDROP_LANES portable
#include "dropconnect.h"
#include "elementwise.h"
#include "layouts.h"

namespace contdrop {
extern const Kernels kPortable = {portable::row,         portable::tiles,     portable::relu, portable::keep_where,
                                  portable::dropconnect, portable::gradients, portable::sums};
}
