// The C interface between Python and the kernels. Plain data only: it needs no headers of Python or torch.
#pragma once
#include <cstdint>

namespace contdrop {

enum Kind : int32_t { kBernoulli = 0, kUniform = 1, kGaussian = 2 };
enum Type : int32_t { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 3 };

// How bits become a scaled mask value: value = clamp(offset + gain * core, low, high), where core is
//   Bernoulli: 1 if the element's bits are less than the threshold, else 0
//   Uniform:   the uniform number
//   Gaussian:  the standard normal quantile of the uniform number
// The scale is already in offset, gain, low and high.
struct Law {
  int32_t kind;
  int32_t bits;        // per element: a field of 1, 2, 4, 8, 16 or 32 bits of a word, or a number of 21
  uint64_t threshold;  // Bernoulli only; up to 2^bits
  double offset, gain, low, high;
  double reach;        // Gaussian only: the largest |quantile| that clamping lets through
};

// Numbers: a group of sixteen blocks makes six times sixteen. See reference.py.
constexpr int kNumberBits = 21;
constexpr int kNumbers = 6;
constexpr int64_t kGroupOfNumbers = 16 * kNumbers;

constexpr int kMaxAxes = 16;

// out = x * mask, elementwise. Axes are ordered from outermost to innermost, merged where possible. Strides count
// elements; mask strides number the elements of the mask and are 0 along shared axes.
struct Dropout {
  const void* x;
  void* out;
  int32_t type;
  int32_t axes;
  int64_t size[kMaxAxes];
  int64_t x_stride[kMaxAxes];
  int64_t out_stride[kMaxAxes];
  int64_t mask_stride[kMaxAxes];
  uint64_t seed;
  uint32_t stream;
  int32_t threads;
  Law law;
};

// out = max(x, 0) * mask in the forward pass. In the backward pass gate is what forward gave, and out = x * mask where
// gate is not 0, else 0. Contiguous float32.
struct Relu {
  const float* x;
  const float* gate;  // null in the forward pass
  float* out;
  int64_t count;
  uint64_t seed;
  uint32_t stream;
  int32_t threads;
  Law law;
};

// out[i] = x[i] if uniform number i is less than keep[i], else x[i] * 0.
struct KeepWhere {
  const void* x;
  const void* keep;
  void* out;
  int32_t type;
  int32_t threads;
  int64_t count;
  uint64_t seed;
  uint32_t stream;
};

// out[i] = standard normal number i.
struct Normal {
  void* out;
  int32_t type;  // float32 or float64
  int32_t threads;
  int64_t count;
  uint64_t seed;
  uint32_t stream;
};

// The three contractions of T = sum of mask[n, o, i] g[n, o] w[o, i] x[n, i] by two of its three arguments. All arrays
// are contiguous; the missing argument is the result.
enum Contraction : int32_t { kOutput = 0, kInputGradient = 1, kWeightGradient = 2 };
struct DropConnect {
  const void* g;
  const void* w;
  const void* x;
  void* result;
  int32_t type;  // float32 or float64
  int32_t contraction;
  int64_t examples, outputs, inputs, pitch;
  uint64_t seed;
  uint32_t stream;
  int32_t threads;
  Law law;
};

// One set of kernels per instruction set. The work of a call is cut into parts, and a kernel does the parts from first
// to last - 1; how they are distributed over threads changes no result.
struct Kernels {
  void (*dropout)(const Dropout&, int64_t first, int64_t last);
  void (*relu)(const Relu&, int64_t first, int64_t last);
  void (*keep_where)(const KeepWhere&, int64_t first, int64_t last);
  void (*normal)(const Normal&, int64_t first, int64_t last);
  void (*dropconnect)(const DropConnect&, int64_t first, int64_t last);
};

extern const Kernels kPortable;
#if defined(CONTDROP_X86)
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#endif

// Elements of a contiguous part: whole groups for any number of bits, the least common multiple of 96 and 2048.
constexpr int64_t kStretch = 6144;

// Whether a call is one row of mask values in order, cut into stretches; otherwise its parts are rows.
inline bool is_single_row(const Dropout& d) { return d.axes == 1 && d.mask_stride[0] == 1; }

}  // namespace contdrop
