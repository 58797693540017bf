// The operator d2lbert_self_attention, the first half of an encoder block:
// LayerNorm(X + dropout(Wo attention(X) + bo)), for all sequences in X (R, H).
// A few sequences at a time go through all steps, so that intermediate results
// stay in cache. gemm.h explains words, panels and the template argument E.
#include "attend.h"
#include "sublayer.h"

namespace d2lbert {
namespace {

// W and b project X to queries, keys and values. The biases may be null.
struct Job {
  Problem attention;
  Residual residual;
  const float *X, *W[3], *b[3], *Wo, *bo;
};

// Results saved for the gradient: queries, keys and values (R, 3H), the outputs
// of attention (R, H), and the normalized rows. The pointers are null if no
// gradient is needed.
struct Saved {
  float *qkv, *attended;
  Normalized normalized;
};

// Sequences that are computed together: [begin, end).
struct Group {
  long begin, end;
};

// The longest group that begins with sequence `begin`, ends by max_end, and has
// at most row_limit rows. A group of one sequence may have more rows.
Group next_group(const Problem& p, long begin, long max_end, long row_limit) {
  long end = begin + 1;
  while (end < max_end && p.offsets[end + 1] - p.offsets[begin] <= row_limit)
    end++;
  return {begin, end};
}

std::vector<Group> all_groups(const Problem& p, long row_limit) {
  std::vector<Group> groups;
  for (long b = 0; b < p.B; b = groups.back().end)
    groups.push_back(next_group(p, b, p.B, row_limit));
  return groups;
}

// Divide the sequences into parts of about the same number of rows. Return the
// first sequence of part number `part`, or B if part == parts.
long first_sequence(const Problem& p, int parts, int part) {
  // Empty sequences at the end belong to the last part
  if (part == parts) return p.B;
  const long row = p.R * part / parts;  // the ideal border
  // The first sequence that begins at this row or later, or B
  long b = std::lower_bound(p.offsets, p.offsets + p.B, row) - p.offsets;
  // A sequence that spans the border goes to the part with more of its rows
  if (b && p.offsets[b] - row > row - p.offsets[b - 1]) b--;
  return b;
}

long max_group_rows(const Problem& p, const std::vector<Group>& groups) {
  long max_rows = 0;
  for (const Group& g : groups)
    max_rows = std::max<long>(max_rows, p.offsets[g.end] - p.offsets[g.begin]);
  return max_rows;
}

// `attend` counts rows from row 0 of the whole matrix. Return the address that
// row 0 would have, for an array `rows` that begins with row `first`.
inline float* address_of_row_0(float* rows, long first, long ld) {
  return rows - first * ld;
}

// Copy n numbers that are not read again soon, bypassing the cache if possible.
void copy_streamed(const float* from, long n, float* to) {
  for (long j = 0; j < n; j += VL) stream(to + j, load(from + j, n - j), n - j);
}

// Compute Y (R, H), and the arrays of `saved` if they are not null.
template <class E>
void forward(const Job& job, const Saved& saved, float* Y) {
  const Problem& p = job.attention;
  const long H = p.H, N = 3 * H;  // N: the columns of qkv
  const long h_words = E::words(H);
  const int threads = team(8.0 * p.R * H * H);
  const std::vector<Group> groups =
      all_groups(p, rows_at_a_time(p.R, threads, 4 * H));
  const long max_rows = max_group_rows(p, groups);
  const long panels_per_weight = ceil_div(H, NR);
  const long T = p.longest_sequence();
  Scratch& shared = team_scratch();
  // Four weights and four biases, with 4 bytes in a word or float. + 512: up to
  // 64 bytes to align each array
  shared.reset(4 * 4 * padded(H) * (h_words + 1) + 512);
  word<E>* packed[4];  // the weights for queries, keys, values and the output
  const float* bias[4];
  for (int k = 0; k < 4; k++) {
    packed[k] = shared.take<word<E>>(padded(H) * h_words);
    bias[k] = padded_copy(k < 3 ? job.b[k] : job.bo, H, shared);
  }
  SharedWork packing;
  ThreadScratch& scratch = thread_scratch(
      threads, 4 * max_rows * (5 * H + h_words) + 512 +
      AttendMemory<E>::bytes(p, T));
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = scratch.mine();
    float* qkv = own.take<float>(max_rows * N);
    float* attended = own.take<float>(max_rows * H);
    float* out = own.take<float>(max_rows * H);
    word<E>* left_rows = own.take<word<E>>(max_rows * h_words);
    const AttendMemory<E> head_memory(p, T, own);
    packing.complete(4 * panels_per_weight, [&](long i) {
      const long k = i / panels_per_weight, column = i % panels_per_weight * NR;
      const float* weight = k < 3 ? job.W[k] : job.Wo;
      pack_panel_t<E>(weight + column * H, H, H,
                      std::min<long>(NR, H - column),
                      packed[k] + column * h_words);
    });
#pragma omp for schedule(dynamic, chunk_size(groups.size(), threads)) nowait
    for (size_t i = 0; i < groups.size(); i++) {
      const Group g = groups[i];
      const long first = p.offsets[g.begin], m = p.offsets[g.end] - first;
      const float* x = job.X + first * H;
      long lda = H;  // `as_rows` changes lda if it copies the rows
      const word<E>* a = as_rows(x, lda, m, H, left_rows);
      Prefetcher for_next_group(3 * num_stripes(m, H));
      for_next_group.add(x + m * H, std::min(m, p.R - first - m) * H * 4);
      for (int k = 0; k < 3; k++)
        multiply<E>(false, m, H, h_words, a, lda, packed[k], qkv + k * H, N,
                    BIAS, &for_next_group, bias[k]);
      float* q = address_of_row_0(qkv, first, N);
      for (long index = g.begin * p.heads; index < g.end * p.heads; index++)
        attend<E>(p, SequenceHead(p, index), {q, q + H, q + 2 * H, N},
                  address_of_row_0(attended, first, H), head_memory);
      if (saved.qkv) {
        copy_streamed(qkv, m * N, saved.qkv + first * N);
        copy_streamed(attended, m * H, saved.attended + first * H);
      }
      multiply_rows<E>(attended, m, H, left_rows, packed[3], H, out, H, BIAS,
                       nullptr, bias[3]);
      add_and_norm(job.residual, first, m, x, out, saved.normalized, Y);
    }
    stream_fence();
  }
}

// Memory for the gradients of the inputs; null if a gradient is not needed.
struct Gradients {
  float *X, *W[3], *b[3], *Wo, *bo, *gamma, *beta;
};

template <class E>
void backward(const Job& job, const Saved& saved, const float* dY,
              const Gradients& grads) {
  const Problem& p = job.attention;
  const long H = p.H, N = 3 * H;  // N: the columns of qkv
  const long h_words = E::words(H), n_words = E::words(N);
  const int threads = team(16.0 * p.R * H * H);
  const long row_limit = rows_at_a_time(p.R, threads, 4 * H);
  const long T = p.longest_sequence(), max_rows = std::max(row_limit, T);
  const long column_words = E::words(max_rows);  // in a column of a group
  const long panels_per_weight = ceil_div(H, NR);
  Scratch& shared = team_scratch();
  shared.reset(4 * padded(H) * (h_words + n_words) + 128 +
               Sums::bytes(N * H, threads) + Sums::bytes(H * H, threads) +
               Sums::bytes(N, threads) + Sums::bytes(H, threads) +
               TeamNormSums::bytes(H, threads));
  word<E>* packed_Wo = shared.take<word<E>>(padded(H) * h_words);
  word<E>* packed_W = shared.take<word<E>>(padded(H) * n_words);
  const Sums sums_W(shared, N * H, threads), sums_Wo(shared, H * H, threads);
  const Sums sums_b(shared, N, threads), sums_bo(shared, H, threads);
  const TeamNormSums team_norm_sums(shared, H, threads);
  // W as one matrix (3H, H): one product then gives the gradient of X
  std::vector<float> joined_W(N * H);
  for (int k = 0; k < 3; k++)
    std::copy(job.W[k], job.W[k] + H * H, joined_W.data() + k * H * H);
  SharedWork packing;
  ThreadScratch& scratch = thread_scratch(
      threads, 4 * (max_rows * (3 * H + N + n_words) +
      column_words * (padded(H) + N)) + 512 + AttendBackMemory<E>::bytes(p, T));
#pragma omp parallel num_threads(threads)
  {
    float *dW = sums_W.cleared(), *dWo = sums_Wo.cleared();
    float *db = sums_b.cleared(), *dbo = sums_bo.cleared();
    const NormSums norm_sums = team_norm_sums.cleared();
    Scratch& own = scratch.mine();
    // dx: the gradient of X through the residual connection alone
    float* dx = own.take<float>(max_rows * H);
    // dz: the gradient of Wo attention(X) + bo
    float* dz = own.take<float>(max_rows * H);
    float* d_attended = own.take<float>(max_rows * H);
    float* d_qkv = own.take<float>(max_rows * N);
    // Factors of products: dz or d_qkv (left), attended or x (right)
    word<E>* left_rows = own.take<word<E>>(max_rows * n_words);
    word<E>* left_columns = own.take<word<E>>(column_words * N);
    word<E>* right_panels = own.take<word<E>>(column_words * padded(H));
    const AttendBackMemory<E> head_memory(p, T, own);
    packing.complete(2 * panels_per_weight, [&](long i) {
      const long column = i % panels_per_weight * NR;
      const long n = std::min<long>(NR, H - column);
      if (i < panels_per_weight)
        pack_panel<E>(job.Wo + column, H, H, n, packed_Wo + column * h_words);
      else
        pack_panel<E>(joined_W.data() + column, H, N, n,
                      packed_W + column * n_words);
    });
    const int team_size = omp_get_num_threads(), thread = omp_get_thread_num();
    long begin = first_sequence(p, team_size, thread);
    const long end = first_sequence(p, team_size, thread + 1);
    for (Group g; begin < end; begin = g.end) {
      g = next_group(p, begin, end, row_limit);
      const long first = p.offsets[g.begin], m = p.offsets[g.end] - first;
      // The next group is prefetched, as if it also had m rows
      const long next_first = first + m;
      const long next_m = std::min(m, p.offsets[end] - next_first);
      const float* x = job.X + first * H;
      const float* attended = saved.attended + first * H;
      add_and_norm_gradient(job.residual, first, m, dY, saved.normalized,
                            norm_sums, dx, dz);
      add_rows_to(dbo, dz, H, m, H);
      add_transposed<E>(dz, H, attended, H, m, left_columns, right_panels, dWo);
      Prefetcher for_this_group(num_stripes(m, H));
      for_this_group.add(saved.qkv + first * N, m * N * 4);
      for_this_group.add(x, m * H * 4);
      multiply_rows<E>(dz, m, H, left_rows, packed_Wo, H, d_attended, H, ZERO,
                       &for_this_group);
      float *q = saved.qkv, *dq = address_of_row_0(d_qkv, first, N);
      for (long index = g.begin * p.heads; index < g.end * p.heads; index++)
        attend_back<E>(p, SequenceHead(p, index), {q, q + H, q + 2 * H, N},
                       address_of_row_0(d_attended, first, H),
                       {dq, dq + H, dq + 2 * H, N}, head_memory);
      add_rows_to(db, d_qkv, N, m, N);
      if (grads.X) {
        float* const dX = grads.X + first * H;
        std::copy(dx, dx + m * H, dX);
        Prefetcher for_next_group(num_stripes(m, H));
        const long offset = next_first * H, bytes = next_m * H * 4;
        for_next_group.add(dY + offset, bytes);
        for_next_group.add(saved.normalized.hat + offset, bytes);
        for_next_group.add(saved.attended + offset, bytes);
        multiply_rows<E>(d_qkv, m, N, left_rows, packed_W, H, dX, H, ADD,
                         &for_next_group);
      }
      add_transposed<E>(d_qkv, N, x, H, m, left_columns, right_panels, dW);
    }
#pragma omp barrier
    for (int k = 0; k < 3; k++) {
      sums_W.add_up(grads.W[k], k * H * H, H * H);
      sums_b.add_up(grads.b[k], k * H, H);
    }
    sums_Wo.add_up(grads.Wo);
    sums_bo.add_up(grads.bo);
    team_norm_sums.add_up(grads.gamma, grads.beta);
  }
}

struct Inputs : IndexedInputs {
  const bool has_bias;
  // W and b: the first of four inputs, for queries, keys, values and output
  const int X, W, b;
  const int gamma, beta, offsets, lens;
  // Seeds of dropout: the `noise` of `Dropout` in simd.h
  const int attention_noise, output_noise;
  explicit Inputs(const Attrs& attrs)
      : has_bias(number(attrs, "bias", 1) != 0), X(next()), W(next_n(4)),
        b(next_n(has_bias ? 4 : 0)), gamma(next()), beta(next()),
        offsets(next()), lens(next()),
        attention_noise(next(has_dropout(attrs, "weights_p"))),
        output_noise(next(has_dropout(attrs))) {}
};

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Inputs at(attrs);
  const Shape x = (*in)[at.X], lens = (*in)[at.lens];
  const unsigned heads = (unsigned)number(attrs, "num_heads", 1);
  if (x.size() != 2 || lens.size() != 1)
    return fail("self_attention needs X (R, H) and lens (B,)");
  const unsigned H = x[1];
  if (!heads || H % heads)
    return fail(std::to_string(heads) + " heads do not divide " +
                std::to_string(H) + " hiddens");
  for (int k = 0; k < 4; k++) {
    (*in)[at.W + k] = {H, H};
    if (at.has_bias) (*in)[at.b + k] = {H};
  }
  (*in)[at.gamma] = (*in)[at.beta] = {H};
  (*in)[at.offsets] = {lens[0] + 1};
  for (int noise : {at.attention_noise, at.output_noise})
    if (noise >= 0) (*in)[noise] = {64};
  (*out)[0] = x;
  return MX_SUCCESS;
}

