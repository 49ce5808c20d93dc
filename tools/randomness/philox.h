// Philox-4x32 with 7 rounds, sixteen blocks (one group) at a time: an implementation of its own, independent of the
// kernels' one, of what src/contdrop/kernels/reference.py specifies.
#pragma once

#include <cstdint>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace randomness {

constexpr int kLanes = 16;
constexpr int kRounds = 7;
constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

// The output words of one group: word[j][lane] is output j of block 16 * group + lane.
struct Group {
    alignas(32) uint32_t word[4][kLanes];
};

#ifdef __AVX2__

// Four blocks in 64-bit lanes. The upper halves hold rubbish between rounds: the multiplication ignores them.
inline void philox4(uint64_t seed, uint64_t block, uint64_t out[4][4]) {
    const __m256i m0 = _mm256_set1_epi64x(kMultiplier0), m1 = _mm256_set1_epi64x(kMultiplier1);
    const __m256i blocks = _mm256_add_epi64(_mm256_set1_epi64x(int64_t(block)), _mm256_setr_epi64x(0, 1, 2, 3));
    __m256i c0 = blocks, c1 = _mm256_srli_epi64(blocks, 32);
    __m256i c2 = _mm256_setzero_si256(), c3 = _mm256_setzero_si256();
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < kRounds; ++round, k0 += kWeyl0, k1 += kWeyl1) {
        const __m256i p0 = _mm256_mul_epu32(c0, m0), p1 = _mm256_mul_epu32(c2, m1);
        c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), _mm256_set1_epi64x(k0));
        c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), _mm256_set1_epi64x(k1));
        c1 = p1;
        c3 = p0;
    }
    const __m256i result[4] = {c0, c1, c2, c3};
    for (int j = 0; j < 4; ++j) _mm256_store_si256(reinterpret_cast<__m256i*>(out[j]), result[j]);
}

#else

inline void philox4(uint64_t seed, uint64_t block, uint64_t out[4][4]) {
    for (int lane = 0; lane < 4; ++lane) {
        uint32_t c0 = uint32_t(block + lane), c1 = uint32_t((block + lane) >> 32), c2 = 0, c3 = 0;
        uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
        for (int round = 0; round < kRounds; ++round, k0 += kWeyl0, k1 += kWeyl1) {
            const uint64_t p0 = uint64_t(c0) * kMultiplier0, p1 = uint64_t(c2) * kMultiplier1;
            c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
            c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
            c1 = uint32_t(p1);
            c3 = uint32_t(p0);
        }
        out[0][lane] = c0, out[1][lane] = c1, out[2][lane] = c2, out[3][lane] = c3;
    }
}

#endif

inline void draw(uint64_t seed, uint64_t group, Group& result) {
    for (int first = 0; first < kLanes; first += 4) {
        alignas(32) uint64_t out[4][4];
        philox4(seed, kLanes * group + first, out);
        for (int j = 0; j < 4; ++j)
            for (int lane = 0; lane < 4; ++lane) result.word[j][first + lane] = uint32_t(out[j][lane]);
    }
}

}  // namespace randomness
