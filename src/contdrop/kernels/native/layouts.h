// Elementwise dropout in any layout, tile by tile; tiles.h says what a tile is.
#pragma once
#include <algorithm>
#include <memory>

#include "elementwise.h"
#include "tiles.h"
#include "transpose.h"

namespace contdrop {
namespace CONTDROP_LANES {

// Memory that a thread keeps between calls: fresh memory would cost more than small tensors do.
template <class T>
static T* scratch(int64_t count) {
  static thread_local std::unique_ptr<T[]> memory;
  static thread_local int64_t size = 0;
  if (size < count) {
    memory.reset(new T[size_t(count)]());
    size = count;
  }
  return memory.get();
}

#if defined(__AVX2__)
// The products of a row as long as 32 are left; factor(i) is what elements i to i + 7 are multiplied by. Returns where it
// ended. Half registers of AVX-512, four at a time: from memory and from the third-level cache a tenth faster than whole ones.
template <class Factor>
CONTDROP_INLINE int64_t by_32(const float* x, float* out, int64_t n, Factor factor) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256 products[4];
    for (int k = 0; k < 4; ++k) products[k] = _mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * k), factor(i + 8 * k));
    for (int k = 0; k < 4; ++k) _mm256_storeu_ps(out + i + 8 * k, products[k]);
  }
  return i;
}
#endif

// Rows times the same row of the mask.
template <class E>
CONTDROP_APART static void multiply_rows(const typename E::Stored* x, int64_t x_pitch, typename E::Stored* out, int64_t out_pitch,
                                         const typename E::Wide* m, int64_t n, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r, x += x_pitch, out += out_pitch) {
    int64_t i = 0;
#if defined(__AVX2__)
    if constexpr (std::is_same<E, Float32>::value)
      i = by_32(x, out, n, [m](int64_t at) CONTDROP_INLINE_LAMBDA { return _mm256_loadu_ps(m + at); });
#endif
    if (i < n) E::multiply_row(x + i, out + i, m + i, n - i);
  }
}

// A row times one mask value. What is left over at the end is done together with what is before it, which is done twice then.
template <class E>
CONTDROP_INLINE void scale_row(const typename E::Stored* x, typename E::Stored* out, typename E::Wide m, int64_t n) {
  int64_t i = 0;
  if constexpr (!std::is_same<E, Float64>::value) {
    const Floats factor = set_floats(m);
    auto sixteen = [&](int64_t at) {
      E::template store16<kNatural>(out + at, multiply(E::template load16<kNatural>(x + at), factor));
    };
#if defined(__AVX2__)
    if constexpr (std::is_same<E, Float32>::value) {
      const __m256 eight = _mm256_set1_ps(m);
      i = by_32(x, out, n, [eight](int64_t) CONTDROP_INLINE_LAMBDA { return eight; });
    }
#endif
    for (; i + 16 <= n; i += 16) sixteen(i);
    if (i < n && n >= 16 && x != out) return sixteen(n - 16);
    if (i < n) {
      typename E::Stored rest[16] = {};
      std::copy(x + i, x + n, rest);
      E::template store16<kNatural>(rest, multiply(E::template load16<kNatural>(rest), factor));
      std::copy(rest, rest + (n - i), out + i);
    }
  } else {
    for (; i < n; ++i) out[i] = x[i] * m;
  }
}

// Rows that follow each other in memory, each times a mask value of its own. Sixteen elements at a time, also where a row
// ends in the middle of them: short rows begin and end anywhere in a line of the caches, and to begin anew with each of them
// took twice the time. A row has sixteen elements at least, so that sixteen are of two rows at most.
template <class E>
CONTDROP_APART static void scale_rows(const typename E::Stored* x, typename E::Stored* out, const float* m, int64_t n,
                                      int64_t rows) {
  int64_t i = 0;
  auto sixteen = [&](Floats factor) CONTDROP_INLINE_LAMBDA {
    E::template store16<kNatural>(out + i, multiply(E::template load16<kNatural>(x + i), factor));
    i += 16;
  };
  for (int64_t row = 0, end = n; row < rows - 1; ++row, end += n) {
    const Floats factor = set_floats(m[row]);
    while (i + 16 <= end) sixteen(factor);
    if (i < end) sixteen(first_lanes(int(end - i), factor, set_floats(m[row + 1])));
  }
  scale_row<E>(x + i, out + i, m[rows - 1], rows * n - i);
}

