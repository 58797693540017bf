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
  // std::stod would read 0.1 as 0 in a locale that writes 0,1. A C++ stream
  // takes microseconds, and an operator reads several attributes.
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  char* end;
  const double value = strtod_l(found->second.c_str(), &end, plain);
  if (end == found->second.c_str())
    throw std::invalid_argument(std::string(key) + " is no number: " +
                                found->second);
  return value;
}

// True if the attribute `rate`, a dropout rate, is above 0. The operator then
// has an input with random bits, the `noise` of `Dropout`.
inline bool drops(const Attrs& attrs, const char* rate = "p") {
  return number(attrs, rate, 0) > 0;
}

// Base class of the `Inputs` of an operator: constants with the index of each
// input. `next` or `several` initializes each constant, in input order.
class Numbered {
 public:
  int count() const { return count_; }

 protected:
  // The index of the next input, or of the first of the next n. -1 if the
  // operator is called without them.
  int next(bool exists = true) { return several(exists ? 1 : 0); }
  int several(int n) {
    count_ += n;
    return n ? count_ - n : -1;
  }

 private:
  int count_ = 0;
};

// The arrays that MXNet passes to a backward function: the gradients of the
// outputs, the inputs and the outputs, in this order.
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

// Attribute parser of an operator whose `Inputs` count the inputs.
template <class Inputs, int num_outputs = 1>
MXReturnValue numbered(const Attrs& attrs, int* inputs, int* outputs) {
  *inputs = Inputs(attrs).count();
  *outputs = num_outputs;
  return MX_SUCCESS;
}

// Attribute parser of an operator with a constant number of inputs.
template <int num_inputs, int num_outputs>
MXReturnValue constant(const Attrs&, int* inputs, int* outputs) {
  *inputs = num_inputs;
  *outputs = num_outputs;
  return MX_SUCCESS;
}

// Type inference for an operator with float arrays only.
inline MXReturnValue all_floats(const Attrs&, std::vector<int>* in,
                                std::vector<int>* out) {
  std::fill(in->begin(), in->end(), kFloat32);
  std::fill(out->begin(), out->end(), kFloat32);
  return MX_SUCCESS;
}

// Type inference for an operator with float arrays, except `offsets` and
// `lens` of sequences, which are int32.
template <class Inputs>
MXReturnValue rows_and_floats(const Attrs& attrs, std::vector<int>* in,
                              std::vector<int>* out) {
  const Inputs at(attrs);
  all_floats(attrs, in, out);
  (*in)[at.offsets] = (*in)[at.lens] = kInt32;
  return MX_SUCCESS;
}

// Set the gradient of an input to zero, if it has memory. For indices, lengths
// and noise, through which no gradient flows.
inline void clear(MXTensor& t) {
  if (t.data_ptr) std::memset(t.data_ptr, 0, 4 * t.size());
}

// The index, clipped to [0, n). Callers check indices before, and clipping
// keeps one that they missed inside the array.
inline long clipped(int32_t index, long n) {
  return index < 0 ? 0 : index >= n ? n - 1 : index;
}

// The number of threads to request. work: a rough number of operations. The
// team may be smaller (OMP_THREAD_LIMIT, OMP_DYNAMIC, nested regions). So
// divide work by omp_get_num_threads(), never by this number.
inline int team(double work) {
  return work < 5e4 || forked() ? 1 : std::max(1, omp_get_max_threads());
}

// Scratch memory for each thread of a team. It is reserved before the parallel
// region, because an exception that leaves the region ends the process.
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

// The rooms of the teams that the calling thread leads.
inline Rooms& team_rooms() {
  static thread_local Rooms rooms;
  return rooms;
}

inline Rooms& team_rooms(int threads, size_t bytes) {
  team_rooms().reserve(threads, bytes);
  return team_rooms();
}

// False if `reserve` ran out of memory. For memory whose size depends on the
// real size of the team, so that a parallel region has to reserve it.
template <class F>
bool has_memory(F reserve) {
  try {
    reserve();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Divide n items into equal parts; items [first, last) are in this part.
inline void share(long n, int parts, int part, long* first, long* last) {
  *first = n * part / parts;
  *last = n * (part + 1) / parts;
}

// The number of rows in a block: a multiple of MR, the rows of a tile. A block
// of `bytes` a row fits in `room` bytes of cache, and each thread gets at least
// `each` blocks. One tile is the minimum, 16 are the maximum.
inline long block_rows(long rows, int threads, long each, double bytes,
                       double room = 200e3) {
  const long block = std::min<long>(ceil_div(rows, each * threads),
                                    (long)(room / std::max(bytes, 1.0)));
  return std::max<long>(1, std::min<long>(ceil_div(block, MR), 16)) * MR;
}

// to (n,) += each of the m rows x (m x n), which are ld numbers apart.
inline void add_rows_to(float* to, const float* x, long ld, long m, long n) {
  for (long r = 0; r < m; r++)
    for (long j = 0; j < n; j += VL)
      store(to + j, load(to + j, n - j) + load(x + r * ld + j, n - j), n - j);
}

// to (n,) += x (n,).
inline void add_row_to(float* to, const float* x, long n) {
  add_rows_to(to, x, n, 1, n);
}

// The number of blocks that a thread takes at a time. Two if there are many:
// work on the first prefetches the rows of the second. One if there are few,
// so that no thread waits long.
inline int at_once(long blocks, int threads) {
  return blocks >= 16 * threads ? 2 : 1;
}

// An array of n partial sums for each thread.
class Sums {
 public:
  static size_t bytes(long n, int threads) { return threads * (4 * n + 64); }
  Sums(Scratch& shared, long n, int threads) : n_(n), all_(threads) {
    for (float*& one : all_) one = shared.take<float>(n);
  }
  // The array of this thread.
  float* mine() const { return all_[omp_get_thread_num()]; }
  float* cleared() const {
    std::memset(mine(), 0, 4 * n_);
    return mine();
  }
  // to (n,) = the elements [from, from + n), summed over the threads. `to` may
  // be null. All threads call it. Each computes a part of `to`, and does not
  // wait for the others.
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

// Work that must be complete before any thread of a team continues. The threads
// that have arrived share it. The end of an `omp for` would instead wait for a
// late or suspended thread, longer than the work takes.
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
