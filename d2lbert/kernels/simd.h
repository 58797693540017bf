// Vectors as wide as the registers of the processor, by GCC's vector
// extensions; functions of vectors; and dropout.
#pragma once
#include <cstdint>
#include <cstring>
#include <cmath>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// 1 if this build has instructions that multiply pairs of bfloat16, else 0.
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define D2LBERT_BF16 1
#else
#define D2LBERT_BF16 0
#endif

namespace d2lbert {

// ISA: the instruction set of this build. VL: floats in a vector.
#if defined(__AVX512F__)
constexpr const char* ISA = D2LBERT_BF16 ? "AVX-512 with bf16" : "AVX-512";
constexpr int VL = 16;
#elif defined(__AVX__)
#if defined(__AVX2__) && defined(__FMA__)
constexpr const char* ISA = "AVX2";
#else
constexpr const char* ISA = "AVX";
#endif
constexpr int VL = 8;
#else
#if defined(__aarch64__)
constexpr const char* ISA = "NEON";
#elif defined(__SSE2__)
constexpr const char* ISA = "SSE";
#else
constexpr const char* ISA = "no vectors";
#endif
constexpr int VL = 4;
#endif

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));

// x in all lanes. Subtracting zeros keeps -0; adding zeros would not.
inline vf splat(float x) { return x - vf{}; }
// The bits of each float, as an integer.
inline vi bits(vf x) { return (vi)x; }

// Load VL numbers from p, which may have any alignment.
template <class V = vf>
inline V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
inline void store(void* p, V v) { std::memcpy(p, &v, sizeof v); }

#if defined(__AVX__) && !defined(__AVX512F__)
// A mask of the first n lanes, for 0 <= n <= VL.
inline __m256i first_lanes(long n) {
  static const int32_t window[2 * VL] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256((const __m256i*)(window + VL - n));
}
#endif

// Load the first min(n, VL) lanes, for n >= 0. The other lanes are zero, and
// their memory is not read.
template <class V = vf>
inline V load(const void* p, long n) {
  if (n >= VL) return load<V>(p);
#ifdef __AVX512F__
  return (V)_mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), p);
#elif defined(__AVX__)
  return (V)_mm256_maskload_ps((const float*)p, first_lanes(n));
#else
  V v{};
  std::memcpy(&v, p, 4 * n);
  return v;
#endif
}

// Store the first min(n, VL) lanes, for n >= 0.
template <class V>
inline void store(void* p, V v, long n) {
  if (n >= VL) return store(p, v);
#ifdef __AVX512F__
  _mm512_mask_storeu_epi32(p, (__mmask16)((1u << n) - 1), (__m512i)v);
#elif defined(__AVX__)
  // Store 4, 2 and 1 lanes: a masked store takes dozens of cycles on AMD before
  // Zen 4.
  float* to = (float*)p;
  __m128 part = _mm256_castps256_ps128((__m256)v);
  if (n & 4) {
    _mm_storeu_ps(to, part);
    part = _mm256_extractf128_ps((__m256)v, 1);
    to += 4;
  }
  if (n & 2) {
    _mm_storel_pi((__m64*)to, part);
    part = _mm_movehl_ps(part, part);
    to += 2;
  }
  if (n & 1) _mm_store_ss(to, part);
#else
  std::memcpy(p, &v, 4 * n);
#endif
}

// Store the first min(n, VL) lanes, for data that would leave the cache before
// it is read again. With AVX, whole vectors bypass the cache if p is aligned.
inline void stream(float* p, vf v, long n) {
#if defined(__AVX512F__)
  if (n >= VL && !((uintptr_t)p % 64)) return _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX__)
  if (n >= VL && !((uintptr_t)p % 32)) return _mm256_stream_ps(p, (__m256)v);
#endif
  store(p, v, n);
}

// Call this after `stream`, before other threads read the data.
inline void stream_fence() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

// a * b + c, rounded once if this build has fused instructions. A row must get
// the same bits alone as in a block of rows. The expression a * b + c does not
// ensure that: tuned for Zen, GCC fuses it in a loop with several accumulators,
// but not in a loop with one.
inline vf fused_multiply_add(float a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vf)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_n_f32((float32x4_t)c, (float32x4_t)b, a);
#else
  return c + a * b;
#endif
}

inline vi lane_indices() {
  vi v;
  for (int i = 0; i < VL; i++) v[i] = i;
  return v;
}

