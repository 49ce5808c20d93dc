// The kernels, written once against sixteen lanes. Each lanes_*.h file is compiled with these into a set of its own:
// the including file defines CONTDROP_LANES as the namespace of its lanes.
#include <algorithm>
#include <cmath>
#include <limits>
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

// Asks for the memory a page ahead. The processor's own prefetching stops at the end of a page; this takes a fifth off the
// time of tensors that are not in the caches.
CONTDROP_INLINE void prefetch(const void* from, const void* to) {
  constexpr uintptr_t page = 4096;
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from) + page), 0);
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(to) + page), 1);
}

// Element types: how a number is stored, what it is computed in, and the row of products that every kernel ends in.
template <class E, class S>
struct Narrow {
  using Stored = S;
  using Wide = float;
  static constexpr Order order = kNatural;
  static constexpr Ties ties = kToEven;
  static void multiply_row(const S* x, S* out, const float* m, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
      E::template store16<kNatural>(out + i, multiply(E::template load16<kNatural>(x + i), load(m + i)));
    if (i == n) return;
    S padded[16] = {};
    float mask[16] = {};
    std::copy(x + i, x + n, padded);
    std::copy(m + i, m + n, mask);
    E::template store16<kNatural>(padded, multiply(E::template load16<kNatural>(padded), load(mask)));
    std::copy(padded, padded + (n - i), out + i);
  }
  // m[i] = 1 if u[i] < keep[i], else 0.
  static void below(Floats u, const S* keep, float* m, int64_t n) {
    S padded[16] = {};
    std::copy(keep, keep + n, padded);
    store(m, where(less(u, E::template load16<kNatural>(padded)), set_floats(1.0f)));
  }
};
struct Float32 : Narrow<Float32, float> {
  template <Order>
  static Floats load16(const float* p) {
    return load(p);
  }
  template <Order>
  static void store16(float* p, Floats a) {
    store(p, a);
  }
};
struct Float16 : Narrow<Float16, uint16_t> {
  template <Order>
  static Floats load16(const uint16_t* p) {
    return load_half(p);
  }
  template <Order>
  static void store16(uint16_t* p, Floats a) {
    store_half(p, a);
  }
};
template <Ties ties_>
struct BFloat16 : Narrow<BFloat16<ties_>, uint16_t> {
  static constexpr Order order = kBfloatOrder;
  static constexpr Ties ties = ties_;
  template <Order order>
  static Floats load16(const uint16_t* p) {
    return load_bfloat<order>(p);
  }
  template <Order order>
  static void store16(uint16_t* p, Floats a) {
    store_bfloat<ties, order>(p, a);
  }
};
struct Float64 {
  using Stored = double;
  using Wide = double;
  static constexpr Order order = kNatural;
  static constexpr Ties ties = kToEven;
  static void multiply_row(const double* x, double* out, const double* m, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * m[i];
  }
  static void below(Floats u, const double* keep, double* m, int64_t n) {
    float numbers[16];
    store(numbers, u);
    for (int64_t i = 0; i < n; ++i) m[i] = double(numbers[i]) < keep[i];
  }
};

// Sixteen products straight from the words, which are in the order of the element type.
template <int recipe, class E>
CONTDROP_INLINE void multiply16(const Prepared<typename E::Wide>& p, const Words& w, int s, const typename E::Stored* x,
                                typename E::Stored* out) {
  if constexpr (std::is_same<E, Float64>::value) {
    double m[16];
    write<recipe>(p, w, s, m);
    E::multiply_row(x, out, m, 16);
  } else {
    E::template store16<E::order>(out, multiply(E::template load16<E::order>(x), value<recipe>(p, w, s)));
  }
}

