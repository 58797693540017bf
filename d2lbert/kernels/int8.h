// Dense layers that multiply 8-bit integers. A result has the same bits on
// every instruction set.
//
// A row x (K,) of inputs is quantized to integers q = round(x * (127 / max|x|))
// with halves to even, and to scale = max|x| / 127, so that x is about q *
// scale. The weights of an output are quantized like a row. Sums of products of
// integers are exact in any order, so each instruction set multiplies in its
// own way. The float32 operations after the sums have one order, and each is
// rounded: -ffp-contract=off prevents fused multiply-add.
//
// If a row has NaN or an infinity, its scale is NaN, and so are the outputs of
// the row. If max|x| is below 1e-30, all q and the scale are 0.
#pragma once
#include <algorithm>
#include <vector>

#include "amx_int8.h"
#include "gemm.h"

namespace d2lbert {
namespace int8 {

// A 32-bit word holds PER_WORD quantized inputs or weights. INPUT_OFFSET is
// added to each quantized input: 128 for VNNI, which multiplies unsigned by
// signed bytes, else 0. dot(sum, a, w): in each lane, add to sum the products
// of a word of inputs and a word of weights.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
constexpr const char* DOT_INSTRUCTIONS = "VNNI";
typedef uint8_t Input;
typedef int8_t Weight;
constexpr int PER_WORD = 4, INPUT_OFFSET = 128;

// Assembly, since GCC copies registers before and after the intrinsic.
inline void dot(vi& sum, vi a, vi w) {
#if defined(__AVX512F__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(w));
#else
  asm("{vex} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(w));
#endif
}
#elif defined(__aarch64__)
typedef int8_t Input;
typedef int8_t Weight;
constexpr int PER_WORD = 4, INPUT_OFFSET = 0;
#if defined(__ARM_FEATURE_DOTPROD)
constexpr const char* DOT_INSTRUCTIONS = "dot products";
#else
constexpr const char* DOT_INSTRUCTIONS = "widening products";
#endif

inline void dot(vi& sum, vi a, vi w) {
  const int8x16_t x = (int8x16_t)a, y = (int8x16_t)w;
#if defined(__ARM_FEATURE_DOTPROD)
  sum = (vi)vdotq_s32((int32x4_t)sum, x, y);
#else
  // A product has 16 bits, since it is at most 127². Sums have 32 bits
  const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y));
  const int16x8_t high = vmull_high_s8(x, y);
  sum += (vi)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}
#else
// 16 bits, since without VNNI the instruction that multiplies bytes saturates.
constexpr const char* DOT_INSTRUCTIONS = "pairs of 16 bits";
typedef int16_t Input;
typedef int16_t Weight;
constexpr int PER_WORD = 2, INPUT_OFFSET = 0;

inline void dot(vi& sum, vi a, vi w) {
#if defined(__AVX512BW__)
  sum += (vi)_mm512_madd_epi16((__m512i)a, (__m512i)w);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  sum += (vi)_mm256_madd_epi16((__m256i)a, (__m256i)w);
#elif defined(__SSE2__)
  // _mm_madd_epi16 multiplies only 4 of the VL words
  typedef int32_t four_words __attribute__((vector_size(16)));
  four_words inputs[VL / 4], weights[VL / 4], products[VL / 4];
  std::memcpy(inputs, &a, sizeof a);
  std::memcpy(weights, &w, sizeof w);
  for (int i = 0; i < VL / 4; i++)
    products[i] =
        (four_words)_mm_madd_epi16((__m128i)inputs[i], (__m128i)weights[i]);
  vi all_products;
  std::memcpy(&all_products, products, sizeof products);
  sum += all_products;
#else
  // The sign-extended lower halves of the words, then the upper halves
  sum += ((a << 16) >> 16) * ((w << 16) >> 16) + (a >> 16) * (w >> 16);
#endif
}
#endif

// The weights are in panels of PANEL outputs. Without AMX tiles, the sums of
// REGISTER_ROWS rows and one panel stay in vector registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTER_ROWS = 6, PANEL_VECTORS = 4;
#elif defined(__AVX__)
constexpr int REGISTER_ROWS = 6, PANEL_VECTORS = 2;
#else
constexpr int REGISTER_ROWS = 4, PANEL_VECTORS = 2;
#endif
constexpr int PANEL = PANEL_VECTORS * VL;

// The length of a row of n numbers with its padding. 64 is a multiple of PANEL,
// so a row has room for whole panels of outputs.
inline long row_length(long n) { return ceil_div(n, 64) * 64; }

// 1.5 * 2^23. For |x| < 2^22, the bits of x + ROUND minus the bits of ROUND are
// x rounded to an integer.
constexpr float ROUND = 12582912.f;

// e^x for x <= 0, with a relative error of 1e-7; 0 below -86.6, NaN for NaN.
// The method is that of `exp` in simd.h, but all instruction sets give the same
// bits.
inline vf exponential(vf x) {
  const vf y = larger(splat(-87.f), x);
  const vf shifted = y * 1.44269504f + ROUND;
  const vf n = shifted - ROUND;
  vf r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vf p = splat(0.0082976548f);
  p = p * r + 0.0419153832f;
  p = p * r + 0.166675746f;
  p = p * r + 0.499988943f;
  p = p * r + 0.999999702f;
  p = p * r + 1.00000012f;
  const vi power = (bits(shifted) - bits(splat(ROUND)) + 127) << 23;
  return (vf)(bits(p * (vf)power) & ~(x < -86.6f));
}

// In the order of ACTS in int8.py. The `Act` of act.h has another order.
enum Act { NONE, RELU, GELU, GELU_NEW };

// Coefficients of a polynomial Q, the highest power first. a Q(a - 2.25) is a
// minimax fit of a (1 - Φ(a)) for a from 0 to 4.5. For GELU_Q, Φ is the
// cumulative normal distribution, for GELU_NEW_Q its approximation by tanh.
constexpr float GELU_Q[10] = {
    -1.28937336e-05f, 4.39067117e-05f,  0.000170603598f, -0.000989309396f,
    0.000643775449f,  0.00609582756f,   -0.0216314644f,  0.0357415527f,
    -0.0317103453f,   0.0122209834f};
constexpr float GELU_NEW_Q[10] = {
    -1.16602278e-05f, 3.90460082e-05f,  0.00016097496f,  -0.000932821655f,
    0.000646985252f,  0.00586810103f,   -0.021506343f,   0.0360951237f,
    -0.0319687091f,   0.012087564f};

// GELU of N vectors, in place: max(z, 0) - a Q(a - 2.25) for a = min(|z|, 4.5).
// The error is at most 1.5e-5. Quantizing the result then rounds it to steps
// that are about a thousand times larger. Vectors are interleaved, since each
// step of Horner's method waits for the previous step of the same vector.
template <int N>
inline void gelu(vf* z, const float* coefficients) {
  vf a[N], t[N], p[N];
#pragma GCC unroll 8
  for (int j = 0; j < N; j++) {
    a[j] = smaller(splat(4.5f), absolute(z[j]));
    t[j] = a[j] - 2.25f;
    p[j] = splat(coefficients[0]);
  }
#pragma GCC unroll 9
  for (int i = 1; i < 10; i++)
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) p[j] = p[j] * t[j] + coefficients[i];
#pragma GCC unroll 8
  for (int j = 0; j < N; j++)
    z[j] = larger(splat(0.f), z[j]) - p[j] * a[j];
}