// mask ? yes : no for each lane. A lane of the mask has all bits set or none.
inline vf pick(vi mask, vf yes, vf no) {
  return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

// Lane i of the result is lane order[i] of a and b joined.
inline vu shuffle(vu a, vu b, vi order) {
#ifdef __clang__
  vu v;
  for (int i = 0; i < VL; i++)
    v[i] = order[i] < VL ? a[order[i]] : b[order[i] - VL];
  return v;
#else
  return __builtin_shuffle(a, b, order);
#endif
}

// a > b ? a : b for each lane. The result is b where a or b is NaN.
inline vf larger(vf a, vf b) {
#ifdef __AVX512F__
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
  return a > b ? a : b;
#endif
}

// a < b ? a : b for each lane. The result is b where a or b is NaN.
inline vf smaller(vf a, vf b) {
#ifdef __AVX512F__
  return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (vf)_mm_min_ps((__m128)a, (__m128)b);
#else
  return a < b ? a : b;
#endif
}

// Combine the two halves of v, then the halves of the result, and so on down to
// one number. So the order of additions depends only on VL.
template <class F>
inline float reduce(vf v, F combine) {
#ifdef __SSE2__
  typedef float v4 __attribute__((vector_size(16)));
#ifdef __AVX__
  typedef float v8 __attribute__((vector_size(32)));
#ifdef __AVX512F__
  __m256 low = _mm512_castps512_ps256((__m512)v);
  __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)v, 1));
  const v8 eight = combine((v8)low, (v8)high);
#else
  const v8 eight = v;
#endif
  v4 four = combine((v4)_mm256_castps256_ps128((__m256)eight),
                    (v4)_mm256_extractf128_ps((__m256)eight, 1));
#else
  v4 four = v;
#endif
  four = combine(four, (v4)_mm_movehl_ps((__m128)four, (__m128)four));
  return combine(four, (v4)_mm_shuffle_ps((__m128)four, (__m128)four, 1))[0];
#else
  for (int half = VL / 2; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] = combine(v[i], v[i + half]);
  return v[0];
#endif
}

inline float sum(vf v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}

inline float maximum(vf v) {
  return reduce(v, [](auto a, auto b) { return a > b ? a : b; });
}

inline float maximum(const float* x, long n) {
  const vi lane = lane_indices();
  const vf lowest = splat(-INFINITY);
  vf largest = lowest;
  for (long j = 0; j < n; j += VL) {
    vf v = load(x + j, n - j);
    if (n - j < VL) v = pick(lane < (int)(n - j), v, lowest);
    largest = larger(v, largest);
  }
  return maximum(largest);
}

// e^x to about one unit in the last place. 0 for x below -86.6 (on AVX-512:
// where e^x is too small for a subnormal float), infinity where e^x is above
// the largest float, NaN for NaN.
inline vf exp(vf x) {
  // e^x = 2^n e^r with integer n and |r| <= log(2) / 2. Adding `shift`, 1.5 *
  // 2^23, rounds to an integer. log(2) = 0.693359375 - 2.12194440e-4; the
  // product of n with the first number is exact. Outside of [low, high], e^x is
  // 0 or infinity.
  const float low = -104.f, high = 89.f, shift = 12582912.f;
  const vf y = smaller(splat(high), larger(splat(low), x));
  const vf shifted = y * 1.44269504f + shift;
  const vf n = shifted - shift;
  vf r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vf p = splat(1.3813144e-3f);
  p = p * r + 8.3694188e-3f;
  p = p * r + 4.1668456e-2f;
  p = p * r + 1.6666515e-1f;
  p = p * r + 0.5f;
  p = p * (r * r) + r;
  p = p + 1.f;  // e^r
#ifdef __AVX512F__
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  // Use 2^(n - 1) and 2 p: n may be 128, and no float holds 2^128. The bits of
  // `shifted` and `shift` differ by n.
  const vi half_power = (bits(shifted) - bits(splat(shift)) + 126) << 23;
  p = (p + p) * (vf)half_power;
  return (vf)(bits(p) & ~(x < -86.6f));
#endif
}

// magnitude: 0 or more.
inline vf copy_sign(vf magnitude, vf sign) {
  return (vf)(bits(magnitude) | (bits(sign) & INT32_MIN));
}

inline vf absolute(vf x) { return (vf)(bits(x) & INT32_MAX); }

inline vf square_root(vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__FMA__)
  return (vf)_mm256_sqrt_ps((__m256)x);
#elif defined(__aarch64__)
  return (vf)vsqrtq_f32((float32x4_t)x);
#else
  for (int i = 0; i < VL; i++) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

// For small |x|, the difference in `far` would lose digits, so `near` is a
// polynomial.
inline vf tanh(vf x) {
  vf a = absolute(x), s = x * x;
  vf p = splat(-5.5151642e-3f);
  p = p * s + 2.0469420e-2f;
  p = p * s - 5.3688023e-2f;
  p = p * s + 1.3330831e-1f;
  p = p * s - 3.3333260e-1f;
  vf near = x + x * s * p;
  vf far = copy_sign(1.f - 2.f / (exp(a + a) + 1.f), x);
  return a < 0.625f ? near : far;
}

