// From words to mask values: recipes for the kinds of laws, the normal quantile, and laws made ready for a call. Compiled
// with the kernels into a set of its own for every lanes_*.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "api.h"

namespace contdrop {
namespace CONTDROP_LANES {

// What turns words into mask values. One compiled version of every kernel for each.
enum Recipe { kHalf, kBits, kThreshold, kFlat, kNormalNear, kNormalMiddle, kNormalFar };

// Whether the elements are numbers of 21 bits, six to a block, rather than fields of a word.
constexpr bool is_number(int recipe) { return recipe >= kThreshold; }

static Recipe choose(const Law& law) {
  if (law.kind == kBernoulli) {
    if (law.bits == kNumberBits) return kThreshold;
    return law.bits == 1 && law.threshold == 1 ? kHalf : kBits;
  }
  if (law.kind == kUniform) return kFlat;
  return law.reach <= 1.7 ? kNormalNear : law.reach <= 2.55 ? kNormalMiddle : kNormalFar;
}

// The numbers of 21 bits that the four words of sixteen blocks make, each at the top of 32 bits; what is below does not
// count. See reference.py.
CONTDROP_INLINE Words number(const Words* words, int s) {
  if (s < 4) return words[s];
  const Words* pair = words + 2 * (s - 4);
  return bit_or(shift_left(pair[0], 21), shift_right(shift_left(pair[1], 22), 11));
}

// A float in (1, 2): kOne more than the uniform number that a number stands for. Of the 23 bits of the fraction, the last
// two are set whatever is below the number: where the one is subtracted, the last of them goes as well, and all is exact.
constexpr float kOne = 1 + 0x1p-23f;
CONTDROP_INLINE Floats one_to_two(Words w) { return as_floats(bit_or(shift_right(w, 9), set_words(0x3f800003))); }

// The standard normal quantile of a uniform number u = 1/2 + v: v times a rational function of r = 1/4 - v^2 = u (1 - u),
// or of t = -log(4 r) for the far tails. Coefficients: minimax fits of our own, see tools/fit_quantile.py. The error in
// float32 is below 1e-6, or 3e-7 of the quantile in the far tails, wherever |quantile| is within the reach of the recipe;
// beyond it the result is beyond it too.
template <int recipe>
struct Fit;
template <>
struct Fit<kNormalNear> {
  static constexpr float top[] = {5.724257517332371f, 369.1221935350234f, 2530.104775220154f, 1345.4353334939901f};
  static constexpr float bottom[] = {1.0f, 94.60830211430597f, 1029.1339332695027f, 1382.2126594376036f};
};
template <>
struct Fit<kNormalMiddle> {
  static constexpr float top[] = {6.997654034911748f, 5229.8885862227935f, 565012.8312470522f,
                                  12705498.3772077f,  55763025.16745699f,  23920051.2242531f};
  static constexpr float bottom[] = {1.0f,
                                     945.7437404431153f,
                                     127482.26131949299f,
                                     3766066.9934256934f,
                                     24928078.75934355f,
                                     26219169.217947505f};
};
template <>
struct Fit<kNormalFar> {
  static constexpr float top[] = {2.506628688613941f,    0.8710541659783915f,   0.16984079641734212f,
                                  0.022196474192882495f, 0.0018516205320840565f, 6.845029514853869e-05f};
  static constexpr float bottom[] = {1.0f,
                                     0.08570257460314433f,
                                     0.032283207747469365f,
                                     0.0019270286384997198f,
                                     0.00018007063155757382f,
                                     1.2787585690064028e-06f};
};
// log(1 + x) / x for x in [-1/4, 1/2).
constexpr float kLogarithm[] = {1.0000005962643614f,  -0.5000031876357143f,  0.33326650503210886f, -0.24971392397889833f,
                                0.20157151193437953f, -0.17463294262217086f, 0.13951711692515645f, -0.06299255761009477f};

CONTDROP_INLINE Floats evaluate(const Floats* coefficients, int n, Floats x) {
  Floats result = coefficients[n - 1];
  for (int i = n - 2; i >= 0; --i) result = fused(result, x, coefficients[i]);
  return result;
}
template <int n>
CONTDROP_INLINE Floats evaluate(const float (&coefficients)[n], Floats x) {
  Floats result = set_floats(coefficients[n - 1]);
  for (int i = n - 2; i >= 0; --i) result = fused(result, x, set_floats(coefficients[i]));
  return result;
}

// -log(4 r) = -(exponent + 2) log 2 - log(mantissa), the mantissa in [0.75, 1.5).
CONTDROP_INLINE Floats minus_log_of_four(Floats r) {
  const Words bits = as_words(r);
  const Words exponent = shift_right(add(bits, set_words(0x00400000)), 23);
  const Words mantissa = add(subtract(bits, shift_left(exponent, 23)), set_words(0x3f800000));
  const Floats x = subtract(as_floats(mantissa), set_floats(1.0f));
  const Floats power = to_floats(subtract(exponent, set_words(125)));
  const Floats log4r = fused(power, set_floats(0.6931471805599453f), multiply(x, evaluate(kLogarithm, x)));
  return subtract(set_floats(0.0f), log4r);
}

// A law made ready for one kind of arithmetic: T is float, or double for float64 tensors.
template <class T>
struct Prepared {
  Philox philox;
  int bits;
  int64_t per_run;         // fields: the elements of sixteen words; numbers: sixteen
  Words field, threshold;  // Bernoulli: the bits of one element, and the bound they are compared with
  bool always;             // Bernoulli with keep = 1: the threshold does not fit into the field
  Floats unit;             // Bernoulli: what a kept element gets
  Floats top[6];           // Gaussian: the numerator of the quantile, in float times the gain
  T offset, gain, low, high;

