// DropConnect with a mask per example: the three contractions of masks that are never stored.
#pragma once
#include <algorithm>

#include "gradients.h"
#include "kernels.h"

namespace contdrop {
namespace CONTDROP_LANES {

// Rows of masks times rows of numbers. Sixteen inputs at a time; what is left over at the end of a row goes through
// buffers padded with zeros.
template <int recipe>
struct Rows32 {
  using T = float;
  const Prepared<float> p;
  Groups<float> groups;

  explicit Rows32(const DropConnect& d) : p(d.law, d.seed, d.stream), groups(p) {}

  CONTDROP_APART float dot(int64_t first, const float* w, const float* x, int64_t n) {
    Floats totals[kNumbers];
    std::fill(totals, totals + kNumbers, set_floats(0.0f));
    visit<recipe, 1>(
        groups, first, n,
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
    return sum(add(add(add(totals[0], totals[1]), add(totals[2], totals[3])), add(totals[4], totals[5])));
  }
  // y += m x for fewer than sixteen elements.
  static void add_rest(Floats m, const float* x, float* y, int64_t n) {
    float rest_x[16] = {}, rest_y[16] = {};
    std::copy(x, x + n, rest_x);
    std::copy(y, y + n, rest_y);
    store(rest_y, fused(m, load(rest_x), load(rest_y)));
    std::copy(rest_y, rest_y + n, y);
  }
  CONTDROP_APART void axpy(int64_t first, float factor, const float* x, float* y, int64_t n) {
    const Floats f = set_floats(factor);
    visit<recipe, 1>(
        groups, first, n,
        [&](int64_t i, const Words& words, auto s) CONTDROP_INLINE_LAMBDA {
          const Floats m = multiply(f, value<recipe>(p, words, s));
          store(y + i, fused(m, load(x + i), load(y + i)));
        },
        [&](int64_t i, const Words& words, int s) {
          add_rest(multiply(f, value<recipe>(p, words, s)), x + i, y + i, n - i);
        });
  }
  // y += factor m x and z += factor m w.
  CONTDROP_APART void axpy_twice(int64_t first, float factor, const float* x, float* y, const float* w, float* z, int64_t n) {
    const Floats f = set_floats(factor);
    visit<recipe, 1>(
        groups, first, n,
        [&](int64_t i, const Words& words, auto s) CONTDROP_INLINE_LAMBDA {
          const Floats m = multiply(f, value<recipe>(p, words, s));
          store(y + i, fused(m, load(x + i), load(y + i)));
          store(z + i, fused(m, load(w + i), load(z + i)));
        },
        [&](int64_t i, const Words& words, int s) {
          const Floats m = multiply(f, value<recipe>(p, words, s));
          add_rest(m, x + i, y + i, n - i);
          add_rest(m, w + i, z + i, n - i);
        });
  }
};
// The masks go through memory, so that one version serves all laws.
struct Rows64 {
  using T = double;
  const Prepared<double> p;
  Source<double> source;

  explicit Rows64(const DropConnect& d) : p(d.law, d.seed, d.stream), source(d.law, p) {}

