// The choice of a kernel for each matrix product (amx.cc), and the kernel for
// AMX, which computes C = A B by tiles (amx_instructions.h).
//
// P: the number of bfloat16 parts of a number. P = 1 rounds the number. With
// P = 3 the number is the sum of its parts. Six of the nine products of parts
// of two numbers give the accuracy of fp32 (Henry, Tang and Heinecke 2019).
//
// A and B are packed: copied into contiguous tiles of words. A word is a pair
// of bfloat16. Of every 32 numbers of a row of A or a column of B, numbers i
// and i + 16 share a word. The order of a sum depends on its length only, so a
// row of C does not depend on the number of rows.
#pragma once
#include <type_traits>
#include <vector>

#include "amx_instructions.h"
#include "gemm.h"

#if D2LBERT_BF16 && (defined(D2LBERT_AMX_EMULATED) || \
                     (defined(__AMX_TILE__) && defined(__AMX_BF16__)))
#define D2LBERT_AMX 1
#else
#define D2LBERT_AMX 0
#endif

namespace d2lbert {

// PLAIN: vectors of fp32. PAIRS: AVX-512 vectors of pairs of bfloat16. TILES:
// AMX with one part. SPLIT: AMX with three parts.
enum Kernel { PLAIN, PAIRS, TILES, SPLIT };  // as NAMES in products.py

// min_dim: the smaller of the numbers of inputs and outputs, or the size of an
// attention head. Below MIN_TILE_DIM, tiles would be mostly empty, and a kernel
// with vectors is used.
Kernel kernel_in_use(bool bf16, long min_dim);

constexpr long NO_TILES = 0;  // a min_dim that never selects tiles

// Return the function for the kernel in use. The functions for kernels that
// this library lacks may be null, so F is deduced from `plain` alone.
template <class F>
F pick_kernel(bool bf16, long min_dim, F plain, std::common_type_t<F> pairs,
              std::common_type_t<F> tiles, std::common_type_t<F> split) {
  switch (kernel_in_use(bf16, min_dim)) {
    case PLAIN: return plain;
    case PAIRS: return pairs;
    case TILES: return tiles;
    default: return split;
  }
}

// The last four arguments of `pick_kernel`. D2LBERT_PRODUCTS: for a function
// template that namespace `tiled` has, too. D2LBERT_VECTORS: for a template
// without tiles, with min_dim NO_TILES.
#if D2LBERT_AMX
#define D2LBERT_TILED(function) tiled::function<1>, tiled::function<3>
#else
#define D2LBERT_TILED(function) nullptr, nullptr
#endif
#if D2LBERT_BF16
#define D2LBERT_PRODUCTS(function) \
  function<Fp32>, function<Bf16>, D2LBERT_TILED(function)
#define D2LBERT_VECTORS(function) \
  function<Fp32>, function<Bf16>, nullptr, nullptr
#else
#define D2LBERT_PRODUCTS(function) function<Fp32>, nullptr, nullptr, nullptr
#define D2LBERT_VECTORS(function) D2LBERT_PRODUCTS(function)
#endif

}  // namespace d2lbert

