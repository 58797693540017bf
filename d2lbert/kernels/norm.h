// LayerNorm of a row, and its gradient.
#pragma once
#include "op.h"

namespace d2lbert {

// Mean and 1 / standard deviation of n numbers; eps is added to the variance.
inline void moments(const float* x, long n, float eps, float* mean,
                    float* scale) {
  const vi lane = count();
  vf total{}, squares{};
  for (long j = 0; j < n; j += VL) total += load(x + j, n - j);
  *mean = sum(total) / n;
  for (long j = 0; j < n; j += VL) {
    vf d = load(x + j, n - j) - *mean;
    if (n - j < VL) d = pick(lane < (int)(n - j), d, vf{});
    squares += d * d;
  }
  *scale = 1 / std::sqrt(sum(squares) / n + eps);
}

// The gradients of gamma and beta, summed over the rows of a thread, and memory
// for a row. Each has room for whole vectors.
struct NormSums {
  float *gamma, *beta, *row;
};

// The `NormSums` of all threads, for rows of n numbers.
class TeamNormSums {
 public:
  static size_t bytes(long n, int threads) {
    return 3 * Sums::bytes(width(n), threads);
  }
  TeamNormSums(Scratch& shared, long n, int threads)
      : n_(n), gamma_(shared, width(n), threads),
        beta_(shared, width(n), threads), row_(shared, width(n), threads) {}
  // The sums of this thread.
  NormSums cleared() const {
    return {gamma_.cleared(), beta_.cleared(), row_.mine()};
  }
  void add_up(float* gamma, float* beta) const {
    gamma_.add_up(gamma, 0, n_);
    beta_.add_up(beta, 0, n_);
  }

 private:
  static long width(long n) { return ceil_div(n, VL) * VL; }
  long n_;
  Sums gamma_, beta_, row_;
};

// Compute the gradient of a row of the input of LayerNorm, and pass each of its
// vectors to put(j, vector), where j is the first element. Add to the gradients
// of gamma and beta in `sums`. dz: the gradient of the output. hat: the
// normalized row, before gamma and beta. scale: 1 / standard deviation.
template <class F>
inline void norm_gradient(const float* dz, const float* hat,
                          const float* gamma, float scale, long n,
                          const NormSums& sums, F put) {
  vf first{}, second{};
  for (long j = 0; j < n; j += VL) {
    const vf h = load(hat + j, n - j), d = load(dz + j, n - j);
    const vf g = d * load(gamma + j, n - j);
    first += g;
    second += g * h;
    store(sums.gamma + j, load(sums.gamma + j) + d * h);
    store(sums.beta + j, load(sums.beta + j) + d);
    store(sums.row + j, g);
  }
  const float a = sum(first) / n, b = sum(second) / n;
  for (long j = 0; j < n; j += VL)
    put(j, (load(sums.row + j) - a - load(hat + j, n - j) * b) * scale);
}

}  // namespace d2lbert
