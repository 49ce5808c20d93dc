// Sixteen lanes of 32 bits with AVX2, FMA and F16C: pairs of registers.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "philox.h"

namespace contdrop {
namespace avx2 {

constexpr int kGroupsAtOnce = 1;
constexpr Order kBfloatOrder = kEvenThenOdd;

struct Words {
  __m256i a, b;
};
struct Floats {
  __m256 a, b;
};
struct Mask {
  __m256 a, b;  // all bits of a lane set, or none
};

CONTDROP_INLINE Words set_words(uint32_t value) {
  __m256i v = _mm256_set1_epi32(int(value));
  return {v, v};
}
CONTDROP_INLINE Words shift_left(Words x, int n) { return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
CONTDROP_INLINE Words shift_right(Words x, int n) { return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)}; }
CONTDROP_INLINE Words bit_and(Words x, Words y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
CONTDROP_INLINE Words bit_or(Words x, Words y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
CONTDROP_INLINE Words subtract(Words x, Words y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
CONTDROP_INLINE Words add(Words x, Words y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
CONTDROP_INLINE Mask less(Words x, Words y) {
  const __m256i flip = _mm256_set1_epi32(int(0x80000000u));  // AVX2 compares signed numbers only
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_xor_si256(y.a, flip), _mm256_xor_si256(x.a, flip))),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_xor_si256(y.b, flip), _mm256_xor_si256(x.b, flip)))};
}
CONTDROP_INLINE Mask bit_clear(Words x, uint32_t bit) {
  const __m256i v = _mm256_set1_epi32(int(bit)), zero = _mm256_setzero_si256();
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(x.a, v), zero)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(x.b, v), zero))};
}

CONTDROP_INLINE Floats set_floats(float value) {
  __m256 v = _mm256_set1_ps(value);
  return {v, v};
}
CONTDROP_INLINE Floats as_floats(Words x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
CONTDROP_INLINE Words as_words(Floats x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
CONTDROP_INLINE Floats to_floats(Words x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
CONTDROP_INLINE Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
CONTDROP_INLINE Floats subtract(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
CONTDROP_INLINE Floats multiply(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
CONTDROP_INLINE Floats divide(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
CONTDROP_INLINE Floats fused(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
CONTDROP_INLINE Floats minimum(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
CONTDROP_INLINE Floats maximum(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
CONTDROP_INLINE Floats quarter_minus_square(Floats x) {
  const __m256 quarter = _mm256_set1_ps(0.25f);
  return {_mm256_fnmadd_ps(x.a, x.a, quarter), _mm256_fnmadd_ps(x.b, x.b, quarter)};
}
CONTDROP_INLINE Mask less(Floats x, Floats y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
CONTDROP_INLINE Mask not_zero(Floats x) {
  const __m256 zero = _mm256_setzero_ps();
  return {_mm256_cmp_ps(x.a, zero, _CMP_NEQ_UQ), _mm256_cmp_ps(x.b, zero, _CMP_NEQ_UQ)};
}
CONTDROP_INLINE Floats where(Mask m, Floats x) { return {_mm256_and_ps(m.a, x.a), _mm256_and_ps(m.b, x.b)}; }
// x in the first n lanes, y in the others.
CONTDROP_INLINE Floats first_lanes(int n, Floats x, Floats y) {
  const __m256i a = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), b = _mm256_set_epi32(15, 14, 13, 12, 11, 10, 9, 8);
  const __m256i end = _mm256_set1_epi32(n);
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(end, a))),
          _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(_mm256_cmpgt_epi32(end, b)))};
}
CONTDROP_INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
CONTDROP_INLINE void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
CONTDROP_INLINE float sum(Floats x) {
  __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

CONTDROP_INLINE Floats load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
CONTDROP_INLINE void store_half(uint16_t* p, Floats x) {
  const int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, nearest));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, nearest));
}
// Sixteen bfloat16 numbers in their order, or the even ones before the odd ones: an even one is the low half of 32 bits, an
// odd one the high half, and so nothing has to be moved across lanes.
template <Order order>
CONTDROP_INLINE Floats load_bfloat(const uint16_t* p) {
  if (order == kEvenThenOdd) {
    const __m256i pairs = _mm256_loadu_si256((const __m256i*)p);
    return as_floats({_mm256_slli_epi32(pairs, 16), _mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u)))});
  }
  const __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  const __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8)));
  return as_floats(shift_left({a, b}, 16));
}
// See lanes_avx512.h for why NaN needs no care.
template <Ties ties, Order order>
CONTDROP_INLINE void store_bfloat(uint16_t* p, Floats x) {
  const Words bits = as_words(x);
  __m256i result;
  if (order == kNatural || ties == kAwayFromZero) {
    Words rounded = add(bits, set_words(ties == kToEven ? 0x7fff : 0x8000));
    if (ties == kToEven) rounded = add(rounded, bit_and(shift_right(bits, 16), set_words(1)));
    if (order == kEvenThenOdd) {
      result = _mm256_blend_epi16(_mm256_srli_epi32(rounded.a, 16), rounded.b, 0xAA);
    } else {
      rounded = shift_right(rounded, 16);
      result = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded.a, rounded.b), 0xD8);  // packed by four: a b a b
    }
  } else {
    const __m256i kept = _mm256_blend_epi16(_mm256_srli_epi32(bits.a, 16), bits.b, 0xAA);
    const __m256i lost = _mm256_blend_epi16(bits.a, _mm256_slli_epi32(bits.b, 16), 0xAA);
    // Up if what is lost is more than half, or half and the last bit that is kept is set.
    const __m256i even = _mm256_andnot_si256(kept, _mm256_set1_epi16(1));
    result = _mm256_add_epi16(kept, _mm256_srli_epi16(_mm256_subs_epu16(lost, even), 15));
  }
  _mm256_storeu_si256((__m256i*)p, result);
}

