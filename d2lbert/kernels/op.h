// Common code of all operator files, on MXNet's extension interface.
#pragma once
#include <locale.h>
#include <omp.h>
#include <stdlib.h>

#include <atomic>
#include <deque>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "amx.h"
#include "gemm.h"
#include "mxnet/lib_api.h"

namespace d2lbert {

using mxnet::ext::kFloat32;
using mxnet::ext::kInt32;
using mxnet::ext::MX_FAIL;
using mxnet::ext::MX_SUCCESS;
using mxnet::ext::MXReturnValue;
using mxnet::ext::MXTensor;
using mxnet::ext::OpResource;

typedef std::unordered_map<std::string, std::string> Attrs;
typedef std::vector<MXTensor> Tensors;
typedef std::vector<unsigned> Shape;
typedef std::vector<Shape> Shapes;

inline std::string text(const Attrs& attrs, const char* key,
                        const char* otherwise) {
  auto found = attrs.find(key);
  return found == attrs.end() ? otherwise : found->second;
}

inline double number(const Attrs& attrs, const char* key, double otherwise) {
  auto found = attrs.find(key);
  if (found == attrs.end()) return otherwise;
  // std::stod would read 0.1 as 0 where the locale writes 0,1; a stream of
  // the standard library's takes microseconds, several times an operator.
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  char* end;
  const double value = strtod_l(found->second.c_str(), &end, plain);
  if (end == found->second.c_str())
    throw std::invalid_argument(std::string(key) + " is no number: " +
                                found->second);
  return value;
}

// True if the dropout rate `rate` is above 0. Then an input holds its noise.
inline bool drops(const Attrs& attrs, const char* rate = "p") {
  return number(attrs, rate, 0) > 0;
}

// Numbers the inputs of an operator in their order. A struct of constants
// derives from it, and each constant is initialized by `next` or `several`.
class Numbered {
 public:
  int count() const { return count_; }

 protected:
  // The index of an input, or of the first of several; -1 without any.
  int next(bool exists = true) { return several(exists ? 1 : 0); }
  int several(int n) {
    count_ += n;
    return n ? count_ - n : -1;
  }

 private:
  int count_ = 0;
};

// The arrays from which a gradient is computed: the gradients of the outputs,
// the inputs and the outputs, in this order.
struct Saved {
  MXTensor *gradients, *inputs, *outputs;
  Saved(Tensors& all, int num_outputs)
      : gradients(all.data()), inputs(gradients + num_outputs),
        outputs(all.data() + all.size() - num_outputs) {}
};

inline bool wants_bf16(const Attrs& attrs) {
  return text(attrs, "precision", "fp32") == "bf16";
}

inline MXReturnValue fail(const std::string& reason) {
  MX_ERROR_MSG << reason;
  return MX_FAIL;
}

// Runs a function of an operator and turns exceptions into its error, because
// MXNet cannot catch exceptions of an extension.
template <class F>
MXReturnValue caught(F run) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return fail("no memory left for an operator");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

template <auto run>
struct Caught;
template <class... A, MXReturnValue (*run)(A...)>
struct Caught<run> {
  static MXReturnValue call(A... arguments) {
    return caught([&] { return run(arguments...); });
  }
};

inline const char* no_bf16() {
  return "precision 'bf16' needs a CPU with AVX-512 BF16 instructions";
}

inline float* floats(MXTensor& t) { return t.data<float>(); }
inline int32_t* ints(MXTensor& t) { return t.data<int32_t>(); }

// The numbers of inputs and outputs of an operator with a struct of inputs.
template <class Inputs, int num_outputs = 1>
MXReturnValue numbered(const Attrs& attrs, int* inputs, int* outputs) {
  *inputs = Inputs(attrs).count();
  *outputs = num_outputs;
  return MX_SUCCESS;
}

// The same for an operator whose numbers are constant.
template <int num_inputs, int num_outputs>
MXReturnValue constant(const Attrs&, int* inputs, int* outputs) {
  *inputs = num_inputs;
  *outputs = num_outputs;
  return MX_SUCCESS;
}

// The types of an operator with float arrays only.
inline MXReturnValue all_floats(const Attrs&, std::vector<int>* in,
                                std::vector<int>* out) {
  std::fill(in->begin(), in->end(), kFloat32);
  std::fill(out->begin(), out->end(), kFloat32);
  return MX_SUCCESS;
}

// The types of an operator with float arrays, and rows of sequences as int32.
template <class Inputs>
MXReturnValue rows_and_floats(const Attrs& attrs, std::vector<int>* in,
                              std::vector<int>* out) {
  const Inputs at(attrs);
  all_floats(attrs, in, out);
  (*in)[at.offsets] = (*in)[at.lens] = kInt32;
  return MX_SUCCESS;
}

// The gradient of indices, lengths and noise: zero, if it has memory.
inline void clear(MXTensor& t) {
  if (t.data_ptr) std::memset(t.data_ptr, 0, 4 * t.size());
}

// An index clipped to n. The caller has checked it; a wrong index still stays
// within the array.
inline long within(int32_t index, long n) {
  return index < 0 ? 0 : index >= n ? n - 1 : index;
}

// The number of threads for this much work, in rough operations. The team may
// be smaller (OMP_THREAD_LIMIT, OMP_DYNAMIC, nested regions). So divide work
// by omp_get_num_threads(), never by this number.
inline int team(double work) {
  return work < 5e4 || forked() ? 1 : std::max(1, omp_get_max_threads());
}

// Scratch memory of the threads of a team. It is reserved before they begin,
// because an exception that leaves a parallel region ends the process.
class Rooms {
 public:
  void reserve(int threads, size_t bytes) {
    while ((int)all_.size() < threads) all_.emplace_back();
    for (int t = 0; t < threads; t++) all_[t].reset(bytes);
  }
  // The memory of this thread.
  Scratch& mine() { return all_[omp_get_thread_num()]; }

