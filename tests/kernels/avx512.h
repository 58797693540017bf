// AVX-512 with bfloat16 in terms of what older processors have: as much of it
// as the operators use, for tests of them on any processor with AVX2.
//
//     g++ -include avx512.h ...
//
// compiles them as for one with AVX-512, and changes nothing where there is
// one; with -DAVX512_ALONE for one without bfloat16. Each function does what
// the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
// says of the instruction of that name.
#pragma once
#include <immintrin.h>

#if !defined(__AVX512F__) && !(defined(__AVX2__) && defined(__FMA__))
#error "the emulation of AVX-512 needs AVX2 with FMA all the same"
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

namespace avx512 {

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t shorts __attribute__((vector_size(64)));

inline uint32_t bits(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  return word;
}

inline float number(uint32_t word) {
  float x;
  std::memcpy(&x, &word, 4);
  return x;
}

// With denormals made zeros of their sign.
inline float flushed(float x) {
  return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.f, x) : x;
}

#if !defined(__AVX512BF16__) && !defined(AVX512_ALONE)
// The nearest bfloat16, an even one of two; quiet where that is NaN.
inline uint16_t bfloat16(float x) {
  const uint32_t word = bits(flushed(x));
  if (std::isnan(x)) return word >> 16 | 0x40;
  return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}

// VCVTNE2PS2BF16: the second operand is the lower half.
inline __m512bh cvtne2ps_pbh(__m512 upper, __m512 lower) {
  shorts to;
  for (int i = 0; i < 16; i++) {
    to[i] = bfloat16(((floats)lower)[i]);
    to[i + 16] = bfloat16(((floats)upper)[i]);
  }
  return (__m512bh)to;
}

// VDPBF16PS: the odd ones first, each by an operation that rounds once.
inline __m512 dpbf16_ps(__m512 c, __m512bh a, __m512bh b) {
  floats sum = (floats)c;
  for (int i = 0; i < 16; i++)
    for (int shift = 0; shift <= 16; shift += 16) {
      const uint32_t upper = 0xffff0000u;
      const float x = number(((words)a)[i] << shift & upper);
      const float y = number(((words)b)[i] << shift & upper);
      sum[i] = flushed(__builtin_fmaf(flushed(x), flushed(y),
                                      flushed(sum[i])));
    }
  return (__m512)sum;
}

#define __AVX512BF16__ 1
#define _mm512_cvtne2ps_pbh avx512::cvtne2ps_pbh
#define _mm512_dpbf16_ps avx512::dpbf16_ps
#endif

}  // namespace avx512

#ifndef __AVX512F__
namespace avx512 {

inline __m256 half(__m512 v, int which) {
  __m256 h;
  std::memcpy(&h, (const char*)&v + 32 * which, 32);
  return h;
}

inline __m512 whole(__m256 lower, __m256 upper) {
  __m512 v;
  std::memcpy(&v, &lower, 32);
  std::memcpy((char*)&v + 32, &upper, 32);
  return v;
}

// VSCALEFPS: a times two to the power of b's floor.
inline float scaled(float a, float b) {
  if (std::isinf(b)) return b > 0 ? a * INFINITY : a * 0.f;
  // No float is farther from another than that, and a double holds it.
  const double power = std::fmin(std::fmax(std::floor(b), -400.f), 400.f);
  return std::isnan(b) ? b : (float)std::ldexp((double)a, (int)power);
}

inline __m512 scalef_ps(__m512 a, __m512 b) {
  floats to;
  for (int i = 0; i < 16; i++) to[i] = scaled(((floats)a)[i], ((floats)b)[i]);
  return (__m512)to;
}

inline __m512 add_ps(__m512 a, __m512 b) {
  return (__m512)((floats)a + (floats)b);
}

inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return whole(_mm256_fmadd_ps(half(a, 0), half(b, 0), half(c, 0)),
               _mm256_fmadd_ps(half(a, 1), half(b, 1), half(c, 1)));
}

inline __m512 max_ps(__m512 a, __m512 b) {
  return whole(_mm256_max_ps(half(a, 0), half(b, 0)),
               _mm256_max_ps(half(a, 1), half(b, 1)));
}

inline __m512 min_ps(__m512 a, __m512 b) {
  return whole(_mm256_min_ps(half(a, 0), half(b, 0)),
               _mm256_min_ps(half(a, 1), half(b, 1)));
}

inline __m512 sqrt_ps(__m512 a) {
  return whole(_mm256_sqrt_ps(half(a, 0)), _mm256_sqrt_ps(half(a, 1)));
}