// As in lanes_avx512.h: 64-bit lanes, even blocks apart from odd ones. A chain is four of the eight even or odd blocks of
// half a group; four chains at once are the best use of sixteen registers.
template <int groups, Order order>
CONTDROP_INLINE void philox(const Philox& p, uint64_t first_block, Words* out) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  const uint32_t low = uint32_t(first_block), high = uint32_t(first_block >> 32);
  const Philox::Start start = high ? p.start(high) : p.low_blocks;
  const __m256i mix_c0 = _mm256_set1_epi64x(start.mix_c0), mix_c2 = _mm256_set1_epi64x(start.mix_c2);
  const __m256i c3_2 = _mm256_set1_epi64x(start.c3), key1_0 = _mm256_set1_epi64x(p.key1[0]);
  const __m256i base = _mm256_set1_epi64x(low);
  constexpr int n = 4;
  for (int first = 0; first < 4 * groups; first += n) {
    __m256i c0[n], c1[n], c2[n], c3[n];
    for (int i = 0; i < n; ++i) {
      const int b = 4 * first + (order == kNatural ? 8 * (i / 2) + i % 2 : i / 2 + 2 * (i % 2));
      const int step = order == kNatural ? 2 : 4;
      const __m256i block = _mm256_add_epi64(base, _mm256_set_epi64x(b + 3 * step, b + 2 * step, b + step, b));
      __m256i product = _mm256_mul_epu32(block, m0);
      const __m256i c2_1 = _mm256_xor_si256(_mm256_srli_epi64(product, 32), key1_0), c3_1 = product;
      product = _mm256_mul_epu32(c2_1, m1);
      c0[i] = _mm256_xor_si256(_mm256_srli_epi64(product, 32), mix_c0);
      c1[i] = product;
      c2[i] = _mm256_xor_si256(c3_1, mix_c2);
      c3[i] = c3_2;
    }
    for (int r = 2; r < 7; ++r) {
      const __m256i k0 = _mm256_set1_epi64x(p.key0[r]), k1 = _mm256_set1_epi64x(p.key1[r]);
      for (int i = 0; i < n; ++i) {
        const __m256i p0 = _mm256_mul_epu32(c0[i], m0), p1 = _mm256_mul_epu32(c2[i], m1);
        const __m256i n0 = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(c1[i], k0));
        const __m256i n2 = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(c3[i], k1));
        c0[i] = n0, c1[i] = p1, c2[i] = n2, c3[i] = p0;
      }
    }
    auto join = [](__m256i a, __m256i b) { return _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xAA); };
    for (int i = 0; i < n; i += 2) {
      const int chain = first + i;
      const __m256i words[4] = {join(c0[i], c0[i + 1]), join(c1[i], c1[i + 1]), join(c2[i], c2[i + 1]),
                                join(c3[i], c3[i + 1])};
      for (int w = 0; w < 4; ++w) (chain % 4 / 2 ? out[chain / 4 * 4 + w].b : out[chain / 4 * 4 + w].a) = words[w];
    }
  }
}
}  // namespace avx2
}  // namespace contdrop
