// The entry points: choose the instruction set once, split the work over torch's own threads.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "api.h"
#include "gradients.h"
#include "interface.h"
#include "tiles.h"

#define CONTDROP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace contdrop;

struct Set {
  const char* name;
  const Kernels* kernels;
  bool usable;
};

const Set* sets(int& count) {
#if defined(CONTDROP_X86)
  __builtin_cpu_init();
  static const Set all[] = {
      {"avx512", &kAvx512,
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl")},
      {"avx2", &kAvx2,
       __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")},
      {"portable", &kPortable, true},
  };
#elif defined(CONTDROP_NEON)
  static const Set all[] = {{"neon", &kNeon, true}, {"portable", &kPortable, true}};
#else
  static const Set all[] = {{"portable", &kPortable, true}};
#endif
  count = int(sizeof all / sizeof all[0]);
  return all;
}

const Set* best() {
  int count;
  const Set* all = sets(count);
  return std::find_if(all, all + count, [](const Set& set) { return set.usable; });
}

std::atomic<const Set*> chosen{best()};

// GOMP_parallel of the OpenMP library that torch has loaded, handed over by Python: so there is one pool of threads in
// the process, and it does not compete with torch's. Null if there is none; then calls run on one thread.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
using ThreadNumber = int (*)();
std::atomic<Parallel> parallel{nullptr};
std::atomic<ThreadNumber> thread_number{nullptr}, team_size{nullptr};

template <class Call>
struct Job {
  void (*kernel)(const Call&, int64_t, int64_t);
  const Call* call;
  int64_t parts;
};

template <class Call>
void work(void* data) {
  const Job<Call>& job = *static_cast<const Job<Call>*>(data);
  const int64_t me = thread_number.load()(), team = team_size.load()();
  const int64_t first = job.parts * me / team, last = job.parts * (me + 1) / team;
  if (first < last) job.kernel(*job.call, first, last);
}

// Splits a call into parts; each thread gets at least `grain` of them.
template <class Call>
void run(void (*kernel)(const Call&, int64_t, int64_t), const Call& call, int64_t parts, int64_t grain) {
  if (parts <= 0) return;
  const int64_t threads = std::min<int64_t>(call.threads, parts / std::max<int64_t>(grain, 1));
  const Parallel start = parallel.load();
  if (threads < 2 || !start) return kernel(call, 0, parts);
  Job<Call> job = {kernel, &call, parts};
  start(work<Call>, &job, unsigned(threads), 0);
}

constexpr int64_t kGrain = 32768;  // elements worth a thread of their own

int64_t stretches(int64_t count) { return (count + kStretch - 1) / kStretch; }

}  // namespace

CONTDROP_EXPORT void contdrop_use_threads(void* start, void* number, void* size) {
  thread_number = reinterpret_cast<ThreadNumber>(number);
  team_size = reinterpret_cast<ThreadNumber>(size);
  parallel = reinterpret_cast<Parallel>(start);
}

// The first thing that Python asks: see interface.h.
CONTDROP_EXPORT const char* contdrop_interface() {
  static const std::string text = interface();
  return text.c_str();
}

CONTDROP_EXPORT const char* contdrop_instructions() { return chosen.load()->name; }

// Chooses an instruction set by name; returns 0, or 1 if there is none of that name or this processor lacks it.
CONTDROP_EXPORT int contdrop_use_instructions(const char* name) {
  int count;
  const Set* all = sets(count);
  for (int i = 0; i < count; ++i) {
    if (!std::strcmp(all[i].name, name) && all[i].usable) {
      chosen = &all[i];
      return 0;
    }
  }
  return 1;
}

// Elementwise dropout where nothing is shared and all is contiguous, without a structure to fill.
CONTDROP_EXPORT void contdrop_dropout_row(const void* x, void* out, int32_t type, int64_t count, uint64_t seed,
                                          uint32_t stream, int32_t threads, const Law* law) {
  const Row row = {x, out, type, threads, count, 0, seed, stream, *law};
  run(chosen.load()->kernels->row, row, stretches(count), kGrain / kStretch / 2);
}

CONTDROP_EXPORT void contdrop_dropout(const Dropout* d) {
  for (int a = 0; a < d->axes; ++a)
    if (d->size[a] == 0) return;
  const Tiles tiles(*d);
  if (tiles.is_row()) {
    const Row row = {d->x, d->out, d->type, d->threads, tiles.fast.size, d->mask_first, d->seed, d->stream, d->law};
    return run(chosen.load()->kernels->row, row, stretches(row.count), kGrain / kStretch / 2);
  }
  const int64_t elements = tiles.fast_block * tiles.across_block * tiles.repeat_block;
  run(chosen.load()->kernels->tiles, tiles, tiles.parts, kGrain / elements / 2);
}

CONTDROP_EXPORT void contdrop_relu(const Relu* r) {
  run(chosen.load()->kernels->relu, *r, stretches(r->count), kGrain / kStretch / 2);
}

CONTDROP_EXPORT void contdrop_keep_where(const KeepWhere* k) {
  run(chosen.load()->kernels->keep_where, *k, stretches(k->count), kGrain / kStretch / 2);
}

CONTDROP_EXPORT void contdrop_dropconnect(const DropConnect* d) {
  const Kernels& kernels = *chosen.load()->kernels;
  if (d->contraction == kGradients) {
    Gradients both(*d);
    do {  // without examples, too: there is a weight gradient of zeros
      both.end = std::min(both.begin + both.at_once, d->examples);
      run(kernels.gradients, both, both.slices, kGrain * both.slices / std::max<int64_t>(both.work(), 1));
      run(kernels.sums, both, both.end - both.begin, kGrain / std::max<int64_t>(both.slices * d->inputs, 1));
      both.begin = both.end;
    } while (both.begin < d->examples);
    return;
  }
  const bool by_example = d->contraction == kInputGradient;
  const int64_t parts = by_example ? d->examples : d->outputs;
  const int64_t per_part = (by_example ? d->outputs : d->examples) * d->inputs;
  run(kernels.dropconnect, *d, parts, kGrain / std::max<int64_t>(per_part, 1));
}
