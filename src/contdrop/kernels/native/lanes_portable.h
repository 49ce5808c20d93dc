// Sixteen lanes of 32 bits in plain C++: loops that any compiler can turn into its own vector instructions.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "philox.h"

namespace contdrop {
namespace portable {

constexpr int kGroupsAtOnce = 1;
constexpr Order kBfloatOrder = kNatural;

template <class T>
struct Lanes {
  T v[16];
};
using Words = Lanes<uint32_t>;
using Floats = Lanes<float>;
struct Mask {
  uint32_t v[16];  // all ones or zero
};

template <class R, class F>
CONTDROP_INLINE R each(F f) {
  R r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}

CONTDROP_INLINE Words set_words(uint32_t value) {
  return each<Words>([&](int) { return value; });
}
CONTDROP_INLINE Words shift_left(const Words& a, int n) {
  return each<Words>([&](int i) { return a.v[i] << n; });
}
CONTDROP_INLINE Words shift_right(const Words& a, int n) {
  // As the vector instructions have it: nothing is left after 32 places.
  return each<Words>([&](int i) { return n < 32 ? a.v[i] >> n : 0u; });
}
CONTDROP_INLINE Words bit_and(const Words& a, const Words& b) {
  return each<Words>([&](int i) { return a.v[i] & b.v[i]; });
}
CONTDROP_INLINE Words bit_or(const Words& a, const Words& b) {
  return each<Words>([&](int i) { return a.v[i] | b.v[i]; });
}
CONTDROP_INLINE Words subtract(const Words& a, const Words& b) {
  return each<Words>([&](int i) { return a.v[i] - b.v[i]; });
}
CONTDROP_INLINE Words add(const Words& a, const Words& b) {
  return each<Words>([&](int i) { return a.v[i] + b.v[i]; });
}
CONTDROP_INLINE Mask less(const Words& a, const Words& b) {
  return each<Mask>([&](int i) { return a.v[i] < b.v[i] ? 0xffffffffu : 0u; });
}
CONTDROP_INLINE Mask bit_clear(const Words& a, uint32_t bit) {
  return each<Mask>([&](int i) { return a.v[i] & bit ? 0u : 0xffffffffu; });
}

CONTDROP_INLINE Floats set_floats(float value) {
  return each<Floats>([&](int) { return value; });
}
CONTDROP_INLINE Floats as_floats(const Words& a) {
  Floats r;
  std::memcpy(&r, &a, sizeof r);
  return r;
}
CONTDROP_INLINE Words as_words(const Floats& a) {
  Words r;
  std::memcpy(&r, &a, sizeof r);
  return r;
}
CONTDROP_INLINE Floats to_floats(const Words& a) {
  return each<Floats>([&](int i) { return float(int32_t(a.v[i])); });
}
CONTDROP_INLINE Floats add(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.v[i] + b.v[i]; });
}
CONTDROP_INLINE Floats subtract(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.v[i] - b.v[i]; });
}
CONTDROP_INLINE Floats multiply(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.v[i] * b.v[i]; });
}
CONTDROP_INLINE Floats divide(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.v[i] / b.v[i]; });
}
CONTDROP_INLINE Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  return each<Floats>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
CONTDROP_INLINE Floats minimum(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
CONTDROP_INLINE Floats maximum(const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
CONTDROP_INLINE Floats quarter_minus_square(const Floats& a) {
  // As y (1 - y), because without a fused operation the difference would lose its digits where it is small.
  return each<Floats>([&](int i) {
    const float y = 0.5f - std::fabs(a.v[i]);
    return y * (1.0f - y);
  });
}
CONTDROP_INLINE Mask less(const Floats& a, const Floats& b) {
  return each<Mask>([&](int i) { return a.v[i] < b.v[i] ? 0xffffffffu : 0u; });
}
CONTDROP_INLINE Mask not_zero(const Floats& a) {
  return each<Mask>([&](int i) { return a.v[i] != 0.0f ? 0xffffffffu : 0u; });
}
CONTDROP_INLINE Floats where(const Mask& m, const Floats& a) {
  const Words bits = as_words(a);
  return as_floats(each<Words>([&](int i) { return bits.v[i] & m.v[i]; }));
}
// a in the first n lanes, b in the others.
CONTDROP_INLINE Floats first_lanes(int n, const Floats& a, const Floats& b) {
  return each<Floats>([&](int i) { return i < n ? a.v[i] : b.v[i]; });
}
CONTDROP_INLINE Floats load(const float* p) {
  Floats r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
CONTDROP_INLINE void store(float* p, const Floats& a) { std::memcpy(p, &a, sizeof a); }
CONTDROP_INLINE float sum(const Floats& a) {
  float total = 0;
  for (int i = 0; i < 16; ++i) total += a.v[i];
  return total;
}

CONTDROP_INLINE float widen_half(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
  if (exponent == 0) return std::copysign(float(fraction) * 0x1p-24f, sign ? -1.0f : 1.0f);
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | fraction << 13;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
CONTDROP_INLINE uint16_t round_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return uint16_t(sign | 0x7e00u);   // NaN
  if (bits >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to infinity
  if (bits < 0x38800000u) {                                  // below the normal numbers: multiples of 2^-24
    std::memcpy(&f, &bits, sizeof f);
    return uint16_t(sign | uint16_t(std::nearbyint(f * 0x1p24f)));
  }
  return uint16_t(sign | uint16_t((bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13));
}
CONTDROP_INLINE Floats load_half(const uint16_t* p) {
  return each<Floats>([&](int i) { return widen_half(p[i]); });
}
CONTDROP_INLINE void store_half(uint16_t* p, const Floats& a) {
  for (int i = 0; i < 16; ++i) p[i] = round_half(a.v[i]);
}
template <Order>
CONTDROP_INLINE Floats load_bfloat(const uint16_t* p) {
  return as_floats(each<Words>([&](int i) { return uint32_t(p[i]) << 16; }));
}
template <Ties ties, Order>
CONTDROP_INLINE void store_bfloat(uint16_t* p, const Floats& a) {
  const Words bits = as_words(a);
  for (int i = 0; i < 16; ++i) {
    const bool nan = (bits.v[i] & 0x7fffffffu) > 0x7f800000u;
    const uint32_t half = ties == kAwayFromZero ? 0x8000u : 0x7fffu + (bits.v[i] >> 16 & 1u);
    p[i] = nan ? uint16_t(0x7fc0) : uint16_t((bits.v[i] + half) >> 16);
  }
}

template <int groups, Order>
CONTDROP_INLINE void philox(const Philox& p, uint64_t first_block, Words* out) {
  constexpr int n = 16;
  for (int g = 0; g < groups; ++g, first_block += n, out += 4) {
    uint32_t c0[n], c1[n], c2[n], c3[n];
    for (int i = 0; i < n; ++i) {
      c0[i] = uint32_t(first_block) + uint32_t(i);
      c1[i] = uint32_t(first_block >> 32);
      c2[i] = p.stream;
      c3[i] = 0;
    }
    for (int r = 0; r < 7; ++r) {
      for (int i = 0; i < n; ++i) {
        const uint64_t p0 = uint64_t(c0[i]) * 0xD2511F53u, p1 = uint64_t(c2[i]) * 0xCD9E8D57u;
        c0[i] = uint32_t(p1 >> 32) ^ c1[i] ^ uint32_t(p.key0[r]);
        c1[i] = uint32_t(p1);
        c2[i] = uint32_t(p0 >> 32) ^ c3[i] ^ uint32_t(p.key1[r]);
        c3[i] = uint32_t(p0);
      }
    }
    std::memcpy(&out[0], c0, sizeof c0);
    std::memcpy(&out[1], c1, sizeof c1);
    std::memcpy(&out[2], c2, sizeof c2);
    std::memcpy(&out[3], c3, sizeof c3);
  }
}

}  // namespace portable
}  // namespace contdrop