// A row whose elements follow each other in memory and in the mask, the mask beginning with a run. A function of its own,
// so that all registers are its own.
template <int recipe, class E>
CONTDROP_APART static void aligned_row(const Prepared<typename E::Wide>& p, int64_t first_run, const typename E::Stored* x,
                                       typename E::Stored* out, int64_t n) {
  if constexpr (E::ties == kAwayFromZero && recipe < kNormalNear) return;  // see ties_matter
  Runs<typename E::Wide, E::order> runs(p);
  visit<recipe, std::is_same<E, Float64>::value ? 1 : kGroupsAtOnce>(
      runs, first_run, n,
      [&](int64_t i, const Words& w, auto s) CONTDROP_INLINE_LAMBDA {
        if (sizeof *x > 2 || s % 2 == 0) prefetch(x + i, out + i);
        multiply16<recipe, E>(p, w, s, x + i, out + i);
      },
      [&](int64_t i, const Words& w, int s) {
        typename E::Stored rest[16] = {};
        std::copy(x + i, x + n, rest);
        multiply16<recipe, E>(p, w, s, rest, rest);
        std::copy(rest, rest + (n - i), out + i);
      });
}

// Elementwise dropout.

template <class E>
static void strided_row(Values<typename E::Wide>& values, const typename E::Stored* x, typename E::Stored* out,
                        int64_t n, int64_t x_stride, int64_t out_stride, int64_t element, int64_t mask_stride) {
  using Stored = typename E::Stored;
  using Wide = typename E::Wide;
  const bool dense = x_stride == 1 && out_stride == 1;
  for (int64_t i = 0; i < n;) {
    int64_t count;
    const Wide* m = values.from(element + i * mask_stride, count);
    Wide same[256];
    if (mask_stride == 0) {
      count = 256;
      std::fill(same, same + std::min<int64_t>(count, n - i), *m);
      m = same;
    }
    count = std::min(count, n - i);
    if (dense) {
      E::multiply_row(x + i, out + i, m, count);
    } else {
      Stored gathered[512];
      for (int64_t k = 0; k < count; ++k) gathered[k] = x[(i + k) * x_stride];
      E::multiply_row(gathered, gathered, m, count);
      for (int64_t k = 0; k < count; ++k) out[(i + k) * out_stride] = gathered[k];
    }
    i += count;
  }
}

template <class E>
static void dropout_of(const Dropout& d, int64_t first, int64_t last) {
  using Stored = typename E::Stored;
  using Wide = typename E::Wide;
  const Stored* x = static_cast<const Stored*>(d.x);
  Stored* out = static_cast<Stored*>(d.out);
  const Prepared<Wide> p(d.law, d.seed, d.stream);
  if (is_single_row(d)) {
    const int64_t begin = first * kStretch, n = std::min(last * kStretch, d.size[0]) - begin;
    if (d.x_stride[0] == 1 && d.out_stride[0] == 1) {
      CONTDROP_BY_RECIPE(d.law, aligned_row, E, p, begin / (16 * p.per_word), x + begin, out + begin, n)
    }
    Values<Wide> values(d.law, p);
    return strided_row<E>(values, x + begin * d.x_stride[0], out + begin * d.out_stride[0], n, d.x_stride[0],
                          d.out_stride[0], begin, 1);
  }
  Values<Wide> values(d.law, p);
  const int inner = d.axes - 1;
  for (int64_t row = first; row < last; ++row) {
    int64_t rest = row, x_at = 0, out_at = 0, element = 0;
    for (int a = inner - 1; a >= 0; --a) {
      const int64_t i = rest % d.size[a];
      rest /= d.size[a];
      x_at += i * d.x_stride[a];
      out_at += i * d.out_stride[a];
      element += i * d.mask_stride[a];
    }
    strided_row<E>(values, x + x_at, out + out_at, d.size[inner], d.x_stride[inner], d.out_stride[inner], element,
                   d.mask_stride[inner]);
  }
}

