// d2lbert_rms_norm: gamma * X / sqrt(mean(X^2) + eps) over the last axis.
#include "op.h"

namespace d2lbert {
namespace {

struct Inputs : IndexedInputs {
  const int X, gamma;
  Inputs() : X(next()), gamma(next()) {}
};

enum { Y, SCALES, OUTPUTS };  // SCALES: 1 / sqrt(mean + eps) of each row

MXReturnValue parse(const Attrs&, int* inputs, int* outputs) {
  *inputs = Inputs().num_inputs();
  *outputs = OUTPUTS;
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  const Inputs at;
  const Shape x = (*in)[at.X];
  if (x.empty()) return fail("rms_norm needs X with at least one axis");
  (*in)[at.gamma] = {x.back()};
  Shape scales = x;
  scales.back() = 1;
  *out = {x, scales};
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs& attrs, Tensors* in, Tensors* out,
                          const OpResource&) {
  const Inputs at;
  const float *X = floats((*in)[at.X]), *gamma = floats((*in)[at.gamma]);
  float *y = floats((*out)[Y]), *scales = floats((*out)[SCALES]);
  const float eps = (float)number(attrs, "eps", 1e-6);
  const long H = (*in)[at.X].shape.back();
  const long R = H ? (*in)[at.X].size() / H : 0;
  // A row is computed by one thread, so its bits do not depend on the team
#pragma omp parallel for schedule(static) num_threads(team(4.0 * R * H))
  for (long i = 0; i < R; i++) {
    const float* x = X + i * H;
    vf squares{};
    for (long j = 0; j < H; j += VL) {
      const vf v = load(x + j, H - j);      // zeros after the end of the row
      squares += v * v;
    }
    scales[i] = 1 / std::sqrt(sum(squares) / H + eps);
    for (long j = 0; j < H; j += VL)
      store(y + i * H + j,
            load(x + j, H - j) * scales[i] * load(gamma + j, H - j), H - j);
  }
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs&, Tensors* in, Tensors* out,
                           const OpResource&) {
  const Inputs at;
  const BackwardArrays arrays(*in, OUTPUTS);
  const float* dY = floats(arrays.gradients[Y]);
  const float* X = floats(arrays.inputs[at.X]);
  const float* gamma = floats(arrays.inputs[at.gamma]);
  const float* scales = floats(arrays.outputs[SCALES]);
  float* dX = floats((*out)[at.X]);     // null: no one asks for it
  const long H = arrays.inputs[at.X].shape.back();
  const long R = H ? arrays.inputs[at.X].size() / H : 0;
  const int threads = team(8.0 * R * H);
  const long width = ceil_div(H, VL) * VL;
  // Reserved here: an exception must not leave the parallel region
  Scratch& shared = team_scratch();
  shared.reset(Sums::bytes(width, threads));
  const Sums all(shared, width, threads);
#pragma omp parallel num_threads(threads)
  {
    float* const dgamma = all.cleared();
#pragma omp for schedule(static)
    for (long i = 0; i < R; i++) {
      const float *x = X + i * H, *dy = dY + i * H, scale = scales[i];
      vf product{};
      for (long j = 0; j < H; j += VL) {
        const vf d = load(dy + j, H - j), v = load(x + j, H - j) * scale;
        product += d * load(gamma + j, H - j) * v;
        store(dgamma + j, load(dgamma + j) + d * v);
      }
      const float mean = sum(product) / H;
      for (long j = 0; dX && j < H; j += VL)
        store(dX + i * H + j,
              (load(dy + j, H - j) * load(gamma + j, H - j) -
               load(x + j, H - j) * scale * mean) * scale,
              H - j);
    }
    all.add_up(floats((*out)[at.gamma]), 0, H);
  }
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_rms_norm)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<parse>::call)
    .setInferType(Caught<all_floats>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert

// Only a library of its own needs this. The package has it in embed.cc.
mxnet::ext::MXReturnValue initialize(int) { return mxnet::ext::MX_SUCCESS; }
