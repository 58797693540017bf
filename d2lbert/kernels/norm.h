// LayerNorm of one row, for norm.cc and sublayer.h: its mean and scale, its
// gradient, and the threads' memory for the gradient.
#pragma once
#include "op.h"

namespace d2lbert {

// Compute the mean of n numbers, and scale = 1 / sqrt(variance + eps).
inline void moments(const float* x, long n, float eps, float* mean,
                    float* scale) {
  const vi lane = lane_indices();
  vf total{}, squares{};
  for (long j = 0; j < n; j += VL) total += load(x + j, n - j);
  *mean = sum(total) / n;
  for (long j = 0; j < n; j += VL) {
    vf d = load(x + j, n - j) - *mean;
    // Clear lanes after the end of the row, which hold -mean
    if (n - j < VL) d = pick(lane < (int)(n - j), d, vf{});
    squares += d * d;
  }
  *scale = 1 / std::sqrt(sum(squares) / n + eps);
}

// Memory of one thread. d_gamma, d_beta: sums over the rows of the thread. row:
// scratch memory for a row. Each array is padded to a multiple of VL numbers.
struct NormSums {
  float *d_gamma, *d_beta, *row;
};

// The `NormSums` of all threads, for rows of n numbers.
class TeamNormSums {
 public:
  static size_t bytes(long n, int threads) {
    return 3 * Sums::bytes(width(n), threads);
  }
  TeamNormSums(Scratch& shared, long n, int threads)
      : n_(n), d_gamma_(shared, width(n), threads),
        d_beta_(shared, width(n), threads),
        row_(shared, width(n), threads) {}
  // The memory of this thread, with sums of zero.
  NormSums cleared() const {
    return {d_gamma_.cleared(), d_beta_.cleared(), row_.mine()};
  }
  // Sum the gradients over all threads, as `Sums::add_up` does.
  void add_up(float* d_gamma, float* d_beta) const {
    d_gamma_.add_up(d_gamma, 0, n_);
    d_beta_.add_up(d_beta, 0, n_);
  }

 private:
  static long width(long n) { return ceil_div(n, VL) * VL; }
  long n_;
  Sums d_gamma_, d_beta_;
  Sums row_;  // scratch memory of each thread, never summed
};

// Compute the gradient of one row (n,) of the input of LayerNorm, and add to
// the gradients of gamma and beta in `sums`. write(j, v) gets elements
// [j, j + VL) of the row's gradient. d_out: the gradient of the output. hat:
// the normalized row, before gamma and beta. scale: from `moments`.
template <class F>
inline void norm_gradient(const float* d_out, const float* hat,
                          const float* gamma, float scale, long n,
                          const NormSums& sums, F write) {
  vf sum_g{}, sum_gh{};  // g: the gradient of hat
  for (long j = 0; j < n; j += VL) {
    const vf h = load(hat + j, n - j), d = load(d_out + j, n - j);
    const vf g = d * load(gamma + j, n - j);
    sum_g += g;
    sum_gh += g * h;
    store(sums.d_gamma + j, load(sums.d_gamma + j) + d * h);
    store(sums.d_beta + j, load(sums.d_beta + j) + d);
    store(sums.row + j, g);
  }
  const float mean_g = sum(sum_g) / n, mean_gh = sum(sum_gh) / n;
  for (long j = 0; j < n; j += VL)
    write(j, (load(sums.row + j) - mean_g - load(hat + j, n - j) * mean_gh) *
                 scale);
}

}  // namespace d2lbert
