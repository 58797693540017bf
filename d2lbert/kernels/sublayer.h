// What both halves of an encoder's block have in common: each is
// LayerNorm(X + dropout(f(X))), done a few rows at a time from beginning to
// end, so that what lies between stays in cache; each thread sums gradients of
// weights over rows of its own.
#pragma once
#include "norm.h"

namespace d2lbert {

// The connection around f, for rows of H numbers.
struct Residual {
  long H;
  float eps;
  Dropout dropout;
  const float *gamma, *beta;
};

// What its gradient needs: the normalized sums (R, H), before gamma and beta,
// and their scales (R,). Null in prediction.
struct Normalized {
  float *hat, *scale;
};

// Y = LayerNorm(X + dropout(Z)) of m rows from `first` on; x, z: those rows,
// z is lost.
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

// Gradients of X's and Z's rows from that of Y's, and what they add to those
// of gamma and beta.
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

// Rows at a time, so that what belongs to them, `width` numbers a row, stays
// in cache, and each thread has a dozen such blocks to take.
inline long rows_at_a_time(long R, int threads, long width) {
  return block_rows(R, threads, 12, 4.0 * width);
}

// n numbers, followed by zeros in the rest of the last panel.
inline float* padded_copy(const float* from, long n, Scratch& shared) {
  float* const to = shared.take<float>(padded(n));
  std::fill(to, to + padded(n), 0.f);
  if (from) std::copy(from, from + n, to);
  return to;
}

// An operator that keeps what its gradient needs of the way there. As outputs,
// or inputs that it changes, such arrays would have gradients of their own,
// for which MXNet finds memory in each step.
class Keeping : public mxnet::ext::CustomStatefulOp {
 public:
  explicit Keeping(const Attrs& attrs)
      : attrs(attrs), bf16(wants_bf16(attrs)),
        keeps(number(attrs, "grad", 1) != 0) {}

  MXReturnValue Forward(Tensors* in, Tensors* out, const OpResource&) final {
    if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
    return caught([&] { return run(in->data(), floats((*out)[0])); });
  }

  // in: the outcome's gradient, the inputs, the outcome
  MXReturnValue Backward(Tensors* in, Tensors* out, const OpResource&) final {
    if (!keeps)
      return fail("an operator was called with grad=0 and keeps nothing for "
                  "a gradient");
    return caught([&] {
      run_back(in->data() + 1, floats((*in)[0]), out);
      return MX_SUCCESS;
    });
  }

 protected:
  // Y from the inputs; what is kept goes into `memory`.
  virtual MXReturnValue run(MXTensor* in, float* Y) = 0;
  virtual void run_back(MXTensor* in, const float* dY, Tensors* grads) = 0;

  // How input `noise` drops at a rate, where there is one.
  Dropout dropout(const char* rate, MXTensor* in, int noise) const {
    const double p = number(attrs, rate, 0);
    return Dropout(p, p > 0 ? floats(in[noise]) : nullptr);
  }
  Residual residual(MXTensor* in, int gamma, const char* rate,
                    int noise) const {
    return {in[0].shape[1], (float)number(attrs, "eps", 1e-5),
            dropout(rate, in, noise), floats(in[gamma]),
            floats(in[gamma + 1])};
  }
  // Room for R rows of those.
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

inline bool drops(const Attrs& attrs, const char* rate) {
  return number(attrs, rate, 0) > 0;
}

}  // namespace d2lbert