// Join words `column` to column + 3 of rows[0], rows[4], rows[8], ... in one
// vector.
inline vu load_quads(const uint32_t* const* rows, int column) {
#if defined(__AVX512F__)
  auto quad = [&](int r) {
    return _mm_loadu_si128((const __m128i*)(rows[r] + column));
  };
  __m512i v = _mm512_castsi128_si512(quad(0));
  v = _mm512_inserti32x4(v, quad(4), 1);
  v = _mm512_inserti32x4(v, quad(8), 2);
  return (vu)_mm512_inserti32x4(v, quad(12), 3);
#elif defined(__AVX__)
  return (vu)_mm256_insertf128_ps(
      _mm256_castps128_ps256(_mm_loadu_ps((const float*)rows[0] + column)),
      _mm_loadu_ps((const float*)rows[4] + column), 1);
#else
  vu v;
  for (int r = 0; r < VL; r += 4)
    std::memcpy((char*)&v + 4 * r, rows[r] + column, 16);
  return v;
#endif
}

// Transpose a VL x VL block of 32-bit words, four columns at a time. ld: the
// words from one row of `to` to the next. Lanes 4g to 4g + 3 of r<i> hold four
// columns of row 4g + i, so these lanes of r0 to r3 are a 4 x 4 block.
// Transposing all these blocks gives four rows of the result.
inline void transpose(const uint32_t* const* rows, uint32_t* to, long ld) {
  // Orders for `shuffle`, compiled to unpack instructions. Of each four lanes
  // of a and b, they take the lower or the higher two: `low` as a0 b0 a1 b1,
  // `low_pairs` as a0 a1 b0 b1
  vi low, high, low_pairs, high_pairs;
  for (int q = 0; q < VL; q += 4) {
    const int a = q, b = q + VL;
    const int l[] = {a, b, a + 1, b + 1}, h[] = {a + 2, b + 2, a + 3, b + 3};
    const int lp[] = {a, a + 1, b, b + 1}, hp[] = {a + 2, a + 3, b + 2, b + 3};
    for (int i = 0; i < 4; i++) {
      low[q + i] = l[i];
      high[q + i] = h[i];
      low_pairs[q + i] = lp[i];
      high_pairs[q + i] = hp[i];
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < VL; c += 4, to += 4 * ld) {
    const vu r0 = load_quads(rows, c), r1 = load_quads(rows + 1, c);
    const vu r2 = load_quads(rows + 2, c), r3 = load_quads(rows + 3, c);
    const vu low01 = shuffle(r0, r1, low), low23 = shuffle(r2, r3, low);
    const vu high01 = shuffle(r0, r1, high), high23 = shuffle(r2, r3, high);
    store(to, shuffle(low01, low23, low_pairs));
    store(to + ld, shuffle(low01, low23, high_pairs));
    store(to + 2 * ld, shuffle(high01, high23, low_pairs));
    store(to + 3 * ld, shuffle(high01, high23, high_pairs));
  }
}

// Random 32-bit words of one row, for dropout. A word is a hash of (seed, row,
// j), so any thread and the backward pass draw the same words. SplitMix64 of
// seed and row gives the keys of a 32-bit hash of j (lowbias32).
struct Draws {
  uint32_t low_key, high_key;
  Draws(uint64_t seed, uint64_t row) {
    uint64_t z = seed + (row + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    low_key = (uint32_t)z;
    high_key = (uint32_t)(z >> 32);
  }
  vu at(vu j) const {
    vu x = j + low_key;
    x = (x ^ (x >> 16)) * 0x7feb352du + high_key;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
  }
};

// Inverted dropout: the factor of an element is 0 with probability p (exact to
// 2^-32), else 1 / (1 - p).
struct Dropout {
  uint64_t seed = 0;
  uint32_t threshold = 0;  // an element with a smaller random word is dropped
  float scale = 1.f;       // the factor of the other elements
  // noise: null, or 64 ones after MXNet's own dropout at rate 1/2. In training
  // each is 0 or 2, a random bit that depends on MXNet's seed. In prediction
  // each is still 1, and nothing is dropped.
  Dropout(double p, const float* noise) {
    if (p <= 0 || !noise || noise[0] == 1.f) return;
    for (int i = 0; i < 64; i++)
      seed |= (uint64_t)(noise[i] > 1.f) << i;
    const double num_dropped = p * 4294967296.0;   // of the 2^32 possible words
    threshold =
        num_dropped >= 4294967295.0 ? 4294967295u : (uint32_t)num_dropped;
    scale = (float)(p < 1 ? 1 / (1 - p) : 0);
  }
  bool on() const { return threshold != 0; }
  Draws row(uint64_t i) const { return Draws(seed, i); }
  // The factors of elements j of row i, for draws = row(i).
  vf factors(const Draws& draws, vu j) const {
    vi is_kept = draws.at(j) >= threshold;
    return (vf)(is_kept & bits(splat(scale)));
  }
};

}  // namespace d2lbert
