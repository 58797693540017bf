// d2lbert_embed: the sum of the embeddings of a token, a segment and a
// position, each a row of a table.
#include "op.h"

namespace d2lbert {
namespace {

// Inputs: TABLES arrays of indices (of tokens, segments and positions), then
// their TABLES tables.
enum { INDEX, TABLES = 3, TABLE = TABLES, INPUTS = 2 * TABLES };

MXReturnValue infer_type(const Attrs&, std::vector<int>* in,
                         std::vector<int>* out) {
  for (int k = 0; k < TABLES; k++) {
    (*in)[INDEX + k] = kInt32;
    (*in)[TABLE + k] = kFloat32;
  }
  (*out)[0] = kFloat32;
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  const Shape rows = (*in)[INDEX], table = (*in)[TABLE];
  if (rows.empty() || table.size() != 2)
    return fail("embed needs tokens (R,) and tables (V, H)");
  for (int k = 1; k < TABLES; k++) {
    (*in)[INDEX + k] = rows;
    if ((*in)[TABLE + k].size() == 2) (*in)[TABLE + k][1] = table[1];
  }
  (*out)[0] = rows;
  (*out)[0].push_back(table[1]);
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs&, Tensors* in, Tensors* out,
                          const OpResource&) {
  const long R = (*in)[INDEX].size(), H = (*in)[TABLE].shape[1];
  const int32_t* index[TABLES];
  const float* table[TABLES];
  long rows[TABLES];
  for (int k = 0; k < TABLES; k++) {
    index[k] = ints((*in)[INDEX + k]);
    table[k] = floats((*in)[TABLE + k]);
    rows[k] = (*in)[TABLE + k].shape[0];
    if ((*in)[TABLE + k].shape.size() != 2 || (R && !rows[k]))
      return fail("embed needs tables (V, H) of at least one row");
  }
  float* Y = floats((*out)[0]);
#pragma omp parallel for schedule(dynamic, 64) num_threads(team(3.0 * R * H))
  for (long i = 0; i < R; i++) {
    const float* a = table[0] + clipped(index[0][i], rows[0]) * H;
    const float* b = table[1] + clipped(index[1][i], rows[1]) * H;
    const float* c = table[2] + clipped(index[2][i], rows[2]) * H;
    for (long j = 0; j < H; j += VL)
      store(Y + i * H + j,
            load(a + j, H - j) + load(b + j, H - j) + load(c + j, H - j),
            H - j);
  }
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs&, Tensors* in, Tensors* out,
                           const OpResource&) {
  const Saved saved(*in, 1);
  const float* dY = floats(saved.gradients[0]);
  const long R = saved.inputs[INDEX].size(), H = saved.inputs[TABLE].shape[1];
  for (int k = 0; k < TABLES; k++) clear((*out)[INDEX + k]);
  const int threads = team(3.0 * R * H);
#pragma omp parallel num_threads(threads)
  {
    const int t = omp_get_thread_num(), parts = omp_get_num_threads();
    for (int k = 0; k < TABLES; k++) {
      float* dW = floats((*out)[TABLE + k]);
      if (!dW) continue;
      const int32_t* index = ints(saved.inputs[INDEX + k]);
      const long rows = saved.inputs[TABLE + k].shape[0];
      // Each thread owns a part of dW. It reads all indices, and adds the rows
      // of dY with an index in its part. So each sum has the order of the rows
      // of dY, for any number of threads. The parts of a short table are
      // columns, not rows.
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
        const long r = clipped(index[i], rows);
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
    .setParseAttrs(Caught<constant<INPUTS, 1>>::call)
    .setInferType(Caught<infer_type>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert

mxnet::ext::MXReturnValue initialize(int version) {
  if (version >= 10900) return mxnet::ext::MX_SUCCESS;
  MX_ERROR_MSG << "the fused operators need MXNet 1.9 or newer";
  return mxnet::ext::MX_FAIL;
}
