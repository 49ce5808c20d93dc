// Plain loops may well be calls; forcing them inline takes a compiler minutes.
#define CONTDROP_INLINE static inline
#define CONTDROP_INLINE_LAMBDA

#include "lanes_portable.h"
#define CONTDROP_LANES portable
#include "dropconnect.h"
#include "elementwise.h"

namespace contdrop {
extern const Kernels kPortable = {portable::dropout, portable::relu, portable::keep_where, portable::normal, portable::dropconnect};
}