// True if each row belongs to exactly one sequence.
bool covers_all_rows(const Problem& p) {
  return p.offsets[0] == 0 && p.offsets[p.B] == p.R && p.has_sorted_offsets();
}

class SelfAttention : public SavingOp {
 public:
  explicit SelfAttention(const Attrs& attrs)
      : SavingOp(attrs), at_(attrs),
        heads_((long)number(attrs, "num_heads", 1)),
        causal_(number(attrs, "causal", 0) != 0) {}

 private:
  MXReturnValue run_forward(MXTensor* in, float* Y) override {
    const Job job = job_of(in);
    const Problem& p = job.attention;
    if (!covers_all_rows(p))
      return fail("self_attention needs offsets that never decrease, from 0 "
                  "to " + std::to_string(p.R) + ", the number of rows");
    if (wants_grad) {
      // + 256: up to 64 bytes to align each of four arrays
      memory.reset(4 * p.R * (5 * p.H + 1) + 256);
      saved_.qkv = memory.take<float>(p.R * 3 * p.H);
      saved_.attended = memory.take<float>(p.R * p.H);
      saved_.normalized = take_normalized(p.R, p.H);
    }
    // Calls forward<Fp32> or forward<Bf16>
    pick_kernel(bf16, NO_TILES, D2LBERT_VECTORS(forward))(job, saved_, Y);
    return MX_SUCCESS;
  }

