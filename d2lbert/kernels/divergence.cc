// d2lbert_divergence: for each row, the KL divergence
// KL(softmax(taught / temperature) || softmax(scores / temperature)).
#include <cmath>

#include "op.h"

namespace d2lbert {
namespace {

// The normalizer of a softmax: the largest score of a row, and the logarithm of
// the sum of exponentials of the scores minus the largest. The two stay apart,
// since their sum would lose digits for large scores.
struct Normal {
  float most, log;
  // The softmax. cold: 1 / temperature.
  vf weights(vf scores, float cold) const {
    return exp((scores - most) * cold - log);
  }
};

enum { SCORES, TAUGHT, INPUTS };
// Outputs. NORMALS: for each row, the `Normal` of scores and of taught
enum { ROWS, NORMALS, OUTPUTS };

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  const Shape x = (*in)[SCORES];
  if (x.size() != 2) return fail("divergence needs scores (M, V)");
  (*in)[TAUGHT] = x;
  *out = {{x[0]}, {x[0], 4}};
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs& attrs, Tensors* in, Tensors* out,
                          const OpResource&) {
  const float *X = floats((*in)[SCORES]), *Y = floats((*in)[TAUGHT]);
  const long M = (*in)[SCORES].shape[0], V = (*in)[SCORES].shape[1];
  const float cold = 1 / (float)number(attrs, "temperature", 1);
  float* rows = floats((*out)[ROWS]);
  Normal* normals = (Normal*)floats((*out)[NORMALS]);
#pragma omp parallel for schedule(static) num_threads(team(40.0 * M * V))
  for (long i = 0; i < M; i++) {
    const float *x = X + i * V, *y = Y + i * V;
    const float most_x = std::max(maximum(x, V), -1e30f);
    const float most_y = std::max(maximum(y, V), -1e30f);
    const vi lane = count();
    vf total_x{}, total_y{}, apart{};
    for (long j = 0; j < V; j += VL) {
      const vf a = (load(x + j, V - j) - most_x) * cold;
      const vf b = (load(y + j, V - j) - most_y) * cold;
      vf e = exp(a), p = exp(b), d = p * (b - a);
      if (V - j < VL) {
        e = pick(lane < (int)(V - j), e, vf{});
        p = pick(lane < (int)(V - j), p, vf{});
        d = pick(lane < (int)(V - j), d, vf{});
      }
      total_x += e;
      total_y += p;
      apart += d;
    }
    const float all_y = sum(total_y);
    const float log_x = std::log(sum(total_x)), log_y = std::log(all_y);
    rows[i] = sum(apart) / all_y + (log_x - log_y);
    normals[2 * i] = {most_x, log_x};
    normals[2 * i + 1] = {most_y, log_y};
  }
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  const Saved saved(*in, OUTPUTS);
  MXTensor &scores = saved.inputs[SCORES], &taught = saved.inputs[TAUGHT];
  const float* d = floats(saved.gradients[ROWS]);
  const float *X = floats(scores), *Y = floats(taught);
  const Normal* normals = (const Normal*)floats(saved.outputs[NORMALS]);
  const long M = scores.shape[0], V = scores.shape[1];
  const float cold = 1 / (float)number(attrs, "temperature", 1);
  float* dX = floats((*out)[SCORES]);
  clear((*out)[TAUGHT]);
  if (!dX) return MX_SUCCESS;
#pragma omp parallel for schedule(static) num_threads(team(40.0 * M * V))
  for (long i = 0; i < M; i++) {
    const float *x = X + i * V, *y = Y + i * V;
    const Normal of_x = normals[2 * i], of_y = normals[2 * i + 1];
    const float scale = d[i] * cold;
    for (long j = 0; j < V; j += VL)
      store(dX + i * V + j,
            scale * (of_x.weights(load(x + j, V - j), cold) -
                     of_y.weights(load(y + j, V - j), cold)),
            V - j);
  }
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_divergence)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<constant<INPUTS, OUTPUTS>>::call)
    .setInferType(Caught<all_floats>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
