// The elementwise kernels: element types, dropout of contiguous tensors, dropout after rectified linear units, and choice by
// an element's own probability.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels.h"

namespace contdrop {
namespace CONTDROP_LANES {

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
CONTDROP_INLINE void multiply16(const Prepared<float>& p, const Words& w, int s, const typename E::Stored* x,
                                typename E::Stored* out) {
  E::template store16<E::order>(out, multiply(E::template load16<E::order>(x), value<recipe>(p, w, s)));
}

// A row whose elements follow each other in memory and in the mask, the mask beginning where visit can begin. A function of
// its own, so that all registers are its own.
template <int recipe, class E>
CONTDROP_APART static void aligned_row(const Prepared<float>& p, int64_t first, const typename E::Stored* x,
                                       typename E::Stored* out, int64_t n) {
  if constexpr (E::ties == kAwayFromZero && recipe < kNormalNear) return;  // see ties_matter
  Groups<float, E::order> groups(p);
  visit<recipe>(
      groups, first, n,
      [&](int64_t i, const Words& w, auto s) CONTDROP_INLINE_LAMBDA {
        multiply16<recipe, E>(p, w, s, x + i, out + i);
      },
      [&](int64_t i, const Words& w, int s) {
        typename E::Stored rest[16] = {};
        std::copy(x + i, x + n, rest);
        multiply16<recipe, E>(p, w, s, rest, rest);
        std::copy(rest, rest + (n - i), out + i);
      });
}

// Elementwise dropout of a row; other layouts are in layouts.h.
template <class E>
static void row_of(const Row& r, int64_t first, int64_t last) {
  const Prepared<typename E::Wide> p(r.law, r.seed, r.stream);
  const int64_t begin = first * kStretch, n = std::min(last * kStretch, r.count) - begin;
  const auto* x = static_cast<const typename E::Stored*>(r.x) + begin;
  auto* out = static_cast<typename E::Stored*>(r.out) + begin;
  if constexpr (std::is_same<E, Float64>::value) {
    // Through memory, so that there is no version for every recipe: they took a third of the time to compile.
    Source<double>(r.law, p).in_pieces(r.mask_first + begin, n, [&](int64_t i, const double* m, int64_t count) {
      E::multiply_row(x + i, out + i, m, count);
    });
  } else {
    CONTDROP_BY_RECIPE(r.law, aligned_row, E, p, r.mask_first + begin, x, out, n)
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

// Calls the version of a function template that fits the type of the elements.
#define CONTDROP_BY_TYPE(call, function, ...)                                          \
  switch ((call).type) {                                                               \
    case kFloat32: return function<Float32>(__VA_ARGS__);                              \
    case kFloat64: return function<Float64>(__VA_ARGS__);                              \
    case kFloat16: return function<Float16>(__VA_ARGS__);                              \
    case kBFloat16:                                                                    \
      return ties_matter((call).law) ? function<BFloat16<kToEven>>(__VA_ARGS__)        \
                                     : function<BFloat16<kAwayFromZero>>(__VA_ARGS__); \
  }

static void row(const Row& r, int64_t first, int64_t last) { CONTDROP_BY_TYPE(r, row_of, r, first, last) }

// Rectified linear units and dropout in one pass. What is left at the end goes through buffers padded with zeros.
template <int recipe, class E>
static void relu_with(const Relu& r, const Prepared<float>& p, int64_t begin, int64_t n) {
  Groups<float> groups(p);
  const float* x = r.x + begin;
  float* out = r.out + begin;
  if (!r.gate) {
    // The second operand of maximum is the result if there is a NaN, as in torch.
    auto rectified = [&](const float* from, const Words& w, int s) {
      return multiply(maximum(set_floats(0.0f), load(from)), value<recipe>(p, w, s));
    };
    visit<recipe>(
        groups, begin, n,
        [&](int64_t i, const Words& w, auto s) CONTDROP_INLINE_LAMBDA {
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
      groups, begin, n,
      [&](int64_t i, const Words& w, auto s) CONTDROP_INLINE_LAMBDA {
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
  const Law law = {kUniform, kNumberBits, 0, 0.0, 1.0, 0.0, 1.0, 0.0};
  const Prepared<typename E::Wide> p(law, k.seed, k.stream);
  Groups<typename E::Wide> groups(p);
  const int64_t begin = first * kStretch, n = std::min(last * kStretch, k.count) - begin;
  const Stored *x = static_cast<const Stored*>(k.x) + begin, *keep = static_cast<const Stored*>(k.keep) + begin;
  Stored* out = static_cast<Stored*>(k.out) + begin;
  auto some = [&](int64_t i, const Words& w, int) {
    const int64_t count = std::min<int64_t>(16, n - i);
    typename E::Wide m[16];
    E::below(subtract(one_to_two(w), set_floats(kOne)), keep + i, m, count);
    E::multiply_row(x + i, out + i, m, count);
  };
  visit<kFlat>(groups, begin, n, some, some);
}

static void keep_where(const KeepWhere& k, int64_t first, int64_t last) {
  switch (k.type) {
    case kFloat32: return keep_where_of<Float32>(k, first, last);
    case kFloat64: return keep_where_of<Float64>(k, first, last);
    case kFloat16: return keep_where_of<Float16>(k, first, last);
    case kBFloat16: return keep_where_of<BFloat16<kToEven>>(k, first, last);
  }
}

}  // namespace CONTDROP_LANES
}  // namespace contdrop
