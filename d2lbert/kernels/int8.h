// Dense layers at eight bits, with one result on every instruction set.
//
// A row of activations x (K,) is stored as whole numbers
// q = round(x 127 / max|x|), to nearest even, and a scale, max|x| / 127. So are
// the weights of an output. Sums of products of whole numbers are exact in any
// order, so each instruction set can multiply in its own way. The float32
// operations after that have one order, and each is rounded separately: this
// needs -ffp-contract=off.
//
// If a row has a number that is NaN or infinite, its scale is NaN, and so is
// all that is computed from it. If max|x| is below 1e-30, all q and the scale
// are 0.
#pragma once
#include <algorithm>
#include <vector>

#include "gemm.h"

namespace d2lbert {
namespace int8 {

// A word of 32 bits holds GROUP numbers. OFFSET is added to each activation,
// because VNNI multiplies unsigned by signed bytes. `dot` multiplies the
// numbers of words a by the numbers of words w, and adds the products to a sum.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
constexpr const char* PRODUCT = "VNNI";
typedef uint8_t Number;
typedef int8_t Weight;
constexpr int GROUP = 4, OFFSET = 128;

// Assembly, since GCC copies registers around its intrinsic.
inline void dot(vi& sum, vi a, vi w) {
#if defined(__AVX512F__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(w));
#else
  asm("{vex} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(w));
#endif
}
#elif defined(__aarch64__)
typedef int8_t Number;
typedef int8_t Weight;
constexpr int GROUP = 4, OFFSET = 0;
#if defined(__ARM_FEATURE_DOTPROD)
constexpr const char* PRODUCT = "dot products";
#else
constexpr const char* PRODUCT = "widening products";
#endif

inline void dot(vi& sum, vi a, vi w) {
  const int8x16_t x = (int8x16_t)a, y = (int8x16_t)w;
#if defined(__ARM_FEATURE_DOTPROD)
  sum = (vi)vdotq_s32((int32x4_t)sum, x, y);
#else
  // Two products of at most 127² fit into 16 bits
  const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y));
  const int16x8_t high = vmull_high_s8(x, y);
  sum += (vi)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}
#else
// Numbers of 16 bits, since without VNNI the instruction that multiplies bytes
// saturates. They take twice the memory, so a vector holds half the numbers.
constexpr const char* PRODUCT = "pairs of 16 bits";
typedef int16_t Number;
typedef int16_t Weight;
constexpr int GROUP = 2, OFFSET = 0;

inline void dot(vi& sum, vi a, vi w) {
#if defined(__AVX512BW__)
  sum += (vi)_mm512_madd_epi16((__m512i)a, (__m512i)w);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  sum += (vi)_mm256_madd_epi16((__m256i)a, (__m256i)w);
#elif defined(__SSE2__)
  typedef int32_t four __attribute__((vector_size(16)));
  four x[VL / 4], y[VL / 4];
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &w, sizeof w);
  for (int i = 0; i < VL / 4; i++)
    x[i] = (four)_mm_madd_epi16((__m128i)x[i], (__m128i)y[i]);
  vi products;
  std::memcpy(&products, x, sizeof products);
  sum += products;
#else
  sum += ((a << 16) >> 16) * ((w << 16) >> 16) + (a >> 16) * (w >> 16);
#endif
}
#endif

// A tile is TR rows of TV vectors; weights lie in panels of TV vectors.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int TR = 6, TV = 4;
#elif defined(__AVX__)
constexpr int TR = 6, TV = 2;
#else
constexpr int TR = 4, TV = 2;
#endif
constexpr int PANEL = TV * VL;

// Rows of floats are a multiple of this apart, on every instruction set.
constexpr long ALIGN = 64;
inline long aligned(long n) { return ceil_div(n, ALIGN) * ALIGN; }
inline long words(long n) { return ceil_div(n, GROUP); }

// Arithmetic

enum Act { NONE, RELU, GELU, GELU_NEW };

// e^x for x <= 0, with a relative error of 1e-7; 0 below -86.6, NaN for NaN.
inline vf exponential(vf x) {
  const float round = 12582912.f;   // 1.5 * 2^23: adding it rounds to integers
  const vf y = larger(splat(-87.f), x);
  const vf shifted = y * 1.44269504f + round;
  const vf n = shifted - round;
  vf r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vf p = splat(0.0082976548f);
  p = p * r + 0.0419153832f;
  p = p * r + 0.166675746f;
  p = p * r + 0.499988943f;
  p = p * r + 0.999999702f;
  p = p * r + 1.00000012f;
  const vi power = (bits(shifted) - bits(splat(round)) + 127) << 23;
  return (vf)(bits(p * (vf)power) & ~(x < -86.6f));
}

