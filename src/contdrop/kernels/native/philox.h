// The keys of Philox-4x32-7, prepared once per call. The generator is defined in ../reference.py and implemented in the
// lanes_*.h files.
#pragma once
#include <cstdint>

// The lanes are only fast if they stay in registers, so nothing between a generator and a store may be a call.
#if !defined(CONTDROP_INLINE)
#define CONTDROP_INLINE static inline __attribute__((always_inline))
#define CONTDROP_INLINE_LAMBDA __attribute__((always_inline))
#endif
#define CONTDROP_APART __attribute__((noinline))

namespace contdrop {

// The order of sixteen lanes: as in memory, or the eight even ones before the eight odd ones, which suits bfloat16.
enum Order { kNatural, kEvenThenOdd };

// Where to round what lies halfway between two numbers.
enum Ties { kToEven, kAwayFromZero };

// All numbers are in 64 bits, so that a lane can be loaded from here as it is.
struct Philox {
  uint64_t key0[7], key1[7];
  uint32_t stream;

  // In the first two rounds one of the two products is the same in all lanes: that of the stream, and then that of what it
  // becomes together with the high half of the block's number. This is what is left of them.
  struct Start {
    uint64_t mix_c0, mix_c2, c3;  // after two rounds: c0 and c2 but for what the lanes add, and c3
  };
  Start low_blocks;  // for blocks below 2^32

  Philox(uint64_t seed, uint32_t stream_) : stream(stream_) {
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int r = 0; r < 7; ++r) {
      key0[r] = k0, key1[r] = k1;
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    low_blocks = start(0);
  }
  Start start(uint32_t high) const {
    const uint64_t p1 = uint64_t(stream) * 0xCD9E8D57u;
    const uint64_t p0 = uint64_t(uint32_t(p1 >> 32) ^ high ^ uint32_t(key0[0])) * 0xD2511F53u;
    return {uint32_t(p1) ^ key0[1], uint32_t(p0 >> 32) ^ key1[1], uint32_t(p0)};
  }
};

}  // namespace contdrop
