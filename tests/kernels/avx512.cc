// The instructions of AVX-512 that the operators use, one by one, for
// test_avx512.py: vectors come and go by pointers.
#include <immintrin.h>

#include <cstring>

namespace {

// A vector of any type, from memory that need not be aligned.
struct From {
  const void* p;
  template <class V>
  operator V() const {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
};

template <class V>
void put(void* to, V v) { std::memcpy(to, &v, sizeof v); }

}  // namespace

#define ONE(name)                                       \
  extern "C" void name(void* to, const void* a) {       \
    put(to, _mm512_##name(From{a}));                    \
  }
#define TWO(name)                                                      \
  extern "C" void name(void* to, const void* a, const void* b) {       \
    put(to, _mm512_##name(From{a}, From{b}));                          \
  }
#define THREE(name)                                                    \
  extern "C" void name(void* to, const void* a, const void* b,         \
                       const void* c) {                                \
    put(to, _mm512_##name(From{a}, From{b}, From{c}));                 \
  }

ONE(sqrt_ps)
ONE(reduce_max_epu32)
ONE(reduce_min_epu32)
ONE(castps512_ps256)
ONE(castsi128_si512)
TWO(add_ps)
TWO(max_ps)
TWO(min_ps)
TWO(max_epu32)
TWO(min_epu32)
TWO(scalef_ps)
TWO(permutexvar_epi16)
TWO(cvtne2ps_pbh)
THREE(fmadd_ps)
THREE(dpbf16_ps)

extern "C" void set1_ps(void* to, const float* x) {
  put(to, _mm512_set1_ps(*x));
}

extern "C" void set1_epi32(void* to, const int* x) {
  put(to, _mm512_set1_epi32(*x));
}

extern "C" void set_epi16(void* to) {
  put(to, _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19,
                           18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5,
                           4, 3, 2, 1, 0));
}

extern "C" void load_and_store(void* to, const void* from) {
  _mm512_storeu_ps(to, _mm512_loadu_ps(from));
}

extern "C" void first_loaded(void* to, const void* from, long n) {
  put(to, _mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), from));
}

extern "C" void first_stored(void* to, const void* from, long n) {
  _mm512_mask_storeu_epi32(to, (__mmask16)((1u << n) - 1), From{from});
}

extern "C" void extractf64x4_pd(void* to, const void* a) {
  put(to, _mm512_extractf64x4_pd(From{a}, 1));
}

extern "C" void inserti32x4(void* to, const void* a, const void* b) {
  __m512i v = From{a};
  v = _mm512_inserti32x4(v, From{b}, 1);
  put(to, _mm512_inserti32x4(v, From{b}, 3));
}
