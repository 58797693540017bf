// d2lbert_embed: the sum of a token's, a segment's and a position's row.
#include "op.h"

namespace d2lbert {
namespace {

MXReturnValue parse(const Attrs&, int* inputs, int* outputs) {
  *inputs = 6;  // tokens, segments, positions, Wtok, Wseg, Wpos
  *outputs = 1;
  return MX_SUCCESS;
}

MXReturnValue infer_type(const Attrs&, std::vector<int>* in,
                         std::vector<int>* out) {
  for (int i = 0; i < 6; i++) (*in)[i] = i < 3 ? kInt32 : kFloat32;
  (*out)[0] = kFloat32;
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  const Shape rows = (*in)[0];
  if (rows.empty() || (*in)[3].size() != 2)
    return fail("embed needs tokens (R,) and tables (V, H)");
  (*in)[1] = (*in)[2] = rows;
  for (int k = 4; k < 6; k++)
    if ((*in)[k].size() == 2) (*in)[k][1] = (*in)[3][1];
  (*out)[0] = rows;
  (*out)[0].push_back((*in)[3][1]);
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs&, Tensors* in, Tensors* out,
                          const OpResource&) {
  const long R = (*in)[0].size(), H = (*in)[3].shape[1];
  const int32_t* index[3];
  const float* table[3];
  long rows[3];
  for (int k = 0; k < 3; k++) {
    index[k] = ints((*in)[k]);
    table[k] = floats((*in)[3 + k]);
    rows[k] = (*in)[3 + k].shape[0];
    if ((*in)[3 + k].shape.size() != 2 || (R && !rows[k]))
      return fail("embed needs tables (V, H) of at least one row");
  }
  float* Y = floats((*out)[0]);
#pragma omp parallel for schedule(dynamic, 64) num_threads(team(3.0 * R * H))
  for (long i = 0; i < R; i++) {
    const float* a = table[0] + within(index[0][i], rows[0]) * H;
    const float* b = table[1] + within(index[1][i], rows[1]) * H;
    const float* c = table[2] + within(index[2][i], rows[2]) * H;
    for (long j = 0; j < H; j += VL)
      store(Y + i * H + j,
            load(a + j, H - j) + load(b + j, H - j) + load(c + j, H - j),
            H - j);
  }
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs&, Tensors* in, Tensors* out,
                           const OpResource&) {
  const float* dY = floats((*in)[0]);
  const long R = (*in)[1].size(), H = (*in)[4].shape[1];
  for (int k = 0; k < 3; k++) clear((*out)[k]);
  const int threads = team(3.0 * R * H);
#pragma omp parallel num_threads(threads)
  {
    const int t = omp_get_thread_num(), parts = omp_get_num_threads();
    for (int k = 0; k < 3; k++) {
      float* dW = floats((*out)[3 + k]);
      if (!dW) continue;
      const int32_t* index = ints((*in)[1 + k]);
      const long rows = (*in)[4 + k].shape[0];
      // Each thread adds what falls in its part of the table, in the order
      // of the rows, so the sums are the same for any number of threads. A
      // short table is split by columns.
      const bool by_columns = rows < 64 * parts;
      long first, last, left = 0, right = H;
      share(rows, parts, t, &first, &last);
      if (by_columns) {
        share(ceil_div(H, VL), parts, t, &left, &right);
        left *= VL;
        right = std::min(right * VL, H);
        first = 0;
        last = rows;
        for (long r = 0; r < rows; r++)
          if (left < right)
            std::memset(dW + r * H + left, 0, 4 * (right - left));
      } else {
        std::memset(dW + first * H, 0, 4 * (last - first) * H);
      }
      for (long i = 0; i < R; i++) {
        const long r = within(index[i], rows);
        if (r < first || r >= last) continue;
        for (long j = left; j < right; j += VL)
          store(dW + r * H + j, load(dW + r * H + j, right - j) +
                                    load(dY + i * H + j, right - j),
                right - j);
      }
    }
  }
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_embed)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<parse>::call)
    .setInferType(Caught<infer_type>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert

mxnet::ext::MXReturnValue initialize(int version) {
  if (version >= 10900) return mxnet::ext::MX_SUCCESS;
  MX_ERROR_MSG << "the fused operators need MXNet 1.9 or newer";
  return mxnet::ext::MX_FAIL;
}
