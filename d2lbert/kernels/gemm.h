// Products of matrices in cache: C = start + A B, tile by tile.
//
// B is packed once into panels of NR columns, with the summed index outermost.
// A is not copied: each of its words multiplies a vector of B. A word is a
// float, or two bfloat16 that are neighbours along the sum. A has one of two
// layouts. In "rows", the words of a row are contiguous. In "columns", the
// words of a column are, so that a transposed matrix needs no copy.
#pragma once
#include "simd.h"
#include <algorithm>
#include <cstdlib>
#include <new>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace d2lbert {

// A tile of C has MR rows of NV vectors, which are NR numbers.
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
inline long padded(long n) { return ceil_div(n, NR) * NR; }

// Scratch memory, which grows and never shrinks; take() returns pieces of it.
// The address sanitizer checks each piece, with a gap after it.
class Scratch {
 public:
  ~Scratch() { std::free(base_); }
  void reset(size_t bytes) {
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
  // Forget all pieces, and reuse their memory.
  void clear() {
    used_ = 0;
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(base_, size_);
#endif
  }
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

// True in a child process after a fork. Only one thread survives a fork, and
// libgomp would wait forever for the other threads of its team.
bool forked();

// The memory of the calling thread, which its whole team uses.
Scratch& team_scratch();

// Element types. words(k): the number of words for k numbers.
struct Fp32 {
  typedef float word;
  static constexpr long EACH = 1;  // numbers in a word
  static long words(long k) { return k; }
};
struct Bf16 {
  typedef uint32_t word;
  static constexpr long EACH = 2;  // numbers in a word
  static long words(long k) { return (k + 1) / 2; }
};

template <class E>
using word = typename E::word;

// A function for one tile: c (m x nv * VL) = start + a b over k words, for a
// packed panel b. With start_ld 0 all rows begin with one row `start`. With
// start = c the product is added to c.
template <class E>
using Tile = void (*)(long k, const word<E>* a, long lda, const word<E>* b,
                      float* c, long ldc, const float* start, long start_ld);

// The functions for nv vectors and m rows, at [nv - 1][m - 1].
template <class E>
struct Tiles {
  static const Tile<E> rows[NV][MR], columns[NV][MR];
};
template <>
const Tile<Fp32> Tiles<Fp32>::rows[NV][MR];
template <>
const Tile<Fp32> Tiles<Fp32>::columns[NV][MR];
template <>
const Tile<Bf16> Tiles<Bf16>::rows[NV][MR];
template <>
const Tile<Bf16> Tiles<Bf16>::columns[NV][MR];

// The summand of the product: zeros, a bias for each column, or C.
enum Start { ZERO, BIAS, ADD };

extern const float zeros[NR];

// Compute one panel of C (m x n, n <= NR). `columns`: the layout of A. `bias`,
// if any, has NR entries.
template <class E>
inline void panel(bool columns, long m, long n, long k, const word<E>* a,
                  long lda, const word<E>* b, float* c, long ldc, Start start,
                  const float* bias = nullptr) {
  const int nv = (int)ceil_div(n, VL);
  const Tile<E>* tiles =
      columns ? Tiles<E>::columns[nv - 1] : Tiles<E>::rows[nv - 1];
  const long step = columns ? MR : MR * lda;
  const float* from = start == BIAS ? bias : zeros;
  for (long i = 0; i < m; i += MR, a += step) {
    const int rows = (int)std::min<long>(MR, m - i);
    float* ci = c + i * ldc;
    if (n == nv * VL) {
      if (start == ADD)
        tiles[rows - 1](k, a, lda, b, ci, ldc, ci, ldc);
      else
        tiles[rows - 1](k, a, lda, b, ci, ldc, from, 0);
    } else {
      float edge[MR * NR];
      if (start == ADD) {
        for (int r = 0; r < rows; r++)
          for (int j = 0; j < nv; j++)
            store(edge + r * NR + j * VL,
                  load(ci + r * ldc + j * VL, n - j * VL));
        tiles[rows - 1](k, a, lda, b, edge, NR, edge, NR);
      } else {
        tiles[rows - 1](k, a, lda, b, edge, NR, from, 0);
      }
      for (int r = 0; r < rows; r++)
        for (int j = 0; j < nv; j++)
          store(ci + r * ldc + j * VL, load(edge + r * NR + j * VL),
                n - j * VL);
    }
  }
}

// Prefetches the memory of the next block during the work on this block. Each
// call of step() prefetches a part, and `steps` calls prefetch all.
class Ahead {
 public:
  explicit Ahead(long steps) : steps_(std::max<long>(1, steps)) {}
  void fetch(const void* from, long bytes) {
    at_[count_] = (const char*)from;
    left_[count_] = bytes;
    each_[count_++] = ceil_div(ceil_div(bytes, steps_), 64) * 64;
  }
  void step() {
    for (int k = 0; k < count_; k++) {
      const long now = std::min(each_[k], left_[k]);
      for (long i = 0; i < now; i += 64)
        __builtin_prefetch(at_[k] + i, 0, 2);
      at_[k] += now;
      left_[k] -= now;
    }
  }

 private:
  long steps_, left_[4], each_[4];
  const char* at_[4];
  int count_ = 0;
};

constexpr long STRIPE = 2 * MR;  // rows of C between two steps of Ahead

inline long stripes(long m, long n) {
  return ceil_div(m, STRIPE) * ceil_div(n, NR);
}

// Compute all panels of C (m x n). b is packed, and the sum has k words.
template <class E>
inline void multiply(bool columns, long m, long n, long k, const word<E>* a,
                     long lda, const word<E>* b, float* c, long ldc,
                     Start start, Ahead* ahead = nullptr,
                     const float* bias = nullptr) {
  const long stripe = ahead ? STRIPE : m;
  for (long j = 0; j < n; j += NR)
    for (long i = 0; i < m; i += stripe) {
      if (ahead) ahead->step();
      panel<E>(columns, std::min(stripe, m - i), std::min<long>(NR, n - j),
               k, a + (columns ? i : i * lda), lda, b + j * k,
               c + i * ldc + j, ldc, start, bias ? bias + j : nullptr);
    }
}

// Pack a panel of B (k x n, n <= NR); zeros fill the last vector.
template <class E>
void pack_panel(const float* b, long ld, long k, long n, word<E>* to);
// Pack the same panel from the transpose of B, b (n x k).
template <class E>
void pack_panel_t(const float* b, long ld, long k, long n, word<E>* to);

// Pack all panels of B (k x n), one after the other. If the rows of B are far
// apart, a pass over WIDE columns takes as long as a pass over one panel. So
// fp32 packs WIDE columns in one pass.
constexpr long WIDE = 128 / NR * NR;
template <class E>
void pack(const float* b, long ld, long k, long n, word<E>* to);

template <class E>
inline void pack_t(const float* b, long ld, long k, long n, word<E>* to) {
  for (long j = 0; j < n; j += NR)
    pack_panel_t<E>(b + j * ld, ld, k, std::min<long>(NR, n - j),
                    to + j * E::words(k));
}

// Return A (m x k) as words in the layout "rows". fp32 needs no copy. ld
// becomes the stride of the copy. `to` has room for m * words(k).
inline const float* as_rows(const float* a, long&, long, long, float*) {
  return a;
}
const uint32_t* as_rows(const float* a, long& ld, long m, long k,
                        uint32_t* to);

// Like `as_rows`, for many passes over A. If the stride is a multiple of 1,024,
// all rows compete for the same lines of the first-level cache, which are fewer
// than the rows of a tile. So the rows are copied, with a stride of FAR_APART
// words more than their length.
constexpr long FAR_APART = 16;
inline const float* near_rows(const float* a, long& ld, long m, long k,
                              float* to) {
  if (ld % 1024) return a;
  for (long i = 0; i < m; i++, a += ld)
    std::copy_n(a, k, to + i * (k + FAR_APART));
  ld = k + FAR_APART;
  return to;
}
inline const uint32_t* near_rows(const float* a, long& ld, long m, long k,
                                 uint32_t* to) {
  return as_rows(a, ld, m, k, to);
}

// Pack A^T, a (k x m), into tiles of MR columns of a, for many passes over
// them. Tile t begins at `to` + t * tile_size(k). Its rows are TILE_LD words
// apart.
constexpr long TILE_LD = (MR + VL - 1) / VL * VL;
template <class E>
inline long tile_size(long k) {
  return E::words(k) * TILE_LD + 16;  // + 16: a power of two is slow
}
template <class E>
void pack_columns(const float* a, long ld, long k, long m, word<E>* to);

// Return A^T, a (k x m), as words in the layout "columns". fp32 needs no copy.
inline const float* as_columns(const float* a, long&, long, long, float*) {
  return a;
}
const uint32_t* as_columns(const float* a, long& ld, long k, long m,
                           uint32_t* to);

// to (m x n, rows ld apart) = start + x w, for x (m x k) and packed w. `room`
// holds x as words, m * words(k).
template <class E>
inline void times(const float* x, long m, long k, word<E>* room,
                  const word<E>* w, long n, float* to, long ld, Start start,
                  Ahead* ahead = nullptr, const float* bias = nullptr) {
  long lda = k;
  const word<E>* a = as_rows(x, lda, m, k, room);
  multiply<E>(false, m, n, E::words(k), a, lda, w, to, ld, start, ahead,
              bias);
}

// to (n x k) += y^T x, for y (m x n) and x (m x k). `turned` holds y as words,
// words(m) * n. `panels` holds packed x, words(m) * padded(k).
template <class E>
inline void add_transposed(const float* y, long n, const float* x, long k,
                           long m, word<E>* turned, word<E>* panels, float* to,
                           Ahead* ahead = nullptr) {
  long lda = n;
  const word<E>* a = as_columns(y, lda, m, n, turned);
  pack<E>(x, k, m, k, panels);
  multiply<E>(true, n, k, E::words(m), a, lda, panels, to, k, ADD, ahead);
}

}  // namespace d2lbert