// One call's tiles, as a thread works through them.
template <class E>
struct Tiler {
  using Stored = typename E::Stored;
  using Wide = typename E::Wide;
  // What a tile covers: its sizes, and where it begins.
  struct Place {
    int64_t fast, across, repeat, x, out, element;
  };

  const Tiles& t;
  const Prepared<Wide> p;
  Source<Wide> source;
  const bool dense;           // both rows are
  int64_t made = -1;          // the tile whose mask is ready
  int64_t pitch = 0;          // transposed: from one row of the mask to the next
  const Wide* mask = nullptr;
  Wide* turned = nullptr;     // transposed: the mask in the order of memory
  Wide* picked = nullptr;     // transposed, and the mask's elements are apart: rows of them
  Stream<Wide> streams[Tiles::kMostStreams];
  const Wide* rows[Tiles::kMostRows];

  explicit Tiler(const Tiles& t_)
      : t(t_), p(t.call->law, t.call->seed, t.call->stream), source(t.call->law, p), dense(t.fast.x == 1 && t.fast.out == 1) {
    const int64_t tile = t.fast_block * t.across_block, slack = source.slack();
    const int64_t number = t.transposed && !t.together ? t.fast_block : 1;
    const int64_t length = (number > 1 ? t.across_block : tile) + slack;
    const int64_t rounded = tile + 8 * std::max(t.fast_block, t.across_block);  // transposing rounds up to eight
    Wide* memory = scratch<Wide>(number * length + 2 * rounded);
    for (int64_t k = 0; k < number; ++k) streams[k].values = memory + k * length;
    turned = memory + number * length;
    picked = turned + rounded;
  }

