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

// out = x * mask, elementwise. Axes come in any order. Strides count elements; mask strides number the elements of the mask,
// whose first has the number mask_first, and are 0 along shared axes. The result fills its memory without gaps.
struct Dropout {
  const void* x;
  void* out;
  int32_t type;
  int32_t axes;
  int64_t size[kMaxAxes];
  int64_t x_stride[kMaxAxes];
  int64_t out_stride[kMaxAxes];
  int64_t mask_stride[kMaxAxes];
  int64_t mask_first;
  uint64_t seed;
  uint32_t stream;
  int32_t threads;
  Law law;
};

// The same for tensors whose elements follow each other in memory and in the mask. The mask begins with a multiple of kAligned.
struct Row {
  const void* x;
  void* out;
  int32_t type;
  int32_t threads;
  int64_t count;
  int64_t mask_first;
  uint64_t seed;
  uint32_t stream;
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

// The three contractions of T = sum of mask[first_example + n, o, i] g[n, o] w[o, i] x[n, i] by two of its three arguments.
// All arrays are contiguous; the missing argument is the result. With kGradients all three are given, the result is the
// input gradient and `second` the weight gradient.
enum Contraction : int32_t { kOutput = 0, kInputGradient = 1, kWeightGradient = 2, kGradients = 3 };
struct DropConnect {
  const void* g;
  const void* w;
  const void* x;
  void* result;
  void* second;
  int32_t type;  // float32 or float64
  int32_t contraction;
  int64_t examples, outputs, inputs, pitch, first_example;
  uint64_t seed;
  uint32_t stream;
  int32_t threads;
  Law law;
};

// A call in any layout, cut into tiles: see tiles.h.
struct Tiles;
// Both gradients of DropConnect in two steps: see dropconnect.h.
struct Gradients;

// One set of kernels per instruction set. The work of a call is cut into parts, and a kernel does the parts from first
// to last - 1; how they are distributed over threads changes no result.
struct Kernels {
  void (*row)(const Row&, int64_t first, int64_t last);
  void (*tiles)(const Tiles&, int64_t first, int64_t last);
  void (*relu)(const Relu&, int64_t first, int64_t last);
  void (*keep_where)(const KeepWhere&, int64_t first, int64_t last);
  void (*dropconnect)(const DropConnect&, int64_t first, int64_t last);
  void (*gradients)(const Gradients&, int64_t first, int64_t last);
  void (*sums)(const Gradients&, int64_t first, int64_t last);
};

extern const Kernels kPortable;
#if defined(CONTDROP_X86)
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#elif defined(CONTDROP_NEON)
extern const Kernels kNeon;
#endif

// Elements of a contiguous part: whole groups for any number of bits, the least common multiple of 96 and 2048.
constexpr int64_t kStretch = 6144;

// Where a row of a mask may begin: a multiple of what any number of bits and any instruction set makes at once.
constexpr int64_t kAligned = 1536;

}  // namespace contdrop
