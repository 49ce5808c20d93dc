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

// A piece of a mask to be made: where it begins, which is where visit can begin, its size, a multiple of sixteen, and where
// it goes.
template <class T>
struct Piece {
  int64_t first, count;
  T* out;
};

// Makes pieces. Several at once, because a call costs as much as a short piece does.
template <int recipe, class T>
CONTDROP_APART static void fill(Groups<T>& groups, const Piece<T>* pieces, int64_t number) {
  const Prepared<T>& p = groups.p;
  for (const Piece<T>* piece = pieces; piece < pieces + number; ++piece) {
    T* out = piece->out;
    visit<recipe, std::is_same<T, double>::value ? 1 : kGroupsAtOnce>(
        groups, piece->first, piece->count,
        [&](int64_t i, const Words& w, auto s) CONTDROP_INLINE_LAMBDA { write<recipe>(p, w, s, out + i); },
        [&](int64_t i, const Words& w, int s) { write<recipe>(p, w, s, out + i); });
  }
}

// A part of a mask in memory. There must be room for what is asked for at a time, and for slack() values more.
template <class T>
struct Stream {
  T* values = nullptr;
  int64_t begin = 0, end = 0;  // the elements that are there
};

// Makes mask values and keeps what was made beyond a request for the next one, so that nothing is made twice by who goes
// forward through a mask.
template <class T>
struct Source {
  const Law& law;
  Groups<T> groups;
  const int64_t unit;  // what is made together: where visit can begin

  Source(const Law& law_, const Prepared<T>& p)
      : law(law_), groups(p), unit(p.bits == kNumberBits ? kGroupOfNumbers * kGroupsAtOnce : p.per_run) {}

  // A unit may begin before a request and another end after it, and transposing reads a few values more.
  int64_t slack() const { return 2 * unit + 16; }

  // The values of elements first to first + count - 1.
  const T* get(Stream<T>& s, int64_t first, int64_t count) {
    Piece<T> piece;
    if (extend(s, first, count, piece)) make(&piece, 1);
    return s.values + (first - s.begin);
  }

  // The same for `number` streams, the first elements of which are a stride apart.
  template <int most>
  void get_rows(Stream<T>* streams, int64_t number, int64_t first, int64_t stride, int64_t count, const T** rows) {
    Piece<T> pieces[most];
    int64_t wanted = 0;
    for (int64_t k = 0; k < number; ++k) {
      const int64_t here = first + k * stride;
      wanted += extend(streams[k], here, count, pieces[wanted]);
      rows[k] = streams[k].values + (here - streams[k].begin);
    }
    if (wanted) make(pieces, wanted);
  }

  // Calls use(i, values, n) for a row, some of it at a time, which begins where visit can begin. For what is not worth a
  // compiled version of its own for every recipe.
  template <class Use>
  void in_pieces(int64_t first, int64_t count, Use use) {
    T values[kAligned];
    for (int64_t i = 0; i < count; i += kAligned) {
      const int64_t n = std::min(kAligned, count - i);
      const Piece<T> piece = {first + i, (n + 15) / 16 * 16, values};
      make(&piece, 1);
      use(i, values, n);
    }
  }

 private:
  // Makes room in a stream, and says what has yet to be made, if anything.
  bool extend(Stream<T>& s, int64_t first, int64_t count, Piece<T>& piece) {
    if (first >= s.begin && first + count <= s.end) return false;
    if (first < s.begin || first >= s.end) {
      s.begin = s.end = first / unit * unit;
    } else {
      std::copy(s.values + (first - s.begin), s.values + (s.end - s.begin), s.values);
      s.begin = first;
    }
    piece = {s.end, (first + count - s.end + unit - 1) / unit * unit, s.values + (s.end - s.begin)};
    s.end += piece.count;
    return true;
  }
  void make(const Piece<T>* pieces, int64_t number) { CONTDROP_BY_RECIPE(law, fill, T, groups, pieces, number) }
};

}  // namespace CONTDROP_LANES
}  // namespace contdrop
