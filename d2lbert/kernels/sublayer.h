// Common code of self_attention.cc and feed_forward.cc, the two halves of an
// encoder block. Each half computes Y = LayerNorm(X + dropout(f(X))), for X
// with R rows of H numbers. f is self-attention or the feed-forward network. A
// few rows at a time go through all steps, so that intermediate results stay in
// cache. Each thread sums the gradients of weights over the rows that it
// computes.
#pragma once
#include "norm.h"

namespace d2lbert {

// Arguments of the residual connection and LayerNorm. eps: see `moments` in
// norm.h. dropout: of f(X).
struct Residual {
  long H;
  float eps;
  Dropout dropout;
  const float *gamma, *beta;
};

// Results of LayerNorm that the gradient needs. hat (R, H): the normalized
// rows, before gamma and beta. scale (R,): the scale of each row (`moments` in
// norm.h). Both are null if no gradient is wanted.
struct Normalized {
  float *hat, *scale;
};

// Compute Y = LayerNorm(X + dropout(Z)) for m rows from row `first`, with Z =
// f(X). x and z hold only these rows; Y and `normalized` hold all rows. X +
// dropout(Z) replaces z.
inline void add_and_norm(const Residual& residual, long first, long m,
                         const float* x, float* z, const Normalized& normalized,
                         float* Y) {
  const long H = residual.H;
  const Dropout& dropout = residual.dropout;
  const vi lane = lane_indices();
  for (long r = 0; r < m; r++, x += H, z += H) {
    const Draws draws = dropout.row(first + r);
    for (long j = 0; j < H; j += VL) {
      vf v = load(z + j, H - j);
      if (dropout.on()) v *= dropout.factors(draws, (vu)(lane + (int)j));
      store(z + j, load(x + j, H - j) + v, H - j);
    }
    float mean, scale;
    moments(z, H, residual.eps, &mean, &scale);
    const long row_begin = (first + r) * H;  // in Y and normalized.hat
    for (long j = 0; j < H; j += VL) {
      const vf hat = (load(z + j, H - j) - mean) * scale;
      if (normalized.hat) stream(normalized.hat + row_begin + j, hat, H - j);
      store(Y + row_begin + j,
            hat * load(residual.gamma + j, H - j) +
                load(residual.beta + j, H - j),
            H - j);
    }
    if (normalized.scale) normalized.scale[first + r] = scale;
  }
}

// Given dY, the gradient of all rows of Y, compute dz and dx for m rows from
// row `first`. dz and dx hold only these rows. dz: the gradient of Z = f(X).
// dx: the gradient of X through the residual connection alone, not through f.
// The gradients of gamma and beta are added to `sums`.
inline void add_and_norm_gradient(const Residual& residual, long first, long m,
                                  const float* dY, const Normalized& normalized,
                                  const NormSums& sums, float* dx, float* dz) {
  const long H = residual.H;
  const Dropout& dropout = residual.dropout;
  const vi lane = lane_indices();
  for (long r = first; r < first + m; r++, dx += H, dz += H) {
    const Draws draws = dropout.row(r);
    norm_gradient(dY + r * H, normalized.hat + r * H, residual.gamma,
                  normalized.scale[r], H, sums, [&](long j, vf d) {
                    store(dx + j, d, H - j);
                    if (dropout.on())
                      d *= dropout.factors(draws, (vu)(lane + (int)j));
                    store(dz + j, d, H - j);
                  });
  }
}

// The number of rows in a group of rows that go through all steps together.
// Except for rounding up to tiles (`block_rows`), the data of a group, `width`
// numbers for each row, fit in cache, and each thread gets at least 12 groups.
inline long rows_at_a_time(long R, int threads, long width) {
  return block_rows(R, threads, 12, 4.0 * width);
}

// Return a copy of n numbers, or of n zeros if `from` is null, with zeros up to
// the end of the last panel (gemm.h).
inline float* padded_copy(const float* from, long n, Scratch& shared) {
  float* const to = shared.take<float>(padded(n));
  std::fill(to, to + padded(n), 0.f);
  if (from) std::copy(from, from + n, to);
  return to;
}

// An operator that stores intermediate results for the gradient in its state.
// If these results were outputs, MXNet would allocate memory for the gradients
// of the results in each step.
class SavingOp : public mxnet::ext::CustomStatefulOp {
 public:
  explicit SavingOp(const Attrs& attrs)
      : attrs(attrs), bf16(wants_bf16(attrs)),
        wants_grad(number(attrs, "grad", 1) != 0) {}

  MXReturnValue Forward(Tensors* in, Tensors* out, const OpResource&) final {
    if (bf16 && !D2LBERT_BF16) return fail(BF16_ERROR);
    return caught([&] { return run(in->data(), floats((*out)[0])); });
  }

  MXReturnValue Backward(Tensors* in, Tensors* out, const OpResource&) final {
    if (!wants_grad)
      return fail("an operator that was called with grad=0 has no gradient: "
                  "call it with grad=1");
    return caught([&] {
      const BackwardArrays arrays(*in, 1);
      run_back(arrays.inputs, floats(arrays.gradients[0]), out);
      return MX_SUCCESS;
    });
  }

 protected:
  // Compute Y from the inputs. If wants_grad, also store the results that
  // `run_back` needs in `memory`.
  virtual MXReturnValue run(MXTensor* in, float* Y) = 0;
  // Compute the gradients of the inputs from dY.
  virtual void run_back(MXTensor* in, const float* dY, Tensors* grads) = 0;

  // Dropout at the rate in the attribute `rate_key`. noise: the index of the
  // input with the random bits, or -1 if the rate is 0.
  Dropout dropout(const char* rate_key, MXTensor* in, int noise) const {
    const double p = number(attrs, rate_key, 0);
    return Dropout(p, p > 0 ? floats(in[noise]) : nullptr);
  }
  // The `Residual` for rows of H numbers.
  Residual residual(long H, MXTensor& gamma, MXTensor& beta,
                    const Dropout& dropout) const {
    return {H, (float)number(attrs, "eps", 1e-5), dropout, floats(gamma),
            floats(beta)};
  }
  // Take the arrays of `Normalized`, for R rows of H numbers, from `memory`.
  Normalized take_normalized(long R, long H) {
    float* const hat = memory.take<float>(R * H);
    return {hat, memory.take<float>(R)};
  }

  const Attrs attrs;
  const bool bf16, wants_grad;
  Scratch memory;  // results for the gradient
};

// Make an instance of Op, the state of one call of the operator, and store its
// address in *op. MXNet calls this function.
template <class Op>
MXReturnValue create(const Attrs& attrs, const mxnet::ext::MXContext&,
                     const Shapes&, const std::vector<int>,
                     mxnet::ext::CustomStatefulOp** op) {
  *op = mxnet::ext::CustomStatefulOp::create<Op, const Attrs&>(attrs);
  return MX_SUCCESS;
}

}  // namespace d2lbert
