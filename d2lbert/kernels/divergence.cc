// The operator d2lbert_divergence, for the loss of distillation: the KL
// divergence KL(softmax(teacher / T) || softmax(scores / T)) of each row. T is
// the temperature. scores (M, V): the logits of the student. teacher (M, V):
// the logits of the teacher, which get no gradient.
#include <cmath>

#include "op.h"

namespace d2lbert {
namespace {

// The largest logit of a row, and the logarithm of the sum of exp((logit -
// largest) / T). One number, largest / T + log_sum, would lose digits.
struct Normalizer {
  float largest, log_sum;
  vf softmax(vf logits, float inverse_temperature) const {
    return exp((logits - largest) * inverse_temperature - log_sum);
  }
};

enum { SCORES, TEACHER, INPUTS };  // INPUTS: the number of inputs
// Outputs. DIVERGENCES (M,). NORMALIZERS (M, 4): two `Normalizer` objects for
// each row, of the scores and of the teacher.
enum { DIVERGENCES, NORMALIZERS, OUTPUTS };

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  const Shape x = (*in)[SCORES];
  if (x.size() != 2) return fail("divergence needs scores (M, V)");
  (*in)[TEACHER] = x;
  *out = {{x[0]}, {x[0], 4}};
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs& attrs, Tensors* in, Tensors* out,
                          const OpResource&) {
  const float* scores = floats((*in)[SCORES]);
  const float* teacher = floats((*in)[TEACHER]);
  const long M = (*in)[SCORES].shape[0], V = (*in)[SCORES].shape[1];
  const float inverse_temperature = 1 / (float)number(attrs, "temperature", 1);
  float* divergences = floats((*out)[DIVERGENCES]);
  Normalizer* normalizers = (Normalizer*)floats((*out)[NORMALIZERS]);
#pragma omp parallel for schedule(static) num_threads(team(40.0 * M * V))
  for (long i = 0; i < M; i++) {
    const float *x = scores + i * V, *y = teacher + i * V;
    // At least -1e30: -infinity minus -infinity would be NaN
    const float largest_x = std::max(maximum(x, V), -1e30f);
    const float largest_y = std::max(maximum(y, V), -1e30f);
    const vi lane = lane_indices();
    // The sums of exp_x, of exp_y, and of exp_y log(exp_y / exp_x)
    vf total_x{}, total_y{}, total_term{};
    for (long j = 0; j < V; j += VL) {
      const vf a = (load(x + j, V - j) - largest_x) * inverse_temperature;
      const vf b = (load(y + j, V - j) - largest_y) * inverse_temperature;
      vf exp_x = exp(a), exp_y = exp(b), term = exp_y * (b - a);
      if (V - j < VL) {
        exp_x = pick(lane < (int)(V - j), exp_x, vf{});
        exp_y = pick(lane < (int)(V - j), exp_y, vf{});
        term = pick(lane < (int)(V - j), term, vf{});
      }
      total_x += exp_x;
      total_y += exp_y;
      total_term += term;
    }
    const float sum_y = sum(total_y);
    const float log_x = std::log(sum(total_x)), log_y = std::log(sum_y);
    divergences[i] = sum(total_term) / sum_y + (log_x - log_y);
    normalizers[2 * i] = {largest_x, log_x};
    normalizers[2 * i + 1] = {largest_y, log_y};
  }
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  const BackwardArrays arrays(*in, OUTPUTS);
  const float* d_divergences = floats(arrays.gradients[DIVERGENCES]);
  const float* scores = floats(arrays.inputs[SCORES]);
  const float* teacher = floats(arrays.inputs[TEACHER]);
  const Normalizer* normalizers =
      (const Normalizer*)floats(arrays.outputs[NORMALIZERS]);
  const auto& shape = arrays.inputs[SCORES].shape;
  const long M = shape[0], V = shape[1];
  const float inverse_temperature = 1 / (float)number(attrs, "temperature", 1);
  float* d_scores = floats((*out)[SCORES]);
  zero_gradient((*out)[TEACHER]);
  if (!d_scores) return MX_SUCCESS;
#pragma omp parallel for schedule(static) num_threads(team(40.0 * M * V))
  for (long i = 0; i < M; i++) {
    const float *x = scores + i * V, *y = teacher + i * V;
    const Normalizer of_x = normalizers[2 * i], of_y = normalizers[2 * i + 1];
    const float scale = d_divergences[i] * inverse_temperature;
    for (long j = 0; j < V; j += VL)
      store(d_scores + i * V + j,
            scale * (of_x.softmax(load(x + j, V - j), inverse_temperature) -
                     of_y.softmax(load(y + j, V - j), inverse_temperature)),
            V - j);
  }
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_divergence)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<fixed_counts<INPUTS, OUTPUTS>>::call)
    .setInferType(Caught<all_floats>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
