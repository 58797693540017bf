// The operator d2lbert_rows, `take_rows` in Python, selects rows of X (R, H) by
// one or more lists of row indices. Each list (S,) gives one output (S, H). One
// call has all lists: after several calls, MXNet would have to add several dX.
#include "op.h"

namespace d2lbert {
namespace {

int count_lists(const Attrs& attrs) { return (int)number(attrs, "lists", 1); }

struct Inputs : IndexedInputs {
  const int X, first_list;  // the other lists follow it
  explicit Inputs(const Attrs& attrs)
      : X(next()), first_list(next_n(count_lists(attrs))) {}
};

MXReturnValue parse(const Attrs& attrs, int* num_in, int* num_out) {
  *num_in = Inputs(attrs).num_inputs();
  *num_out = count_lists(attrs);
  return MX_SUCCESS;
}

MXReturnValue infer_type(const Attrs& attrs, std::vector<int>* in,
                         std::vector<int>* out) {
  std::fill(in->begin(), in->end(), kInt32);
  std::fill(out->begin(), out->end(), kFloat32);
  (*in)[Inputs(attrs).X] = kFloat32;
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Inputs at(attrs);
  if ((*in)[at.X].size() != 2) return fail("take_rows needs X (R, H)");
  for (size_t k = 0; k < out->size(); k++) {
    const Shape list_shape = (*in)[at.first_list + k];
    if (list_shape.size() != 1)
      return fail("each list of row indices of take_rows must be "
                  "one-dimensional");
    (*out)[k] = {list_shape[0], (*in)[at.X][1]};
  }
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs& attrs, Tensors* in, Tensors* out,
                          const OpResource&) {
  const Inputs at(attrs);
  MXTensor& x = (*in)[at.X];
  const float* X = floats(x);
  const long R = x.shape[0], H = x.shape[1];
  for (size_t k = 0; k < out->size(); k++) {
    MXTensor& list = (*in)[at.first_list + k];
    const int32_t* indices = ints(list);
    const long S = list.size();
    if (S && !R) return fail("X of take_rows has no rows to take");
    float* Y = floats((*out)[k]);
#pragma omp parallel for schedule(static) num_threads(team(1.0 * S * H))
    for (long i = 0; i < S; i++)
      std::copy_n(X + clipped(indices[i], R) * H, H, Y + i * H);
  }
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  const int num_lists = count_lists(attrs);
  const Inputs at(attrs);
  const BackwardArrays arrays(*in, num_lists);
  for (int k = 0; k < num_lists; k++) zero_gradient((*out)[at.first_list + k]);
  float* dX = floats((*out)[at.X]);
  if (!dX) return MX_SUCCESS;
  const MXTensor& x = arrays.inputs[at.X];
  const long R = x.shape[0], H = x.shape[1];
  // Each thread computes rows [begin, end) of dX from all lists. So the order
  // of a sum does not depend on the number of threads.
#pragma omp parallel num_threads(team(1.0 * R * H))
  {
    long begin, end;
    share(R, omp_get_num_threads(), omp_get_thread_num(), &begin, &end);
    std::memset(dX + begin * H, 0, 4 * (end - begin) * H);
    for (int k = 0; k < num_lists; k++) {
      const float* dY = floats(arrays.gradients[k]);
      MXTensor& list = arrays.inputs[at.first_list + k];
      const int32_t* indices = ints(list);
      for (long i = 0, S = list.size(); i < S; i++) {
        const long r = clipped(indices[i], R);
        if (r >= begin && r < end) add_row_to(dX + r * H, dY + i * H, H);
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
