// Stands in for the compiler's own header, so that lanes_avx512.h can be run on processors without AVX-512: SIMDe
// (https://github.com/simd-everywhere/simde) computes every intrinsic in plain C++. Below is what its release 0.7.4 lacks,
// and fused operations that are rounded once. See tests/kernels/test_avx512.py.
#pragma once
#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#include <cstring>

using __mmask16 = simde__mmask16;

namespace emulated {

template <class R, class F>
inline R lanes(F f) {
  R r;
  for (int i = 0; i < 16; ++i) r.values[i] = f(i);
  return r;
}
struct Words {
  uint32_t values[16];
  explicit Words(__m512i a) { std::memcpy(values, &a, sizeof values); }
  Words() = default;
  operator __m512i() const { __m512i a; return std::memcpy(&a, values, sizeof values), a; }
};
struct Floats {
  float values[16];
  explicit Floats(__m512 a) { std::memcpy(values, &a, sizeof values); }
  Floats() = default;
  operator __m512() const { __m512 a; return std::memcpy(&a, values, sizeof values), a; }
};
template <class F>
inline __mmask16 mask(F f) {
  unsigned bits = 0;
  for (int i = 0; i < 16; ++i) bits |= unsigned(bool(f(i))) << i;
  return __mmask16(bits);
}

inline __mmask16 cmplt_epu32_mask(__m512i a, __m512i b) {
  const Words x(a), y(b);
  return mask([&](int i) { return x.values[i] < y.values[i]; });
}
inline __mmask16 testn_epi32_mask(__m512i a, __m512i b) {
  const Words x(a), y(b);
  return mask([&](int i) { return !(x.values[i] & y.values[i]); });
}
inline __m512 cvtepi32_ps(__m512i a) {
  const Words x(a);
  return lanes<Floats>([&](int i) { return float(int32_t(x.values[i])); });
}
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  const Floats x(a), y(b), z(c);
  return lanes<Floats>([&](int i) { return __builtin_fmaf(x.values[i], y.values[i], z.values[i]); });
}
inline __m512 fnmadd_ps(__m512 a, __m512 b, __m512 c) {
  const Floats x(a), y(b), z(c);
  return lanes<Floats>([&](int i) { return __builtin_fmaf(-x.values[i], y.values[i], z.values[i]); });
}
// Four lanes at a time; two bits of `order` say which of them goes where.
inline __m512i mask_shuffle_epi32(__m512i source, __mmask16 chosen, __m512i a, int order) {
  const Words s(source), x(a);
  return lanes<Words>([&](int i) {
    return chosen >> i & 1 ? x.values[i / 4 * 4 + (order >> 2 * (i % 4) & 3)] : s.values[i];
  });
}
inline float reduce_add_ps(__m512 a) {
  Floats x(a);
  for (int n = 8; n; n /= 2)
    for (int i = 0; i < n; ++i) x.values[i] += x.values[i + n];
  return x.values[0];
}
inline __m512 cvtph_ps(__m256i a) {
  __m128i halves[2];
  std::memcpy(halves, &a, sizeof halves);
  Floats r;
  for (int i = 0; i < 2; ++i) {
    const __m256 eight = simde_mm256_cvtph_ps(halves[i]);
    std::memcpy(r.values + 8 * i, &eight, sizeof eight);
  }
  return r;
}
inline __m256i cvtps_ph(__m512 a) {
  __m256 eights[2];
  std::memcpy(eights, &a, sizeof eights);
  const __m128i halves[2] = {simde_mm256_cvtps_ph(eights[0], 0), simde_mm256_cvtps_ph(eights[1], 0)};  // to nearest
  __m256i r;
  return std::memcpy(&r, halves, sizeof r), r;
}

}  // namespace emulated

#undef _mm512_fmadd_ps
#undef _mm512_fnmadd_ps
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_fnmadd_ps emulated::fnmadd_ps
#undef _mm512_cmplt_epu32_mask
#undef _mm512_testn_epi32_mask
#undef _mm512_cvtepi32_ps
#undef _mm512_mask_shuffle_epi32
#undef _mm512_reduce_add_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#define _mm512_cmplt_epu32_mask emulated::cmplt_epu32_mask
#define _mm512_testn_epi32_mask emulated::testn_epi32_mask
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_mask_shuffle_epi32 emulated::mask_shuffle_epi32
#define _mm512_reduce_add_ps emulated::reduce_add_ps
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_ph(a, rounding) emulated::cvtps_ph(a)
#if !defined(_MM_PERM_ENUM)
#define _MM_PERM_ENUM int
#endif
