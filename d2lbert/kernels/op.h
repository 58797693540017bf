// What every operator file needs of MXNet's extension interface.
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

inline bool wants_bf16(const Attrs& attrs) {
  return text(attrs, "precision", "fp32") == "bf16";
}

inline MXReturnValue fail(const std::string& reason) {
  MX_ERROR_MSG << reason;
  return MX_FAIL;
}

// A function of an operator whose exceptions become its error, since the
// library that calls it cannot tell them.
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

// The types of an operator all of whose arrays hold floats.
inline MXReturnValue all_floats(const Attrs&, std::vector<int>* in,
                                std::vector<int>* out) {
  std::fill(in->begin(), in->end(), kFloat32);
  std::fill(out->begin(), out->end(), kFloat32);
  return MX_SUCCESS;
}

// Gradients of indices, lengths and noise: zero, where asked for at all.
inline void clear(MXTensor& t) {
  if (t.data_ptr) std::memset(t.data_ptr, 0, 4 * t.size());
}

// An index of n: the caller has checked it, and a wrong one still touches no
// memory but the array's.
inline long within(int32_t index, long n) {
  return index < 0 ? 0 : index >= n ? n - 1 : index;
}

// Threads worth waking for this much work (in rough operations). The team
// that comes may be smaller (OMP_THREAD_LIMIT, OMP_DYNAMIC, a region within
// a region): share work by omp_get_num_threads(), never by what was asked.
inline int team(double work) {
  return work < 5e4 || forked() ? 1 : std::max(1, omp_get_max_threads());
}

// Scratch memory of a team's threads, reserved before they begin: an exception
// that leaves a parallel region ends the process.
class Rooms {
 public:
  void reserve(int threads, size_t bytes) {
    while ((int)all_.size() < threads) all_.emplace_back();
    for (int t = 0; t < threads; t++) all_[t].reset(bytes);
  }
  // This thread's own.
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

// True if `reserve` found memory, for what only a team that is there can ask
// for.
template <class F>
bool has_memory(F reserve) {
  try {
    reserve();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// This thread's part of n items: [first, last).
inline void share(long n, int parts, int part, long* first, long* last) {
  *first = n * part / parts;
  *last = n * (part + 1) / parts;
}

// Rows of a block: a multiple of the tile, small enough that `bytes` a row
// stay in `room`, most of half a megabyte of cache; at least `each` blocks a
// thread.
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

// How many blocks of rows a thread takes at a time: of many, two, the first of
// which brings the second's rows near; of few, one, so that none waits long.
inline int at_once(long blocks, int threads) {
  return blocks >= 16 * threads ? 2 : 1;
}

// Memory of threads for what each of them sums, n numbers.
class Sums {
 public:
  static size_t bytes(long n, int threads) { return threads * (4 * n + 64); }
  Sums(Scratch& shared, long n, int threads) : n_(n), all_(threads) {
    for (float*& one : all_) one = shared.take<float>(n);
  }
  // This thread's own.
  float* mine() const { return all_[omp_get_thread_num()]; }
  float* cleared() const {
    std::memset(mine(), 0, 4 * n_);
    return mine();
  }
  // The team's numbers [from, from + n) added up, where somebody asks for
  // them; each thread does a part, and waits for no other.
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

// What all threads of a team need before they go on, done by those that are
// there. The end of an `omp for` would wait for one that comes late, or that
// the system gave another's work meanwhile, for longer than that takes.
class Preparation {
 public:
  // Returns once each of n parts is done, by whichever thread of the team;
  // all of them call this, with the same n.
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
