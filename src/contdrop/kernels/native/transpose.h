// Transposing a block of mask values: from rows in the order of the mask to rows in the order of memory.
#pragma once
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace contdrop {
namespace CONTDROP_LANES {

#if defined(__AVX2__)
// The eight columns from rows[0..7] + column on.
static inline __attribute__((always_inline)) void columns(const float* const* rows, int64_t column, __m256* out) {
  __m256 pairs[8], fours[8];
  for (int k = 0; k < 4; ++k) {
    const __m256 upper = _mm256_loadu_ps(rows[2 * k] + column), lower = _mm256_loadu_ps(rows[2 * k + 1] + column);
    pairs[2 * k] = _mm256_unpacklo_ps(upper, lower);
    pairs[2 * k + 1] = _mm256_unpackhi_ps(upper, lower);
  }
  for (int k = 0; k < 8; k += 4) {
    fours[k] = _mm256_shuffle_ps(pairs[k], pairs[k + 2], 0x44);
    fours[k + 1] = _mm256_shuffle_ps(pairs[k], pairs[k + 2], 0xEE);
    fours[k + 2] = _mm256_shuffle_ps(pairs[k + 1], pairs[k + 3], 0x44);
    fours[k + 3] = _mm256_shuffle_ps(pairs[k + 1], pairs[k + 3], 0xEE);
  }
  for (int k = 0; k < 4; ++k) {
    out[k] = _mm256_permute2f128_ps(fours[k], fours[k + 4], 0x20);
    out[k + 4] = _mm256_permute2f128_ps(fours[k], fours[k + 4], 0x31);
  }
}
#endif

// out[j * pitch + f] = rows[f][j] for f < count and j < length; the length is rounded up to a multiple of eight.
template <class T>
static void transpose(const T* const* rows, int64_t count, int64_t length, T* out, int64_t pitch) {
  for (int64_t j = 0; j < length; j += 8) {
    int64_t f = 0;
#if defined(__AVX2__)
    if constexpr (sizeof(T) == sizeof(float))
      for (; f + 8 <= count; f += 8) {
        __m256 block[8];
        columns(rows + f, j, block);
        for (int k = 0; k < 8; ++k) _mm256_storeu_ps(out + (j + k) * pitch + f, block[k]);
      }
#endif
    for (; f < count; ++f)
      for (int k = 0; k < 8; ++k) out[(j + k) * pitch + f] = rows[f][j + k];
  }
}

// out[j * out_pitch + f] = x[j * x_pitch + f] * rows[f][j] for f < count and j < length.
static void multiply_transposed(const float* const* rows, int64_t count, int64_t length, const float* x, int64_t x_pitch,
                                float* out, int64_t out_pitch) {
  int64_t j = 0;
#if defined(__AVX2__)
  for (; j + 8 <= length; j += 8) {
    int64_t f = 0;
    for (; f + 8 <= count; f += 8) {
      __m256 block[8];
      columns(rows + f, j, block);
      for (int k = 0; k < 8; ++k)
        _mm256_storeu_ps(out + (j + k) * out_pitch + f,
                         _mm256_mul_ps(_mm256_loadu_ps(x + (j + k) * x_pitch + f), block[k]));
    }
    for (; f < count; ++f)
      for (int k = 0; k < 8; ++k) out[(j + k) * out_pitch + f] = x[(j + k) * x_pitch + f] * rows[f][j + k];
  }
#endif
  for (; j < length; ++j)
    for (int64_t f = 0; f < count; ++f) out[j * out_pitch + f] = x[j * x_pitch + f] * rows[f][j];
}

}  // namespace CONTDROP_LANES
}  // namespace contdrop
