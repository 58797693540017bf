// d2lbert_rows: rows of X at several lists of places, an output for each list;
// one gradient for all of them, in one pass over X.
#include "op.h"

namespace d2lbert {
namespace {

int num_lists(const Attrs& attrs) { return (int)number(attrs, "lists", 1); }

MXReturnValue parse(const Attrs& attrs, int* inputs, int* outputs) {
  *inputs = 1 + num_lists(attrs);  // X, places
  *outputs = num_lists(attrs);
  return MX_SUCCESS;
}

MXReturnValue infer_type(const Attrs&, std::vector<int>* in,
                         std::vector<int>* out) {
  std::fill(in->begin(), in->end(), kInt32);
  std::fill(out->begin(), out->end(), kFloat32);
  (*in)[0] = kFloat32;
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  if ((*in)[0].size() != 2) return fail("rows are taken of X (R, H)");
  for (size_t k = 0; k < out->size(); k++) {
    if ((*in)[1 + k].size() != 1) return fail("rows need places (S,)");
    (*out)[k] = {(*in)[1 + k][0], (*in)[0][1]};
  }
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs&, Tensors* in, Tensors* out,
                          const OpResource&) {
  const float* X = floats((*in)[0]);
  const long R = (*in)[0].shape[0], H = (*in)[0].shape[1];
  for (size_t k = 0; k < out->size(); k++) {
    const int32_t* places = ints((*in)[1 + k]);
    const long S = (*in)[1 + k].size();
    if (S && !R) return fail("there are no rows to take from");
    float* Y = floats((*out)[k]);
#pragma omp parallel for schedule(static) num_threads(team(1.0 * S * H))
    for (long i = 0; i < S; i++)
      std::copy_n(X + within(places[i], R) * H, H, Y + i * H);
  }
  return MX_SUCCESS;
}

// in: gradients of the outputs, X, places, outputs
MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  const int lists = num_lists(attrs);
  for (int k = 1; k <= lists; k++) clear((*out)[k]);
  float* dX = floats((*out)[0]);
  if (!dX) return MX_SUCCESS;
  const MXTensor& X = (*in)[lists];
  const long R = X.shape[0], H = X.shape[1];
  // Each thread adds what falls in its part of X, in the order of the lists,
  // so the sums are the same for any number of threads.
#pragma omp parallel num_threads(team(1.0 * R * H))
  {
    long begin, end;
    share(R, omp_get_num_threads(), omp_get_thread_num(), &begin, &end);
    std::memset(dX + begin * H, 0, 4 * (end - begin) * H);
    for (int k = 0; k < lists; k++) {
      const float* dY = floats((*in)[k]);
      MXTensor& places = (*in)[lists + 1 + k];
      for (long i = 0, S = places.size(); i < S; i++) {
        const long r = within(ints(places)[i], R);
        if (r >= begin && r < end) sum_rows(dY + i * H, H, 1, H, dX + r * H);
      }
    }
  }
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_rows)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<parse>::call)
    .setInferType(Caught<infer_type>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
