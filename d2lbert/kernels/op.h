// Helpers for the C++ files that define operators through MXNet's extension
// interface: attributes, inputs, shapes and types, threads and their memory.
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

// The attribute `key` of an operator call, or `fallback` if it is missing.
inline std::string text(const Attrs& attrs, const char* key,
                        const char* fallback) {
  auto found = attrs.find(key);
  return found == attrs.end() ? fallback : found->second;
}

inline double number(const Attrs& attrs, const char* key, double fallback) {
  auto found = attrs.find(key);
  if (found == attrs.end()) return fallback;
  // std::stod would read 0.1 as 0 in a locale that writes 0,1. A C++ stream
  // would take microseconds, and an operator reads several attributes.
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  char* end;
  const double value = strtod_l(found->second.c_str(), &end, c_locale);
  if (end == found->second.c_str())
    throw std::invalid_argument(std::string(key) + " must be a number, not " +
                                found->second);
  return value;
}

// True if the dropout rate is above 0. The operator then has an input with
// random bits: see `Dropout` in simd.h.
inline bool has_dropout(const Attrs& attrs, const char* rate_key = "p") {
  return number(attrs, rate_key, 0) > 0;
}

// Base class for the struct `Inputs` of an operator. Its members are the
// indices of the inputs. Its constructor sets them in the order of the inputs,
// by `next` or `next_n`.
class IndexedInputs {
 public:
  int num_inputs() const { return count_; }

 protected:
  // The index of the next input, or -1 if this call has no such input.
  int next(bool exists = true) { return next_n(exists ? 1 : 0); }
  // The index of the first of the next n inputs, or -1 if n is 0.
  int next_n(int n) {
    count_ += n;
    return n ? count_ - n : -1;
  }

 private:
  int count_ = 0;
};

// The arrays that MXNet passes to a backward function: the gradients of the
// outputs, then the inputs, then the outputs of the forward pass.
struct BackwardArrays {
  MXTensor *gradients, *inputs, *outputs;
  BackwardArrays(Tensors& all, int num_outputs)
      : gradients(all.data()), inputs(gradients + num_outputs),
        outputs(all.data() + all.size() - num_outputs) {}
};

inline bool wants_bf16(const Attrs& attrs) {
  return text(attrs, "precision", "fp32") == "bf16";
}

// Return MX_FAIL, with a message that MXNet raises as an error in Python.
inline MXReturnValue fail(const std::string& reason) {
  MX_ERROR_MSG << reason;
  return MX_FAIL;
}

// Return run(). An exception becomes an error of the operator, because MXNet
// cannot catch exceptions of an extension.
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

// Caught<run>::call is `run` within `caught`, as a plain function for MXNet.
template <auto run>
struct Caught;
template <class... A, MXReturnValue (*run)(A...)>
struct Caught<run> {
  static MXReturnValue call(A... arguments) {
    return caught([&] { return run(arguments...); });
  }
};

constexpr const char* BF16_ERROR =
    "precision 'bf16' needs a CPU with AVX-512 BF16 instructions";

inline float* floats(MXTensor& t) { return t.data<float>(); }
inline int32_t* ints(MXTensor& t) { return t.data<int32_t>(); }

// An attribute parser (MXNet's term): give MXNet the numbers of inputs and
// outputs. Inputs: a subclass of IndexedInputs.
template <class Inputs, int num_outputs = 1>
MXReturnValue count_inputs(const Attrs& attrs, int* num_in, int* num_out) {
  *num_in = Inputs(attrs).num_inputs();
  *num_out = num_outputs;
  return MX_SUCCESS;
}

// An attribute parser for numbers that do not depend on the attributes.
template <int num_inputs, int num_outputs>
MXReturnValue fixed_counts(const Attrs&, int* num_in, int* num_out) {
  *num_in = num_inputs;
  *num_out = num_outputs;
  return MX_SUCCESS;
}

// Type inference: all arrays are float32.
inline MXReturnValue all_floats(const Attrs&, std::vector<int>* in,
                                std::vector<int>* out) {
  std::fill(in->begin(), in->end(), kFloat32);
  std::fill(out->begin(), out->end(), kFloat32);
  return MX_SUCCESS;
}

// Type inference: all arrays are float32, except `count` inputs from number
// `first` on, which are int32.
template <int first, int count = 1>
MXReturnValue floats_except(const Attrs& attrs, std::vector<int>* in,
                            std::vector<int>* out) {
  all_floats(attrs, in, out);
  std::fill_n(in->begin() + first, count, kInt32);
  return MX_SUCCESS;
}

// Type inference: all arrays are float32, except the inputs `offsets` and
// `lens`, which are int32.
template <class Inputs>
MXReturnValue floats_except_lens(const Attrs& attrs, std::vector<int>* in,
                                 std::vector<int>* out) {
  const Inputs at(attrs);
  all_floats(attrs, in, out);
  (*in)[at.offsets] = (*in)[at.lens] = kInt32;
  return MX_SUCCESS;
}

// Set the gradient of an input that needs none, such as indices and random
// bits, to zero. Elements must have 4 bytes.
inline void zero_gradient(MXTensor& gradient) {
  if (gradient.data_ptr)
    std::memset(gradient.data_ptr, 0, 4 * gradient.size());
}

// The index, clipped to [0, n), for n > 0. Python checks the indices before. If
// it misses a wrong index, clipping still keeps the access inside the array.
inline long clipped(int32_t index, long n) {
  if (index < 0) return 0;
  return index < n ? index : n - 1;
}