#if D2LBERT_AMX
namespace d2lbert {
namespace amx {

constexpr long DEPTH = 32;  // numbers of a row of A or a column of B in a tile

// The number of tiles along a sum over k numbers.
inline long tiles_along(long k) { return ceil_div(k, DEPTH); }
// n (rows of A, or columns of B) rounded up to whole tiles.
inline long tile_padded(long n) { return ceil_div(n, SIDE) * SIDE; }
// The bytes of a packed factor: n rows of A or columns of B, of k numbers each.
template <int P>
inline long packed_bytes(long n, long k) {
  return ceil_div(n, SIDE) * tiles_along(k) * P * TILE_BYTES;
}

// Split each number of x and of y into P parts, the largest first. Word i of
// to[p] has part p of x[i] in its lower half, and part p of y[i] in its upper
// half.
template <int P>
inline void pair_words(vf x, vf y, vu* to);

template <>
inline void pair_words<1>(vf x, vf y, vu* to) {
  const __m512i order = _mm512_set_epi16(
      31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
      22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512bh x_then_y = _mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
  to[0] = (vu)_mm512_permutexvar_epi16(order, (__m512i)x_then_y);
}

// Each part takes the next eight bits of the significand. The subtraction of a
// part is exact, and the remainder after the third part is zero.
template <>
inline void pair_words<3>(vf x, vf y, vu* to) {
  constexpr uint32_t upper_half = 0xffff0000u;  // the bits of a bfloat16
  constexpr uint32_t half_bit = 0x8000u;  // half of their lowest bit, to round
#pragma GCC unroll 3
  for (int p = 0; p < 3; p++) {
    const vu a = (vu)x + half_bit, b = (vu)y + half_bit;
    to[p] = (a >> 16) | (b & upper_half);
    x -= (vf)(a & upper_half);
    y -= (vf)(b & upper_half);
  }
}

// Write the transpose of a tile, 16 x 16 words, to `to`.
inline void transpose_tile(const vu* from, char* to) {
  const uint32_t* row[SIDE];
  for (int r = 0; r < SIDE; r++) row[r] = (const uint32_t*)(from + r);
  transpose(row, (uint32_t*)to, SIDE);
}

enum Factor { LEFT, RIGHT };  // A and B of a product A B

// Pack x (n x k), whose rows begin ld numbers apart. The rows of x become the
// rows of A (LEFT) or the columns of B (RIGHT). If skip[r] is not 0, row r of x
// is packed as zeros. to: memory of packed_bytes<P>(n, k).
template <int P, Factor F>
void pack_rows(const float* x, long ld, long n, long k, char* to,
               const char* skip = nullptr) {
  // A tile of B has the words of a row of x in one column
  constexpr bool TRANSPOSED = F == RIGHT;
  alignas(64) vu untransposed[TRANSPOSED ? P * SIDE : 1];
  for (long i = 0; i < n; i += SIDE)
    for (long d = 0; d < k; d += DEPTH, to += P * TILE_BYTES) {
      vu* tiles = TRANSPOSED ? untransposed : (vu*)to;  // one for each part
      for (long r = 0; r < SIDE; r++) {
        vu word[P] = {};
        if (i + r < n && !(skip && skip[i + r])) {
          const float* from = x + (i + r) * ld + d;
          pair_words<P>(load(from, k - d),
                        load(from + SIDE, std::max(0L, k - d - SIDE)), word);
        }
        for (int p = 0; p < P; p++) store(tiles + p * SIDE + r, word[p]);
      }
      for (int p = 0; TRANSPOSED && p < P; p++)
        transpose_tile(untransposed + p * SIDE, to + p * TILE_BYTES);
    }
}

// Like `pack_rows`, but the columns of x (k x n) become the rows of A or the
// columns of B.
template <int P, Factor F>
void pack_columns(const float* x, long ld, long k, long n, char* to,
                  const char* skip = nullptr) {
  // A tile of A has the words of a column of x in one row
  constexpr bool TRANSPOSED = F == LEFT;
  alignas(64) vu untransposed[TRANSPOSED ? P * SIDE : 1];
  const long sum_tiles = tiles_along(k);
  auto row_or_zeros = [&](long i, long j) {
    return i < k && !(skip && skip[i]) ? load(x + i * ld + j, n - j) : vf{};
  };
  for (long d = 0; d < sum_tiles; d++) {
    const long first = d * DEPTH;
    bool has_all_rows = first + DEPTH <= k;
    for (long i = first; has_all_rows && skip && i < first + DEPTH; i++)
      has_all_rows = !skip[i];
    for (long j = 0; j < n; j += SIDE) {
      char* to_tiles = to + (j / SIDE * sum_tiles + d) * P * TILE_BYTES;
      vu* tiles = TRANSPOSED ? untransposed : (vu*)to_tiles;
      auto store_words = [&](long r, vf row, vf later_row) {
        vu word[P];
        pair_words<P>(row, later_row, word);
        for (int p = 0; p < P; p++) store(tiles + p * SIDE + r, word[p]);
      };
      const float* from = x + first * ld + j;
      if (has_all_rows && j + SIDE <= n) {
        for (long r = 0; r < SIDE; r++)
          store_words(r, load(from + r * ld), load(from + (r + SIDE) * ld));
      } else {
        for (long r = 0; r < SIDE; r++)
          store_words(r, row_or_zeros(first + r, j),
                      row_or_zeros(first + SIDE + r, j));
      }
      for (int p = 0; TRANSPOSED && p < P; p++)
        transpose_tile(untransposed + p * SIDE, to_tiles + p * TILE_BYTES);
    }
  }
}

// Add the product of up to 32 packed rows a of A and up to 32 packed columns b
// of B to tiles 0 to 3, which hold a block of C. HAS_LOWER: there are more than
// 16 rows. HAS_RIGHT: there are more than 16 columns.
template <int P, bool HAS_LOWER, bool HAS_RIGHT>
inline void add_product(const char* a, const char* b, long sum_tiles) {
  // The bytes of SIDE packed rows of A, or columns of B
  const long side_bytes = sum_tiles * P * TILE_BYTES;
  auto load_rows = [&](long d, int part) {
    const char* tile = a + (d * P + part) * TILE_BYTES;
    load_tile<4>(tile, 64);
    if (HAS_LOWER) load_tile<5>(tile + side_bytes, 64);
  };
  auto load_columns = [&](long d, int part) {
    const char* tile = b + (d * P + part) * TILE_BYTES;
    load_tile<6>(tile, 64);
    if (HAS_RIGHT) load_tile<7>(tile + side_bytes, 64);
  };
  auto add = [&] {
    dot<0, 4, 6>();
    if (HAS_RIGHT) dot<1, 4, 7>();
    if (HAS_LOWER) dot<2, 5, 6>();
    if (HAS_LOWER && HAS_RIGHT) dot<3, 5, 7>();
  };
  // The smallest three of nine products of parts are left out. The products of
  // the largest parts come last, because each addition to a large sum loses
  // some accuracy. In this order, only the first of the other five products
  // loads tiles of both factors
  for (long d = 0; P == 3 && d < sum_tiles; d++) {
    load_rows(d, 0), load_columns(d, 2), add();
    load_columns(d, 1), add();
    load_rows(d, 1), add();
    load_columns(d, 0), add();
    load_rows(d, 2), add();
  }
  for (long d = 0; d < sum_tiles; d++)
    load_rows(d, 0), load_columns(d, 0), add();
}

// Compute c, a block of up to 2 x 2 whole tiles of C, from a and b
// (`add_product`). The sum begins with zeros if `start` is null, else with the
// block `start`. If start_ld_bytes is 0, `start` is one row for all rows.
template <int P, bool HAS_LOWER, bool HAS_RIGHT>
void multiply_block(const char* a, const char* b, long sum_tiles, float* c,
                    long ld_bytes, const float* start, long start_ld_bytes) {
  if (start) {
    const char* upper = (const char*)start;
    const char* lower = upper + SIDE * start_ld_bytes;
    load_tile<0>(upper, start_ld_bytes);
    if (HAS_RIGHT) load_tile<1>(upper + 64, start_ld_bytes);
    if (HAS_LOWER) load_tile<2>(lower, start_ld_bytes);
    if (HAS_LOWER && HAS_RIGHT) load_tile<3>(lower + 64, start_ld_bytes);
  } else {
    zero_tile<0>();
    if (HAS_RIGHT) zero_tile<1>();
    if (HAS_LOWER) zero_tile<2>();
    if (HAS_LOWER && HAS_RIGHT) zero_tile<3>();
  }
  add_product<P, HAS_LOWER, HAS_RIGHT>(a, b, sum_tiles);
  char *upper = (char*)c, *lower = upper + SIDE * ld_bytes;
  save_tile<0>(upper, ld_bytes);
  if (HAS_RIGHT) save_tile<1>(upper + 64, ld_bytes);
  if (HAS_LOWER) save_tile<2>(lower, ld_bytes);
  if (HAS_LOWER && HAS_RIGHT) save_tile<3>(lower + 64, ld_bytes);
}

// C (m x n) = start + A B, with a sum over k, for packed factors a and b. The
// rows of c begin ldc numbers apart. bias: n numbers, padded to a multiple of
// 32, if `start` is BIAS. ahead: may be null; its step() is called once for
// each block of 2 x 2 tiles of C. The caller holds a `ConfiguredTiles`.
template <int P>
void multiply(long m, long n, long k, const char* a, const char* b, float* c,
              long ldc, Start start, const float* bias = nullptr,
              Prefetcher* ahead = nullptr) {
  const long sum_tiles = tiles_along(k);
  const long side_bytes = sum_tiles * P * TILE_BYTES;
  // With three parts, C is added last, for accuracy (see `add_product`)
  const bool adds_c_last = P == 3 && start == ADD;
  const bool adds_c_first = P != 3 && start == ADD;
  for (long j = 0; j < n; j += 2 * SIDE)
    for (long i = 0; i < m; i += 2 * SIDE) {
      if (ahead) ahead->step();
      const long rows = std::min(2 * SIDE, m - i);
      const long columns = std::min(2 * SIDE, n - j);
      const bool has_whole_tiles = rows % SIDE == 0 && columns % SIDE == 0;
      // A block of whole tiles, which is copied or added to C afterwards
      alignas(64) float buffer[4 * SIDE * SIDE];
      const bool uses_buffer = adds_c_last || !has_whole_tiles;
      float *c_block = c + i * ldc + j, *to = uses_buffer ? buffer : c_block;
      const long ld_bytes = (uses_buffer ? 2 * SIDE : ldc) * 4;
      if (uses_buffer && adds_c_first)
        for (long r = 0; r < rows; r++)
          std::memcpy(buffer + r * 2 * SIDE, c_block + r * ldc, columns * 4);
      const float* start_block = start == BIAS  ? bias + j
                                 : adds_c_first ? to
                                                : nullptr;
      const bool has_lower = rows > SIDE, has_right = columns > SIDE;
      const auto block_kernel =
          has_lower ? has_right ? multiply_block<P, true, true>
                                : multiply_block<P, true, false>
                    : has_right ? multiply_block<P, false, true>
                                : multiply_block<P, false, false>;
      block_kernel(a + i / SIDE * side_bytes, b + j / SIDE * side_bytes,
                   sum_tiles, to, ld_bytes, start_block,
                   adds_c_first ? ld_bytes : 0);
      for (long r = 0; uses_buffer && r < rows; r++)
        for (long q = 0; q < columns; q += VL) {
          vf sums = load(buffer + r * 2 * SIDE + q);
          if (adds_c_last) sums += load(c_block + r * ldc + q, columns - q);
          store(c_block + r * ldc + q, sums, columns - q);
        }
    }
}

// Tiles compute accurate sums only for numbers in some range. AMX reads and
// writes numbers below 2^-126 as zeros. With three parts, the last bit of the
// third part, up to 24 bits below the first bit of the number, must not be
// below 2^-126 either. And an infinite number, or a number that rounds to
// infinity, would have a part that is NaN. So vector code multiplies the rows
// with numbers outside the range.

// The range of some absolute values. The members are the bits of floats, which
// have the order of the floats. least_max: the smallest nonzero `max` of the
// rows (or of the columns) of a matrix. If all values are zero, max is 0, and
// the other members are the largest integer.
struct Range {
  uint32_t max = 0, min_nonzero = ~0u, least_max = ~0u;
  void add(const Range& r) {
    max = std::max(max, r.max);
    min_nonzero = std::min(min_nonzero, r.min_nonzero);
    least_max = std::min(least_max, r.least_max);
  }
};

// The range of all added vectors, separately for each lane.
struct LaneRanges {
  vu max = {}, min_minus_1 = ~vu{};
  void add(vf x) {
    const __m512i magnitude = (__m512i)((vu)x & 0x7fffffffu);
    max = (vu)_mm512_max_epu32((__m512i)max, magnitude);
    // 0 - 1 is the largest integer, so zeros do not count
    min_minus_1 = (vu)_mm512_min_epu32((__m512i)min_minus_1,
                                       (__m512i)((vu)magnitude - 1u));
  }
  Range range() const {
    Range r;
    r.max = _mm512_reduce_max_epu32((__m512i)max);
    r.min_nonzero = _mm512_reduce_min_epu32((__m512i)min_minus_1);
    if (r.min_nonzero != ~0u) r.min_nonzero++;  // else all numbers are zero
    if (r.max) r.least_max = r.max;
    return r;
  }
};

inline Range range_of(const float* x, long n) {
  LaneRanges lanes;
  for (long j = 0; j < n; j += VL) lanes.add(load(x + j, n - j));
  return lanes.range();
}

// The range of x (m x n), with the `least_max` of its rows.
inline Range range_of_rows(const float* x, long ld, long m, long n) {
  Range all;
  for (long i = 0; i < m; i++) all.add(range_of(x + i * ld, n));
  return all;
}

// The range of x (m x n), with the `least_max` of its columns.
inline Range range_of_columns(const float* x, long ld, long m, long n) {
  Range all;
  for (long j = 0; j < n; j += VL) {
    LaneRanges lanes;
    for (long i = 0; i < m; i++) lanes.add(load(x + i * ld + j, n - j));
    Range r = lanes.range();
    for (int c = 0; c < VL; c++)
      if (lanes.max[c])
        r.least_max = std::min<uint32_t>(r.least_max, lanes.max[c]);
    all.add(r);
  }
  return all;
}

// The bits of the float 2^e, for e from -126 to 127.
inline uint32_t bits_of_power(long e) { return (uint32_t)(e + 127) << 23; }
inline long exponent(uint32_t float_bits) {
  return (long)(float_bits >> 23) - 127;
}

// The least exponent of a nonzero number for tiles.
template <int P>
constexpr long min_exponent() { return P == 3 ? -126 + 24 : -126; }

// The numbers of a factor must be below 2^MAX_EXPONENT. The exponents of the
// largest numbers of a row and of a column must add up to at least
// MIN_PRODUCT_EXPONENT, since sums near 2^-126 would lose digits.
constexpr long MAX_EXPONENT = 60, MIN_PRODUCT_EXPONENT = -60;

template <int P>
inline bool in_tile_range(const Range& r) {
  return r.min_nonzero >= bits_of_power(min_exponent<P>()) &&
         r.max < bits_of_power(MAX_EXPONENT);
}

// True if tiles can multiply two factors with the ranges a and b. A factor is a
// row or a matrix. k: the number of products in a sum.
template <int P>
inline bool tiles_can_multiply(const Range& a, const Range& b, long k) {
  if (!in_tile_range<P>(a) || !in_tile_range<P>(b)) return false;
  if (!a.max || !b.max) return true;  // all products are zero
  long log_k = 0;  // 2^log_k is above k
  while (k >> log_k) log_k++;
  // A number is below 2^(exponent + 1), so sums stay below 2^125
  return exponent(a.max) + exponent(b.max) + 2 + log_k <= 125 &&
         exponent(a.least_max) + exponent(b.least_max) >= MIN_PRODUCT_EXPONENT;
}

// True if a sum by tiles may begin with numbers of range r, such as a bias. For
// any P, these numbers are not rounded, so none of their 24 bits may be below
// 2^-126. Adding products, whose sum is below 2^125, does not overflow.
inline bool can_start_sum(const Range& r) {
  return r.min_nonzero >= bits_of_power(min_exponent<3>()) &&
         r.max < bits_of_power(126);
}

// The rows outside the range of tiles. The caller sets their `marks`. `gather`
// copies these rows of x into a smaller matrix, which vector code multiplies,
// and `scatter` copies the results back. n: the elements of a row of x.
class ExcludedRows {
 public:
  explicit ExcludedRows(long rows) : marks_(rows) {}
  char* marks() { return marks_.data(); }
  // Collect the indices of the marked rows, and return their number. Call this
  // after all marks are set, and before `gather` and `scatter`.
  long count() {
    if (indices_.empty())
      for (size_t i = 0; i < marks_.size(); i++)
        if (marks_[i]) indices_.push_back(i);
    return indices_.size();
  }
  template <class T>
  std::vector<T> gather(const T* x, long n) const {
    std::vector<T> rows(indices_.size() * n);
    for (size_t i = 0; i < indices_.size(); i++)
      std::copy(x + indices_[i] * n, x + (indices_[i] + 1) * n,
                rows.begin() + i * n);
    return rows;
  }
  void scatter(const std::vector<float>& rows, float* x, long n) const {
    for (size_t i = 0; i < indices_.size(); i++)
      std::copy(rows.begin() + i * n, rows.begin() + (i + 1) * n,
                x + indices_[i] * n);
  }

 private:
  std::vector<char> marks_;
  std::vector<long> indices_;  // of the marked rows
};

}  // namespace amx
}  // namespace d2lbert
#endif