 private:
  std::deque<Scratch> all_;
};

// One per calling thread.
inline Rooms& team_rooms() {
  static thread_local Rooms rooms;
  return rooms;
}

inline Rooms& team_rooms(int threads, size_t bytes) {
  team_rooms().reserve(threads, bytes);
  return team_rooms();
}

// True if `reserve` found memory. For memory whose size depends on the team.
template <class F>
bool has_memory(F reserve) {
  try {
    reserve();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// One of several equal parts of n items: [first, last).
inline void share(long n, int parts, int part, long* first, long* last) {
  *first = n * part / parts;
  *last = n * (part + 1) / parts;
}

// The rows of a block, a multiple of the rows of a tile. `bytes` a row fit in
// `room`, which is most of half a megabyte of cache. There are at least `each`
// blocks a thread.
inline long block_rows(long rows, int threads, long each, double bytes,
                       double room = 200e3) {
  const long block = std::min<long>(ceil_div(rows, each * threads),
                                    (long)(room / std::max(bytes, 1.0)));
  return std::max<long>(1, std::min<long>(ceil_div(block, MR), 16)) * MR;
}

// to += the sum of m rows of n numbers, ld apart.
inline void sum_rows(const float* x, long ld, long m, long n, float* to) {
  for (long r = 0; r < m; r++)
    for (long j = 0; j < n; j += VL)
      store(to + j, load(to + j, n - j) + load(x + r * ld + j, n - j), n - j);
}

// The number of blocks that a thread takes at a time. Two if there are many:
// the first prefetches the rows of the second. One if there are few, so that
// no thread waits long.
inline int at_once(long blocks, int threads) {
  return blocks >= 16 * threads ? 2 : 1;
}

// A sum of n numbers for each thread.
class Sums {
 public:
  static size_t bytes(long n, int threads) { return threads * (4 * n + 64); }
  Sums(Scratch& shared, long n, int threads) : n_(n), all_(threads) {
    for (float*& one : all_) one = shared.take<float>(n);
  }
  // The sum of this thread.
  float* mine() const { return all_[omp_get_thread_num()]; }
  float* cleared() const {
    std::memset(mine(), 0, 4 * n_);
    return mine();
  }
  // Add the numbers [from, from + n) of all threads into `to`, unless it is
  // null. Each thread does a part and does not wait.
  void add_up(float* to, long from, long n) const {
    if (!to) return;
    const int team_size = omp_get_num_threads();
#pragma omp for schedule(static) nowait
    for (long j = 0; j < n; j += VL) {
      vf s = load(all_[0] + from + j, n - j);
      for (int q = 1; q < team_size; q++)
        s += load(all_[q] + from + j, n - j);
      store(to + j, s, n - j);
    }
  }
  void add_up(float* to) const { add_up(to, 0, n_); }

 private:
  long n_;
  std::vector<float*> all_;
};

// Work that all threads of a team need before they continue. The threads that
// have arrived share it. The end of an `omp for` would wait for a late thread,
// or for one that the system has suspended, longer than the work takes.
class Preparation {
 public:
  // Return after all n parts are done, by any threads of the team. All threads
  // call this with the same n.
  template <class F>
  void all(long n, F part) {
    for (long i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n;) {
      part(i);
      done_.fetch_add(1, std::memory_order_release);
    }
    while (done_.load(std::memory_order_acquire) < n)
      std::this_thread::yield();
  }

 private:
  std::atomic<long> next_{0}, done_{0};
};

}  // namespace d2lbert
