// Sixteen lanes of 32 bits with NEON, as every 64-bit ARM has it: four registers. What is fused here is fused with AVX, and
// sums are taken in the same order, so the numbers are the same.
#pragma once
#include <arm_neon.h>

#include <cstdint>

#include "philox.h"

namespace contdrop {
namespace neon {

constexpr int kGroupsAtOnce = 1;
constexpr Order kBfloatOrder = kNatural;

struct Words {
  uint32x4_t v[4];
};
struct Floats {
  float32x4_t v[4];
};
struct Mask {
  uint32x4_t v[4];  // all bits of a lane set, or none
};

template <class R, class F>
CONTDROP_INLINE R each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}
#define EACH(R, expression) each<R>([&](int i) CONTDROP_INLINE_LAMBDA { return expression; })

CONTDROP_INLINE Words set_words(uint32_t value) { return EACH(Words, ((void)i, vdupq_n_u32(value))); }
CONTDROP_INLINE Words shift_left(Words x, int n) { return EACH(Words, vshlq_u32(x.v[i], vdupq_n_s32(n))); }
CONTDROP_INLINE Words shift_right(Words x, int n) {
  // An instruction for places known when compiling, of which there are fewer than 32, and one for others.
  if (__builtin_constant_p(n)) return EACH(Words, x.v[i] >> n);
  return EACH(Words, vshlq_u32(x.v[i], vdupq_n_s32(-n)));
}
CONTDROP_INLINE Words bit_and(Words x, Words y) { return EACH(Words, vandq_u32(x.v[i], y.v[i])); }
CONTDROP_INLINE Words bit_or(Words x, Words y) { return EACH(Words, vorrq_u32(x.v[i], y.v[i])); }
CONTDROP_INLINE Words subtract(Words x, Words y) { return EACH(Words, vsubq_u32(x.v[i], y.v[i])); }
CONTDROP_INLINE Words add(Words x, Words y) { return EACH(Words, vaddq_u32(x.v[i], y.v[i])); }
CONTDROP_INLINE Mask less(Words x, Words y) { return EACH(Mask, vcltq_u32(x.v[i], y.v[i])); }
CONTDROP_INLINE Mask bit_clear(Words x, uint32_t bit) {
  return EACH(Mask, vceqzq_u32(vandq_u32(x.v[i], vdupq_n_u32(bit))));
}

CONTDROP_INLINE Floats set_floats(float value) { return EACH(Floats, ((void)i, vdupq_n_f32(value))); }
CONTDROP_INLINE Floats as_floats(Words x) { return EACH(Floats, vreinterpretq_f32_u32(x.v[i])); }
CONTDROP_INLINE Words as_words(Floats x) { return EACH(Words, vreinterpretq_u32_f32(x.v[i])); }
CONTDROP_INLINE Floats to_floats(Words x) { return EACH(Floats, vcvtq_f32_s32(vreinterpretq_s32_u32(x.v[i]))); }
CONTDROP_INLINE Floats add(Floats x, Floats y) { return EACH(Floats, vaddq_f32(x.v[i], y.v[i])); }
CONTDROP_INLINE Floats subtract(Floats x, Floats y) { return EACH(Floats, vsubq_f32(x.v[i], y.v[i])); }
CONTDROP_INLINE Floats multiply(Floats x, Floats y) { return EACH(Floats, vmulq_f32(x.v[i], y.v[i])); }
CONTDROP_INLINE Floats divide(Floats x, Floats y) { return EACH(Floats, vdivq_f32(x.v[i], y.v[i])); }
CONTDROP_INLINE Floats fused(Floats x, Floats y, Floats z) { return EACH(Floats, vfmaq_f32(z.v[i], x.v[i], y.v[i])); }
CONTDROP_INLINE Floats quarter_minus_square(Floats x) {
  return EACH(Floats, vfmsq_f32(vdupq_n_f32(0.25f), x.v[i], x.v[i]));
}
// NEON's own minimum and maximum treat NaN and the two zeros in another way than AVX.
CONTDROP_INLINE Floats minimum(Floats x, Floats y) {
  return EACH(Floats, vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]));
}
CONTDROP_INLINE Floats maximum(Floats x, Floats y) {
  return EACH(Floats, vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]));
}
CONTDROP_INLINE Mask less(Floats x, Floats y) { return EACH(Mask, vcltq_f32(x.v[i], y.v[i])); }
CONTDROP_INLINE Mask not_zero(Floats x) { return EACH(Mask, vmvnq_u32(vceqzq_f32(x.v[i]))); }
CONTDROP_INLINE Floats where(Mask m, Floats x) {
  return EACH(Floats, vreinterpretq_f32_u32(vandq_u32(m.v[i], vreinterpretq_u32_f32(x.v[i]))));
}
// x in the first n lanes, y in the others.
CONTDROP_INLINE Floats first_lanes(int n, Floats x, Floats y) {
  const uint32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const uint32x4_t end = vdupq_n_u32(uint32_t(n));
  return EACH(Floats, vbslq_f32(vcltq_u32(vld1q_u32(numbers + 4 * i), end), x.v[i], y.v[i]));
}
CONTDROP_INLINE Floats load(const float* p) { return EACH(Floats, vld1q_f32(p + 4 * i)); }
CONTDROP_INLINE void store(float* p, Floats x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
CONTDROP_INLINE float sum(Floats x) {
  const float32x4_t q = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t pair = vadd_f32(vget_low_f32(q), vget_high_f32(q));
  return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}

CONTDROP_INLINE Floats load_half(const uint16_t* p) {
  return EACH(Floats, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
CONTDROP_INLINE void store_half(uint16_t* p, Floats x) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
template <Order>
CONTDROP_INLINE Floats load_bfloat(const uint16_t* p) {
  return EACH(Floats, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
// See lanes_avx512.h for why NaN needs no care.
template <Ties ties, Order>
CONTDROP_INLINE void store_bfloat(uint16_t* p, Floats x) {
  const Words bits = as_words(x);
  Words rounded = add(bits, set_words(ties == kToEven ? 0x7fff : 0x8000));
  if (ties == kToEven) rounded = add(rounded, bit_and(shift_right(bits, 16), set_words(1)));
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vshrn_n_u32(rounded.v[i], 16));
}

// The low and the high halves of the products of four words.
CONTDROP_INLINE uint32x4x2_t multiply_wide(uint32x4_t x, uint32x4_t factor) {
  const uint32x4_t first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x), vget_low_u32(factor)));
  const uint32x4_t second = vreinterpretq_u32_u64(vmull_high_u32(x, factor));
  return vuzpq_u32(first, second);
}

// Four chains of four blocks each fill half of the registers, and overlap.
template <int groups, Order>
CONTDROP_INLINE void philox(const Philox& p, uint64_t first_block, Words* out) {
  const uint32x4_t m0 = vdupq_n_u32(0xD2511F53), m1 = vdupq_n_u32(0xCD9E8D57);
  const Philox::Start start = first_block >> 32 ? p.start(uint32_t(first_block >> 32)) : p.low_blocks;
  const uint32x4_t mix_c0 = vdupq_n_u32(uint32_t(start.mix_c0)), mix_c2 = vdupq_n_u32(uint32_t(start.mix_c2));
  const uint32x4_t c3_2 = vdupq_n_u32(uint32_t(start.c3)), key1_0 = vdupq_n_u32(uint32_t(p.key1[0]));
  const uint32_t numbers[4] = {0, 1, 2, 3};
  for (int g = 0; g < groups; ++g) {
    uint32x4_t c0[4], c1[4], c2[4], c3[4];
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t block = vaddq_u32(vdupq_n_u32(uint32_t(first_block) + 16 * g + 4 * i), vld1q_u32(numbers));
      const uint32x4x2_t one = multiply_wide(block, m0);
      const uint32x4x2_t two = multiply_wide(veorq_u32(one.val[1], key1_0), m1);
      c0[i] = veorq_u32(two.val[1], mix_c0), c1[i] = two.val[0];
      c2[i] = veorq_u32(one.val[0], mix_c2), c3[i] = c3_2;
    }
    for (int r = 2; r < 7; ++r) {
      const uint32x4_t k0 = vdupq_n_u32(uint32_t(p.key0[r])), k1 = vdupq_n_u32(uint32_t(p.key1[r]));
      for (int i = 0; i < 4; ++i) {
        const uint32x4x2_t p0 = multiply_wide(c0[i], m0), p1 = multiply_wide(c2[i], m1);
        c0[i] = veorq_u32(p1.val[1], veorq_u32(c1[i], k0)), c1[i] = p1.val[0];
        c2[i] = veorq_u32(p0.val[1], veorq_u32(c3[i], k1)), c3[i] = p0.val[0];
      }
    }
    for (int i = 0; i < 4; ++i) {
      out[4 * g].v[i] = c0[i], out[4 * g + 1].v[i] = c1[i];
      out[4 * g + 2].v[i] = c2[i], out[4 * g + 3].v[i] = c3[i];
    }
  }
}
#undef EACH
}  // namespace neon
}  // namespace contdrop
