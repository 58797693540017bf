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

// x's m rows of n numbers added to one.
inline void add_rows(const float* x, long m, long n, float* to) {
  for (long r = 0; r < m; r++)
    for (long j = 0; j < n; j += VL)
      store(to + j, load(to + j, n - j) + load(x + r * n + j, n - j), n - j);
}

// Rows at a time, so that what belongs to them, `width` numbers a row, stays
// in cache, and each thread has a dozen such blocks to take.
inline long rows_at_a_time(long R, int threads, long width) {
  const long block = std::min<long>(ceil_div(R, 12 * threads),
                                    (long)(200e3 / (4.0 * width)));
  return std::max<long>(1, std::min<long>(ceil_div(block, MR), 16)) * MR;
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
  explicit Keeping(const Attrs& attrs) : attrs(attrs) {}

 protected:
  // Whether there will be a gradient; and that of one that was not foreseen.
  bool keeps() const { return number(attrs, "grad", 1) != 0; }
  static MXReturnValue kept_nothing() {
    return fail("an operator was called with grad=0 and keeps nothing for a "
                "gradient");
  }
  const Attrs attrs;
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
