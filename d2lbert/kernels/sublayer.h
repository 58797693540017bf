// Common code of both halves of an encoder block. Each half is
// LayerNorm(X + dropout(f(X))). It takes a few rows at a time through all
// steps, so that intermediate results stay in cache. Each thread sums the
// gradients of weights over its own rows.
#pragma once
#include "norm.h"

namespace d2lbert {

// The residual connection and LayerNorm around f, for rows of H numbers.
struct Residual {
  long H;
  float eps;
  Dropout dropout;
  const float *gamma, *beta;
};

// Saved for the gradient: the normalized rows (R, H), before gamma and beta,
// and 1 / standard deviation of each row (R,). Both are null in prediction.
struct Normalized {
  float *hat, *scale;
};

// Y = LayerNorm(X + dropout(Z)) for m rows from row `first`. x and z hold only
// these rows, Y holds all rows. z is overwritten.
inline void finish(const Residual& f, long first, long m, const float* x,
                   float* z, const Normalized& kept, float* Y) {
  const long H = f.H;
  const vi lane = count();
  for (long r = 0; r < m; r++, x += H, z += H) {
    const Draws draws = f.dropout.row(first + r);
    for (long j = 0; j < H; j += VL) {
      vf v = load(z + j, H - j);
      if (f.dropout.on()) v *= f.dropout.factors(draws, (vu)(lane + (int)j));
      store(z + j, load(x + j, H - j) + v, H - j);
    }
    float mean, scale;
    moments(z, H, f.eps, &mean, &scale);
    const long to = (first + r) * H;
    for (long j = 0; j < H; j += VL) {
      const vf hat = (load(z + j, H - j) - mean) * scale;
      if (kept.hat) stream(kept.hat + to + j, hat, H - j);
      store(Y + to + j,
            hat * load(f.gamma + j, H - j) + load(f.beta + j, H - j), H - j);
    }
    if (kept.scale) kept.scale[first + r] = scale;
  }
}

// Compute dx and dz, the gradients of X and Z for these rows, from the gradient
// of Y. Add to the gradients of gamma and beta in `sums`.
inline void finish_back(const Residual& f, long first, long m,
                        const float* dY, const Normalized& kept,
                        const NormSums& sums, float* dx, float* dz) {
  const long H = f.H;
  const vi lane = count();
  for (long r = first; r < first + m; r++, dx += H, dz += H) {
    const Draws draws = f.dropout.row(r);
    norm_gradient(dY + r * H, kept.hat + r * H, f.gamma, kept.scale[r], H,
                  sums, [&](long j, vf d) {
                    store(dx + j, d, H - j);
                    if (f.dropout.on())
                      d *= f.dropout.factors(draws, (vu)(lane + (int)j));
                    store(dz + j, d, H - j);
                  });
  }
}

// The number of rows that go through all steps together. Their data, `width`
// numbers a row, stay in cache, and each thread has a dozen blocks or more.
inline long rows_at_a_time(long R, int threads, long width) {
  return block_rows(R, threads, 12, 4.0 * width);
}

// Copy n numbers, or zeros if `from` is null. Zeros fill the last panel.
inline float* padded_copy(const float* from, long n, Scratch& shared) {
  float* const to = shared.take<float>(padded(n));
  std::fill(to, to + padded(n), 0.f);
  if (from) std::copy(from, from + n, to);
  return to;
}

// An operator that saves intermediate results for its gradient as its state. If
// they were outputs, MXNet would allocate their gradients in each step.
class SavingOp : public mxnet::ext::CustomStatefulOp {
 public:
  explicit SavingOp(const Attrs& attrs)
      : attrs(attrs), bf16(wants_bf16(attrs)),
        keeps(number(attrs, "grad", 1) != 0) {}

  MXReturnValue Forward(Tensors* in, Tensors* out, const OpResource&) final {
    if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
    return caught([&] { return run(in->data(), floats((*out)[0])); });
  }

  MXReturnValue Backward(Tensors* in, Tensors* out, const OpResource&) final {
    if (!keeps)
      return fail("an operator was called with grad=0 and keeps nothing for "
                  "a gradient");
    return caught([&] {
      const Saved saved(*in, 1);
      run_back(saved.inputs, floats(saved.gradients[0]), out);
      return MX_SUCCESS;
    });
  }

 protected:
  // Compute Y from the inputs; `memory` holds saved results.
  virtual MXReturnValue run(MXTensor* in, float* Y) = 0;
  virtual void run_back(MXTensor* in, const float* dY, Tensors* grads) = 0;

  // The dropout of a rate, with the bits of input `noise`.
  Dropout dropout(const char* rate, MXTensor* in, int noise) const {
    const double p = number(attrs, rate, 0);
    return Dropout(p, p > 0 ? floats(in[noise]) : nullptr);
  }
  Residual residual(long H, MXTensor& gamma, MXTensor& beta,
                    const Dropout& dropout) const {
    return {H, (float)number(attrs, "eps", 1e-5), dropout, floats(gamma),
            floats(beta)};
  }
  // Memory for R rows.
  Normalized normalized(long R, long H) {
    float* const hat = memory.take<float>(R * H);
    return {hat, memory.take<float>(R)};
  }

  const Attrs attrs;
  const bool bf16, keeps;
  Scratch memory;
};

template <class Op>
MXReturnValue create(const Attrs& attrs, const mxnet::ext::MXContext&,
                     const Shapes&, const std::vector<int>,
                     mxnet::ext::CustomStatefulOp** made) {
  *made = mxnet::ext::CustomStatefulOp::create<Op, const Attrs&>(attrs);
  return MX_SUCCESS;
}

}  // namespace d2lbert
