// Sixteen lanes of 32 bits with AVX-512.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "philox.h"

namespace contdrop {
namespace avx512 {

constexpr int kGroupsAtOnce = 2;
constexpr Order kBfloatOrder = kNatural;

using Words = __m512i;   // sixteen unsigned 32-bit words
using Floats = __m512;   // sixteen floats
using Mask = __mmask16;  // one truth value per lane

CONTDROP_INLINE Words set_words(uint32_t value) { return _mm512_set1_epi32(int(value)); }
CONTDROP_INLINE Words shift_left(Words a, int n) { return _mm512_slli_epi32(a, unsigned(n)); }
CONTDROP_INLINE Words shift_right(Words a, int n) { return _mm512_srli_epi32(a, unsigned(n)); }
CONTDROP_INLINE Words bit_and(Words a, Words b) { return _mm512_and_si512(a, b); }
CONTDROP_INLINE Words bit_or(Words a, Words b) { return _mm512_or_si512(a, b); }
CONTDROP_INLINE Words subtract(Words a, Words b) { return _mm512_sub_epi32(a, b); }
CONTDROP_INLINE Words add(Words a, Words b) { return _mm512_add_epi32(a, b); }
CONTDROP_INLINE Mask less(Words a, Words b) { return _mm512_cmplt_epu32_mask(a, b); }
CONTDROP_INLINE Mask bit_clear(Words a, uint32_t bit) { return _mm512_testn_epi32_mask(a, set_words(bit)); }

CONTDROP_INLINE Floats set_floats(float value) { return _mm512_set1_ps(value); }
CONTDROP_INLINE Floats as_floats(Words a) { return _mm512_castsi512_ps(a); }
CONTDROP_INLINE Words as_words(Floats a) { return _mm512_castps_si512(a); }
CONTDROP_INLINE Floats to_floats(Words a) { return _mm512_cvtepi32_ps(a); }
CONTDROP_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
CONTDROP_INLINE Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
CONTDROP_INLINE Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
CONTDROP_INLINE Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
CONTDROP_INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
CONTDROP_INLINE Floats quarter_minus_square(Floats a) { return _mm512_fnmadd_ps(a, a, set_floats(0.25f)); }
CONTDROP_INLINE Floats minimum(Floats a, Floats b) { return _mm512_min_ps(a, b); }
CONTDROP_INLINE Floats maximum(Floats a, Floats b) { return _mm512_max_ps(a, b); }
CONTDROP_INLINE Mask less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
CONTDROP_INLINE Mask not_zero(Floats a) { return _mm512_cmp_ps_mask(a, set_floats(0.0f), _CMP_NEQ_UQ); }
CONTDROP_INLINE Floats where(Mask m, Floats a) { return _mm512_maskz_mov_ps(m, a); }  // a or 0
// a in the first n lanes, b in the others.
CONTDROP_INLINE Floats first_lanes(int n, Floats a, Floats b) { return _mm512_mask_blend_ps(Mask((1u << n) - 1), b, a); }
CONTDROP_INLINE Floats load(const float* p) { return _mm512_loadu_ps(p); }
CONTDROP_INLINE void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
CONTDROP_INLINE float sum(Floats a) { return _mm512_reduce_add_ps(a); }

// Sixteen float16 or bfloat16 numbers; stores round to nearest. What is stored as bfloat16 is a product
// with a bfloat16 number: if it is NaN its low half is zero, so that rounding cannot carry into the sign.
CONTDROP_INLINE Floats load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
CONTDROP_INLINE void store_half(uint16_t* p, Floats a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// A bfloat16 number is the high half of a float. Moving halves about by one permutation is the cheapest way.
template <Order>
CONTDROP_INLINE Floats load_bfloat(const uint16_t* p) {
  const __m512i to_high = _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16, 8 << 16,
                                           7 << 16, 6 << 16, 5 << 16, 4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
  const __m512i narrow = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)p));
  return as_floats(_mm512_maskz_permutexvar_epi16(0xAAAAAAAA, to_high, narrow));
}
template <Ties ties, Order>
CONTDROP_INLINE void store_bfloat(uint16_t* p, Floats a) {
  const __m512i from_high =
      _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 31 << 16 | 29, 27 << 16 | 25, 23 << 16 | 21, 19 << 16 | 17, 15 << 16 | 13,
                       11 << 16 | 9, 7 << 16 | 5, 3 << 16 | 1);
  const Words bits = as_words(a);
  Words rounded = add(bits, set_words(ties == kToEven ? 0x7fff : 0x8000));
  if (ties == kToEven) {  // adds 1 where the last bit that stays is set
    const Mask odd = _mm512_test_epi32_mask(bits, set_words(0x10000));
    rounded = _mm512_mask_sub_epi32(rounded, odd, rounded, set_words(~0u));
  }
  _mm256_storeu_si256((__m256i*)p, _mm512_castsi512_si256(_mm512_permutexvar_epi16(from_high, rounded)));
}

