// The micro-kernels ("tiles") and packing functions of gemm.h.
#include "gemm.h"

#include <pthread.h>

namespace d2lbert {

const float zeros[NR] = {};

namespace {

// True for the thread that called fork, in the child process.
thread_local bool is_after_fork = false;
const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { is_after_fork = true; });

}  // namespace

bool forked() { return is_after_fork; }

Scratch& team_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

namespace {

inline void multiply_add(vf& c, float a, vf b) { c = fused(a, b, c); }
inline vf load_word(const float* b) { return load(b); }

#if D2LBERT_BF16
inline void multiply_add(vf& c, uint32_t a, vu b) {
  c = (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)_mm512_set1_epi32((int)a),
                           (__m512bh)b);
}
inline vu load_word(const uint32_t* b) { return load<vu>(b); }
#endif

// A `Tile` of M rows and N vectors, in the layout "columns" or "rows" of A.
template <class E, bool COLUMNS, int M, int N>
void tile(long k, const word<E>* a, long lda, const word<E>* b, float* c,
          long ldc, const float* start, long start_ld) {
  vf sums[M][N];
#pragma GCC unroll 14
  for (int i = 0; i < M; i++)
#pragma GCC unroll 3
    for (int j = 0; j < N; j++)
      sums[i][j] = load(start + i * start_ld + j * VL);
#if defined(__AVX__) && !defined(__AVX512F__)
#pragma GCC unroll 2  // a step has only twelve products
#endif
  for (; k; k--, b += NR, a += COLUMNS ? lda : 1) {
    decltype(load_word(b)) row[N];
#pragma GCC unroll 3
    for (int j = 0; j < N; j++) row[j] = load_word(b + j * VL);
#pragma GCC unroll 14
    for (int i = 0; i < M; i++) {
      const word<E> one = COLUMNS ? a[i] : a[i * lda];
#pragma GCC unroll 3
      for (int j = 0; j < N; j++) multiply_add(sums[i][j], one, row[j]);
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < M; i++)
#pragma GCC unroll 3
    for (int j = 0; j < N; j++) store(c + i * ldc + j * VL, sums[i][j]);
}

}  // namespace

// The tables of tiles of 1 to MR rows.
#define D2LBERT_M4(E, C, M, N)                                   \
  tile<E, C, M, N>, tile<E, C, M + 1, N>, tile<E, C, M + 2, N>,  \
      tile<E, C, M + 3, N>
#if defined(__AVX512F__)
#define D2LBERT_M(E, C, N)                                               \
  D2LBERT_M4(E, C, 1, N), D2LBERT_M4(E, C, 5, N), D2LBERT_M4(E, C, 9, N), \
      tile<E, C, 13, N>, tile<E, C, 14, N>
#elif defined(__AVX__)
#define D2LBERT_M(E, C, N) \
  D2LBERT_M4(E, C, 1, N), tile<E, C, 5, N>, tile<E, C, 6, N>
#elif defined(__aarch64__)
#define D2LBERT_M(E, C, N) D2LBERT_M4(E, C, 1, N), D2LBERT_M4(E, C, 5, N)
#else
#define D2LBERT_M(E, C, N) D2LBERT_M4(E, C, 1, N)
#endif
#if defined(__aarch64__)
#define D2LBERT_TILES(E, C) \
  {{D2LBERT_M(E, C, 1)}, {D2LBERT_M(E, C, 2)}, {D2LBERT_M(E, C, 3)}}
#else
#define D2LBERT_TILES(E, C) {{D2LBERT_M(E, C, 1)}, {D2LBERT_M(E, C, 2)}}
#endif

template <>
const Tile<Fp32> Tiles<Fp32>::rows[NV][MR] = D2LBERT_TILES(Fp32, false);
template <>
const Tile<Fp32> Tiles<Fp32>::columns[NV][MR] = D2LBERT_TILES(Fp32, true);
#if D2LBERT_BF16
template <>
const Tile<Bf16> Tiles<Bf16>::rows[NV][MR] = D2LBERT_TILES(Bf16, false);
template <>
const Tile<Bf16> Tiles<Bf16>::columns[NV][MR] = D2LBERT_TILES(Bf16, true);
#endif

namespace {

constexpr long AHEAD = 12;  // rows to prefetch before they are packed

// Pack panels of `columns` columns of B in one pass over its rows.
template <long columns>
inline void pack_whole(const float* b, long ld, long k, float* to) {
  for (long i = 0; i < k; i++, b += ld, to += NR) {
    // The hardware prefetcher does not follow such strides
    for (long j = 0; j < columns; j += 16)
      __builtin_prefetch(b + AHEAD * ld + j);
    for (long j = 0; j < columns; j += NR)
#pragma GCC unroll 3
      for (long v = 0; v < NR; v += VL)
        store(to + j * k + v, load(b + j + v));
  }
}

}  // namespace

template <>
void pack_panel<Fp32>(const float* b, long ld, long k, long n, float* to) {
  if (n == NR) return pack_whole<NR>(b, ld, k, to);
  for (long i = 0; i < k; i++, b += ld, to += NR)
    for (int j = 0; j * VL < n; j++)
      store(to + j * VL, load(b + j * VL, n - j * VL));
}

template <>
void pack<Fp32>(const float* b, long ld, long k, long n, float* to) {
  for (; n >= WIDE; n -= WIDE, b += WIDE, to += WIDE * k)
    pack_whole<WIDE>(b, ld, k, to);
  for (long j = 0; j < n; j += NR)
    pack_panel<Fp32>(b + j, ld, k, std::min<long>(NR, n - j), to + j * k);
}