  void run_backward(MXTensor* in, const float* dY, Tensors* grads) override {
    const auto grad = [&](int k) { return floats((*grads)[k]); };
    Gradients gradients = {};
    gradients.X = grad(at_.X);
    for (int k = 0; k < 3; k++) {
      gradients.W[k] = grad(at_.W + k);
      if (at_.has_bias) gradients.b[k] = grad(at_.b + k);
    }
    gradients.Wo = grad(at_.W + 3);
    if (at_.has_bias) gradients.bo = grad(at_.b + 3);
    gradients.gamma = grad(at_.gamma);
    gradients.beta = grad(at_.beta);
    // The inputs after beta have no gradient
    for (int k = at_.offsets; k < at_.num_inputs(); k++)
      zero_gradient((*grads)[k]);
    pick_kernel(bf16, NO_TILES, D2LBERT_VECTORS(backward))(
        job_of(in), saved_, dY, gradients);
  }

  Job job_of(MXTensor* in) const {
    MXTensor& x = in[at_.X];
    MXTensor &offsets = in[at_.offsets], &lens = in[at_.lens];
    const long R = x.shape[0], H = x.shape[1];
    const float scale = (float)(1 / std::sqrt((double)H / heads_));
    const Problem attention = {
        R, H, (long)lens.size(), heads_, H / heads_, ints(offsets), ints(lens),
        scale, dropout("weights_p", in, at_.attention_noise), causal_};
    Job job = {attention,
               residual(H, in[at_.gamma], in[at_.beta],
                        dropout("p", in, at_.output_noise)),
               floats(x), {}, {}, floats(in[at_.W + 3]), nullptr};
    for (int k = 0; k < 3; k++) {
      job.W[k] = floats(in[at_.W + k]);
      if (at_.has_bias) job.b[k] = floats(in[at_.b + k]);
    }
    if (at_.has_bias) job.bo = floats(in[at_.b + 3]);
    return job;
  }

  const Inputs at_;
  const long heads_;
  const bool causal_;
  Saved saved_ = {};
};

}  // namespace

REGISTER_OP(d2lbert_self_attention)
    .setCreateOpState(Caught<create<SelfAttention>>::call, "cpu")
    .setParseAttrs(Caught<count_inputs<Inputs>>::call)
    .setInferType(Caught<floats_except_lens<Inputs>>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