  Prepared(const Law& law, uint64_t seed, uint32_t stream)
      : philox(seed, stream),
        bits(law.bits),
        per_run(law.bits == kNumberBits ? 16 : 16 * (32 / law.bits)),
        field(set_words(uint32_t((uint64_t(1) << law.bits) - 1))),
        threshold(set_words(uint32_t(law.threshold << (law.bits == kNumberBits ? 32 - kNumberBits : 0)))),
        always(law.kind == kBernoulli && law.threshold >> law.bits),
        unit(set_floats(is_float ? float(law.gain) : 1.0f)),
        // A uniform law multiplies numbers between one and two.
        offset(T(law.kind == kUniform ? law.offset - double(kOne) * law.gain : law.offset)),
        gain(T(law.gain)),
        low(T(law.low)),
        high(T(law.high)) {
    const Recipe recipe = choose(law);
    if (recipe == kNormalNear) set_top(Fit<kNormalNear>::top, law.gain);
    if (recipe == kNormalMiddle) set_top(Fit<kNormalMiddle>::top, law.gain);
    if (recipe == kNormalFar) set_top(Fit<kNormalFar>::top, law.gain);
  }

 private:
  static constexpr bool is_float = std::is_same<T, float>::value;

  template <int n>
  void set_top(const float (&coefficients)[n], double factor) {
    for (int i = 0; i < n; ++i) top[i] = set_floats(is_float ? float(coefficients[i] * factor) : coefficients[i]);
  }
};

template <int recipe, class T>
CONTDROP_INLINE Floats quantile_by_v(const Prepared<T>& p, Floats v) {
  Floats x = quarter_minus_square(v);
  if (recipe == kNormalFar) x = minus_log_of_four(x);
  constexpr int n = sizeof Fit<recipe>::top / sizeof(float);
  return divide(evaluate(p.top, n, x), evaluate(Fit<recipe>::bottom, x));
}

// Whether a Bernoulli element is kept: what it gets. A field is slot s of its word; a number has no slots.
template <int recipe, class T>
CONTDROP_INLINE Floats kept(const Prepared<T>& p, const Words& w, int s) {
  if (recipe == kHalf) return where(bit_clear(w, 1u << s), p.unit);
  if (p.always) return p.unit;
  const Words bits = recipe == kThreshold ? w : bit_and(shift_right(w, p.bits * s), p.field);
  return where(less(bits, p.threshold), p.unit);
}

// Sixteen scaled mask values of slot s of words, or of numbers.
template <int recipe>
CONTDROP_INLINE Floats value(const Prepared<float>& p, const Words& w, int s) {
  if constexpr (recipe < kFlat) {
    return kept<recipe>(p, w, s);
  } else if constexpr (recipe == kFlat) {
    return fused(one_to_two(w), set_floats(p.gain), set_floats(p.offset));
  } else {
    const Floats v = subtract(one_to_two(w), set_floats(kOne + 0.5f));
    const Floats m = fused(v, quantile_by_v<recipe>(p, v), set_floats(p.offset));
    return minimum(maximum(m, set_floats(p.low)), set_floats(p.high));
  }
}

// The same into memory.
template <int recipe>
CONTDROP_INLINE void write(const Prepared<float>& p, const Words& w, int s, float* out) {
  store(out, value<recipe>(p, w, s));
}
template <int recipe>
CONTDROP_INLINE void write(const Prepared<double>& p, const Words& w, int s, double* out) {
  float c[16];
  if constexpr (recipe < kFlat) {
    store(c, kept<recipe>(p, w, s));
  } else if constexpr (recipe == kFlat) {
    store(c, one_to_two(w));
  } else {
    const Floats v = subtract(one_to_two(w), set_floats(kOne + 0.5f));
    store(c, multiply(v, quantile_by_v<recipe>(p, v)));
  }
  for (int i = 0; i < 16; ++i) {
    const double m = double(c[i]) * p.gain + p.offset;
    out[i] = recipe < kNormalNear ? m : std::min(std::max(m, p.low), p.high);
  }
}

}  // namespace CONTDROP_LANES
}  // namespace contdrop
