// From a seed to the values of a mask, in order. The kernels are written once against sixteen lanes. Each lanes_*.h file is
// compiled with them into a set of its own: the including file defines CONTDROP_LANES as the namespace of its lanes.
#pragma once
#include <algorithm>
#include <type_traits>

#include "values.h"

namespace contdrop {
namespace CONTDROP_LANES {

// Two numbers of 32 bits from each word of a group of four runs: the upper half of a number is a half of the word, the
// lower half is made of halves of two other words, so that any two numbers are independent. See reference.py.
CONTDROP_INLINE Words mixed(const Words* words, int run, int slot) {
  return slot == 0 ? bit_xor(words[run], shift_right(words[(run + 1) & 3], 16))
                   : bit_xor(swap_halves(words[run]), shift_right(words[(run + 3) & 3], 16));
}

// The words of a run: sixteen words, four runs to a group of sixteen blocks.
template <class T, Order order = kNatural>
struct Runs {
  const Prepared<T>& p;
  int64_t group = -1;
  Words words[4];

  explicit Runs(const Prepared<T>& p_) : p(p_) {}
  CONTDROP_APART void draw(int64_t group_) {
    group = group_;
    philox<1, order>(p.philox, uint64_t(group) * 16, words);
  }
  // The words of slot s: the same in all slots where elements are fields of the words.
  template <int recipe>
  Words get(int64_t run, int s) {
    if (run >> 2 != group) draw(run >> 2);
    return is_mixed(recipe) ? mixed(words, int(run & 3), s) : words[run & 3];
  }
};

// A slot of a word, known when compiling. Sums may be kept apart by slot, so that their additions overlap.
template <int k>
using Slot = std::integral_constant<int, k>;

// Whole groups of runs, straight from the generator to where they are used, without a stop in memory.
template <int groups, Order order, class T, class Full>
CONTDROP_INLINE void use_groups(const Prepared<T>& p, int64_t run, int64_t i, Full full) {
  Words words[4 * groups];
  philox<groups, order>(p.philox, uint64_t(run) * 4, words);
  for (int g = 0; g < groups; ++g) {
    const Words* group = words + 4 * g;
    full(i + 128 * g, mixed(group, 0, 0), Slot<0>());
    full(i + 128 * g + 16, mixed(group, 0, 1), Slot<1>());
    full(i + 128 * g + 32, mixed(group, 1, 0), Slot<2>());
    full(i + 128 * g + 48, mixed(group, 1, 1), Slot<3>());
    full(i + 128 * g + 64, mixed(group, 2, 0), Slot<0>());
    full(i + 128 * g + 80, mixed(group, 2, 1), Slot<1>());
    full(i + 128 * g + 96, mixed(group, 3, 0), Slot<2>());
    full(i + 128 * g + 112, mixed(group, 3, 1), Slot<3>());
  }
}

// Calls full(i, words, slot) for i = 0, 16, ... as long as sixteen elements are left of count, and rest(i, words, slot)
// for what remains. The elements begin with a run. Several groups at once are faster, but not for short rows.
template <int recipe, int at_once = kGroupsAtOnce, class T, Order order, class Full, class Rest>
CONTDROP_INLINE void visit(Runs<T, order>& runs, int64_t first_run, int64_t count, Full full, Rest rest) {
  const Prepared<T>& p = runs.p;
  int64_t i = 0;
  if constexpr (is_mixed(recipe)) {
    // What is before the first whole groups and after the last ones.
    auto some = [&](int64_t from, int64_t to) CONTDROP_APART {
      for (; from + 16 <= to; from += 16)
        full(from, runs.template get<recipe>(first_run + from / 32, int(from / 16 % 2)), Slot<0>());
    };
    // Pairs begin with an even group, so that the high half of a block's number is the same in both.
    i = std::min((-first_run & (4 * at_once - 1)) * 32, count);
    some(0, i);
    for (; i + 128 * at_once <= count; i += 128 * at_once) use_groups<at_once, order>(p, first_run + i / 32, i, full);
    some(i, count);
    const int64_t done = count / 16 * 16;
    if (done < count) rest(done, runs.template get<recipe>(first_run + done / 32, int(done / 16 % 2)), 0);
    return;
  }
  const int64_t per_run = 16 * int64_t(p.per_word);
  for (int64_t run = first_run; i < count; ++run) {
    const int64_t end = std::min(i + per_run, count);
    Words w = runs.template get<recipe>(run, 0);
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

// All mask values of a run.
template <int recipe, class T>
static void write_run(Runs<T>& runs, int64_t run, T* out) {
  for (int s = 0; s < runs.p.per_word; ++s) write<recipe>(runs.p, runs.template get<recipe>(run, s), s, out + 16 * s);
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
static void write_run(const Law& law, Runs<T>& runs, int64_t run, T* out) {
  CONTDROP_BY_RECIPE(law, write_run, T, runs, run, out)
}

// Mask values one by one, in any order that mostly goes forward.
template <class T>
struct Values {
  const Law& law;
  Runs<T> runs;
  const int64_t per_run;
  int64_t run = -1;
  T buffer[512];

  Values(const Law& law_, const Prepared<T>& p) : law(law_), runs(p), per_run(16 * int64_t(p.per_word)) {}
  // The values from an element on that lie in the same run; count is set to how many there are.
  const T* from(int64_t element, int64_t& count) {
    const int64_t wanted = element / per_run, offset = element - wanted * per_run;
    if (wanted != run) {
      run = wanted;
      write_run(law, runs, run, buffer);
    }
    count = per_run - offset;
    return buffer + offset;
  }
};

}  // namespace CONTDROP_LANES
}  // namespace contdrop