// Whether products are often halfway between two bfloat16 numbers. With a normal number hardly ever, one in 65 000, and
// then they may be rounded the cheaper way. But where a law has few values, such as 1.25, it is an eighth of them.
static bool ties_matter(const Law& law) {
  auto exact = [](double value) {  // times any number
    int exponent;
    return value == 0 || std::isinf(value) || (std::frexp(std::fabs(value), &exponent) == 0.5 && exponent > 0);
  };
  return law.kind != kGaussian || !exact(law.low) || !exact(law.high);
}

static void dropout(const Dropout& d, int64_t first, int64_t last) {
  switch (d.type) {
    case kFloat32: return dropout_of<Float32>(d, first, last);
    case kFloat64: return dropout_of<Float64>(d, first, last);
    case kFloat16: return dropout_of<Float16>(d, first, last);
    case kBFloat16:
      return ties_matter(d.law) ? dropout_of<BFloat16<kToEven>>(d, first, last)
                                : dropout_of<BFloat16<kAwayFromZero>>(d, first, last);
  }
}

// Rectified linear units and dropout in one pass. What is left at the end goes through buffers padded with zeros.
template <int recipe, class E>
static void relu_with(const Relu& r, const Prepared<float>& p, int64_t begin, int64_t n) {
  Runs<float> runs(p);
  const int64_t first_run = begin / (16 * p.per_word);
  const float* x = r.x + begin;
  float* out = r.out + begin;
  if (!r.gate) {
    // The second operand of maximum is the result if there is a NaN, as in torch.
    auto rectified = [&](const float* from, const Words& w, int s) {
      return multiply(maximum(set_floats(0.0f), load(from)), value<recipe>(p, w, s));
    };
    visit<recipe>(
        runs, first_run, n,
        [&](int64_t i, const Words& w, auto s) CONTDROP_INLINE_LAMBDA {
          prefetch(x + i, out + i);
          store(out + i, rectified(x + i, w, s));
        },
        [&](int64_t i, const Words& w, int s) {
          float rest[16] = {};
          std::copy(x + i, x + n, rest);
          store(rest, rectified(rest, w, s));
          std::copy(rest, rest + (n - i), out + i);
        });
    return;
  }
  const float* gate = r.gate + begin;
  auto gated = [&](const float* from, const float* by, const Words& w, int s) {
    return where(not_zero(load(by)), multiply(load(from), value<recipe>(p, w, s)));
  };
  visit<recipe>(
      runs, first_run, n,
      [&](int64_t i, const Words& w, auto s) CONTDROP_INLINE_LAMBDA {
        prefetch(x + i, out + i);
        prefetch(gate + i, out + i);
        store(out + i, gated(x + i, gate + i, w, s));
      },
      [&](int64_t i, const Words& w, int s) {
        float rest[16] = {}, rest_gate[16] = {};
        std::copy(x + i, x + n, rest);
        std::copy(gate + i, gate + n, rest_gate);
        store(rest, gated(rest, rest_gate, w, s));
        std::copy(rest, rest + (n - i), out + i);
      });
}

static void relu(const Relu& r, int64_t first, int64_t last) {
  const Prepared<float> p(r.law, r.seed, r.stream);
  const int64_t begin = first * kStretch, n = std::min(last * kStretch, r.count) - begin;
  CONTDROP_BY_RECIPE(r.law, relu_with, Float32, r, p, begin, n)
}

// x where the element's uniform number is less than its own keep, else x times zero. Contiguous, in stretches.
template <class E>
static void keep_where_of(const KeepWhere& k, int64_t first, int64_t last) {
  using Stored = typename E::Stored;
  const Law law = {kUniform, 32, 0, 0.0, 1.0, 0.0, 1.0, 0.0};
  const Prepared<typename E::Wide> p(law, k.seed, k.stream);
  Runs<typename E::Wide> runs(p);
  const int64_t begin = first * kStretch, n = std::min(last * kStretch, k.count) - begin;
  const Stored *x = static_cast<const Stored*>(k.x) + begin, *keep = static_cast<const Stored*>(k.keep) + begin;
  Stored* out = static_cast<Stored*>(k.out) + begin;
  auto some = [&](int64_t i, const Words& w, int) {
    const int64_t count = std::min<int64_t>(16, n - i);
    typename E::Wide m[16];
    E::below(subtract(one_to_two(w), set_floats(1.0f)), keep + i, m, count);
    E::multiply_row(x + i, out + i, m, count);
  };
  visit<kFlat>(runs, begin / (16 * p.per_word), n, some, some);
}