template <>
void pack_columns<Fp32>(const float* a, long ld, long k, long m, float* to) {
  for (long i = 0; i < k; i++, a += ld, to += TILE_LD) {
    for (long j = 0; j < m; j += 16) __builtin_prefetch(a + AHEAD * ld + j);
    float* tile = to;
    for (long j = 0; j < m; j += MR, tile += tile_size<Fp32>(k))
      for (long v = 0; v < std::min<long>(MR, m - j); v += VL)
        store(tile + v, load(a + j + v, m - j - v));
  }
}

namespace {

// Pack VL columns of a panel from VL rows of words. Only n rows exist; zeros
// replace the others. `copy` holds ends of rows, shorter than a vector.
inline void turn(const uint32_t* b, long ld, long n, long words,
                 uint32_t* to) {
  const uint32_t* row[VL];
  uint32_t block[VL * VL], copy[VL * VL];
  for (long i = 0; i < words; i += VL) {
    const long left = std::min<long>(VL, words - i);
    for (int r = 0; r < VL; r++) {
      row[r] = r < n ? b + r * ld + i : (const uint32_t*)zeros;
      if (left < VL && r < n) {
        store(copy + r * VL, load<vu>(row[r], left));
        row[r] = copy + r * VL;
      }
    }
    if (left == VL) {
      transpose(row, to + i * NR, NR);
      continue;
    }
    transpose(row, block, VL);
    for (long r = 0; r < left; r++)
      store(to + (i + r) * NR, load<vu>(block + r * VL));
  }
}

}  // namespace

template <>
void pack_panel_t<Fp32>(const float* b, long ld, long k, long n, float* to) {
  for (int j = 0; j * VL < n; j++)
    turn((const uint32_t*)b + j * VL * ld, ld, n - j * VL, k,
         (uint32_t*)to + j * VL);
}

#if D2LBERT_BF16
namespace {

// Pairs (x0 x1) (x2 x3) ... of up to 32 neighbours in one row.
inline vu pairs(const float* x, long n) {
  const vf first = load(x, n);
  const vf second = n > VL ? load(x + VL, n - VL) : vf{};
  return (vu)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

// Pairs (x_i, y_i) of two rows.
inline vu pairs(vf x, vf y) {
  typedef uint16_t halves __attribute__((vector_size(4 * VL)));
  const halves order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,
                        21, 6, 22, 7, 23, 8,  24, 9,  25, 10, 26,
                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const halves both = (halves)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
#ifdef __clang__
  return (vu)_mm512_permutexvar_epi16((__m512i)order, (__m512i)both);
#else
  return (vu)__builtin_shuffle(both, order);
#endif
}

inline vu pairs(const float* x, const float* y, long n) {
  return pairs(load(x, n), y ? load(y, n) : vf{});
}

}  // namespace

template <>
void pack_panel<Bf16>(const float* b, long ld, long k, long n,
                      uint32_t* to) {
  for (long i = 0; i < k; i += 2, b += 2 * ld, to += NR)
    for (int j = 0; j * VL < n; j++)
      store(to + j * VL, pairs(b + j * VL,
                               i + 1 < k ? b + ld + j * VL : nullptr,
                               n - j * VL));
}

template <>
void pack<Bf16>(const float* b, long ld, long k, long n, uint32_t* to) {
  for (long j = 0; j < n; j += NR)
    pack_panel<Bf16>(b + j, ld, k, std::min<long>(NR, n - j),
                     to + j * Bf16::words(k));
}

template <>
void pack_columns<Bf16>(const float* a, long ld, long k, long m,
                        uint32_t* to) {
  for (long i = 0; i < k; i += 2, a += 2 * ld, to += TILE_LD) {
    uint32_t* tile = to;
    for (long j = 0; j < m; j += MR, tile += tile_size<Bf16>(k))
      store(tile, pairs(a + j, i + 1 < k ? a + ld + j : nullptr, m - j));
  }
}

template <>
void pack_panel_t<Bf16>(const float* b, long ld, long k, long n,
                        uint32_t* to) {
  uint32_t rows[VL * 4 * VL];
  const long words = Bf16::words(k);
  for (int j = 0; j * VL < n; j++)
    for (long i = 0; i < words; i += 4 * VL) {
      const long some = std::min<long>(4 * VL, words - i);
      for (long r = 0; r < std::min<long>(VL, n - j * VL); r++)
        for (long c = 0; c < some; c += VL)
          store(rows + r * 4 * VL + c,
                pairs(b + (j * VL + r) * ld + 2 * (i + c), k - 2 * (i + c)));
      turn(rows, 4 * VL, n - j * VL, some, to + i * NR + j * VL);
    }
}

const uint32_t* as_rows(const float* a, long& ld, long m, long k,
                        uint32_t* to) {
  const long words = Bf16::words(k);
  uint32_t* row = to;
  for (long i = 0; i < m; i++, a += ld, row += words)
    for (long j = 0; j < k; j += 2 * VL)
      store(row + j / 2, pairs(a + j, k - j), words - j / 2);
  ld = words;
  return to;
}

const uint32_t* as_columns(const float* a, long& ld, long k, long m,
                           uint32_t* to) {
  uint32_t* row = to;
  for (long i = 0; i < k; i += 2, a += 2 * ld, row += m)
    for (long j = 0; j < m; j += VL)
      store(row + j, pairs(a + j, i + 1 < k ? a + ld + j : nullptr, m - j),
            m - j);
  ld = m;
  return to;
}
#endif

}  // namespace d2lbert

// For Python: true if precision 'bf16' is available.
extern "C" int d2lbert_bf16() { return D2LBERT_BF16; }
// The instruction set of this build, and the floats in its vectors.
extern "C" const char* d2lbert_isa() { return d2lbert::ISA; }
extern "C" int d2lbert_vector() { return d2lbert::VL; }
