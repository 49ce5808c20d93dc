// The keys of Philox-4x32-7, prepared once per call. The generator itself is in the lanes_*.h files.
#pragma once
#include <cstdint>

// The lanes are only fast if they stay in registers, so nothing between a generator and a store may be a call.
#if !defined(CONTDROP_INLINE)
#define CONTDROP_INLINE static inline __attribute__((always_inline))
#endif

namespace contdrop {

struct Philox {
  uint64_t key0[7], key1[7];  // in 64 bits, so that a lane can be loaded from here as it is
  uint32_t stream;

  Philox(uint64_t seed, uint32_t stream_) : stream(stream_) {
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int r = 0; r < 7; ++r) {
      key0[r] = k0, key1[r] = k1;
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
  }
};

}  // namespace contdrop
