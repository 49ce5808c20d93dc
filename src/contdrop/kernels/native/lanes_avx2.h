// Sixteen lanes of 32 bits with AVX2, FMA and F16C: pairs of registers.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "philox.h"

namespace contdrop {
namespace avx2 {

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
CONTDROP_INLINE Words shift_left(Words x, int n) {
  __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_sll_epi32(x.a, count), _mm256_sll_epi32(x.b, count)};
}
CONTDROP_INLINE Words shift_right(Words x, int n) {
  __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_srl_epi32(x.a, count), _mm256_srl_epi32(x.b, count)};
}
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
CONTDROP_INLINE __m256 widen_bfloat(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
CONTDROP_INLINE Floats load_bfloat(const uint16_t* p) { return {widen_bfloat(p), widen_bfloat(p + 8)}; }
// See lanes_avx512.h for why NaN needs no care.
CONTDROP_INLINE __m256i round_bfloat(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}
CONTDROP_INLINE void store_bfloat(uint16_t* p, Floats x) {
  const __m256i packed = _mm256_packus_epi32(round_bfloat(x.a), round_bfloat(x.b));  // a b a b, by four
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xD8));
}

// As in lanes_avx512.h: 64-bit lanes, even blocks apart from odd ones. A chain is four of the eight even or odd blocks of
// half a group; four chains at once are the best use of sixteen registers.
template <int groups>
CONTDROP_INLINE void philox(const Philox& p, uint64_t first_block, Words* out) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i even = _mm256_set_epi64x(6, 4, 2, 0);
  const uint32_t low = uint32_t(first_block), high = uint32_t(first_block >> 32);
  const uint64_t s1 = uint64_t(p.stream) * 0xCD9E8D57u;
  const uint32_t c0_1 = uint32_t(s1 >> 32) ^ high ^ p.key0[0], c1_1 = uint32_t(s1);
  const uint64_t s0 = uint64_t(c0_1) * 0xD2511F53u;
  const __m256i c3_2 = _mm256_set1_epi64x(uint32_t(s0)), hi_2 = _mm256_set1_epi64x(uint32_t(s0 >> 32) ^ p.key1[1]);
  const __m256i mix_1 = _mm256_set1_epi64x(p.key1[0]), mix_2 = _mm256_set1_epi64x(c1_1 ^ p.key0[1]);
  constexpr int n = 4;
  for (int start = 0; start < 4 * groups; start += n) {
    __m256i c0[n], c1[n], c2[n], c3[n];
    for (int i = 0; i < n; ++i) {
      const int chain = start + i;
      const __m256i block = _mm256_add_epi64(_mm256_set1_epi64x(uint64_t(low) + uint64_t(8 * (chain / 2) + chain % 2)), even);
      __m256i product = _mm256_mul_epu32(block, m0);
      const __m256i c2_1 = _mm256_xor_si256(_mm256_srli_epi64(product, 32), mix_1), c3_1 = product;
      product = _mm256_mul_epu32(c2_1, m1);
      c0[i] = _mm256_xor_si256(_mm256_srli_epi64(product, 32), mix_2);
      c1[i] = product;
      c2[i] = _mm256_xor_si256(c3_1, hi_2);
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
      const int chain = start + i;
      const __m256i words[4] = {join(c0[i], c0[i + 1]), join(c1[i], c1[i + 1]), join(c2[i], c2[i + 1]), join(c3[i], c3[i + 1])};
      for (int w = 0; w < 4; ++w) (chain % 4 / 2 ? out[chain / 4 * 4 + w].b : out[chain / 4 * 4 + w].a) = words[w];
    }
  }
}
}  // namespace avx2
}  // namespace contdrop
