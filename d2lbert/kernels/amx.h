// Matrix products by AMX tiles. An fp32 number is rounded to one bfloat16 or
// split into the sum of three (Henry, Tang and Heinecke 2019: six products
// instead of nine give the accuracy of fp32).
//
// A tile is 16 rows of 64 bytes. Both factors are packed into contiguous
// tiles of words. A word is a pair of bfloat16: of every 32 numbers along the
// sum, numbers k and k + 16 share a word. The order of a sum depends on its
// length only, so a row of a product does not depend on the number of rows.
#pragma once
#include <type_traits>
#include <vector>

#include "gemm.h"

#if D2LBERT_BF16 && (defined(D2LBERT_AMX_EMULATED) || \
                     (defined(__AMX_TILE__) && defined(__AMX_BF16__)))
#define D2LBERT_AMX 1
#else
#define D2LBERT_AMX 0
#endif

namespace d2lbert {

// The kernels of matrix products: fp32 vectors, bfloat16 pairs of AVX-512,
// and tiles of one or of three parts.
enum Product { PLAIN, PAIRS, TILES, SPLIT };

// The kernel for precision 'fp32' or 'bf16'. least: the shorter of the two
// lengths of the product that do not count rows.
Product product(bool bf16, long least);

// True if the system lets this process use tiles; asks it once.
bool permitted();

// The `least` of code that has no version for tiles.
constexpr long NO_TILES = 0;

// The function for the kernel in use, out of four. The functions for tiles
// may be null in a library without tiles.
template <class F>
F pick(bool bf16, long least, F plain, std::common_type_t<F> pairs,
       std::common_type_t<F> tiles, std::common_type_t<F> split) {
  switch (product(bf16, least)) {
    case PLAIN: return plain;
    case PAIRS: return pairs;
    case TILES: return tiles;
    default: return split;
  }
}
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

constexpr long TILE = 1024;  // bytes
constexpr long SIDE = 16;    // rows, and words of a row
constexpr long DEPTH = 32;   // numbers along the sum

// The number of tiles along a sum over k.
inline long depth(long k) { return ceil_div(k, DEPTH); }
// n rows or columns, rounded up to whole tiles.
inline long whole(long n) { return ceil_div(n, SIDE) * SIDE; }
// Bytes of a packed matrix of n rows or columns and a sum over k.
template <int P>
inline long bytes(long n, long k) {
  return ceil_div(n, SIDE) * depth(k) * P * TILE;
}

// The operand of LDTILECFG: palette 1, eight tiles of 16 rows of 64 bytes.
struct Config {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Config) == 64, "as the processor reads it");

}  // namespace amx
}  // namespace d2lbert

// A test may replace the instructions by functions of the same names.
#ifdef D2LBERT_AMX_EMULATED
#include D2LBERT_AMX_EMULATED
#else
#include <sys/syscall.h>
#include <unistd.h>

namespace d2lbert {
namespace amx {

// With fewer numbers than this a tile is mostly empty.
constexpr long LEAST = 16;

// Ask the operating system for permission to use tiles.
inline bool ask() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM,
                 XFEATURE_XTILEDATA) == 0;
}

// The intrinsics do not declare that they read and write memory: GCC 12 drops
// or moves the stores before them.
inline void configure(const Config& config) {
  asm volatile("ldtilecfg %0" : : "m"(config));
}
inline void release() { asm volatile("tilerelease" : : : "memory"); }
template <int T>
inline void zero_tile() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }
template <int T>
inline void load_tile(const void* p, long ld) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               : : "r"(p), "r"(ld), "i"(T) : "memory");
}
template <int T>
inline void save_tile(void* p, long ld) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               : : "r"(p), "r"(ld), "i"(T) : "memory");
}
template <int C, int A, int B>
inline void dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
               : : "i"(C), "i"(A), "i"(B));
}

}  // namespace amx
}  // namespace d2lbert
#endif

