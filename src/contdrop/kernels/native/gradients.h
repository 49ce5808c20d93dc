// Both gradients of per-example DropConnect from one draw of the masks.
//
// The weight gradient of an output is a sum over examples, the input gradient of an example is a sum over outputs. So the
// outputs are cut into slices, each with sums of its own for every example, which are added up in the end. Slices and order
// depend on nothing but the sizes, so that results do not depend on the number of threads.
#pragma once
#include <algorithm>
#include <memory>

#include "api.h"

namespace contdrop {

struct Gradients {
  const DropConnect& call;
  int32_t threads;
  int64_t slices;         // of the outputs
  int64_t at_once;        // examples
  int64_t begin = 0, end = 0;  // the examples of this round
  std::unique_ptr<char[]> sums;  // [slices, at_once, inputs]

  explicit Gradients(const DropConnect& d) : call(d), threads(d.threads) {
    slices = std::clamp<int64_t>(d.outputs / 4, 1, 16);
    at_once = std::min(d.examples, std::max<int64_t>(kMostSums / std::max<int64_t>(slices * d.inputs, 1), 8));
    const int64_t size = d.type == kFloat64 ? 8 : 4;
    sums.reset(new char[size_t(slices * at_once * d.inputs * size + 1)]);
  }
  int64_t first_output(int64_t slice) const { return call.outputs * slice / slices; }
  int64_t work() const { return (end - begin) * call.outputs * call.inputs; }
  template <class T>
  T* sums_of(int64_t slice, int64_t example) const {
    return reinterpret_cast<T*>(sums.get()) + (slice * at_once + example - begin) * call.inputs;
  }

 private:
  static constexpr int64_t kMostSums = 1 << 20;
};

}  // namespace contdrop