static void keep_where(const KeepWhere& k, int64_t first, int64_t last) {
  switch (k.type) {
    case kFloat32: return keep_where_of<Float32>(k, first, last);
    case kFloat64: return keep_where_of<Float64>(k, first, last);
    case kFloat16: return keep_where_of<Float16>(k, first, last);
    case kBFloat16: return keep_where_of<BFloat16<kToEven>>(k, first, last);
  }
}

// Standard normal numbers, in stretches.
template <class T>
static void normal_of(const Normal& d, int64_t first, int64_t last) {
  const Law law = {kGaussian, 32, 0, 0.0, 1.0, -std::numeric_limits<double>::infinity(),
                   std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  const Prepared<T> p(law, d.seed, d.stream);
  Runs<T> runs(p);
  const int64_t begin = first * kStretch, n = std::min(last * kStretch, d.count) - begin;
  T* out = static_cast<T*>(d.out) + begin;
  visit<kNormalFar>(
      runs, begin / (16 * p.per_word), n,
      [&](int64_t i, const Words& w, auto s) CONTDROP_INLINE_LAMBDA { write<kNormalFar>(p, w, s, out + i); },
      [&](int64_t i, const Words& w, int s) {
        T last_ones[16];
        write<kNormalFar>(p, w, s, last_ones);
        std::copy(last_ones, last_ones + (n - i), out + i);
      });
}

static void normal(const Normal& d, int64_t first, int64_t last) {
  return d.type == kFloat64 ? normal_of<double>(d, first, last) : normal_of<float>(d, first, last);
}

// DropConnect with a mask per example. Sixteen inputs at a time; what is left over at the end of a row goes through
// buffers padded with zeros.
struct Accumulator32 {
  using T = float;
  template <int recipe>
  CONTDROP_APART static float dot(Runs<float>& runs, int64_t first_run, const float* w, const float* x, int64_t n) {
    const auto& p = runs.p;
    Floats totals[4] = {set_floats(0.0f), set_floats(0.0f), set_floats(0.0f), set_floats(0.0f)};
    visit<recipe, 1>(
        runs, first_run, n,
        [&](int64_t i, const Words& words, auto s) CONTDROP_INLINE_LAMBDA {
          const Floats m = value<recipe>(p, words, s);
          totals[s] = fused(multiply(m, load(w + i)), load(x + i), totals[s]);
        },
        [&](int64_t i, const Words& words, int s) {
          float rest_w[16] = {}, rest_x[16] = {};
          std::copy(w + i, w + n, rest_w);
          std::copy(x + i, x + n, rest_x);
          const Floats m = value<recipe>(p, words, s);
          totals[0] = fused(multiply(m, load(rest_w)), load(rest_x), totals[0]);
        });
    return sum(add(add(totals[0], totals[1]), add(totals[2], totals[3])));
  }
  template <int recipe>
  CONTDROP_APART static void axpy(Runs<float>& runs, int64_t first_run, float factor, const float* x, float* y, int64_t n) {
    const auto& p = runs.p;
    const Floats f = set_floats(factor);
    visit<recipe, 1>(
        runs, first_run, n,
        [&](int64_t i, const Words& words, auto s) CONTDROP_INLINE_LAMBDA {
          const Floats m = multiply(f, value<recipe>(p, words, s));
          store(y + i, fused(m, load(x + i), load(y + i)));
        },
        [&](int64_t i, const Words& words, int s) {
          float rest_x[16] = {}, rest_y[16] = {};
          std::copy(x + i, x + n, rest_x);
          std::copy(y + i, y + n, rest_y);
          const Floats m = multiply(f, value<recipe>(p, words, s));
          store(rest_y, fused(m, load(rest_x), load(rest_y)));
          std::copy(rest_y, rest_y + (n - i), y + i);
        });
  }
};
struct Accumulator64 {
  using T = double;
  template <int recipe>
  CONTDROP_APART static double dot(Runs<double>& runs, int64_t first_run, const double* w, const double* x, int64_t n) {
    double total = 0;
    auto some = [&](int64_t i, const Words& words, int s) {
      double m[16];
      write<recipe>(runs.p, words, s, m);
      for (int64_t k = i; k < std::min(i + 16, n); ++k) total += m[k - i] * w[k] * x[k];
    };
    visit<recipe, 1>(runs, first_run, n, some, some);
    return total;
  }
  template <int recipe>
  CONTDROP_APART static void axpy(Runs<double>& runs, int64_t first_run, double factor, const double* x, double* y, int64_t n) {
    auto some = [&](int64_t i, const Words& words, int s) {
      double m[16];
      write<recipe>(runs.p, words, s, m);
      for (int64_t k = i; k < std::min(i + 16, n); ++k) y[k] += factor * m[k - i] * x[k];
    };
    visit<recipe, 1>(runs, first_run, n, some, some);
  }
};

// Rows of weights that stay in the first-level cache while all examples pass by.
constexpr int64_t kBlock = 8;

// A part is an output (a row of weights) for the output itself and the weight gradient, and an example for the input
// gradient, so that no two parts add to the same place and the order of additions is always the same.
template <int recipe, class A>
static void dropconnect_with(const DropConnect& d, int64_t first, int64_t last) {
  using T = typename A::T;
  const T *g = static_cast<const T*>(d.g), *w = static_cast<const T*>(d.w), *x = static_cast<const T*>(d.x);
  T* result = static_cast<T*>(d.result);
  const Prepared<T> p(d.law, d.seed, d.stream);
  Runs<T> runs(p);
  const int64_t runs_per_row = d.pitch / (16 * p.per_word);
  auto run = [&](int64_t n, int64_t o) { return (n * d.outputs + o) * runs_per_row; };
  if (d.contraction == kOutput) {
    for (int64_t block = first; block < last; block += kBlock)
      for (int64_t n = 0; n < d.examples; ++n)
        for (int64_t o = block; o < std::min(block + kBlock, last); ++o)
          result[n * d.outputs + o] =
              A::template dot<recipe>(runs, run(n, o), w + o * d.inputs, x + n * d.inputs, d.inputs);
  } else if (d.contraction == kWeightGradient) {
    for (int64_t o = first; o < last; ++o) {
      T* row = result + o * d.inputs;
      std::fill(row, row + d.inputs, T(0));
      for (int64_t n = 0; n < d.examples; ++n)
        A::template axpy<recipe>(runs, run(n, o), g[n * d.outputs + o], x + n * d.inputs, row, d.inputs);
    }
  } else {
    std::fill(result + first * d.inputs, result + last * d.inputs, T(0));
    for (int64_t block = 0; block < d.outputs; block += kBlock)
      for (int64_t n = first; n < last; ++n)
        for (int64_t o = block; o < std::min(block + kBlock, d.outputs); ++o)
          A::template axpy<recipe>(runs, run(n, o), g[n * d.outputs + o], w + o * d.inputs, result + n * d.inputs,
                                   d.inputs);
  }
}

template <class A>
static void dropconnect_of(const DropConnect& d, int64_t first, int64_t last) {
  CONTDROP_BY_RECIPE(d.law, dropconnect_with, A, d, first, last)
}

static void dropconnect(const DropConnect& d, int64_t first, int64_t last) {
  return d.type == kFloat64 ? dropconnect_of<Accumulator64>(d, first, last)
                            : dropconnect_of<Accumulator32>(d, first, last);
}

}  // namespace CONTDROP_LANES
}  // namespace contdrop
