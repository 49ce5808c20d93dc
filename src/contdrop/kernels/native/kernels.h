// The kernels, written once against sixteen lanes. Each lanes_*.h file is compiled with these into a set of its own:
// the including file defines CONTDROP_LANES as the namespace of its lanes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "api.h"

namespace contdrop {
namespace CONTDROP_LANES {

// What turns words into mask values. One compiled version of every kernel for each.
enum Recipe { kHalf, kBits, kFlat, kNormalNear, kNormalMiddle, kNormalFar };

static Recipe choose(const Law& law) {
  if (law.kind == kBernoulli) return law.bits == 1 && law.threshold == 1 ? kHalf : kBits;
  if (law.kind == kUniform) return kFlat;
  return law.reach <= 1.7 ? kNormalNear : law.reach <= 2.55 ? kNormalMiddle : kNormalFar;
}

template <int n>
CONTDROP_INLINE Floats polynomial(const float (&coefficients)[n], Floats x) {
  Floats result = set_floats(coefficients[n - 1]);
  for (int i = n - 2; i >= 0; --i) result = fused(result, x, set_floats(coefficients[i]));
  return result;
}

CONTDROP_INLINE Floats uniform(Words w) {
  const Words bits = bit_or(shift_right(w, 9), set_words(0x3f800000));  // a float in [1, 2)
  return subtract(as_floats(bits), set_floats(1.0f - 0x1p-24f));
}

// The standard normal quantile of a uniform number u = 1/2 + v: v times a rational function of r = 1/4 - v^2 = u (1 - u),
// or of -log(4 r) for the far tails. Coefficients: minimax fits of our own, see tools/fit_quantile.py. The error in
// float32 is below 1e-6 wherever |quantile| is within the reach of the recipe; beyond it the result is beyond it too.
template <int recipe>
CONTDROP_INLINE Floats quantile(Words w) {
  const Floats v = subtract(uniform(w), set_floats(0.5f));
  const Floats r = quarter_minus_square(v);
  if (recipe == kNormalNear) {
    static const float top[] = {5.724257517332371f, 369.1221935350234f, 2530.104775220154f, 1345.4353334939901f};
    static const float bottom[] = {1.0f, 94.60830211430597f, 1029.1339332695027f, 1382.2126594376036f};
    return multiply(v, divide(polynomial(top, r), polynomial(bottom, r)));
  }
  if (recipe == kNormalMiddle) {
    static const float top[] = {6.997654034911748f, 5229.8885862227935f, 565012.8312470522f,
                                12705498.3772077f,  55763025.16745699f,  23920051.2242531f};
    static const float bottom[] = {1.0f,
                                   945.7437404431153f,
                                   127482.26131949299f,
                                   3766066.9934256934f,
                                   24928078.75934355f,
                                   26219169.217947505f};
    return multiply(v, divide(polynomial(top, r), polynomial(bottom, r)));
  }
  // log(4 r) = (exponent + 2) log 2 + log(mantissa), the mantissa in [0.75, 1.5).
  const Words bits = as_words(r);
  const Words exponent = shift_right(add(bits, set_words(0x00400000)), 23);
  const Words mantissa = add(subtract(bits, shift_left(exponent, 23)), set_words(0x3f800000));
  const Floats x = subtract(as_floats(mantissa), set_floats(1.0f));
  static const float logarithm[] = {1.0000005962643614f,  -0.5000031876357143f,  0.33326650503210886f,
                                    -0.24971392397889833f, 0.20157151193437953f, -0.17463294262217086f,
                                    0.13951711692515645f, -0.06299255761009477f};
  const Floats power = to_floats(subtract(exponent, set_words(125)));
  const Floats log4r = fused(power, set_floats(0.6931471805599453f), multiply(x, polynomial(logarithm, x)));
  const Floats t = subtract(set_floats(0.0f), log4r);
  static const float top[] = {2.506628688613941f,    0.8710541659783915f,   0.16984079641734212f,
                              0.022196474192882495f, 0.0018516205320840565f, 6.845029514853869e-05f};
  static const float bottom[] = {1.0f,
                                 0.08570257460314433f,
                                 0.032283207747469365f,
                                 0.0019270286384997198f,
                                 0.00018007063155757382f,
                                 1.2787585690064028e-06f};
  return multiply(v, divide(polynomial(top, t), polynomial(bottom, t)));
}

// A law made ready for one kind of arithmetic: T is float, or double for float64 tensors.
template <class T>
struct Prepared {
  Philox philox;
  int bits, per_word;
  Words field, threshold;  // Bernoulli: the bits of one element, and the bound they are compared with
  bool always;             // Bernoulli with keep = 1: the threshold does not fit into the field
  Floats unit;             // Bernoulli: what a kept element gets
  T offset, gain, low, high;

