// d2lbert_add_norm: LayerNorm(X + dropout(Y)) over the last axis, or of X
// alone.
#include "norm.h"

namespace d2lbert {
namespace {

bool adds(const Attrs& attrs) { return number(attrs, "adds", 1) != 0; }
bool drops(const Attrs& attrs) { return number(attrs, "p", 0) > 0; }

MXReturnValue parse(const Attrs& attrs, int* inputs, int* outputs) {
  // X[, Y], gamma, beta[, noise]
  *inputs = 3 + adds(attrs) + drops(attrs);
  *outputs = 2;  // Z, (mean, 1 / deviation) of each row
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Shape x = (*in)[0];
  if (x.empty()) return fail("add_norm needs X with at least one axis");
  const int scales = 1 + adds(attrs);
  (*in)[scales - 1] = x;
  (*in)[scales] = (*in)[scales + 1] = {x.back()};
  if (drops(attrs)) in->back() = {64};
  Shape stats = x;
  stats.back() = 2;
  *out = {x, stats};
  return MX_SUCCESS;
}

// X + dropout(Y), or X where there is no Y, vector j of a row.
inline vf joined(const float* x, const float* y, const Dropout& dropout,
                 const Draws& draws, vi lane, long j, long n) {
  if (!y) return load(x + j, n - j);
  const vf v = load(y + j, n - j);
  if (!dropout.on()) return load(x + j, n - j) + v;
  return load(x + j, n - j) + v * dropout.factors(draws, (vu)(lane + (int)j));
}

MXReturnValue run_forward(const Attrs& attrs, Tensors* in, Tensors* out,
                          const OpResource&) {
  const int scales = 1 + adds(attrs);
  const float* X = floats((*in)[0]);
  const float* Y = adds(attrs) ? floats((*in)[1]) : nullptr;
  const float *gamma = floats((*in)[scales]),
              *beta = floats((*in)[scales + 1]);
  const Dropout dropout(number(attrs, "p", 0),
                        drops(attrs) ? floats(in->back()) : nullptr);
  const float eps = (float)number(attrs, "eps", 1e-5);
  float *Z = floats((*out)[0]), *stats = floats((*out)[1]);
  const long H = (*in)[0].shape.back(), R = H ? (*in)[0].size() / H : 0;
#pragma omp parallel for schedule(dynamic, 64) num_threads(team(10.0 * R * H))
  for (long i = 0; i < R; i++) {
    const float *x = X + i * H, *y = Y ? Y + i * H : nullptr;
    float* z = Z + i * H;
    const Draws draws = dropout.row(i);
    const vi lane = count();
    for (long j = 0; j < H; j += VL)
      store(z + j, joined(x, y, dropout, draws, lane, j, H), H - j);
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
  // in: dZ, dstats, X[, Y], gamma, beta[, noise], Z, stats
  const int scales = 1 + adds(attrs);
  const float *dZ = floats((*in)[0]), *X = floats((*in)[2]);
  const float* Y = adds(attrs) ? floats((*in)[3]) : nullptr;
  const float* gamma = floats((*in)[2 + scales]);
  const Dropout dropout(number(attrs, "p", 0),
                        drops(attrs) ? floats((*in)[4 + scales]) : nullptr);
  const float* stats = floats(in->back());
  float* dX = floats((*out)[0]);
  float* dY = adds(attrs) ? floats((*out)[1]) : nullptr;
  float *dgamma = floats((*out)[scales]), *dbeta = floats((*out)[scales + 1]);
  if (drops(attrs)) clear(out->back());
  const long H = (*in)[2].shape.back(), R = H ? (*in)[2].size() / H : 0;
  const int threads = team(10.0 * R * H);
  const long width = ceil_div(H, VL) * VL;
  Scratch& shared = team_scratch();
  shared.reset(TeamNormSums::bytes(H, threads) + Sums::bytes(width, threads));
  const TeamNormSums all(shared, H, threads);
  const Sums hats(shared, width, threads);
#pragma omp parallel num_threads(threads)
  {
    const NormSums sums = all.cleared();
    float* const hat = hats.mine();
    const vi lane = count();
#pragma omp for schedule(static)
    for (long i = 0; i < R; i++) {
      const float *x = X + i * H, *y = Y ? Y + i * H : nullptr;
      const float mean = stats[2 * i], scale = stats[2 * i + 1];
      const Draws draws = dropout.row(i);
      for (long j = 0; j < H; j += VL)
        store(hat + j,
              (joined(x, y, dropout, draws, lane, j, H) - mean) * scale);
      norm_gradient(dZ + i * H, hat, gamma, scale, H, sums, [&](long j, vf d) {
        if (dX) store(dX + i * H + j, d, H - j);
        if (!dY) return;
        if (dropout.on()) d *= dropout.factors(draws, (vu)(lane + (int)j));
        store(dY + i * H + j, d, H - j);
      });
    }
    all.add_up(dgamma, dbeta);
  }
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_add_norm)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<parse>::call)
    .setInferType(Caught<all_floats>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
