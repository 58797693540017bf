// The operator d2lbert_feed_forward, the second half of an encoder block:
// LayerNorm(X + dropout(W2 act(W1 X + b1) + b2)), for X (R, H) and W1 (F, H). A
// group of rows at a time goes through all steps, which is fast if W1 and W2
// stay in cache. gemm.h explains words, panels, tiles and the argument E.
#include "act.h"
#include "sublayer.h"

namespace d2lbert {
namespace {

// The arguments of a call.
struct Job {
  long R, H, F;
  Act act;
  Residual residual;
  const float *X, *W1, *b1, *W2, *b2;
};

// Results that the gradient needs; null pointers if no gradient is wanted.
// hidden (R, F): the argument of the activation if needs_argument(act), else
// its output.
struct Saved {
  float* hidden;
  Normalized normalized;
};

// Compute Y (R, H), and fill the arrays of `saved` that are not null.
template <class E>
void forward(const Job& job, const Saved& saved, float* Y) {
  const long R = job.R, H = job.H, F = job.F;
  const int threads = team(4.0 * R * H * F);
  const long group_rows = rows_at_a_time(R, threads, H + F);
  const long num_groups = ceil_div(R, group_rows);
  const long num_h_words = E::words(H), num_f_words = E::words(F);
  // Panels of W1^T (H, F), and of W2^T (F, H)
  const long num_W1_panels = ceil_div(F, NR), num_W2_panels = ceil_div(H, NR);
  Scratch& shared = team_scratch();
  // 4: bytes of a word or float. 256: for four arrays aligned to 64 bytes
  shared.reset(4 * (padded(F) * (num_h_words + 1) +
                    padded(H) * (num_f_words + 1)) + 256);
  word<E>* packed_W1 = shared.take<word<E>>(padded(F) * num_h_words);
  word<E>* packed_W2 = shared.take<word<E>>(padded(H) * num_f_words);
  const float* b1 = padded_copy(job.b1, F, shared);
  const float* b2 = padded_copy(job.b2, H, shared);
  SharedWork packing;
  ThreadScratch& scratch = thread_scratch(
      threads, 4 * group_rows * (F + H + num_h_words + num_f_words) + 256);
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = scratch.mine();
    float* hidden = own.take<float>(group_rows * F);
    float* out = own.take<float>(group_rows * H);
    word<E>* x_words = own.take<word<E>>(group_rows * num_h_words);
    word<E>* hidden_words = own.take<word<E>>(group_rows * num_f_words);
    packing.complete(num_W1_panels + num_W2_panels, [&](long p) {
      const bool is_of_W1 = p < num_W1_panels;
      const long column = (is_of_W1 ? p : p - num_W1_panels) * NR;
      if (is_of_W1)
        pack_panel_t<E>(job.W1 + column * H, H, H,
                        std::min<long>(NR, F - column),
                        packed_W1 + column * num_h_words);
      else
        pack_panel_t<E>(job.W2 + column * F, F, F,
                        std::min<long>(NR, H - column),
                        packed_W2 + column * num_f_words);
    });
#pragma omp for schedule(dynamic, chunk_size(num_groups, threads)) nowait
    for (long i = 0; i < num_groups; i++) {
      const long first = i * group_rows, m = std::min(group_rows, R - first);
      const float* x = job.X + first * H;
      Prefetcher next_group(num_stripes(m, F));
      next_group.add(x + m * H, std::min(group_rows, R - first - m) * H * 4);
      multiply_rows<E>(x, m, H, x_words, packed_W1, F, hidden, F, BIAS,
                       &next_group, b1);
      float* save_to = saved.hidden ? saved.hidden + first * F : nullptr;
      const bool saves_argument = needs_argument(job.act);
      for (long j = 0, size = m * F; j < size; j += VL) {
        const vf z = load(hidden + j, size - j), y = apply(job.act, z);
        if (save_to) stream(save_to + j, saves_argument ? z : y, size - j);
        store(hidden + j, y, size - j);
      }
      multiply_rows<E>(hidden, m, F, hidden_words, packed_W2, H, out, H, BIAS,
                       nullptr, b2);
      add_and_norm(job.residual, first, m, x, out, saved.normalized, Y);
    }
    stream_fence();
  }
}

// The memory for the gradients of inputs; null if a gradient is not needed.
struct Gradients {
  float *X, *W1, *b1, *W2, *b2, *gamma, *beta;
};

template <class E>
void backward(const Job& job, const Saved& saved, const float* dY,
              const Gradients& grads) {
  const long R = job.R, H = job.H, F = job.F;
  const int threads = team(8.0 * R * H * F);
  const long group_rows = rows_at_a_time(R, threads, H + F);
  const long num_h_words = E::words(H), num_f_words = E::words(F);
  const long num_column_words = E::words(group_rows);
  // Panels of W2 (H, F), and of W1 (F, H)
  const long num_W2_panels = ceil_div(F, NR), num_W1_panels = ceil_div(H, NR);
  const bool saves_argument = needs_argument(job.act);
  Scratch& shared = team_scratch();
  shared.reset(4 * (padded(F) * num_h_words + padded(H) * num_f_words) + 128 +
               2 * Sums::bytes(F * H, threads) + Sums::bytes(F, threads) +
               Sums::bytes(H, threads) + TeamNormSums::bytes(H, threads));
  word<E>* packed_W2 = shared.take<word<E>>(padded(F) * num_h_words);
  word<E>* packed_W1 = shared.take<word<E>>(padded(H) * num_f_words);
  const Sums sums_W1(shared, F * H, threads), sums_W2(shared, F * H, threads);
  const Sums sums_b1(shared, F, threads), sums_b2(shared, H, threads);
  const TeamNormSums team_norm_sums(shared, H, threads);
  SharedWork packing;
  ThreadScratch& scratch = thread_scratch(
      threads,
      4 * (group_rows * (2 * H + 2 * F + std::max(num_h_words, num_f_words)) +
           num_column_words * (padded(H) + padded(F) + std::max(H, F))) + 512);
#pragma omp parallel num_threads(threads)
  {
    float *dW1 = sums_W1.cleared(), *dW2 = sums_W2.cleared();
    float *db1 = sums_b1.cleared(), *db2 = sums_b2.cleared();
    const NormSums norm_sums = team_norm_sums.cleared();
    Scratch& own = scratch.mine();
    // d_residual: the gradient of X through the residual connection alone.
    // d_out: the gradient of W2 act(W1 X + b1) + b2. d_hidden: the gradient of
    // act(W1 X + b1), then of W1 X + b1
    float* d_residual = own.take<float>(group_rows * H);
    float* d_out = own.take<float>(group_rows * H);
    float* d_hidden = own.take<float>(group_rows * F);
    // act(W1 X + b1), if `saved` has only the argument of act
    float* activated = own.take<float>(saves_argument ? group_rows * F : 0);
    // Words of d_out or d_hidden, in the layouts "rows" and "columns" (gemm.h)
    word<E>* row_words =
        own.take<word<E>>(group_rows * std::max(num_h_words, num_f_words));
    word<E>* column_words =
        own.take<word<E>>(num_column_words * std::max(H, F));
    word<E>* x_panels = own.take<word<E>>(num_column_words * padded(H));
    word<E>* hidden_panels = own.take<word<E>>(num_column_words * padded(F));
    packing.complete(num_W2_panels + num_W1_panels, [&](long p) {
      const bool is_of_W2 = p < num_W2_panels;
      const long column = (is_of_W2 ? p : p - num_W2_panels) * NR;
      if (is_of_W2)
        pack_panel<E>(job.W2 + column, F, H, std::min<long>(NR, F - column),
                      packed_W2 + column * num_h_words);
      else
        pack_panel<E>(job.W1 + column, H, F, std::min<long>(NR, H - column),
                      packed_W1 + column * num_f_words);
    });
    // The threads divide tiles of MR rows, not groups: a few groups could not
    // be divided evenly
    long begin_tile, end_tile;
    share(ceil_div(R, MR), omp_get_num_threads(), omp_get_thread_num(),
          &begin_tile, &end_tile);
    const long end = std::min(end_tile * MR, R);
    for (long first = begin_tile * MR; first < end; first += group_rows) {
      const long m = std::min(group_rows, end - first);
      const long next_m = std::min(group_rows, end - first - m);
      const float *x = job.X + first * H, *hidden = saved.hidden + first * F;
      add_and_norm_gradient(job.residual, first, m, dY, saved.normalized,
                            norm_sums, d_residual, d_out);
      add_rows_to(db2, d_out, H, m, H);
      Prefetcher this_group(num_stripes(m, F));
      this_group.add(hidden, m * F * 4);
      this_group.add(x, m * H * 4);
      multiply_rows<E>(d_out, m, H, row_words, packed_W2, F, d_hidden, F, ZERO,
                       &this_group);
      for (long j = 0, size = m * F; j < size; j += VL) {
        const vf v = load(hidden + j, size - j);
        const vf d = load(d_hidden + j, size - j);
        if (saves_argument) store(activated + j, apply(job.act, v), size - j);
        store(d_hidden + j, gradient(job.act, d, v), size - j);
      }
      add_rows_to(db1, d_hidden, F, m, F);
      add_transposed<E>(d_out, H, saves_argument ? activated : hidden, F, m,
                        column_words, hidden_panels, dW2);
      if (grads.X) {
        float* const dX = grads.X + first * H;
        std::copy(d_residual, d_residual + m * H, dX);
        Prefetcher next_group(num_stripes(m, H));
        next_group.add(dY + (first + m) * H, next_m * H * 4);
        next_group.add(saved.normalized.hat + (first + m) * H, next_m * H * 4);
        multiply_rows<E>(d_hidden, m, F, row_words, packed_W1, H, dX, H, ADD,
                         &next_group);
      }
      add_transposed<E>(d_hidden, F, x, H, m, column_words, x_panels, dW1);
    }
#pragma omp barrier
    sums_W1.add_up(grads.W1);
    sums_W2.add_up(grads.W2);
    sums_b1.add_up(grads.b1);
    sums_b2.add_up(grads.b2);
    team_norm_sums.add_up(grads.gamma, grads.beta);
  }
}

// noise: 64 numbers that seed dropout (`Dropout` in simd.h).
struct Inputs : IndexedInputs {
  const int X, W1, b1, W2, b2, gamma, beta, noise;
  explicit Inputs(const Attrs& attrs)
      : X(next()), W1(next()), b1(next()), W2(next()), b2(next()),
        gamma(next()), beta(next()), noise(next(has_dropout(attrs))) {}
};

MXReturnValue parse(const Attrs& attrs, int* num_in, int* num_out) {
  count_inputs<Inputs>(attrs, num_in, num_out);
  Act unused;
  return parse_act(attrs, &unused);  // fails for an unknown activation
}

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Inputs at(attrs);
  const Shape x = (*in)[at.X], w = (*in)[at.W1];
  if (x.size() != 2 || w.size() != 2)
    return fail("feed_forward needs X (R, H) and W1 (F, H)");
  const unsigned H = x[1], F = w[0];
  (*in)[at.W1] = {F, H};
  (*in)[at.b1] = {F};
  (*in)[at.W2] = {H, F};
  for (int k : {at.b2, at.gamma, at.beta}) (*in)[k] = {H};
  if (at.noise >= 0) (*in)[at.noise] = {64};
  (*out)[0] = x;
  return MX_SUCCESS;
}