// The number of threads to request for a parallel region. work: a rough number
// of operations; for few, starting threads would take longer than the work.
// After a fork, OpenMP would hang (fork.h). OpenMP may start fewer threads
// (OMP_THREAD_LIMIT, OMP_DYNAMIC, nested regions). So divide work by
// omp_get_num_threads(), never by the result of `team`.
inline int team(double work) {
  if (work < 5e4 || is_after_fork()) return 1;
  return std::max(1, omp_get_max_threads());
}

// Scratch memory for each thread of a team. Reserve it before the parallel
// region: an exception that leaves the region would end the process.
class ThreadScratch {
 public:
  // Reserve `bytes` for each thread, and forget the arrays of the last call.
  void reserve(int threads, size_t bytes) {
    while ((int)all_.size() < threads) all_.emplace_back();
    for (int t = 0; t < threads; t++) all_[t].reset(bytes);
  }
  Scratch& mine() { return all_[omp_get_thread_num()]; }

 private:
  std::deque<Scratch> all_;
};

// The scratch memory for all teams that the calling thread starts, one after
// the other. Call this before the parallel region: inside, the other threads
// would get other memory. (The threads of a team share `team_scratch`.)
inline ThreadScratch& thread_scratch() {
  static thread_local ThreadScratch scratch;
  return scratch;
}

// The same memory, after reserving `bytes` for each thread.
inline ThreadScratch& thread_scratch(int threads, size_t bytes) {
  thread_scratch().reserve(threads, bytes);
  return thread_scratch();
}

// Call `reserve`, and return false if memory runs out. Use this inside a
// parallel region, if the size depends on omp_get_num_threads().
template <class F>
bool try_reserve(F reserve) {
  try {
    reserve();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Divide n items into nearly equal parts: part number `part` is [*first, *end).
inline void share(long n, int parts, int part, long* first, long* end) {
  *first = n * part / parts;
  *end = n * (part + 1) / parts;
}

// The number of rows in a block: a multiple of MR (the rows of a tile in
// gemm.h), at most 16 * MR. Except for rounding up, a block fits into
// cache_bytes, and each thread gets at least blocks_per_thread blocks.
inline long block_rows(long rows, int threads, long blocks_per_thread,
                       double row_bytes, double cache_bytes = 200e3) {
  const long rows_in_cache = (long)(cache_bytes / std::max(row_bytes, 1.0));
  const long wanted_rows = std::min<long>(
      ceil_div(rows, blocks_per_thread * threads), rows_in_cache);
  const long tiles = std::min<long>(ceil_div(wanted_rows, MR), 16);
  return std::max<long>(1, tiles) * MR;
}

// Add the m rows of x (m x n) to sum (n,). The rows begin ld numbers apart.
inline void add_rows_to(float* sum, const float* x, long ld, long m, long n) {
  for (long r = 0; r < m; r++)
    for (long j = 0; j < n; j += VL)
      store(sum + j, load(sum + j, n - j) + load(x + r * ld + j, n - j),
            n - j);
}

inline void add_row_to(float* sum, const float* x, long n) {
  add_rows_to(sum, x, n, 1, n);
}

// The chunk size for `omp for schedule(dynamic)`: 2 for many blocks, because
// the work on one block prefetches the next; 1 for few, to balance the threads.
inline int chunk_size(long blocks, int threads) {
  return blocks >= 16 * threads ? 2 : 1;
}

// An array of n partial sums for each thread.
class Sums {
 public:
  // Scratch memory for the constructor, with 64 bytes to align each array.
  static size_t bytes(long n, int threads) { return threads * (4 * n + 64); }
  Sums(Scratch& shared, long n, int threads) : n_(n), arrays_(threads) {
    for (float*& array : arrays_) array = shared.take<float>(n);
  }
  float* mine() const { return arrays_[omp_get_thread_num()]; }
  // The array of this thread, filled with zeros.
  float* cleared() const {
    std::memset(mine(), 0, 4 * n_);
    return mine();
  }
  // Write the sums of elements [from, from + n) over the threads to `result`.
  // All threads of the team must call this function, after a barrier. Each
  // thread computes some of the sums, and does not wait for the other threads.
  void add_up(float* result, long from, long n) const {
    if (!result) return;
    const int team_size = omp_get_num_threads();
#pragma omp for schedule(static) nowait
    for (long j = 0; j < n; j += VL) {
      vf total = load(arrays_[0] + from + j, n - j);
      for (int q = 1; q < team_size; q++)
        total += load(arrays_[q] + from + j, n - j);
      store(result + j, total, n - j);
    }
  }
  void add_up(float* result) const { add_up(result, 0, n_); }

 private:
  long n_;
  std::vector<float*> arrays_;
};

// Work that a team must complete before any of its threads continues. `omp for`
// would wait for a late or suspended thread. Here each thread takes the next
// free part, so a late thread finds nothing left to do.
class SharedWork {
 public:
  // Call do_part(i) once for each i from 0 to n - 1, in any thread of the team,
  // and return after all these calls. Each thread must call `complete` exactly
  // once, with the same n.
  template <class F>
  void complete(long n, F do_part) {
    for (long i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n;) {
      do_part(i);
      done_.fetch_add(1, std::memory_order_release);
    }
    while (done_.load(std::memory_order_acquire) < n)
      std::this_thread::yield();
  }

 private:
  std::atomic<long> next_{0}, done_{0};
};

}  // namespace d2lbert