  Prepared(const Law& law, uint64_t seed, uint32_t stream)
      : philox(seed, stream),
        bits(law.bits),
        per_word(32 / law.bits),
        field(set_words(law.bits == 32 ? 0xffffffffu : (1u << law.bits) - 1)),
        threshold(set_words(uint32_t(law.threshold))),
        always(law.kind == kBernoulli && law.threshold >> law.bits),
        unit(set_floats(std::is_same<T, float>::value ? float(law.gain) : 1.0f)),
        offset(T(law.offset)),
        gain(T(law.gain)),
        low(T(law.low)),
        high(T(law.high)) {}
};

// The random part of slot s of sixteen words. Where an element takes a whole word, the slot does not matter.
template <int recipe, class T>
CONTDROP_INLINE Floats core(const Prepared<T>& p, const Words& w, int s) {
  if (recipe == kHalf) return where(bit_clear(w, 1u << s), p.unit);
  if (recipe == kBits) {
    if (p.always) return p.unit;
    return where(less(bit_and(shift_right(w, p.bits == 32 ? 0 : p.bits * s), p.field), p.threshold), p.unit);
  }
  if (recipe == kFlat) return uniform(w);
  return quantile<recipe>(w);
}

template <int recipe>
CONTDROP_INLINE Floats value(const Prepared<float>& p, Floats c) {
  if (recipe == kHalf || recipe == kBits) return c;
  const Floats m = fused(c, set_floats(p.gain), set_floats(p.offset));
  if (recipe == kFlat) return m;
  return minimum(maximum(m, set_floats(p.low)), set_floats(p.high));
}

template <int recipe>
CONTDROP_INLINE double value(const Prepared<double>& p, float c) {
  const double m = double(c) * p.gain + p.offset;
  return recipe < kNormalNear ? m : std::min(std::max(m, p.low), p.high);
}

// Sixteen mask values into memory.
template <int recipe>
CONTDROP_INLINE void write(const Prepared<float>& p, const Words& w, int s, float* out) {
  store(out, value<recipe>(p, core<recipe>(p, w, s)));
}
template <int recipe>
CONTDROP_INLINE void write(const Prepared<double>& p, const Words& w, int s, double* out) {
  float c[16];
  store(c, core<recipe>(p, w, s));
  for (int i = 0; i < 16; ++i) out[i] = value<recipe>(p, c[i]);
}

// The words of a run: sixteen words, four runs to a group of sixteen blocks.
template <class T>
struct Runs {
  const Prepared<T>& p;
  int64_t group = -1;
  Words words[4];