  double dot(int64_t first, const double* w, const double* x, int64_t n) {
    double total = 0;
    source.in_pieces(first, n, [&](int64_t i, const double* m, int64_t count) {
      for (int64_t k = 0; k < count; ++k) total += m[k] * w[i + k] * x[i + k];
    });
    return total;
  }
  void axpy(int64_t first, double factor, const double* x, double* y, int64_t n) {
    source.in_pieces(first, n, [&](int64_t i, const double* m, int64_t count) {
      for (int64_t k = 0; k < count; ++k) y[i + k] += factor * m[k] * x[i + k];
    });
  }
  void axpy_twice(int64_t first, double factor, const double* x, double* y, const double* w, double* z, int64_t n) {
    source.in_pieces(first, n, [&](int64_t i, const double* m, int64_t count) {
      for (int64_t k = 0; k < count; ++k) {
        y[i + k] += factor * m[k] * x[i + k];
        z[i + k] += factor * m[k] * w[i + k];
      }
    });
  }
};

// Rows of weights that stay in the first-level cache while all examples pass by.
constexpr int64_t kBlock = 8;

// A part is an output (a row of weights) for the output itself and the weight gradient, and an example for the input
// gradient, so that no two parts add to the same place and the order of additions is always the same.
template <class Rows>
static void dropconnect_with(const DropConnect& d, int64_t first, int64_t last) {
  using T = typename Rows::T;
  const T *g = static_cast<const T*>(d.g), *w = static_cast<const T*>(d.w), *x = static_cast<const T*>(d.x);
  T* result = static_cast<T*>(d.result);
  Rows rows(d);
  auto element = [&](int64_t n, int64_t o) { return ((d.first_example + n) * d.outputs + o) * d.pitch; };
  if (d.contraction == kOutput) {
    for (int64_t block = first; block < last; block += kBlock)
      for (int64_t n = 0; n < d.examples; ++n)
        for (int64_t o = block; o < std::min(block + kBlock, last); ++o)
          result[n * d.outputs + o] = rows.dot(element(n, o), w + o * d.inputs, x + n * d.inputs, d.inputs);
  } else if (d.contraction == kWeightGradient) {
    for (int64_t o = first; o < last; ++o) {
      T* row = result + o * d.inputs;
      std::fill(row, row + d.inputs, T(0));
      for (int64_t n = 0; n < d.examples; ++n)
        rows.axpy(element(n, o), g[n * d.outputs + o], x + n * d.inputs, row, d.inputs);
    }
  } else {
    std::fill(result + first * d.inputs, result + last * d.inputs, T(0));
    for (int64_t block = 0; block < d.outputs; block += kBlock)
      for (int64_t n = first; n < last; ++n)
        for (int64_t o = block; o < std::min(block + kBlock, d.outputs); ++o)
          rows.axpy(element(n, o), g[n * d.outputs + o], w + o * d.inputs, result + n * d.inputs, d.inputs);
  }
}

template <int recipe, class>
static void dropconnect32(const DropConnect& d, int64_t first, int64_t last) {
  dropconnect_with<Rows32<recipe>>(d, first, last);
}

static void dropconnect(const DropConnect& d, int64_t first, int64_t last) {
  if (d.type == kFloat64) return dropconnect_with<Rows64>(d, first, last);
  CONTDROP_BY_RECIPE(d.law, dropconnect32, float, d, first, last)
}

// Rows of weights and of their gradients that stay in the first-level cache while all examples pass by.
constexpr int64_t kGradientBlock = 4;

// A part is a slice of the outputs.
template <class Rows>
static void gradients_with(const Gradients& both, int64_t first, int64_t last) {
  using T = typename Rows::T;
  const DropConnect& d = both.call;
  const T *g = static_cast<const T*>(d.g), *w = static_cast<const T*>(d.w), *x = static_cast<const T*>(d.x);
  T* by_weight = static_cast<T*>(d.second);
  Rows rows(d);
  for (int64_t slice = first; slice < last; ++slice) {
    const int64_t begin = both.first_output(slice), end = both.first_output(slice + 1);
    T* sums = both.template sums_of<T>(slice, both.begin);
    std::fill(sums, sums + (both.end - both.begin) * d.inputs, T(0));
    if (both.begin == 0) std::fill(by_weight + begin * d.inputs, by_weight + end * d.inputs, T(0));
    for (int64_t block = begin; block < end; block += kGradientBlock)
      for (int64_t n = both.begin; n < both.end; ++n)
        for (int64_t o = block; o < std::min(block + kGradientBlock, end); ++o)
          rows.axpy_twice(((d.first_example + n) * d.outputs + o) * d.pitch, g[n * d.outputs + o], x + n * d.inputs,
                          by_weight + o * d.inputs, w + o * d.inputs, both.template sums_of<T>(slice, n), d.inputs);
  }
}

// A part is an example.
template <class T>
static void sums_with(const Gradients& both, int64_t first, int64_t last) {
  const int64_t inputs = both.call.inputs;
  for (int64_t n = both.begin + first; n < both.begin + last; ++n) {
    T* total = static_cast<T*>(both.call.result) + n * inputs;
    std::copy_n(both.template sums_of<T>(0, n), inputs, total);
    for (int64_t slice = 1; slice < both.slices; ++slice) {
      const T* more = both.template sums_of<T>(slice, n);
      for (int64_t i = 0; i < inputs; ++i) total[i] += more[i];
    }
  }
}

template <int recipe, class>
static void gradients32(const Gradients& both, int64_t first, int64_t last) {
  gradients_with<Rows32<recipe>>(both, first, last);
}

static void gradients(const Gradients& both, int64_t first, int64_t last) {
  if (both.call.type == kFloat64) return gradients_with<Rows64>(both, first, last);
  CONTDROP_BY_RECIPE(both.call.law, gradients32, float, both, first, last)
}

static void sums(const Gradients& both, int64_t first, int64_t last) {
  return both.call.type == kFloat64 ? sums_with<double>(both, first, last) : sums_with<float>(both, first, last);
}

}  // namespace CONTDROP_LANES
}  // namespace contdrop