template <Act ACT, int N>
inline void activate(vf* z) {
  if (ACT == GELU) gelu<N>(z, GELU_Q);
  if (ACT == GELU_NEW) gelu<N>(z, GELU_NEW_Q);
  if (ACT == RELU)
    for (int j = 0; j < N; j++) z[j] = larger(splat(0.f), z[j]);
}

// The largest lane of v, or 0 if all lanes are negative.
inline int32_t largest(vi v) {
  int32_t lanes[VL], max = 0;
  std::memcpy(lanes, &v, sizeof v);
  for (int i = 0; i < VL; i++) max = std::max(max, lanes[i]);
  return max;
}

inline vi larger_ints(vi a, vi b) {
#if defined(__AVX512F__)
  return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
  return a > b ? a : b;
#endif
}

// Factors that convert a row x to its integers and back.
struct Factors {
  float to_int, scale;
  // max_bits: the bits of max|x|. As integers, the bits of absolute values have
  // the order of the values, with NaN last.
  explicit Factors(int32_t max_bits) {
    float max;
    std::memcpy(&max, &max_bits, 4);
    if (max_bits >= 0x7f800000) {   // infinity or NaN
      to_int = 0;
      scale = NAN;
    } else if (max < 1e-30f) {
      to_int = scale = 0;
    } else {
      to_int = 127.f / max;
      scale = max / 127.f;
    }
  }
};

// Call f(k, i) for each vector of a row of K floats. k: its first float. i: 0,
// 1, 2, 3 in turn, then 0 for the last vectors. With an accumulator for each i,
// successive vectors do not wait for each other.
template <class F>
inline void each_vector(long K, F f) {
  long k = 0;
  for (; k + 4 * VL <= K; k += 4 * VL)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) f(k + i * VL, i);
  for (; k < K; k += VL) f(k, 0);
}

