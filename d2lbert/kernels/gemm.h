// This file computes matrix products C = start + A B by vector instructions,
// for matrices that fit in cache.
//
// C is computed tile by tile: a tile is a block of C that fits in registers
// (amx.h has other tiles). B is packed once into panels of NR columns, the
// width of a tile. A panel stores its rows one after the other.
//
// A and B consist of words of 32 bits. In fp32 a word is a float. In bf16 a
// word is two bfloat16 numbers, neighbours in a row of A or in a column of B. A
// has one of two layouts: in "rows", the words of a row are contiguous; in
// "columns", the words of a column are. So fp32 multiplies a matrix or its
// transpose without a copy.
#pragma once
#include "simd.h"
#include <algorithm>
#include <cstdlib>
#include <new>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace d2lbert {

// A tile has MR rows of NV vectors of VL numbers.
#if defined(__AVX512F__)
constexpr int MR = 14, NV = 2;  // 28 of 32 registers accumulate
#elif defined(__AVX__)
constexpr int MR = 6, NV = 2;
#elif defined(__aarch64__)
constexpr int MR = 8, NV = 3;
#else
constexpr int MR = 4, NV = 2;
#endif
constexpr int NR = NV * VL;

inline long ceil_div(long a, long b) { return (a + b - 1) / b; }
// n (columns) rounded up to whole panels.
inline long padded(long n) { return ceil_div(n, NR) * NR; }

// Scratch memory, which grows and never shrinks. The address sanitizer reports
// accesses to the gap after each array.
class Scratch {
 public:
  ~Scratch() { std::free(base_); }
  // Forget all arrays, and reserve at least `bytes` of memory for new arrays.
  void reset(size_t bytes) {
    // Room for 64 arrays: take() rounds up each size and adds a gap
    bytes += 4096 + GAP * 1024;
    if (bytes > size_) {
      std::free(base_);
      base_ = nullptr;
      size_ = 0;
      void* p = nullptr;
      if (posix_memalign(&p, 64, bytes)) throw std::bad_alloc();
      base_ = (char*)p;
      size_ = bytes;
    }
    clear();
  }
  // Forget all arrays, and reuse their memory.
  void clear() {
    used_ = 0;
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(base_, size_);
#endif
  }
  // Return an array of n elements, aligned to 64 bytes, of the reserved memory.
  template <class T>
  T* take(long n) {
    T* p = (T*)(base_ + used_);
    used_ += (n * sizeof(T) + 63) / 64 * 64 + GAP;
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(p, n * sizeof(T));
#endif
    return p;
  }