  explicit Runs(const Prepared<T>& p_) : p(p_) {}
  const Words& operator[](int64_t run) {
    if (run >> 2 != group) {
      group = run >> 2;
      philox<1>(p.philox, uint64_t(group) * 16, words);
    }
    return words[run & 3];
  }
};

// A slot of a word, known when compiling. Sums may be kept apart by slot, so that their additions overlap.
template <int k>
using Slot = std::integral_constant<int, k>;

// Whole groups of runs, straight from the generator to where they are used, without a stop in memory.
template <int groups, class T, class Full>
CONTDROP_INLINE void use_groups(const Prepared<T>& p, int64_t run, int64_t i, Full full) {
  Words words[4 * groups];
  philox<groups>(p.philox, uint64_t(run) * 4, words);
  for (int g = 0; g < groups; ++g) {
    full(i + 64 * g, words[4 * g], Slot<0>());
    full(i + 64 * g + 16, words[4 * g + 1], Slot<1>());
    full(i + 64 * g + 32, words[4 * g + 2], Slot<2>());
    full(i + 64 * g + 48, words[4 * g + 3], Slot<3>());
  }
}

// Calls full(i, words, slot) for i = 0, 16, ... as long as sixteen elements are left of count, and rest(i, words, slot)
// for what remains. The elements begin with a run.
template <int recipe, class T, class Full, class Rest>
CONTDROP_INLINE void visit(Runs<T>& runs, int64_t first_run, int64_t count, Full full, Rest rest) {
  const Prepared<T>& p = runs.p;
  int64_t run = first_run, i = 0;
  if (recipe >= kFlat || (recipe == kBits && p.per_word == 1)) {  // a word per element
    for (; run & 3 && i + 16 <= count; i += 16) full(i, runs[run++], Slot<0>());
    // Pairs begin with an even group, so that the high half of a block's number is the same in both.
    if (run & 4 && i + 64 <= count) {
      use_groups<1>(p, run, i, full);
      i += 64, run += 4;
    }
    for (; i + 128 <= count; i += 128, run += 8) use_groups<2>(p, run, i, full);
    for (; i + 64 <= count; i += 64, run += 4) use_groups<1>(p, run, i, full);
    for (; i + 16 <= count; i += 16) full(i, runs[run++], Slot<0>());
    if (i < count) rest(i, runs[run], 0);
    return;
  }
  for (const int64_t per_run = 16 * int64_t(p.per_word); i < count; ++run) {
    const int64_t end = std::min(i + per_run, count);
    Words w = runs[run];
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
static void write_run(const Prepared<T>& p, const Words& w, T* out) {
  for (int s = 0; s < p.per_word; ++s) write<recipe>(p, w, s, out + 16 * s);
}

// Calls the version of a function template that fits the law.
#define CONTDROP_BY_RECIPE(law, function, E, ...)                              \
  switch (choose(law)) {                                                       \
    case kHalf: return function<kHalf, E>(__VA_ARGS__);                        \
    case kBits: return function<kBits, E>(__VA_ARGS__);                        \
    case kFlat: return function<kFlat, E>(__VA_ARGS__);                        \
    case kNormalNear: return function<kNormalNear, E>(__VA_ARGS__);            \
    case kNormalMiddle: return function<kNormalMiddle, E>(__VA_ARGS__);        \
    case kNormalFar: return function<kNormalFar, E>(__VA_ARGS__);              \
  }

template <class T>
static void write_run(const Law& law, const Prepared<T>& p, const Words& w, T* out) {
  CONTDROP_BY_RECIPE(law, write_run, T, p, w, out)
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
      write_run(law, runs.p, runs[run], buffer);
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
  static void multiply_row(const S* x, S* out, const float* m, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) E::store16(out + i, multiply(E::load16(x + i), load(m + i)));
    if (i == n) return;
    S padded[16] = {};
    float mask[16] = {};
    std::copy(x + i, x + n, padded);
    std::copy(m + i, m + n, mask);
    E::store16(padded, multiply(E::load16(padded), load(mask)));
    std::copy(padded, padded + (n - i), out + i);
  }
  // m[i] = 1 if u[i] < keep[i], else 0.
  static void below(Floats u, const S* keep, float* m, int64_t n) {
    S padded[16] = {};
    std::copy(keep, keep + n, padded);
    store(m, where(less(u, E::load16(padded)), set_floats(1.0f)));
  }
};
struct Float32 : Narrow<Float32, float> {
  static Floats load16(const float* p) { return load(p); }
  static void store16(float* p, Floats a) { store(p, a); }
};
struct Float16 : Narrow<Float16, uint16_t> {
  static Floats load16(const uint16_t* p) { return load_half(p); }
  static void store16(uint16_t* p, Floats a) { store_half(p, a); }
};
struct BFloat16 : Narrow<BFloat16, uint16_t> {
  static Floats load16(const uint16_t* p) { return load_bfloat(p); }
  static void store16(uint16_t* p, Floats a) { store_bfloat(p, a); }
};
struct Float64 {
  using Stored = double;
  using Wide = double;
  static void multiply_row(const double* x, double* out, const double* m, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * m[i];
  }
  static void below(Floats u, const double* keep, double* m, int64_t n) {
    float numbers[16];
    store(numbers, u);
    for (int64_t i = 0; i < n; ++i) m[i] = double(numbers[i]) < keep[i];
  }
};

// Sixteen products straight from the words, where the element type has lanes.
template <int recipe, class E>
CONTDROP_INLINE void multiply16(const Prepared<float>& p, const Words& w, int s, const typename E::Stored* x,
                              typename E::Stored* out) {
  E::store16(out, multiply(E::load16(x), value<recipe>(p, core<recipe>(p, w, s))));
}
template <int recipe, class E>
CONTDROP_INLINE void multiply16(const Prepared<double>& p, const Words& w, int s, const double* x, double* out) {
  double m[16];
  write<recipe>(p, w, s, m);
  E::multiply_row(x, out, m, 16);
}

// A row whose elements follow each other in memory and in the mask, the mask beginning with a run.
template <int recipe, class E>
static void aligned_row(Runs<typename E::Wide>& runs, int64_t first_run, const typename E::Stored* x,
                        typename E::Stored* out, int64_t n) {
  const auto& p = runs.p;
  visit<recipe>(
      runs, first_run, n,
      [&](int64_t i, const Words& w, auto s) {
        prefetch(x + i, out + i);
        multiply16<recipe, E>(p, w, s, x + i, out + i);
      },
      [&](int64_t i, const Words& w, int s) {
        typename E::Wide m[16];
        write<recipe>(p, w, s, m);
        E::multiply_row(x + i, out + i, m, n - i);
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
      Runs<Wide> runs(p);
      CONTDROP_BY_RECIPE(d.law, aligned_row, E, runs, begin / (16 * p.per_word), x + begin, out + begin, n)
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

static void dropout(const Dropout& d, int64_t first, int64_t last) {
  switch (d.type) {
    case kFloat32: return dropout_of<Float32>(d, first, last);
    case kFloat64: return dropout_of<Float64>(d, first, last);
    case kFloat16: return dropout_of<Float16>(d, first, last);
    case kBFloat16: return dropout_of<BFloat16>(d, first, last);
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
      return multiply(maximum(set_floats(0.0f), load(from)), value<recipe>(p, core<recipe>(p, w, s)));
    };
    visit<recipe>(
        runs, first_run, n,
        [&](int64_t i, const Words& w, auto s) {
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
    return where(not_zero(load(by)), multiply(load(from), value<recipe>(p, core<recipe>(p, w, s))));
  };
  visit<recipe>(
      runs, first_run, n,
      [&](int64_t i, const Words& w, auto s) {
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
    E::below(uniform(w), keep + i, m, count);
    E::multiply_row(x + i, out + i, m, count);
  };
  visit<kFlat>(runs, begin / 16, n, some, some);
}

static void keep_where(const KeepWhere& k, int64_t first, int64_t last) {
  switch (k.type) {
    case kFloat32: return keep_where_of<Float32>(k, first, last);
    case kFloat64: return keep_where_of<Float64>(k, first, last);
    case kFloat16: return keep_where_of<Float16>(k, first, last);
    case kBFloat16: return keep_where_of<BFloat16>(k, first, last);
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
      runs, begin / 16, n, [&](int64_t i, const Words& w, auto s) { write<kNormalFar>(p, w, s, out + i); },
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
  static float dot(Runs<float>& runs, int64_t first_run, const float* w, const float* x, int64_t n) {
    const auto& p = runs.p;
    Floats totals[4] = {set_floats(0.0f), set_floats(0.0f), set_floats(0.0f), set_floats(0.0f)};
    visit<recipe>(
        runs, first_run, n,
        [&](int64_t i, const Words& words, auto s) {
          const Floats m = value<recipe>(p, core<recipe>(p, words, s));
          totals[s] = fused(multiply(m, load(w + i)), load(x + i), totals[s]);
        },
        [&](int64_t i, const Words& words, int s) {
          float rest_w[16] = {}, rest_x[16] = {};
          std::copy(w + i, w + n, rest_w);
          std::copy(x + i, x + n, rest_x);
          const Floats m = value<recipe>(p, core<recipe>(p, words, s));
          totals[0] = fused(multiply(m, load(rest_w)), load(rest_x), totals[0]);
        });
    return sum(add(add(totals[0], totals[1]), add(totals[2], totals[3])));
  }
  template <int recipe>
  static void axpy(Runs<float>& runs, int64_t first_run, float factor, const float* x, float* y, int64_t n) {
    const auto& p = runs.p;
    const Floats f = set_floats(factor);
    visit<recipe>(
        runs, first_run, n,
        [&](int64_t i, const Words& words, auto s) {
          const Floats m = multiply(f, value<recipe>(p, core<recipe>(p, words, s)));
          store(y + i, fused(m, load(x + i), load(y + i)));
        },
        [&](int64_t i, const Words& words, int s) {
          float rest_x[16] = {}, rest_y[16] = {};
          std::copy(x + i, x + n, rest_x);
          std::copy(y + i, y + n, rest_y);
          const Floats m = multiply(f, value<recipe>(p, core<recipe>(p, words, s)));
          store(rest_y, fused(m, load(rest_x), load(rest_y)));
          std::copy(rest_y, rest_y + (n - i), y + i);
        });
  }
};
struct Accumulator64 {
  using T = double;
  template <int recipe>
  static double dot(Runs<double>& runs, int64_t first_run, const double* w, const double* x, int64_t n) {
    double total = 0;
    auto some = [&](int64_t i, const Words& words, int s) {
      double m[16];
      write<recipe>(runs.p, words, s, m);
      for (int64_t k = i; k < std::min(i + 16, n); ++k) total += m[k - i] * w[k] * x[k];
    };
    visit<recipe>(runs, first_run, n, some, some);
    return total;
  }
  template <int recipe>
  static void axpy(Runs<double>& runs, int64_t first_run, double factor, const double* x, double* y, int64_t n) {
    auto some = [&](int64_t i, const Words& words, int s) {
      double m[16];
      write<recipe>(runs.p, words, s, m);
      for (int64_t k = i; k < std::min(i + 16, n); ++k) y[k] += factor * m[k - i] * x[k];
    };
    visit<recipe>(runs, first_run, n, some, some);
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