// Write the integers of x (K,), plus INPUT_OFFSET, to q, and return their
// scale. Both arrays extend to a multiple of VL, and x is zero after its K
// numbers.
inline float quantize(const float* x, long K, Input* q) {
  vi max[4] = {};
  each_vector(K, [&](long k, int i) {
    max[i] = larger_ints(max[i], bits(absolute(load(x + k))));
  });
  const Factors factors(largest(
      larger_ints(larger_ints(max[0], max[1]), larger_ints(max[2], max[3]))));
  if (std::isnan(factors.scale)) {
    // All integers are 0: x * to_int would be NaN for an infinite x
    std::fill(q, q + ceil_div(K, VL) * VL, (Input)INPUT_OFFSET);
    return factors.scale;
  }
  typedef Input inputs __attribute__((vector_size(VL * sizeof(Input))));
  const vi subtrahend = bits(splat(ROUND)) - INPUT_OFFSET;   // see ROUND
  each_vector(K, [&](long k, int) {
    const vi n = bits(load(x + k) * factors.to_int + ROUND) - subtrahend;
    store(q + k, __builtin_convertvector(n, inputs));
  });
  return factors.scale;
}

// An array of n elements, 0 at first, at an address that is a multiple of 64.
template <class T>
class AlignedArray {
 public:
  explicit AlignedArray(size_t n = 0) {
    if (n && posix_memalign((void**)&p_, 64, n * sizeof(T)))
      throw std::bad_alloc();
    if (n) std::memset((void*)p_, 0, n * sizeof(T));
  }
  AlignedArray(AlignedArray&& other) { std::swap(p_, other.p_); }
  AlignedArray& operator=(AlignedArray&& other) {
    std::swap(p_, other.p_);
    return *this;
  }
  ~AlignedArray() { std::free(p_); }
  operator T*() const { return p_; }

 private:
  T* p_ = nullptr;
};

// True if AMX tiles multiply, false if vectors do. See int8_use_tiles.
bool uses_tiles();
// With fewer rows, AMX tiles are mostly empty, and slower than vectors.
constexpr long MIN_TILE_ROWS = 9;

// Inputs are read in groups of ROWS_READ rows and WORDS_READ words. After the K
// inputs of a row, the weights are 0.
#if D2LBERT_INT8_TILES
constexpr long ROWS_READ = amx::SIDE, WORDS_READ = amx::SIDE;
#else
constexpr long ROWS_READ = 1, WORDS_READ = 1;
#endif
inline long rows_to_allocate(long rows) {
  return ceil_div(rows, ROWS_READ) * ROWS_READ;
}

// A dense layer with quantized weights, from K inputs to N outputs.
class Dense {
 public:
  Dense() = default;
  // The weights are q (N, K) times weight_scale (N,). bias (N,) may be null.
  // `factor` multiplies the first `num_scaled` outputs before activation.
  Dense(long N, long K, const int8_t* q, const float* weight_scale,
        const float* bias, long num_scaled = 0, float factor = 1)
      : words_(ceil_div(K, PER_WORD * WORDS_READ) * WORDS_READ),
        panels_(ceil_div(N, PANEL)),
        weights_(panels_ * words_ * PER_WORD * PANEL),
        weight_scale_(panels_ * PANEL), bias_(panels_ * PANEL),
        initial_sums_(panels_ * PANEL) {
    for (long n = 0; n < N; n++) {
      const float multiplier = n < num_scaled ? factor : 1;
      weight_scale_[n] = weight_scale[n] * multiplier;
      bias_[n] = bias ? bias[n] * multiplier : 0;
      int32_t sum = 0;
      for (long k = 0; k < K; k++) {
        sum += q[n * K + k];
        const long word_index =
            (n / PANEL * words_ + k / PER_WORD) * PANEL + n % PANEL;
        weights_[word_index * PER_WORD + k % PER_WORD] = q[n * K + k];
      }
      initial_sums_[n] = -INPUT_OFFSET * sum;  // cancels the inputs' offset
    }
  }

  bool is_set() const { return panels_ > 0; }
  long panels() const { return panels_; }

  // Compute and activate the outputs y (rows, N) of panels [first, last),
  // padding of panels included. a (rows, K) and a_scale (rows,): the results
  // of `quantize`, with memory for rows_to_allocate(rows) rows of a. lda, ldy:
  // elements from a row of a or y to the next. lda is a multiple of 64.
  void operator()(const Input* a, long lda, const float* a_scale, long rows,
                  long first, long last, Act act, float* y, long ldy) const {
    switch (act) {
      case NONE: return run<NONE>(a, lda, a_scale, rows, first, last, y, ldy);
      case RELU: return run<RELU>(a, lda, a_scale, rows, first, last, y, ldy);
      case GELU: return run<GELU>(a, lda, a_scale, rows, first, last, y, ldy);
      case GELU_NEW:
        return run<GELU_NEW>(a, lda, a_scale, rows, first, last, y, ldy);
    }
  }

