// From a seed to the values of a mask, in order. The kernels are written once against sixteen lanes. Each lanes_*.h file is
// compiled with them into a set of its own: the including file defines CONTDROP_LANES as the namespace of its lanes.
#pragma once
#include <algorithm>
#include <type_traits>

#include "values.h"

namespace contdrop {
namespace CONTDROP_LANES {

// The words of a group of sixteen blocks, drawn when another group is wanted.
template <class T, Order order = kNatural>
struct Groups {
  const Prepared<T>& p;
  int64_t group = -1;
  Words words[4];

  explicit Groups(const Prepared<T>& p_) : p(p_) {}
  CONTDROP_APART void draw(int64_t wanted) {
    group = wanted;
    philox<1, order>(p.philox, uint64_t(group) * 16, words);
  }
  const Words* get(int64_t wanted) {
    if (wanted != group) draw(wanted);
    return words;
  }
};

// A slot of a word or a number of a block, known when compiling. Sums may be kept apart by slot, so that their additions
// overlap.
template <int k>
using Slot = std::integral_constant<int, k>;

// Whole groups of numbers, straight from the generator to where they are used, without a stop in memory.
template <int groups, Order order, class T, class Full>
CONTDROP_INLINE void use_groups(const Prepared<T>& p, int64_t group, int64_t i, Full full) {
  Words words[4 * groups];
  philox<groups, order>(p.philox, uint64_t(group) * 16, words);
  for (int g = 0; g < groups; ++g, i += kGroupOfNumbers) {
    // Two words are done with before the next two are begun: the fewer registers hold words, the faster.
    full(i, number(words + 4 * g, 0), Slot<0>());
    full(i + 16, number(words + 4 * g, 1), Slot<1>());
    full(i + 64, number(words + 4 * g, 4), Slot<4>());
    full(i + 32, number(words + 4 * g, 2), Slot<2>());
    full(i + 48, number(words + 4 * g, 3), Slot<3>());
    full(i + 80, number(words + 4 * g, 5), Slot<5>());
  }
}

// Calls full(i, words, slot) for i = 0, 16, ... as long as sixteen elements are left of count, and rest(i, words, slot)
// for what remains. Element number `first` of the mask is the first of all; numbers begin with a group, or with an even one
// if two are made at once, so that the high half of a block's number is the same in both; fields begin with a run.
// Several groups at once are faster, but not for short rows.
template <int recipe, int at_once = kGroupsAtOnce, class T, Order order, class Full, class Rest>
CONTDROP_INLINE void visit(Groups<T, order>& groups, int64_t first, int64_t count, Full full, Rest rest) {
  const Prepared<T>& p = groups.p;
  int64_t i = 0;
  if constexpr (is_number(recipe)) {
    int64_t group = first / kGroupOfNumbers;
    constexpr int64_t step = kGroupOfNumbers * at_once;
    for (; i + step <= count; i += step, group += at_once) use_groups<at_once, order>(p, group, i, full);
    // What is after the last whole groups.
    auto some = [&](int64_t from, int64_t last) CONTDROP_APART {
      for (; from < count; ++last) {
        const Words* words = groups.get(last);
        for (int s = 0; s < kNumbers && from < count; ++s, from += 16) {
          if (from + 16 <= count)
            full(from, number(words, s), Slot<0>());
          else
            rest(from, number(words, s), 0);
        }
      }
    };
    some(i, group);
    return;
  }
  for (int64_t run = first / p.per_run; i < count; ++run) {
    const int64_t end = std::min(i + p.per_run, count);
    Words w = groups.get(run >> 2)[run & 3];
    // The words are shifted so that the slots can be constants.
    for (; i + 64 <= end; i += 64, w = shift_right(w, 4 * p.bits)) {
      full(i, w, Slot<0>());
      full(i + 16, w, Slot<1>());
      full(i + 32, w, Slot<2>());
      full(i + 48, w, Slot<3>());
    }
    for (; i + 16 <= end; i += 16, w = shift_right(w, p.bits)) full(i, w, Slot<0>());
    if (i < end) {
      rest(i, w, 0);
      return;
    }
  }
}

// Mask values that are made together: those of a group of numbers, or of a run of words.
template <class T>
static int64_t stretch_of(const Prepared<T>& p) {
  return p.bits == kNumberBits ? kGroupOfNumbers : p.per_run;
}
template <int recipe, class T>
static void write_stretch(Groups<T>& groups, int64_t k, T* out) {
  if (is_number(recipe)) {
    const Words* words = groups.get(k);
    for (int s = 0; s < kNumbers; ++s) write<recipe>(groups.p, number(words, s), s, out + 16 * s);
  } else {
    const Words w = groups.get(k >> 2)[k & 3];
    for (int s = 0; 16 * s < groups.p.per_run; ++s) write<recipe>(groups.p, w, s, out + 16 * s);
  }
}

// Calls the version of a function template that fits the law.
#define CONTDROP_BY_RECIPE(law, function, E, ...)                              \
  switch (choose(law)) {                                                       \
    case kHalf: return function<kHalf, E>(__VA_ARGS__);                        \
    case kBits: return function<kBits, E>(__VA_ARGS__);                        \
    case kThreshold: return function<kThreshold, E>(__VA_ARGS__);              \
    case kFlat: return function<kFlat, E>(__VA_ARGS__);                        \
    case kNormalNear: return function<kNormalNear, E>(__VA_ARGS__);            \
    case kNormalMiddle: return function<kNormalMiddle, E>(__VA_ARGS__);        \
    case kNormalFar: return function<kNormalFar, E>(__VA_ARGS__);              \
  }

template <class T>
static void write_stretch(const Law& law, Groups<T>& groups, int64_t k, T* out) {
  CONTDROP_BY_RECIPE(law, write_stretch, T, groups, k, out)
}

// Mask values one by one, in any order that mostly goes forward.
template <class T>
struct Values {
  const Law& law;
  Groups<T> groups;
  const int64_t stretch;
  int64_t present = -1;
  T buffer[512];

  Values(const Law& law_, const Prepared<T>& p) : law(law_), groups(p), stretch(stretch_of(p)) {}
  // The values from an element on that are made together with it; count is set to how many there are.
  const T* from(int64_t element, int64_t& count) {
    const int64_t wanted = element / stretch, offset = element - wanted * stretch;
    if (wanted != present) {
      present = wanted;
      write_stretch(law, groups, wanted, buffer);
    }
    count = stretch - offset;
    return buffer + offset;
  }
};

}  // namespace CONTDROP_LANES
}  // namespace contdrop