// GELU of N vectors, as max(z, 0) - a Q(a - 2.25) for a = min(|z|, 4.5). q: the
// coefficients of Q, the highest first. The error is at most 1.5e-5, a
// thousandth of the step to which the result is rounded. The vectors go through
// the terms together, since each term waits for the one before it.
template <int N>
inline void gelu(vf* z, const float* q) {
  vf a[N], t[N], p[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) {
    a[j] = smaller(splat(4.5f), absolute(z[j]));
    t[j] = a[j] - 2.25f;
    p[j] = splat(q[0]);
  }
#pragma GCC unroll 9
  for (int i = 1; i < 10; i++)
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) p[j] = p[j] * t[j] + q[i];
#pragma GCC unroll 8
  for (int j = 0; j < N; j++)
    z[j] = larger(splat(0.f), z[j]) - p[j] * a[j];
}

// Q: minimax fits of 1 - Φ(a), for Φ itself and for its approximation by tanh
// in the paper on GELU.
constexpr float GELU_Q[10] = {
    -1.28937336e-05f, 4.39067117e-05f,  0.000170603598f, -0.000989309396f,
    0.000643775449f,  0.00609582756f,   -0.0216314644f,  0.0357415527f,
    -0.0317103453f,   0.0122209834f};
constexpr float GELU_NEW_Q[10] = {
    -1.16602278e-05f, 3.90460082e-05f,  0.00016097496f,  -0.000932821655f,
    0.000646985252f,  0.00586810103f,   -0.021506343f,   0.0360951237f,
    -0.0319687091f,   0.012087564f};

// Apply an activation to N vectors.
template <Act ACT, int N>
inline void activate(vf* z) {
  if (ACT == GELU) gelu<N>(z, GELU_Q);
  if (ACT == GELU_NEW) gelu<N>(z, GELU_NEW_Q);
  if (ACT == RELU)
    for (int j = 0; j < N; j++) z[j] = larger(splat(0.f), z[j]);
}

inline int32_t largest(vi v) {
  int32_t lanes[VL], most = 0;
  std::memcpy(lanes, &v, sizeof v);
  for (int i = 0; i < VL; i++) most = std::max(most, lanes[i]);
  return most;
}

inline vi larger_of(vi a, vi b) {
#if defined(__AVX512F__)
  return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
  return a > b ? a : b;
#endif
}

// The factors between a row and its whole numbers, from the bits of max|x|.
struct Scale {
  float to, from;  // to whole numbers, from whole numbers
  explicit Scale(int32_t most) {
    float top;
    std::memcpy(&top, &most, 4);
    if (most >= 0x7f800000) {
      to = 0;
      from = NAN;
    } else if (top < 1e-30f) {
      to = from = 0;
    } else {
      to = 127.f / top;
      from = top / 127.f;
    }
  }
};

// Call f(k, i) for the vectors of a row of K floats, which begin at k. Four
// vectors, i = 0 to 3, follow each other, so that none waits for another.
template <class F>
inline void each_vector(long K, F f) {
  long k = 0;
  for (; k + 4 * VL <= K; k += 4 * VL)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) f(k + i * VL, i);
  for (; k < K; k += VL) f(k, 0);
}

// Turn x (K,) into whole numbers q, and return their scale. x and q have the
// length K, rounded up to a multiple of VL; zeros follow the numbers of x.
inline float quantize(const float* x, long K, Number* q) {
  vi most[4] = {};
  each_vector(K, [&](long k, int i) {
    most[i] = larger_of(most[i], bits(absolute(load(x + k))));
  });
  const Scale scale(largest(larger_of(larger_of(most[0], most[1]),
                                      larger_of(most[2], most[3]))));
  const float round = 12582912.f;
  typedef Number out __attribute__((vector_size(VL * sizeof(Number))));
  const vi less = bits(splat(round)) - OFFSET;
  if (scale.from != scale.from) {   // infinity times scale.to, 0, would be NaN
    std::fill(q, q + ceil_div(K, VL) * VL, (Number)OFFSET);
    return scale.from;
  }
  each_vector(K, [&](long k, int) {
    const vi n = bits(load(x + k) * scale.to + round) - less;
    store(q + k, __builtin_convertvector(n, out));
  });
  return scale.from;
}

// Memory whose address is a multiple of 64.
template <class T>
class Aligned {
 public:
  explicit Aligned(size_t n = 0) {
    if (n && posix_memalign((void**)&p_, 64, n * sizeof(T)))
      throw std::bad_alloc();
    if (n) std::memset((void*)p_, 0, n * sizeof(T));
  }
  Aligned(Aligned&& other) { std::swap(p_, other.p_); }
  Aligned& operator=(Aligned&& other) {
    std::swap(p_, other.p_);
    return *this;
  }
  ~Aligned() { std::free(p_); }
  operator T*() const { return p_; }

 private:
  T* p_ = nullptr;
};