 private:
  template <Act ACT>
  void run(const Input* a, long lda, const float* a_scale, long rows,
           long first, long last, float* y, long ldy) const {
#if D2LBERT_INT8_TILES
    if (rows >= MIN_TILE_ROWS && uses_tiles())
      return run_by_tiles<ACT>(a, lda, a_scale, rows, first, last, y, ldy);
#endif
    for (long panel = first; panel < last; panel++) {
      long r = 0;
      for (; r + REGISTER_ROWS <= rows; r += REGISTER_ROWS)
        multiply_rows<ACT, REGISTER_ROWS>(panel, a + r * lda, lda, a_scale + r,
                                          y + r * ldy, ldy);
      multiply_last_rows<ACT, REGISTER_ROWS - 1>(
          panel, rows - r, a + r * lda, lda, a_scale + r, y + r * ldy, ldy);
    }
  }

#if D2LBERT_INT8_TILES
  template <Act ACT>
  void run_by_tiles(const Input* a, long lda, const float* a_scale, long rows,
                    long first, long last, float* y, long ldy) const {
    constexpr int GROUP = 4, VECTORS = BLOCK / VL;
    const ByteProduct<PANEL> product{a,      lda,      rows,
                                     words_, weights_, initial_sums_};
    product.template compute<GROUP>(
        first * PANEL, last * PANEL,
        [&](const int32_t* sums, long row, long num_rows, long output) {
          const vi* vectors = (const vi*)sums;
          const float* scales = a_scale + row;
          float* to = y + row * ldy + output;
          if (num_rows == GROUP)
            return finish<ACT, GROUP, VECTORS>(vectors, output, scales, to,
                                               ldy);
          for (long r = 0; r < num_rows; r++)
            finish<ACT, 1, VECTORS>(vectors + r * VECTORS, output, scales + r,
                                    to + r * ldy, ldy);
        });
  }
#endif

  // `multiply_rows` for `rows` rows, at most R.
  template <Act ACT, int R>
  void multiply_last_rows(long panel, long rows, const Input* a, long lda,
                          const float* a_scale, float* y, long ldy) const {
    if (rows == R) return multiply_rows<ACT, R>(panel, a, lda, a_scale, y, ldy);
    if constexpr (R > 1)
      multiply_last_rows<ACT, R - 1>(panel, rows, a, lda, a_scale, y, ldy);
  }

  template <Act ACT, int R>
  void multiply_rows(long panel, const Input* a, long lda, const float* a_scale,
                     float* y, long ldy) const {
    constexpr int GROUP = R % 2 ? 1 : 2;   // rows in a call of `finish`
    const long output = panel * PANEL;
    const Weight* w = weights_ + output * words_ * PER_WORD;
    vi sums[R][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int j = 0; j < PANEL_VECTORS; j++)
        sums[r][j] =
            INPUT_OFFSET ? load<vi>(initial_sums_ + output + j * VL) : vi{};
    for (long k = 0; k < words_; k++, w += PANEL * PER_WORD) {
      vi weights[PANEL_VECTORS];
#pragma GCC unroll 4
      for (int j = 0; j < PANEL_VECTORS; j++)
        weights[j] = load<vi>(w + j * VL * PER_WORD);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        int32_t word;
        std::memcpy(&word, a + r * lda + k * PER_WORD, 4);
        const vi inputs = word + vi{};
#pragma GCC unroll 4
        for (int j = 0; j < PANEL_VECTORS; j++)
          dot(sums[r][j], inputs, weights[j]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r += GROUP)
      finish<ACT, GROUP, PANEL_VECTORS>(sums[r], output, a_scale + r,
                                        y + r * ldy + output, ldy);
  }

  // Write to y the outputs from `output` on, computed from ROWS rows of VECTORS
  // vectors of sums.
  template <Act ACT, int ROWS, int VECTORS>
  void finish(const vi* sums, long output, const float* a_scale, float* y,
              long ldy) const {
    vf z[ROWS * VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS * VECTORS; i++) {
      const long j = output + i % VECTORS * VL;
      const vf scales = a_scale[i / VECTORS] * load(weight_scale_ + j);
      z[i] = __builtin_convertvector(sums[i], vf) * scales + load(bias_ + j);
    }
    activate<ACT, ROWS * VECTORS>(z);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS * VECTORS; i++)
      store(y + i / VECTORS * ldy + i % VECTORS * VL, z[i]);
  }

  long words_ = 0, panels_ = 0;    // words_: in a row of inputs
  AlignedArray<Weight> weights_;   // (panels_, words_, PANEL, PER_WORD)
  AlignedArray<float> weight_scale_, bias_;
  AlignedArray<int32_t> initial_sums_;
};

}  // namespace int8
}  // namespace d2lbert