 private:
#ifdef __SANITIZE_ADDRESS__
  static constexpr size_t GAP = 64;
#else
  static constexpr size_t GAP = 0;
#endif
  char* base_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

// True in a child process, for the thread that called fork (see fork.h).
bool is_after_fork();

// Scratch memory of the calling thread, for arrays that its OpenMP team shares.
Scratch& team_scratch();

// The precision of a product, the argument E of templates.
struct Fp32 {
  typedef float word;
  static constexpr long PER_WORD = 1;  // numbers per word
  static long words(long k) { return k; }
};
struct Bf16 {
  typedef uint32_t word;
  static constexpr long PER_WORD = 2;  // numbers per word
  static long words(long k) { return (k + 1) / 2; }
};

template <class E>
using word = typename E::word;

// A function that computes one tile, c = start + a b, where b is a packed
// panel, and a row of a has k words. The leading dimensions are lda, in words,
// ldc and start_ld. If start_ld is 0, `start` is one row for all rows of the
// tile. If `start` is c, the product is added to c.
template <class E>
using MicroKernel = void (*)(long k, const word<E>* a, long lda,
                             const word<E>* b, float* c, long ldc,
                             const float* start, long start_ld);

// Micro-kernels for both layouts of A. Element [nv - 1][m - 1] computes a tile
// of m rows of nv vectors.
template <class E>
struct MicroKernels {
  static const MicroKernel<E> rows[NV][MR], columns[NV][MR];
};
template <>
const MicroKernel<Fp32> MicroKernels<Fp32>::rows[NV][MR];
template <>
const MicroKernel<Fp32> MicroKernels<Fp32>::columns[NV][MR];
template <>
const MicroKernel<Bf16> MicroKernels<Bf16>::rows[NV][MR];
template <>
const MicroKernel<Bf16> MicroKernels<Bf16>::columns[NV][MR];

// The `start` of a product: zeros, a bias for each column, or the previous C.
enum Start { ZERO, BIAS, ADD };

extern const float zeros[NR];

// Compute C (m x n) for b, a panel of B that has n <= NR columns. by_columns:
// true if A has the layout "columns". bias: NR numbers, if start is BIAS. The
// other arguments are as for `MicroKernel`.
template <class E>
inline void multiply_panel(bool by_columns, long m, long n, long k,
                           const word<E>* a, long lda, const word<E>* b,
                           float* c, long ldc, Start start,
                           const float* bias = nullptr) {
  const int nv = (int)ceil_div(n, VL);
  const MicroKernel<E>* kernels = (
      by_columns ? MicroKernels<E>::columns : MicroKernels<E>::rows)[nv - 1];
  const long a_step = by_columns ? MR : MR * lda;  // to the next MR rows of A
  const float* start_row = start == BIAS ? bias : zeros;
  for (long i = 0; i < m; i += MR, a += a_step) {
    const int num_rows = (int)std::min<long>(MR, m - i);
    float* c_tile = c + i * ldc;
    if (n == nv * VL) {
      if (start == ADD)
        kernels[num_rows - 1](k, a, lda, b, c_tile, ldc, c_tile, ldc);
      else
        kernels[num_rows - 1](k, a, lda, b, c_tile, ldc, start_row, 0);
    } else {
      float edge[MR * NR];  // the tile, with room for whole vectors
      if (start == ADD) {
        for (int r = 0; r < num_rows; r++)
          for (int j = 0; j < nv; j++)
            store(edge + r * NR + j * VL,
                  load(c_tile + r * ldc + j * VL, n - j * VL));
        kernels[num_rows - 1](k, a, lda, b, edge, NR, edge, NR);
      } else {
        kernels[num_rows - 1](k, a, lda, b, edge, NR, start_row, 0);
      }
      for (int r = 0; r < num_rows; r++)
        for (int j = 0; j < nv; j++)
          store(c_tile + r * ldc + j * VL, load(edge + r * NR + j * VL),
                n - j * VL);
    }
  }
}

// Prefetches up to four ranges of memory between parts of other work. Each call
// of step() prefetches a part of every range, and `steps` calls prefetch all.
class Prefetcher {
 public:
  explicit Prefetcher(long steps) : steps_(std::max<long>(1, steps)) {}
  void add(const void* from, long bytes) {
    next_[num_ranges_] = (const char*)from;
    bytes_left_[num_ranges_] = bytes;
    step_bytes_[num_ranges_++] = ceil_div(ceil_div(bytes, steps_), 64) * 64;
  }
  void step() {
    for (int k = 0; k < num_ranges_; k++) {
      const long bytes = std::min(step_bytes_[k], bytes_left_[k]);
      for (long i = 0; i < bytes; i += 64)
        __builtin_prefetch(next_[k] + i, 0, 2);
      next_[k] += bytes;
      bytes_left_[k] -= bytes;
    }
  }

