// The operator d2lbert_add_norm: Z = LayerNorm(X + dropout(Y)) over the last
// axis, or LayerNorm(X) if attribute `adds` is 0. X has R rows of H numbers.
#include "norm.h"

namespace d2lbert {
namespace {

// noise: 64 numbers that seed dropout (`Dropout` in simd.h).
struct Inputs : IndexedInputs {
  const bool has_Y;
  const int X, Y, gamma, beta, noise;
  explicit Inputs(const Attrs& attrs)
      : has_Y(number(attrs, "adds", 1) != 0), X(next()), Y(next(has_Y)),
        gamma(next()), beta(next()), noise(next(has_dropout(attrs))) {}
};

// STATS (..., 2): the mean and scale of each row (`moments` in norm.h).
enum { Z, STATS, OUTPUTS };

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Inputs at(attrs);
  const Shape x = (*in)[at.X];
  if (x.empty()) return fail("add_norm needs X with at least one axis");
  if (at.has_Y) (*in)[at.Y] = x;
  (*in)[at.gamma] = (*in)[at.beta] = {x.back()};
  if (at.noise >= 0) (*in)[at.noise] = {64};
  Shape stats = x;
  stats.back() = 2;
  *out = {x, stats};
  return MX_SUCCESS;
}

// Elements [j, j + VL) of a row of X + dropout(Y), or of X if y is null. x, y:
// the row in X and in Y, of n numbers. draws: of the row. lane: lane_indices().
inline vf load_sum(const float* x, const float* y, const Dropout& dropout,
                   const Draws& draws, vi lane, long j, long n) {
  if (!y) return load(x + j, n - j);
  const vf v = load(y + j, n - j);
  if (!dropout.on()) return load(x + j, n - j) + v;
  return load(x + j, n - j) + v * dropout.factors(draws, (vu)(lane + (int)j));
}

MXReturnValue run_forward(const Attrs& attrs, Tensors* in, Tensors* out,
                          const OpResource&) {
  const Inputs at(attrs);
  const float* X = floats((*in)[at.X]);
  const float* Y = at.has_Y ? floats((*in)[at.Y]) : nullptr;
  const float* gamma = floats((*in)[at.gamma]);
  const float* beta = floats((*in)[at.beta]);
  const Dropout dropout(number(attrs, "p", 0),
                        at.noise >= 0 ? floats((*in)[at.noise]) : nullptr);
  const float eps = (float)number(attrs, "eps", 1e-5);
  float* const Z_data = floats((*out)[Z]);
  float* const stats = floats((*out)[STATS]);
  const long H = (*in)[at.X].shape.back();
  const long R = H ? (*in)[at.X].size() / H : 0;
#pragma omp parallel for schedule(dynamic, 64) num_threads(team(10.0 * R * H))
  for (long i = 0; i < R; i++) {
    const float *x = X + i * H, *y = Y ? Y + i * H : nullptr;
    float* z = Z_data + i * H;  // first X + dropout(Y), then its LayerNorm
    const Draws draws = dropout.row(i);
    const vi lane = lane_indices();
    for (long j = 0; j < H; j += VL)
      store(z + j, load_sum(x, y, dropout, draws, lane, j, H), H - j);
    float mean, scale;
    moments(z, H, eps, &mean, &scale);
    for (long j = 0; j < H; j += VL)
      store(z + j, (load(z + j, H - j) - mean) * scale *
                           load(gamma + j, H - j) + load(beta + j, H - j),
            H - j);
    stats[2 * i] = mean;
    stats[2 * i + 1] = scale;
  }
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  const Inputs at(attrs);
  const BackwardArrays arrays(*in, OUTPUTS);
  const float* dZ = floats(arrays.gradients[Z]);
  const float* X = floats(arrays.inputs[at.X]);
  const float* Y = at.has_Y ? floats(arrays.inputs[at.Y]) : nullptr;
  const float* gamma = floats(arrays.inputs[at.gamma]);
  const Dropout dropout(
      number(attrs, "p", 0),
      at.noise >= 0 ? floats(arrays.inputs[at.noise]) : nullptr);
  const float* stats = floats(arrays.outputs[STATS]);
  float* dX = floats((*out)[at.X]);
  float* dY = at.has_Y ? floats((*out)[at.Y]) : nullptr;
  if (at.noise >= 0) zero_gradient((*out)[at.noise]);
  const long H = arrays.inputs[at.X].shape.back();
  const long R = H ? arrays.inputs[at.X].size() / H : 0;
  const int threads = team(10.0 * R * H);
  const long width = ceil_div(H, VL) * VL;
  Scratch& shared = team_scratch();
  shared.reset(TeamNormSums::bytes(H, threads) + Sums::bytes(width, threads));
  const TeamNormSums team_sums(shared, H, threads);
  const Sums hat_rows(shared, width, threads);  // scratch memory, not sums
#pragma omp parallel num_threads(threads)
  {
    const NormSums sums = team_sums.cleared();
    float* const hat = hat_rows.mine();  // the normalized row, computed again
    const vi lane = lane_indices();
#pragma omp for schedule(static)
    for (long i = 0; i < R; i++) {
      const float *x = X + i * H, *y = Y ? Y + i * H : nullptr;
      const float mean = stats[2 * i], scale = stats[2 * i + 1];
      const Draws draws = dropout.row(i);
      for (long j = 0; j < H; j += VL)
        store(hat + j,
              (load_sum(x, y, dropout, draws, lane, j, H) - mean) * scale);
      // d: the gradient of X + dropout(Y), which is dX
      norm_gradient(dZ + i * H, hat, gamma, scale, H, sums, [&](long j, vf d) {
        if (dX) store(dX + i * H + j, d, H - j);
        if (!dY) return;
        if (dropout.on()) d *= dropout.factors(draws, (vu)(lane + (int)j));
        store(dY + i * H + j, d, H - j);
      });
    }
    team_sums.add_up(floats((*out)[at.gamma]), floats((*out)[at.beta]));
  }
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_add_norm)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<count_inputs<Inputs, OUTPUTS>>::call)
    .setInferType(Caught<all_floats>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
