// This file defines the micro-kernels and the packing that gemm.h declares.
#include "gemm.h"

#include "fork.h"

namespace d2lbert {

const float zeros[NR] = {};

bool is_after_fork() { return is_fork_child; }

Scratch& team_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

namespace {

// c += a b: a word of A times a vector of words of B.
inline void multiply_add(vf& c, float a, vf b) {
  c = fused_multiply_add(a, b, c);
}
inline vf load_words(const float* b) { return load(b); }

#if D2LBERT_BF16
inline void multiply_add(vf& c, uint32_t a, vu b) {
  c = (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)_mm512_set1_epi32((int)a),
                           (__m512bh)b);
}
inline vu load_words(const uint32_t* b) { return load<vu>(b); }
#endif

// The `MicroKernel` for M rows of N vectors. COLS: A has the layout "columns".
template <class E, bool COLS, int M, int N>
void micro_kernel(long k, const word<E>* a, long lda, const word<E>* b,
                  float* c, long ldc, const float* start, long start_ld) {
  vf sums[M][N];
#pragma GCC unroll 14
  for (int i = 0; i < M; i++)
#pragma GCC unroll 3
    for (int j = 0; j < N; j++)
      sums[i][j] = load(start + i * start_ld + j * VL);
#if defined(__AVX__) && !defined(__AVX512F__)
#pragma GCC unroll 2  // one iteration has only twelve multiplications
#endif
  for (; k; k--, b += NR, a += COLS ? lda : 1) {
    decltype(load_words(b)) b_row[N];
#pragma GCC unroll 3
    for (int j = 0; j < N; j++) b_row[j] = load_words(b + j * VL);
#pragma GCC unroll 14
    for (int i = 0; i < M; i++) {
      const word<E> a_word = COLS ? a[i] : a[i * lda];
#pragma GCC unroll 3
      for (int j = 0; j < N; j++) multiply_add(sums[i][j], a_word, b_row[j]);
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < M; i++)
#pragma GCC unroll 3
    for (int j = 0; j < N; j++) store(c + i * ldc + j * VL, sums[i][j]);
}

}  // namespace

// FOUR_KERNELS: kernels for M to M + 3 rows of N vectors. MR_KERNELS: for 1 to
// MR rows. KERNEL_TABLE: for all tiles, as in `MicroKernels`.
#define FOUR_KERNELS(E, COLS, M, N)                             \
  micro_kernel<E, COLS, M, N>, micro_kernel<E, COLS, M + 1, N>, \
      micro_kernel<E, COLS, M + 2, N>, micro_kernel<E, COLS, M + 3, N>
#if defined(__AVX512F__)
#define MR_KERNELS(E, COLS, N)                                   \
  FOUR_KERNELS(E, COLS, 1, N), FOUR_KERNELS(E, COLS, 5, N),      \
      FOUR_KERNELS(E, COLS, 9, N), micro_kernel<E, COLS, 13, N>, \
      micro_kernel<E, COLS, 14, N>
#elif defined(__AVX__)
#define MR_KERNELS(E, COLS, N)                              \
  FOUR_KERNELS(E, COLS, 1, N), micro_kernel<E, COLS, 5, N>, \
      micro_kernel<E, COLS, 6, N>
#elif defined(__aarch64__)
#define MR_KERNELS(E, COLS, N) \
  FOUR_KERNELS(E, COLS, 1, N), FOUR_KERNELS(E, COLS, 5, N)
#else
#define MR_KERNELS(E, COLS, N) FOUR_KERNELS(E, COLS, 1, N)
#endif
#if defined(__aarch64__)
#define KERNEL_TABLE(E, COLS) \
  {{MR_KERNELS(E, COLS, 1)}, {MR_KERNELS(E, COLS, 2)}, \
   {MR_KERNELS(E, COLS, 3)}}
#else
#define KERNEL_TABLE(E, COLS) \
  {{MR_KERNELS(E, COLS, 1)}, {MR_KERNELS(E, COLS, 2)}}
#endif

template <>
const MicroKernel<Fp32> MicroKernels<Fp32>::rows[NV][MR] =
    KERNEL_TABLE(Fp32, false);
template <>
const MicroKernel<Fp32> MicroKernels<Fp32>::columns[NV][MR] =
    KERNEL_TABLE(Fp32, true);
#if D2LBERT_BF16
template <>
const MicroKernel<Bf16> MicroKernels<Bf16>::rows[NV][MR] =
    KERNEL_TABLE(Bf16, false);
template <>
const MicroKernel<Bf16> MicroKernels<Bf16>::columns[NV][MR] =
    KERNEL_TABLE(Bf16, true);
#endif

namespace {

// While row i is packed, row i + PREFETCH_ROWS is prefetched: the hardware
// prefetcher does not follow rows that are far apart.
constexpr long PREFETCH_ROWS = 12;
constexpr long FLOATS_PER_LINE = 16;  // in a cache line of 64 bytes

// Pack n columns of B, which are whole panels, in one pass over the rows.
template <long n>
inline void pack_whole_panels(const float* b, long ld, long k, float* to) {
  for (long i = 0; i < k; i++, b += ld, to += NR) {
    for (long j = 0; j < n; j += FLOATS_PER_LINE)
      __builtin_prefetch(b + PREFETCH_ROWS * ld + j);
    for (long j = 0; j < n; j += NR)
#pragma GCC unroll 3
      for (long v = 0; v < NR; v += VL)
        store(to + j * k + v, load(b + j + v));
  }
}

}  // namespace

template <>
void pack_panel<Fp32>(const float* b, long ld, long k, long n, float* to) {
  if (n == NR) return pack_whole_panels<NR>(b, ld, k, to);
  for (long i = 0; i < k; i++, b += ld, to += NR)
    for (int j = 0; j * VL < n; j++)
      store(to + j * VL, load(b + j * VL, n - j * VL));
}

template <>
void pack<Fp32>(const float* b, long ld, long k, long n, float* to) {
  for (; n >= PACK_COLUMNS; n -= PACK_COLUMNS) {
    pack_whole_panels<PACK_COLUMNS>(b, ld, k, to);
    b += PACK_COLUMNS;
    to += PACK_COLUMNS * k;
  }
  for (long j = 0; j < n; j += NR)
    pack_panel<Fp32>(b + j, ld, k, std::min<long>(NR, n - j), to + j * k);
}

template <>
void pack_column_blocks<Fp32>(const float* a, long ld, long k, long m,
                              float* to) {
  for (long i = 0; i < k; i++, a += ld, to += TILE_LD) {
    for (long j = 0; j < m; j += FLOATS_PER_LINE)
      __builtin_prefetch(a + PREFETCH_ROWS * ld + j);
    float* block = to;
    for (long j = 0; j < m; j += MR, block += column_block_words<Fp32>(k))
      for (long v = 0; v < std::min<long>(MR, m - j); v += VL)
        store(block + v, load(a + j + v, m - j - v));
  }
}

namespace {

// Transpose min(n, VL) rows of b, of `words` words each, into VL columns of a
// panel. The other columns become zeros.
inline void pack_transposed(const uint32_t* b, long ld, long n, long words,
                            uint32_t* to) {
  const uint32_t* row[VL];
  uint32_t transposed[VL * VL];
  uint32_t row_ends[VL * VL];  // the last words of each row, then zeros
  for (long i = 0; i < words; i += VL) {
    const long num_words = std::min<long>(VL, words - i);
    for (int r = 0; r < VL; r++) {
      row[r] = r < n ? b + r * ld + i : (const uint32_t*)zeros;
      if (num_words < VL && r < n) {
        store(row_ends + r * VL, load<vu>(row[r], num_words));
        row[r] = row_ends + r * VL;
      }
    }
    if (num_words == VL) {
      transpose(row, to + i * NR, NR);
      continue;
    }
    transpose(row, transposed, VL);  // `to` has fewer than VL rows left
    for (long r = 0; r < num_words; r++)
      store(to + (i + r) * NR, load<vu>(transposed + r * VL));
  }
}

}  // namespace

template <>
void pack_panel_t<Fp32>(const float* b, long ld, long k, long n, float* to) {
  for (int j = 0; j * VL < n; j++)
    pack_transposed((const uint32_t*)b + j * VL * ld, ld, n - j * VL, k,
                    (uint32_t*)to + j * VL);
}

#if D2LBERT_BF16
namespace {

// The words (x0, x1), (x2, x3), ... of the first min(n, 32) numbers of x.
inline vu pair_neighbours(const float* x, long n) {
  const vf first = load(x, n);
  const vf second = n > VL ? load(x + VL, n - VL) : vf{};
  return (vu)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

// The words (x0, y0), (x1, y1), ... of two vectors.
inline vu pair_vectors(vf x, vf y) {
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

// The words (x_i, y_i) of the first min(n, 16) numbers of two rows. A null y is
// a row of zeros.
inline vu pair_rows(const float* x, const float* y, long n) {
  return pair_vectors(load(x, n), y ? load(y, n) : vf{});
}

}  // namespace

template <>
void pack_panel<Bf16>(const float* b, long ld, long k, long n,
                      uint32_t* to) {
  for (long i = 0; i < k; i += 2, b += 2 * ld, to += NR)
    for (int j = 0; j * VL < n; j++)
      store(to + j * VL, pair_rows(b + j * VL,
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
void pack_column_blocks<Bf16>(const float* a, long ld, long k, long m,
                              uint32_t* to) {
  for (long i = 0; i < k; i += 2, a += 2 * ld, to += TILE_LD) {
    uint32_t* block = to;
    for (long j = 0; j < m; j += MR, block += column_block_words<Bf16>(k))
      store(block,
            pair_rows(a + j, i + 1 < k ? a + ld + j : nullptr, m - j));
  }
}

template <>
void pack_panel_t<Bf16>(const float* b, long ld, long k, long n,
                        uint32_t* to) {
  constexpr long MAX_WORDS = 4 * VL;
  uint32_t rows[VL * MAX_WORDS];
  const long words = Bf16::words(k);
  for (int j = 0; j * VL < n; j++)
    for (long i = 0; i < words; i += MAX_WORDS) {
      const long num_words = std::min<long>(MAX_WORDS, words - i);
      for (long r = 0; r < std::min<long>(VL, n - j * VL); r++)
        for (long c = 0; c < num_words; c += VL)
          store(rows + r * MAX_WORDS + c,
                pair_neighbours(b + (j * VL + r) * ld + 2 * (i + c),
                                k - 2 * (i + c)));
      pack_transposed(rows, MAX_WORDS, n - j * VL, num_words,
                      to + i * NR + j * VL);
    }
}

const uint32_t* as_rows(const float* a, long& ld, long m, long k,
                        uint32_t* to) {
  const long words = Bf16::words(k);
  uint32_t* row = to;
  for (long i = 0; i < m; i++, a += ld, row += words)
    for (long j = 0; j < k; j += 2 * VL)
      store(row + j / 2, pair_neighbours(a + j, k - j), words - j / 2);
  ld = words;
  return to;
}

const uint32_t* as_columns(const float* a, long& ld, long k, long m,
                           uint32_t* to) {
  uint32_t* row = to;
  for (long i = 0; i < k; i += 2, a += 2 * ld, row += m)
    for (long j = 0; j < m; j += VL)
      store(row + j,
            pair_rows(a + j, i + 1 < k ? a + ld + j : nullptr, m - j), m - j);
  ld = m;
  return to;
}
#endif

}  // namespace d2lbert

// Properties of this build, for Python. d2lbert_vector: the floats in a vector.
extern "C" int d2lbert_bf16() { return D2LBERT_BF16; }
extern "C" const char* d2lbert_isa() { return d2lbert::ISA; }
extern "C" int d2lbert_vector() { return d2lbert::VL; }
