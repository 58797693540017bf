// The operator d2lbert_embed: for each of R tokens, the sum of the embeddings
// of the token, its segment and its position. An embedding is a row of a table,
// with H numbers.
#include "op.h"

namespace d2lbert {
namespace {

// The inputs: the indices of tokens, segments and positions, three arrays of
// the same shape with R entries, then the three tables in the same order.
constexpr int NUM_TABLES = 3;
enum {
  FIRST_INDICES,
  FIRST_TABLE = NUM_TABLES,
  NUM_INPUTS = 2 * NUM_TABLES
};

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  const Shape tokens = (*in)[FIRST_INDICES], table = (*in)[FIRST_TABLE];
  if (tokens.empty() || table.size() != 2)
    return fail("embed needs tokens of at least one axis and tables (V, H)");
  const unsigned H = table[1];
  for (int k = 1; k < NUM_TABLES; k++) {
    (*in)[FIRST_INDICES + k] = tokens;
    if ((*in)[FIRST_TABLE + k].size() == 2) (*in)[FIRST_TABLE + k][1] = H;
  }
  (*out)[0] = tokens;
  (*out)[0].push_back(H);
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs&, Tensors* in, Tensors* out,
                          const OpResource&) {
  const long R = (*in)[FIRST_INDICES].size(), H = (*in)[FIRST_TABLE].shape[1];
  const int32_t* indices[NUM_TABLES];
  const float* tables[NUM_TABLES];
  long num_rows[NUM_TABLES];
  for (int k = 0; k < NUM_TABLES; k++) {
    indices[k] = ints((*in)[FIRST_INDICES + k]);
    tables[k] = floats((*in)[FIRST_TABLE + k]);
    num_rows[k] = (*in)[FIRST_TABLE + k].shape[0];
    if ((*in)[FIRST_TABLE + k].shape.size() != 2 || (R && !num_rows[k]))
      return fail("embed needs tables (V, H) of at least one row");
  }
  float* Y = floats((*out)[0]);
#pragma omp parallel for schedule(dynamic, 64) num_threads(team(3.0 * R * H))
  for (long i = 0; i < R; i++) {
    const float* a = tables[0] + clipped(indices[0][i], num_rows[0]) * H;
    const float* b = tables[1] + clipped(indices[1][i], num_rows[1]) * H;
    const float* c = tables[2] + clipped(indices[2][i], num_rows[2]) * H;
    for (long j = 0; j < H; j += VL)
      store(Y + i * H + j,
            load(a + j, H - j) + load(b + j, H - j) + load(c + j, H - j),
            H - j);
  }
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs&, Tensors* in, Tensors* out,
                           const OpResource&) {
  const BackwardArrays arrays(*in, 1);
  const float* dY = floats(arrays.gradients[0]);
  const long R = arrays.inputs[FIRST_INDICES].size();
  const long H = arrays.inputs[FIRST_TABLE].shape[1];
  for (int k = 0; k < NUM_TABLES; k++) zero_gradient((*out)[FIRST_INDICES + k]);
  const int threads = team(3.0 * R * H);
#pragma omp parallel num_threads(threads)
  {
    const int t = omp_get_thread_num(), team_size = omp_get_num_threads();
    for (int k = 0; k < NUM_TABLES; k++) {
      float* dW = floats((*out)[FIRST_TABLE + k]);  // the gradient of table k
      if (!dW) continue;
      const int32_t* indices = ints(arrays.inputs[FIRST_INDICES + k]);
      const long num_rows = arrays.inputs[FIRST_TABLE + k].shape[0];
      // Each thread sums some rows of dW, or some columns if there are few
      // rows. It reads all of dY, so each sum has the order of the rows of dY,
      // for any number of threads.
      const bool has_few_rows = num_rows < 64 * team_size;
      long first_row = 0, end_row = num_rows;
      long first_column = 0, end_column = H;
      if (has_few_rows) {
        long first_vector, end_vector;
        share(ceil_div(H, VL), team_size, t, &first_vector, &end_vector);
        first_column = first_vector * VL;
        end_column = std::min(end_vector * VL, H);
        for (long r = 0; r < num_rows; r++)
          std::memset(dW + r * H + first_column, 0,
                      4 * (end_column - first_column));
      } else {
        share(num_rows, team_size, t, &first_row, &end_row);
        std::memset(dW + first_row * H, 0, 4 * (end_row - first_row) * H);
      }
      for (long i = 0; i < R; i++) {
        const long r = clipped(indices[i], num_rows);
        if (r < first_row || r >= end_row) continue;
        for (long j = first_column; j < end_column; j += VL)
          store(dW + r * H + j, load(dW + r * H + j, end_column - j) +
                                    load(dY + i * H + j, end_column - j),
                end_column - j);
      }
    }
  }
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_embed)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<fixed_counts<NUM_INPUTS, 1>>::call)
    .setInferType(Caught<floats_except<FIRST_INDICES, NUM_TABLES>>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert

// MXNet calls this once, when it loads the library of all operators.
mxnet::ext::MXReturnValue initialize(int version) {
  if (version >= 10900) return mxnet::ext::MX_SUCCESS;
  MX_ERROR_MSG << "the fused operators need MXNet 1.9 or newer";
  return mxnet::ext::MX_FAIL;
}