 private:
  long steps_, bytes_left_[4], step_bytes_[4];
  const char* next_[4];
  int num_ranges_ = 0;
};

constexpr long STRIPE = 2 * MR;  // rows of C between two calls of step()

// The number of calls of step() by `multiply`, whose C is (m x n).
inline long num_stripes(long m, long n) {
  return ceil_div(m, STRIPE) * ceil_div(n, NR);
}

// Like `multiply_panel`, but b has all panels of B, and bias padded(n) numbers.
// ahead: prefetches other memory meanwhile; may be null.
template <class E>
inline void multiply(bool by_columns, long m, long n, long k,
                     const word<E>* a, long lda, const word<E>* b, float* c,
                     long ldc, Start start, Prefetcher* ahead = nullptr,
                     const float* bias = nullptr) {
  const long stripe = ahead ? STRIPE : m;
  for (long j = 0; j < n; j += NR)
    for (long i = 0; i < m; i += stripe) {
      if (ahead) ahead->step();
      multiply_panel<E>(by_columns, std::min(stripe, m - i),
                        std::min<long>(NR, n - j), k,
                        a + (by_columns ? i : i * lda), lda, b + j * k,
                        c + i * ldc + j, ldc, start,
                        bias ? bias + j : nullptr);
    }
}

// Pack b (k x n floats), n <= NR columns of B, as one panel. The rows of b are
// ld floats apart. Zeros complete the ceil_div(n, VL) vectors of a row.
template <class E>
void pack_panel(const float* b, long ld, long k, long n, word<E>* to);
// The same, from the transpose, b (n x k).
template <class E>
void pack_panel_t(const float* b, long ld, long k, long n, word<E>* to);

// Pack B, b (k x n), as panels, one after the other. fp32 packs PACK_COLUMNS
// columns, which are whole panels, in one pass over the rows: if rows are far
// apart, the pass takes as long for several panels as for one.
constexpr long PACK_COLUMNS = 128 / NR * NR;
template <class E>
void pack(const float* b, long ld, long k, long n, word<E>* to);

// Pack B as panels from its transpose, b (n x k).
template <class E>
inline void pack_t(const float* b, long ld, long k, long n, word<E>* to) {
  for (long j = 0; j < n; j += NR)
    pack_panel_t<E>(b + j * ld, ld, k, std::min<long>(NR, n - j),
                    to + j * E::words(k));
}

// Return the words of A, a (m x k), in the layout "rows". ld: the leading
// dimension of a, then of the result. fp32 returns a. bf16 writes m * words(k)
// words to `to`.
inline const float* as_rows(const float* a, long&, long, long, float*) {
  return a;
}
const uint32_t* as_rows(const float* a, long& ld, long m, long k,
                        uint32_t* to);

// Like `as_rows`, for a matrix that is read many times. If rows are a multiple
// of 4 KiB apart, all rows of a tile map to one set of the first-level cache,
// which has 8 or 12 ways. So fp32 copies such rows, too, with ROW_GAP unused
// words after each.
constexpr long ROW_GAP = 16;
inline const float* conflict_free_rows(const float* a, long& ld, long m,
                                       long k, float* to) {
  if (ld % 1024) return a;
  for (long i = 0; i < m; i++, a += ld)
    std::copy_n(a, k, to + i * (k + ROW_GAP));
  ld = k + ROW_GAP;
  return to;
}
inline const uint32_t* conflict_free_rows(const float* a, long& ld, long m,
                                          long k, uint32_t* to) {
  return as_rows(a, ld, m, k, to);
}

// Pack A = a^T, a (k x m), for many passes over A. Each MR rows of A become a
// block of column_block_words(k) words in the layout "columns". Its columns
// begin TILE_LD words apart.
constexpr long TILE_LD = (MR + VL - 1) / VL * VL;
template <class E>
inline long column_block_words(long k) {
  // + 16: blocks a power of two apart would compete for the same cache sets
  return E::words(k) * TILE_LD + 16;
}
template <class E>
void pack_column_blocks(const float* a, long ld, long k, long m, word<E>* to);

// Like `as_rows`, for A = a^T, a (k x m), and the layout "columns". bf16 writes
// words(k) * m words.
inline const float* as_columns(const float* a, long&, long, long, float*) {
  return a;
}
const uint32_t* as_columns(const float* a, long& ld, long k, long m,
                           uint32_t* to);

// c (m x n) = start + x B, for contiguous x (m x k) and b, the panels of B.
// x_words: scratch memory of m * words(k) words.
template <class E>
inline void multiply_rows(const float* x, long m, long k, word<E>* x_words,
                          const word<E>* b, long n, float* c, long ldc,
                          Start start, Prefetcher* ahead = nullptr,
                          const float* bias = nullptr) {
  long lda = k;
  const word<E>* a = as_rows(x, lda, m, k, x_words);
  multiply<E>(false, m, n, E::words(k), a, lda, b, c, ldc, start, ahead,
              bias);
}

// c (n x k) += y^T x, for y (m x n) and x (m x k). Scratch memory: y_words has
// words(m) * n words, x_panels has words(m) * padded(k) words.
template <class E>
inline void add_transposed(const float* y, long n, const float* x, long k,
                           long m, word<E>* y_words, word<E>* x_panels,
                           float* c, Prefetcher* ahead = nullptr) {
  long lda = n;
  const word<E>* a = as_columns(y, lda, m, n, y_words);
  pack<E>(x, k, m, k, x_panels);
  multiply<E>(true, n, k, E::words(m), a, lda, x_panels, c, k, ADD, ahead);
}

}  // namespace d2lbert