inline __m512 set1_ps(float x) { return (__m512)(x - floats{}); }
inline __m512i set1_epi32(int x) { return (__m512i)(x - ints{}); }

// From the last word to the first.
template <class... Words>
inline __m512i set_epi16(Words... reversed) {
  const short from[] = {(short)reversed...};
  static_assert(sizeof from == 64, "a vector has 32 of them");
  shorts to;
  for (int i = 0; i < 32; i++) to[i] = from[31 - i];
  return (__m512i)to;
}

inline __m512 loadu_ps(const void* p) {
  __m512 v;
  std::memcpy(&v, p, 64);
  return v;
}

inline void storeu_ps(void* p, __m512 v) { std::memcpy(p, &v, 64); }

// What is masked off is not touched: it may be another's memory, or nobody's.
inline __m512i maskz_loadu_epi32(__mmask16 mask, const void* p) {
  ints v = {};
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) {
      int32_t word;
      std::memcpy(&word, (const char*)p + 4 * i, 4);
      v[i] = word;
    }
  return (__m512i)v;
}

inline void mask_storeu_epi32(void* p, __mmask16 mask, __m512i v) {
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) std::memcpy((char*)p + 4 * i, (const char*)&v + 4 * i, 4);
}

inline __m512i castsi128_si512(__m128i v) {
  __m512i to = {};
  std::memcpy(&to, &v, 16);
  return to;
}

inline __m512i inserti32x4(__m512i v, __m128i quarter, int which) {
  std::memcpy((char*)&v + 16 * which, &quarter, 16);
  return v;
}

inline __m256 castps512_ps256(__m512 v) { return half(v, 0); }

inline __m256d extractf64x4_pd(__m512d v, int which) {
  return (__m256d)half((__m512)v, which);
}

inline __m512i permutexvar_epi16(__m512i order, __m512i from) {
  shorts to;
  for (int i = 0; i < 32; i++)
    to[i] = ((shorts)from)[((shorts)order)[i] & 31];
  return (__m512i)to;
}

inline __m512i max_epu32(__m512i a, __m512i b) {
  return (__m512i)((words)a > (words)b ? (words)a : (words)b);
}

inline __m512i min_epu32(__m512i a, __m512i b) {
  return (__m512i)((words)a < (words)b ? (words)a : (words)b);
}

inline unsigned reduce_max_epu32(__m512i v) {
  uint32_t most = 0;
  for (int i = 0; i < 16; i++)
    if (((words)v)[i] > most) most = ((words)v)[i];
  return most;
}

inline unsigned reduce_min_epu32(__m512i v) {
  uint32_t least = UINT32_MAX;
  for (int i = 0; i < 16; i++)
    if (((words)v)[i] < least) least = ((words)v)[i];
  return least;
}

}  // namespace avx512

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define _mm512_add_ps avx512::add_ps
#define _mm512_castps512_ps256 avx512::castps512_ps256
#define _mm512_castsi128_si512 avx512::castsi128_si512
#define _mm512_extractf64x4_pd avx512::extractf64x4_pd
#define _mm512_fmadd_ps avx512::fmadd_ps
#define _mm512_inserti32x4 avx512::inserti32x4
#define _mm512_load_ps avx512::loadu_ps
#define _mm512_loadu_ps avx512::loadu_ps
#define _mm512_mask_storeu_epi32 avx512::mask_storeu_epi32
#define _mm512_maskz_loadu_epi32 avx512::maskz_loadu_epi32
#define _mm512_max_epu32 avx512::max_epu32
#define _mm512_max_ps avx512::max_ps
#define _mm512_min_epu32 avx512::min_epu32
#define _mm512_min_ps avx512::min_ps
#define _mm512_permutexvar_epi16 avx512::permutexvar_epi16
#define _mm512_reduce_max_epu32 avx512::reduce_max_epu32
#define _mm512_reduce_min_epu32 avx512::reduce_min_epu32
#define _mm512_scalef_ps avx512::scalef_ps
#define _mm512_set1_epi32 avx512::set1_epi32
#define _mm512_set1_ps avx512::set1_ps
#define _mm512_set_epi16 avx512::set_epi16
#define _mm512_sqrt_ps avx512::sqrt_ps
#define _mm512_store_ps avx512::storeu_ps
#define _mm512_storeu_ps avx512::storeu_ps
#define _mm512_stream_ps avx512::storeu_ps
#endif