namespace d2lbert {
namespace amx {

// Configures tiles for a thread during its lifetime. Each thread of every
// parallel region has one: a thread with tiles takes longer to switch.
struct InUse {
  InUse() { configure(Config()); }
  ~InUse() { release(); }
  InUse(const InUse&) = delete;
};

// The words of (x_i, y_i) for P parts of each number, the largest part first.
template <int P>
inline void words(vf x, vf y, vu* to);

template <>
inline void words<1>(vf x, vf y, vu* to) {
  const __m512i order = _mm512_set_epi16(
      31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
      22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512bh both = _mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
  to[0] = (vu)_mm512_permutexvar_epi16(order, (__m512i)both);
}

// Each part takes the next eight bits. The remainder is exact, and zero after
// the third part.
template <>
inline void words<3>(vf x, vf y, vu* to) {
  constexpr uint32_t upper = 0xffff0000u, half = 0x8000u;
#pragma GCC unroll 3
  for (int p = 0; p < 3; p++) {
    const vu a = (vu)x + half, b = (vu)y + half;
    to[p] = (a >> 16) | (b & upper);
    x -= (vf)(a & upper);
    y -= (vf)(b & upper);
  }
}

// Load n numbers, which may be less than one.
inline vf some(const float* p, long n) { return n > 0 ? load(p, n) : vf{}; }

// Transpose 16 x 16 words.
inline void turn(const vu* from, char* to) {
  const uint32_t* row[SIDE];
  for (int r = 0; r < SIDE; r++) row[r] = (const uint32_t*)(from + r);
  transpose(row, (uint32_t*)to, SIDE);
}

// Pack x (n x k), where k is the length of the sum. The rows of x become rows
// of the first factor (TURN false) or columns of the second factor (TURN true).
// Rows with `skip` set count as zeros.
template <int P, bool TURN>
void along(const float* x, long ld, long n, long k, char* to,
           const char* skip = nullptr) {
  alignas(64) vu lines[TURN ? P * SIDE : 1];
  for (long i = 0; i < n; i += SIDE)
    for (long d = 0; d < k; d += DEPTH, to += P * TILE) {
      vu* tile = TURN ? lines : (vu*)to;
      for (long r = 0; r < SIDE; r++) {
        vu word[P] = {};
        if (i + r < n && !(skip && skip[i + r])) {
          const float* from = x + (i + r) * ld + d;
          words<P>(some(from, k - d), some(from + SIDE, k - d - SIDE), word);
        }
        for (int p = 0; p < P; p++) store(tile + p * SIDE + r, word[p]);
      }
      for (int p = 0; TURN && p < P; p++)
        turn(lines + p * SIDE, to + p * TILE);
    }
}

// Pack x (k x n), where k is the length of the sum. The columns of x become
// columns of the second factor (TURN false) or rows of the first factor (TURN
// true). Rows of x with `skip` set count as zeros.
template <int P, bool TURN>
void across(const float* x, long ld, long k, long n, char* to,
            const char* skip = nullptr) {
  alignas(64) vu lines[TURN ? P * SIDE : 1];
  const long deep = depth(k);
  auto row = [&](long i, long j) {
    return i < k && !(skip && skip[i]) ? load(x + i * ld + j, n - j) : vf{};
  };
  for (long d = 0; d < deep; d++) {
    const long first = d * DEPTH;
    bool all = first + DEPTH <= k;
    for (long i = first; all && skip && i < first + DEPTH; i++)
      all = !skip[i];
    for (long j = 0; j < n; j += SIDE) {
      char* at = to + (j / SIDE * deep + d) * P * TILE;
      vu* tile = TURN ? lines : (vu*)at;
      auto put = [&](long r, vf upper, vf lower) {
        vu word[P];
        words<P>(upper, lower, word);
        for (int p = 0; p < P; p++) store(tile + p * SIDE + r, word[p]);
      };
      const float* from = x + first * ld + j;
      if (all && j + SIDE <= n) {
        for (long r = 0; r < SIDE; r++)
          put(r, load(from + r * ld), load(from + (r + SIDE) * ld));
      } else {
        for (long r = 0; r < SIDE; r++)
          put(r, row(first + r, j), row(first + SIDE + r, j));
      }
      for (int p = 0; TURN && p < P; p++)
        turn(lines + p * SIDE, at + p * TILE);
    }
  }
}

// Add the product of up to 32 rows a and up to 32 columns b to tiles 0 to 3.
// LOWER, RIGHT: there are more than 16 rows, or columns. With three parts, the
// three smallest of nine products are left out. The products of the largest
// parts come last, because each addition to a large sum loses some accuracy.
template <int P, bool LOWER, bool RIGHT>
inline void block(const char* a, const char* b, long deep) {
  const long next = deep * P * TILE;
  auto rows = [&](long d, int part) {
    const char* tile = a + (d * P + part) * TILE;
    load_tile<4>(tile, 64);
    if (LOWER) load_tile<5>(tile + next, 64);
  };
  auto columns = [&](long d, int part) {
    const char* tile = b + (d * P + part) * TILE;
    load_tile<6>(tile, 64);
    if (RIGHT) load_tile<7>(tile + next, 64);
  };
  auto add = [&] {
    dot<0, 4, 6>();
    if (RIGHT) dot<1, 4, 7>();
    if (LOWER) dot<2, 5, 6>();
    if (LOWER && RIGHT) dot<3, 5, 7>();
  };
  // Each product loads only one new factor
  for (long d = 0; P == 3 && d < deep; d++) {
    rows(d, 0), columns(d, 2), add();
    columns(d, 1), add();
    rows(d, 1), add();
    columns(d, 0), add();
    rows(d, 2), add();
  }
  for (long d = 0; d < deep; d++) rows(d, 0), columns(d, 0), add();
}

// Compute one block of C, which has room for whole tiles. The sum begins with
// `start`, whose rows are `start_ld` bytes apart, or with zeros if it is null.
template <int P, bool LOWER, bool RIGHT>
void block_of(const char* a, const char* b, long deep, float* c, long ld,
              const float* start, long start_ld) {
  if (start) {
    const char *upper = (const char*)start, *lower = upper + SIDE * start_ld;
    load_tile<0>(upper, start_ld);
    if (RIGHT) load_tile<1>(upper + 64, start_ld);
    if (LOWER) load_tile<2>(lower, start_ld);
    if (LOWER && RIGHT) load_tile<3>(lower + 64, start_ld);
  } else {
    zero_tile<0>();
    if (RIGHT) zero_tile<1>();
    if (LOWER) zero_tile<2>();
    if (LOWER && RIGHT) zero_tile<3>();
  }
  block<P, LOWER, RIGHT>(a, b, deep);
  char *upper = (char*)c, *lower = upper + SIDE * ld;
  save_tile<0>(upper, ld);
  if (RIGHT) save_tile<1>(upper + 64, ld);
  if (LOWER) save_tile<2>(lower, ld);
  if (LOWER && RIGHT) save_tile<3>(lower + 64, ld);
}

// C (m x n) = start + A B, with a sum over k. `bias`, if any, has a multiple of
// 32 numbers. The caller holds an `InUse`.
template <int P>
void multiply(long m, long n, long k, const char* a, const char* b, float* c,
              long ldc, Start start, const float* bias = nullptr,
              Ahead* ahead = nullptr) {
  const long deep = depth(k), line = deep * P * TILE;
  for (long j = 0; j < n; j += 2 * SIDE)
    for (long i = 0; i < m; i += 2 * SIDE) {
      if (ahead) ahead->step();
      const long rows = std::min(2 * SIDE, m - i);
      const long columns = std::min(2 * SIDE, n - j);
      const bool fits = rows % SIDE == 0 && columns % SIDE == 0;
      // C is added after the products of all parts are summed
      const bool adds_last = P == 3 && start == ADD;
      const bool apart = adds_last || !fits;
      alignas(64) float edge[4 * SIDE * SIDE];
      float *at = c + i * ldc + j, *to = apart ? edge : at;
      const long ld = (apart ? 2 * SIDE : ldc) * 4;
      if (apart && start == ADD && !adds_last)
        for (long r = 0; r < rows; r++)
          std::memcpy(edge + r * 2 * SIDE, at + r * ldc, columns * 4);
      const float* from = start == BIAS ? bias + j
                          : start == ADD && !adds_last ? to : nullptr;
      const bool lower = rows > SIDE, right = columns > SIDE;
      (lower ? right ? block_of<P, true, true> : block_of<P, true, false>
             : right ? block_of<P, false, true> : block_of<P, false, false>)(
          a + i / SIDE * line, b + j / SIDE * line, deep, to, ld, from,
          start == ADD ? ld : 0);
      for (long r = 0; apart && r < rows; r++)
        for (long q = 0; q < columns; q += VL) {
          vf sums = load(edge + r * 2 * SIDE + q);
          if (adds_last) sums += load(at + r * ldc + q, columns - q);
          store(at + r * ldc + q, sums, columns - q);
        }
    }
}

// Tiles are as accurate as fp32 only for numbers in some ranges. They read and
// write numbers below 2^-126 as zeros, and three parts need 24 bits more above
// that. A number that is infinite, or rounds to infinity, has parts that are
// NaN. So each row of a product is checked, by the exponents of both factors,
// and vector code multiplies the rows outside the ranges.

// Bits of absolute values: `top` of the largest, `low` of the smallest except
// zero. For a matrix, `least` is the smallest `top` of a vector except zero.
struct Range {
  uint32_t top = 0, low = ~0u, least = ~0u;
  void add(const Range& r) {
    top = std::max(top, r.top);
    low = std::min(low, r.low);
    least = std::min(least, r.least);
  }
};

// The `top` and `low` of each lane.
struct Span {
  vu top = {}, low = ~vu{};
  void add(vf x) {
    const __m512i size = (__m512i)((vu)x & 0x7fffffffu);
    top = (vu)_mm512_max_epu32((__m512i)top, size);
    // Minus 1 makes zero the largest value, so that zeros do not count
    low = (vu)_mm512_min_epu32((__m512i)low, (__m512i)((vu)size - 1u));
  }
  Range range() const {
    Range r;
    r.top = _mm512_reduce_max_epu32((__m512i)top);
    r.low = _mm512_reduce_min_epu32((__m512i)low);
    if (~r.low) r.low++;
    if (r.top) r.least = r.top;
    return r;
  }
};

inline Range range_of(const float* x, long n) {
  Span span;
  for (long j = 0; j < n; j += VL) span.add(load(x + j, n - j));
  return span.range();
}

// The range of x (m x n), whose rows are the multiplied vectors.
inline Range range_of_rows(const float* x, long ld, long m, long n) {
  Range all;
  for (long i = 0; i < m; i++) all.add(range_of(x + i * ld, n));
  return all;
}

// The range of x (m x n), whose columns are the multiplied vectors.
inline Range range_of_columns(const float* x, long ld, long m, long n) {
  Range all;
  for (long j = 0; j < n; j += VL) {
    Span span;
    for (long i = 0; i < m; i++) span.add(load(x + i * ld + j, n - j));
    Range r = span.range();
    for (int c = 0; c < VL; c++)
      if (span.top[c]) r.least = std::min<uint32_t>(r.least, span.top[c]);
    all.add(r);
  }
  return all;
}

// The bits of 2^e; e is limited to the range of normal numbers.
inline uint32_t power(long e) {
  return (uint32_t)(std::min(127L, std::max(-126L, e)) + 127) << 23;
}
inline long exponent(uint32_t bits) { return (long)(bits >> 23) - 127; }

// The exponent of the smallest number for tiles. With three parts, the last bit
// of the third part then is a normal number, too.
template <int P>
constexpr long lowest() { return P == 3 ? -102 : -126; }

constexpr long LARGEST = 60;    // upper limit for exponents of a factor
constexpr long SMALLEST = -60;  // lower limit for a row's largest product

// True if the numbers of one factor are in the range of tiles.
template <int P>
inline bool is_usual(const Range& r) {
  return r.low >= power(lowest<P>()) && r.top < power(LARGEST);
}

// True if tiles can multiply a vector by a vector or a matrix, with a sum over
// k. a and b: the ranges of the two factors.
template <int P>
inline bool fit(const Range& a, const Range& b, long k) {
  if (!is_usual<P>(a) || !is_usual<P>(b)) return false;
  if (!a.top || !b.top) return true;
  long log = 0;
  while (k >> log) log++;
  return exponent(a.top) + exponent(b.top) + 2 + log <= 125 &&
         exponent(a.least) + exponent(b.least) >= SMALLEST;
}

// True if a sum by tiles may begin with numbers of this range.
inline bool is_start(const Range& r) {
  return r.low >= power(-102) && r.top < power(126);
}

// The marked rows, which are outside the range of tiles. They are gathered into
// separate matrices, and vector code multiplies them.
class Rest {
 public:
  explicit Rest(long rows) : marks_(rows) {}
  char* marks() { return marks_.data(); }
  // The number of marked rows. Call it after all marks are set, and before
  // `gather` and `scatter`.
  long count() {
    for (size_t i = 0; at_.empty() && i < marks_.size(); i++)
      if (marks_[i]) {
        for (; i < marks_.size(); i++)
          if (marks_[i]) at_.push_back(i);
      }
    return at_.size();
  }
  template <class T>
  std::vector<T> gather(const T* x, long n) const {
    std::vector<T> rows(at_.size() * n);
    for (size_t i = 0; i < at_.size(); i++)
      std::copy(x + at_[i] * n, x + (at_[i] + 1) * n, rows.begin() + i * n);
    return rows;
  }
  void scatter(const std::vector<float>& rows, float* x, long n) const {
    for (size_t i = 0; i < at_.size(); i++)
      std::copy(rows.begin() + i * n, rows.begin() + (i + 1) * n,
                x + at_[i] * n);
  }

 private:
  std::vector<char> marks_;
  std::vector<long> at_;
};

}  // namespace amx
}  // namespace d2lbert
#endif