class FeedForward : public SavingOp {
 public:
  explicit FeedForward(const Attrs& attrs) : SavingOp(attrs), at_(attrs) {
    parse_act(attrs, &act_);
  }

 private:
  MXReturnValue run_forward(MXTensor* in, float* Y) override {
    const Job job = job_of(in);
    if (wants_grad) {
      // 192: for three arrays aligned to 64 bytes
      memory.reset(4 * job.R * (job.F + job.H + 1) + 192);
      saved_.hidden = memory.take<float>(job.R * job.F);
      saved_.normalized = take_normalized(job.R, job.H);
    }
    // Calls forward<Fp32> or forward<Bf16>
    pick_kernel(bf16, NO_TILES, D2LBERT_VECTORS(forward))(job, saved_, Y);
    return MX_SUCCESS;
  }

  void run_backward(MXTensor* in, const float* dY, Tensors* grads) override {
    const auto grad = [&](int k) { return floats((*grads)[k]); };
    if (at_.noise >= 0) zero_gradient((*grads)[at_.noise]);
    pick_kernel(bf16, NO_TILES, D2LBERT_VECTORS(backward))(
        job_of(in), saved_, dY,
        {grad(at_.X), grad(at_.W1), grad(at_.b1), grad(at_.W2), grad(at_.b2),
         grad(at_.gamma), grad(at_.beta)});
  }

  Job job_of(MXTensor* in) const {
    const MXTensor& x = in[at_.X];
    const long R = x.shape[0], H = x.shape[1], F = in[at_.W1].shape[0];
    return {R, H, F, act_,
            residual(H, in[at_.gamma], in[at_.beta],
                     dropout("p", in, at_.noise)),
            floats(in[at_.X]), floats(in[at_.W1]), floats(in[at_.b1]),
            floats(in[at_.W2]), floats(in[at_.b2])};
  }

  const Inputs at_;
  Act act_ = NONE;
  Saved saved_ = {};
};

}  // namespace

REGISTER_OP(d2lbert_feed_forward)
    .setCreateOpState(Caught<create<FeedForward>>::call, "cpu")
    .setParseAttrs(Caught<parse>::call)
    .setInferType(Caught<all_floats>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