// A dense layer: weights in panels, and the scale and bias of each output.
class Dense {
 public:
  Dense() = default;
  // q (N, K), scale (N,), bias (N,) or null. The first `few` outputs are
  // multiplied by `factor`.
  Dense(long N, long K, const int8_t* q, const float* scale,
        const float* bias, long few = 0, float factor = 1)
      : N_(N), words_(words(K)), panels_(ceil_div(N, PANEL)),
        weights_(panels_ * words_ * GROUP * PANEL), scale_(panels_ * PANEL),
        bias_(panels_ * PANEL), start_(panels_ * PANEL) {
    for (long n = 0; n < N; n++) {
      const float times = n < few ? factor : 1;
      scale_[n] = scale[n] * times;
      bias_[n] = bias ? bias[n] * times : 0;
      int32_t sum = 0;
      for (long k = 0; k < K; k++) {
        sum += q[n * K + k];
        weights_[((n / PANEL * words_ + k / GROUP) * PANEL + n % PANEL) *
                     GROUP + k % GROUP] = q[n * K + k];
      }
      start_[n] = -OFFSET * sum;  // cancels the OFFSET of activations
    }
  }

  long outputs() const { return N_; }
  long panels() const { return panels_; }

  // Compute the outputs of panels [first, last) for some rows: y = act(sums *
  // scales + bias). a: the activations as whole numbers, in rows lda apart.
  // scale: of each row of a. The rows of y are ldy apart.
  void operator()(const Number* a, long lda, const float* scale, long rows,
                  long first, long last, Act act, float* y, long ldy) const {
    switch (act) {
      case NONE: return run<NONE>(a, lda, scale, rows, first, last, y, ldy);
      case RELU: return run<RELU>(a, lda, scale, rows, first, last, y, ldy);
      case GELU: return run<GELU>(a, lda, scale, rows, first, last, y, ldy);
      case GELU_NEW:
        return run<GELU_NEW>(a, lda, scale, rows, first, last, y, ldy);
    }
  }

 private:
  template <Act ACT>
  void run(const Number* a, long lda, const float* scale, long rows,
           long first, long last, float* y, long ldy) const {
    for (long panel = first; panel < last; panel++) {
      long r = 0;
      for (; r + TR <= rows; r += TR)
        tile<ACT, TR>(panel, a + r * lda, lda, scale + r, y + r * ldy, ldy);
      rest<ACT, TR - 1>(panel, rows - r, a + r * lda, lda, scale + r,
                        y + r * ldy, ldy);
    }
  }

  template <Act ACT, int R>
  void rest(long panel, long rows, const Number* a, long lda,
            const float* scale, float* y, long ldy) const {
    if (rows == R) return tile<ACT, R>(panel, a, lda, scale, y, ldy);
    if constexpr (R > 1)
      rest<ACT, R - 1>(panel, rows, a, lda, scale, y, ldy);
  }

  template <Act ACT, int R>
  void tile(long panel, const Number* a, long lda, const float* scale,
            float* y, long ldy) const {
    constexpr int PAIR = R % 2 ? 1 : 2;   // rows that are finished together
    const long n = panel * PANEL;
    const Weight* w = weights_ + n * words_ * GROUP;
    vi sums[R][TV];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int j = 0; j < TV; j++)
        sums[r][j] = OFFSET ? load<vi>(start_ + n + j * VL) : vi{};
    for (long k = 0; k < words_; k++, w += PANEL * GROUP) {
      vi row[TV];
#pragma GCC unroll 4
      for (int j = 0; j < TV; j++) row[j] = load<vi>(w + j * VL * GROUP);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        int32_t word;
        std::memcpy(&word, a + r * lda + k * GROUP, 4);
        const vi one = word + vi{};
#pragma GCC unroll 4
        for (int j = 0; j < TV; j++) dot(sums[r][j], one, row[j]);
      }
    }
#pragma GCC unroll 8
    for (int first = 0; first < R; first += PAIR) {
      vf z[PAIR * TV];
#pragma GCC unroll 8
      for (int i = 0; i < PAIR * TV; i++) {
        const int r = first + i / TV, j = i % TV;
        const vf s = scale[r] * load(scale_ + n + j * VL);
        z[i] = __builtin_convertvector(sums[r][j], vf) * s +
               load(bias_ + n + j * VL);
      }
      activate<ACT, PAIR * TV>(z);
#pragma GCC unroll 8
      for (int i = 0; i < PAIR * TV; i++)
        store(y + (first + i / TV) * ldy + n + i % TV * VL, z[i]);
    }
  }

  long N_ = 0, words_ = 0, panels_ = 0;
  Aligned<Weight> weights_;
  Aligned<float> scale_, bias_;
  Aligned<int32_t> start_;
};

}  // namespace int8
}  // namespace d2lbert
