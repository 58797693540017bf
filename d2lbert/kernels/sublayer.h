// Common code of self_attention.cc and feed_forward.cc, the two halves of an
// encoder block. Each half computes Y = LayerNorm(X + dropout(f(X))), for X
// (R, H), where f is self-attention or the feed-forward network. A group of
// rows at a time goes through all steps, so that intermediate results stay in
// cache.
#pragma once
#include "norm.h"

namespace d2lbert {

// Arguments of the residual connection and LayerNorm. dropout: of f(X).
struct Residual {
  long H;
  float eps;
  Dropout dropout;
  const float *gamma, *beta;
};

// Results of LayerNorm for the gradient; null if no gradient is wanted. hat
// (R, H): the normalized rows, before gamma and beta. scale (R,): `moments` in
// norm.h.
struct Normalized {
  float *hat, *scale;
};

// Compute m rows of Y = LayerNorm(X + dropout(Z)) from row `first`, for Z =
// f(X). x and z hold only these rows; Y and `normalized` hold all rows. X +
// dropout(Z) overwrites z.
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
    const long row_begin = (first + r) * H;
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

// Compute m rows of gradients from row `first`. dz: the gradient of Z = f(X).
// dx: the gradient of X through the residual connection alone. dz and dx hold
// only these rows; dY holds all rows. Adds the gradients of gamma and beta to
// `sums`.
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

// The number of rows in a group: `width` numbers for each row fit in cache, and
// each thread gets at least 12 groups, except for rounding up to tiles.
inline long rows_at_a_time(long R, int threads, long width) {
  return block_rows(R, threads, 12, 4.0 * width);
}

// Copy n numbers, or n zeros if `from` is null, and add zeros up to the end of
// the last panel (gemm.h).
inline float* padded_copy(const float* from, long n, Scratch& scratch) {
  float* const to = scratch.take<float>(padded(n));
  std::fill(to, to + padded(n), 0.f);
  if (from) std::copy(from, from + n, to);
  return to;
}

// An operator that saves results for the gradient in its state. If the results
// were outputs, MXNet would allocate memory for their gradients in each step.
class SavingOp : public mxnet::ext::CustomStatefulOp {
 public:
  explicit SavingOp(const Attrs& attrs)
      : attrs(attrs), bf16(wants_bf16(attrs)),
        wants_grad(number(attrs, "grad", 1) != 0) {}

  MXReturnValue Forward(Tensors* in, Tensors* out, const OpResource&) final {
    if (bf16 && !D2LBERT_BF16) return fail(BF16_ERROR);
    return caught([&] { return run_forward(in->data(), floats((*out)[0])); });
  }

  MXReturnValue Backward(Tensors* in, Tensors* out, const OpResource&) final {
    if (!wants_grad)
      return fail("an operator that was called with grad=0 has no gradient: "
                  "call it with grad=1");
    return caught([&] {
      const BackwardArrays arrays(*in, 1);
      run_backward(arrays.inputs, floats(arrays.gradients[0]), out);
      return MX_SUCCESS;
    });
  }

 protected:
  // If wants_grad, also store in `memory` what `run_backward` needs.
  virtual MXReturnValue run_forward(MXTensor* in, float* Y) = 0;
  virtual void run_backward(MXTensor* in, const float* dY, Tensors* grads) = 0;

  // noise_index: the input with the random bits, or -1 if the rate is 0.
  Dropout dropout(const char* rate_key, MXTensor* in, int noise_index) const {
    const double p = number(attrs, rate_key, 0);
    return Dropout(p, p > 0 ? floats(in[noise_index]) : nullptr);
  }
  Residual residual(long H, MXTensor& gamma, MXTensor& beta,
                    const Dropout& dropout) const {
    return {H, (float)number(attrs, "eps", 1e-5), dropout, floats(gamma),
            floats(beta)};
  }
  Normalized take_normalized(long R, long H) {
    float* const hat = memory.take<float>(R * H);
    return {hat, memory.take<float>(R)};
  }

  const Attrs attrs;
  const bool bf16, wants_grad;
  Scratch memory;  // results for the gradient
};

// MXNet calls this function to make the state of one call of the operator.
template <class Op>
MXReturnValue create(const Attrs& attrs, const mxnet::ext::MXContext&,
                     const Shapes&, const std::vector<int>,
                     mxnet::ext::CustomStatefulOp** op) {
  *op = mxnet::ext::CustomStatefulOp::create<Op, const Attrs&>(attrs);
  return MX_SUCCESS;
}

}  // namespace d2lbert
