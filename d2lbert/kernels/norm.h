// LayerNorm of a row, and its gradient.
#pragma once
#include "op.h"

namespace d2lbert {

// Mean and 1 / deviation of n numbers.
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

// What a thread sums over its rows for the gradients of gamma and beta, and
// room for a row; each as wide as whole vectors.
struct NormSums {
  float *gamma, *beta, *row;
};

// The gradient of what was normalized, vector by vector to put(j, vector):
// from the gradient dz of the outcome, what `hat` was before gamma and beta,
// and its scale.
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