// Philox on sixteen consecutive blocks, or on several such groups at once, whose chains of dependent operations then
// overlap: four words per block, sixteen lanes each, group after group. The state is kept in 64-bit lanes, even blocks
// apart from odd ones, because the multiplication reads the low half of a 64-bit lane and ignores the high one; so no
// shuffles are needed.
template <int groups, Order>
CONTDROP_INLINE void philox(const Philox& p, uint64_t first_block, Words* out) {
  const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
  const uint32_t low = uint32_t(first_block), high = uint32_t(first_block >> 32);
  const Philox::Start start = high ? p.start(high) : p.low_blocks;
  const __m512i mix_c0 = _mm512_set1_epi64(start.mix_c0), mix_c2 = _mm512_set1_epi64(start.mix_c2);
  const __m512i c3_2 = _mm512_set1_epi64(start.c3), key1_0 = _mm512_set1_epi64(p.key1[0]);
  const __m512i base = _mm512_set1_epi64(low);
  constexpr int n = 2 * groups;
  __m512i c0[n], c1[n], c2[n], c3[n];
  for (int i = 0; i < n; ++i) {
    const int b = i / 2 * 16 + i % 2;
    const __m512i block = _mm512_add_epi64(base, _mm512_set_epi64(b + 14, b + 12, b + 10, b + 8, b + 6, b + 4, b + 2, b));
    __m512i product = _mm512_mul_epu32(block, m0);  // round 1
    __m512i c2_1 = _mm512_xor_si512(_mm512_srli_epi64(product, 32), key1_0), c3_1 = product;
    product = _mm512_mul_epu32(c2_1, m1);  // round 2
    c0[i] = _mm512_xor_si512(_mm512_srli_epi64(product, 32), mix_c0);
    c1[i] = product;
    c2[i] = _mm512_xor_si512(c3_1, mix_c2);
    c3[i] = c3_2;
  }
  for (int r = 2; r < 7; ++r) {
    const __m512i k0 = _mm512_set1_epi64(p.key0[r]), k1 = _mm512_set1_epi64(p.key1[r]);
    for (int i = 0; i < n; ++i) {
      __m512i p0 = _mm512_mul_epu32(c0[i], m0), p1 = _mm512_mul_epu32(c2[i], m1);
      // 0x96 is the truth table of a three-way exclusive or.
      __m512i n0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1[i], k0, 0x96);
      __m512i n2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3[i], k1, 0x96);
      c0[i] = n0, c1[i] = p1, c2[i] = n2, c3[i] = p0;
    }
  }
  // The low halves of a into the even lanes, those of b into the odd ones.
  auto join = [](__m512i a, __m512i b) { return _mm512_mask_shuffle_epi32(a, 0xAAAA, b, _MM_PERM_ENUM(0xA0)); };
  for (int g = 0; g < groups; ++g) {
    out[4 * g] = join(c0[2 * g], c0[2 * g + 1]);
    out[4 * g + 1] = join(c1[2 * g], c1[2 * g + 1]);
    out[4 * g + 2] = join(c2[2 * g], c2[2 * g + 1]);
    out[4 * g + 3] = join(c3[2 * g], c3[2 * g + 1]);
  }
}
}  // namespace avx512
}  // namespace contdrop
