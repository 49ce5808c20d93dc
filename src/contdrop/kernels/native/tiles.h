// How a call in any layout is cut into tiles.
//
// Memory has an order and the mask has an order, and a kernel should go forward in both. So a tile has two axes: `fast`, along
// which the result's elements follow each other in memory, and `across`, along which the mask's elements do. If that is the
// same axis, or the mask is shared along `fast`, there is nothing to transpose. A third axis, `repeat`, is one along which
// the mask is shared: a tile's mask is made once and used for all of it.
#pragma once
#include <algorithm>

#include "api.h"

namespace contdrop {

struct Axis {
  int64_t size = 1, x = 0, out = 0, mask = 0;  // and the strides
};

struct Tiles {
  static constexpr int64_t kMostRows = 512;       // of the mask, in a transposed tile
  static constexpr int64_t kMostStreams = 128;    // the same if every row is a piece of its own

  const Dropout* call;
  int32_t threads;
  bool transposed;  // the mask follows itself along `across` rather than `fast`
  bool together;    // a transposed tile's mask is all in one piece
  Axis fast, across, repeat;
  int64_t fast_block, across_block, repeat_block;     // sizes of a tile
  int64_t fast_blocks, across_blocks, repeat_blocks;  // how many there are
  int64_t strip;  // tiles across that follow each other before the next ones along `fast` come
  int others;
  Axis other[kMaxAxes];  // those that the mask is slower along come first
  int64_t parts;

  explicit Tiles(const Dropout& d) : call(&d), threads(d.threads) {
    choose(merge(d));
    cut();
  }
  bool is_row() const {
    const bool plain = fast.size == 1 || (fast.x == 1 && fast.out == 1 && fast.mask == 1);
    return plain && others == 0 && across.size == 1 && repeat.size == 1 && call->mask_first % kAligned == 0;
  }

 private:
  static constexpr int64_t kTile = 8192;     // elements
  static constexpr int64_t kLongest = 1024;  // most elements across
  static constexpr int64_t kStrip = 1024;
  Axis axes[kMaxAxes];  // merged, from the fastest of the result's memory on

  int merge(const Dropout& d) {
    int count = 0;
    for (int a = 0; a < d.axes; ++a)
      if (d.size[a] > 1) {
        axes[count].size = d.size[a], axes[count].x = d.x_stride[a];
        axes[count].out = d.out_stride[a], axes[count].mask = d.mask_stride[a];
        ++count;
      }
    std::sort(axes, axes + count, [](const Axis& a, const Axis& b) { return a.out < b.out; });
    int merged = 0;
    for (int a = 0; a < count; ++a) {
      Axis& last = axes[merged ? merged - 1 : 0];
      const int64_t n = last.size;
      if (merged && axes[a].x == n * last.x && axes[a].out == n * last.out && axes[a].mask == n * last.mask)
        last.size *= axes[a].size;
      else
        axes[merged++] = axes[a];
    }
    return merged;
  }

  Axis take(int& count, int a) {
    const Axis taken = axes[a];
    std::copy(axes + a + 1, axes + count, axes + a);
    --count;
    return taken;
  }

  void choose(int count) {
    if (count) fast = take(count, 0);
    int slowest = -1, shared = -1;
    for (int a = 0; a < count; ++a) {
      if (axes[a].mask == 0) {
        if (shared < 0) shared = a;
      } else if (slowest < 0 || axes[a].mask < axes[slowest].mask) {
        slowest = a;
      }
    }
    transposed = fast.mask != 0 && slowest >= 0 && axes[slowest].mask < fast.mask;
    if (transposed || (fast.mask == 0 && slowest >= 0)) {
      if (shared > slowest) --shared;
      across = take(count, slowest);
    }
    if (shared >= 0) repeat = take(count, shared);
    std::sort(axes, axes + count, [](const Axis& a, const Axis& b) { return a.mask > b.mask; });
    std::copy(axes, axes + count, other);
    others = count;
  }

  // Whether a tile of all that is across, and of a good part of what is fast, is a piece of the mask: then nothing is made
  // that is not used. Rows whose distance is a power of two take each other's places in the caches.
  bool is_together() const {
    if (across.mask != 1 || fast.mask != across.size) return false;
    if (across.size <= kMostStreams || fast.size * across.size <= 2 * kTile) return true;
    return across.size <= kLongest && across.size % 256 != 0;
  }

  void cut() {
    together = false;
    if (!transposed) {
      // Rows, or one value for every row.
      fast_block = std::min(fast.size, kTile / 2);
      across_block = std::clamp<int64_t>(2 * kTile / fast_block, 1, std::min(across.size, kLongest));
    } else if (is_together()) {
      together = true;
      across_block = across.size;
      fast_block = std::min(fast.size, std::min(2 * kTile / across.size, kMostRows));
      if (fast_block > 16) fast_block -= fast_block % 16;  // whole lines of the caches
    } else {
      // Long enough for memory and for the generator, and small enough for the second-level cache.
      fast_block = std::min(fast.size, kMostStreams);
      across_block = std::min(across.size, std::clamp<int64_t>(kTile / fast_block, 2 * kGroupOfNumbers, kLongest));
    }
    const int64_t tile = fast_block * across_block;
    repeat_block = std::min(repeat.size, std::max<int64_t>(2 * kTile / tile, 8));
    // Long strips go forward in the mask; short ones stay within the pages of memory that the processor remembers.
    strip = kStrip / across_block;
    fast_blocks = (fast.size + fast_block - 1) / fast_block;
    across_blocks = (across.size + across_block - 1) / across_block;
    repeat_blocks = (repeat.size + repeat_block - 1) / repeat_block;
    parts = fast_blocks * across_blocks * repeat_blocks;
    for (int a = 0; a < others; ++a) parts *= other[a].size;
  }
};

}  // namespace contdrop