  void run(int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t tile = part / t.repeat_blocks;
      Place place = find(tile, part - tile * t.repeat_blocks);
      if (tile != made) make(place), made = tile;
      const Stored* x = static_cast<const Stored*>(t.call->x) + place.x;
      Stored* out = static_cast<Stored*>(t.call->out) + place.out;
      if (!t.transposed && t.fast.mask != 0 && dense) {
        multiply_rows<E>(x, t.repeat.x, out, t.repeat.out, mask, place.fast, place.repeat);
        continue;
      }
      for (int64_t r = 0; r < place.repeat; ++r) multiply_tile(place, x + r * t.repeat.x, out + r * t.repeat.out);
    }
  }

 private:
  Place find(int64_t tile, int64_t repeat) const {
    Place place = {0, 0, 0, 0, 0, t.call->mask_first};
    auto go = [&](const Axis& axis, int64_t i) { place.x += i * axis.x, place.out += i * axis.out, place.element += i * axis.mask; };
    auto next = [&](int64_t count) {
      const int64_t rest = tile / count, i = tile - rest * count;
      tile = rest;
      return i;
    };
    // Neighbours in this order are neighbours in the mask, or at least in memory.
    int64_t across, fast;
    if (!t.transposed || t.together) {
      across = next(t.across_blocks), fast = next(t.fast_blocks);
      for (int a = t.others - 1; a >= 0; --a) go(t.other[a], next(t.other[a].size));
    } else if (t.across_blocks == 1) {
      across = 0;
      for (int a = t.others - 1; a >= 0; --a) go(t.other[a], next(t.other[a].size));
      fast = tile;
    } else {
      const int64_t i = next(t.across_blocks * t.fast_blocks), strip = i / (t.strip * t.fast_blocks) * t.strip;
      const int64_t rest = i - strip * t.fast_blocks, width = std::min(t.strip, t.across_blocks - strip);
      fast = rest / width, across = strip + rest % width;
      for (int a = t.others - 1; a >= 0; --a) go(t.other[a], next(t.other[a].size));
    }
    auto block = [&](const Axis& axis, int64_t i, int64_t size) {
      go(axis, i * size);
      return std::min(size, axis.size - i * size);
    };
    place.across = block(t.across, across, t.across_block);
    place.fast = block(t.fast, fast, t.fast_block);
    place.repeat = block(t.repeat, repeat, t.repeat_block);
    return place;
  }

  // A mask's elements that are a stride apart.
  const Wide* strided(Stream<Wide>& s, int64_t element, int64_t stride, int64_t count, Wide* to) {
    if (stride == 1 || count == 1) return source.get(s, element, count);
    for (int64_t i = 0; i < count; ++i) to[i] = *source.get(s, element + i * stride, 1);
    return to;
  }

  void make(const Place& at) {
    if (!t.transposed) {
      const bool one = t.fast.mask == 0;  // for every row
      mask = one ? strided(streams[0], at.element, t.across.mask, at.across, turned)
                 : strided(streams[0], at.element, t.fast.mask, at.fast, turned);
      return;
    }
    if (t.together) {
      rows[0] = source.get(streams[0], at.element, at.fast * at.across);
      for (int64_t f = 1; f < at.fast; ++f) rows[f] = rows[f - 1] + at.across;
    } else if (t.across.mask == 1) {
      source.template get_rows<Tiles::kMostStreams>(streams, at.fast, at.element, t.fast.mask, at.across, rows);
    } else {
      for (int64_t f = 0; f < at.fast; ++f) {
        Wide* row = picked + f * at.across;
        rows[f] = row;
        for (int64_t j = 0; j < at.across; ++j)
          row[j] = *source.get(streams[f], at.element + f * t.fast.mask + j * t.across.mask, 1);
      }
    }
    if (is_direct(at)) return;
    pitch = at.fast;
    transpose(rows, at.fast, at.across, turned, pitch);
    mask = turned;
  }

  static constexpr int64_t kLongRow = 256;  // from here on the ends of rows cost nothing that can be measured

  // Whether all rows of a tile follow each other.
  bool follow(const Place& at) const { return dense && t.across.x == at.fast && t.across.out == at.fast; }

  // Whether a transposed tile is multiplied while it is transposed.
  bool is_direct(const Place& at) const { return std::is_same<E, Float32>::value && dense && at.fast >= 8; }

  void multiply_tile(const Place& at, const Stored* x, Stored* out) const {
    if (t.fast.mask == 0) {
      if constexpr (!std::is_same<E, Float64>::value)
        if (follow(at) && at.fast >= 16 && at.fast < kLongRow) return scale_rows<E>(x, out, mask, at.fast, at.across);
      for (int64_t j = 0; j < at.across; ++j) scale(x + j * t.across.x, out + j * t.across.out, mask[j], at.fast);
    } else if (!t.transposed) {
      multiply_one(x, out, mask, at.fast);
    } else if (is_direct(at)) {
      if constexpr (std::is_same<E, Float32>::value)
        multiply_transposed(rows, at.fast, at.across, x, t.across.x, out, t.across.out);
    } else if (follow(at)) {
      E::multiply_row(x, out, mask, at.across * at.fast);
    } else {
      for (int64_t j = 0; j < at.across; ++j) multiply_one(x + j * t.across.x, out + j * t.across.out, mask + j * pitch, at.fast);
    }
  }

  void multiply_one(const Stored* x, Stored* out, const Wide* m, int64_t n) const {
    if (dense) return E::multiply_row(x, out, m, n);
    Stored gathered[256];
    for (int64_t i = 0; i < n; i += 256) {
      const int64_t count = std::min<int64_t>(256, n - i);
      for (int64_t k = 0; k < count; ++k) gathered[k] = x[(i + k) * t.fast.x];
      E::multiply_row(gathered, gathered, m + i, count);
      for (int64_t k = 0; k < count; ++k) out[(i + k) * t.fast.out] = gathered[k];
    }
  }

  void scale(const Stored* x, Stored* out, Wide m, int64_t n) const {
    if (dense) return scale_row<E>(x, out, m, n);
    Wide same[256];
    std::fill(same, same + std::min<int64_t>(256, n), m);
    for (int64_t i = 0; i < n; i += 256)
      multiply_one(x + i * t.fast.x, out + i * t.fast.out, same, std::min<int64_t>(256, n - i));
  }
};

template <class E>
static void tiles_of(const Tiles& t, int64_t first, int64_t last) {
  Tiler<E>(t).run(first, last);
}

static void tiles(const Tiles& t, int64_t first, int64_t last) { CONTDROP_BY_TYPE(*t.call, tiles_of, t, first, last) }

}  // namespace CONTDROP_LANES
}  // namespace contdrop
