// d2lbert_self_attention: LayerNorm(X + dropout(Wo attention(X) + bo)), the
// first half of an encoder block. It computes a few sequences at a time, for
// weights that stay in cache.
#include "attend.h"
#include "sublayer.h"

namespace d2lbert {
namespace {

struct Job {
  Problem attention;
  Residual residual;
  const float *X, *W[3], *b[3], *Wo, *bo;  // the biases may be null
};

// Saved for the gradient: queries, keys and values (R, 3H), and the joined
// outputs of the heads (R, H).
struct Kept {
  float *qkv, *joined;
  Normalized sums;
};

// Neighbouring sequences that are computed together.
struct Group {
  long begin, end;
};

// The longest group of sequences from `begin` on, before `end`, that has at
// most `rows` rows. It has at least one sequence.
Group group(const Problem& p, long begin, long end, long rows) {
  long last = begin + 1;
  while (last < end && p.offsets[last + 1] - p.offsets[begin] <= rows) last++;
  return {begin, last};
}

// All sequences, divided into groups.
std::vector<Group> groups(const Problem& p, long rows) {
  std::vector<Group> all;
  for (long b = 0; b < p.B; b = all.back().end)
    all.push_back(group(p, b, p.B, rows));
  return all;
}

// The sequences of a thread, [begin, end). All threads have about the same
// number of rows.
void share_sequences(const Problem& p, int parts, int part, long* begin,
                     long* end) {
  const int32_t* const last = p.offsets + p.B;
  long* const to[] = {begin, end};
  for (int k = 0; k < 2; k++) {
    const long row = p.R * (part + k) / parts;
    long b = std::lower_bound(p.offsets, last, row) - p.offsets;
    // A sequence on a border goes to the thread with more of its rows
    if (b && p.offsets[b] - row > row - p.offsets[b - 1]) b--;
    *to[k] = part + k == parts ? p.B : part + k ? b : 0;
  }
}

long most_rows(const Problem& p, const std::vector<Group>& all) {
  long most = 0;
  for (const Group& g : all)
    most = std::max<long>(most, p.offsets[g.end] - p.offsets[g.begin]);
  return most;
}

// The address that row 0 would have, if `rows` begins with row `first`. So code
// that counts rows from 0 works on a part of them.
inline float* address_of_row_0(float* rows, long first, long ld) {
  return rows - first * ld;
}

// Copy n numbers that are not read again soon.
void copy_streamed(const float* from, long n, float* to) {
  for (long j = 0; j < n; j += VL) stream(to + j, load(from + j, n - j), n - j);
}

template <class E>
void forward(const Job& job, const Kept& kept, float* Y) {
  const Problem& p = job.attention;
  const long H = p.H, N = 3 * H, words = E::words(H);
  const int threads = team(8.0 * p.R * H * H);
  const std::vector<Group> all =
      groups(p, rows_at_a_time(p.R, threads, 4 * H));
  const long most = most_rows(p, all), parts = ceil_div(H, NR);
  const long T = p.longest();
  Scratch& shared = team_scratch();
  shared.reset(4 * 4 * padded(H) * (words + 1) + 512);
  word<E>* packed[4];
  const float* bias[4];
  for (int k = 0; k < 4; k++) {
    packed[k] = shared.take<word<E>>(padded(H) * words);
    bias[k] = padded_copy(k < 3 ? job.b[k] : job.bo, H, shared);
  }
  Preparation packing;
  Rooms& rooms = team_rooms(
      threads, 4 * most * (5 * H + words) + 512 + Room<E>::bytes(p, T));
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = rooms.mine();
    float* qkv = own.take<float>(most * N);
    float* joined = own.take<float>(most * H);
    float* out = own.take<float>(most * H);
    word<E>* x_words = own.take<word<E>>(most * words);
    const Room<E> room(p, T, own);
    packing.all(4 * parts, [&](long i) {
      const long k = i / parts, at = i % parts * NR;
      pack_panel_t<E>((k < 3 ? job.W[k] : job.Wo) + at * H, H, H,
                      std::min<long>(NR, H - at), packed[k] + at * words);
    });
#pragma omp for schedule(dynamic, at_once(all.size(), threads)) nowait
    for (size_t i = 0; i < all.size(); i++) {
      const Group g = all[i];
      const long first = p.offsets[g.begin], m = p.offsets[g.end] - first;
      const float* x = job.X + first * H;
      long ld = H;
      const word<E>* a = as_rows(x, ld, m, H, x_words);
      Ahead ahead(3 * stripes(m, H));
      ahead.fetch(x + m * H, std::min(m, p.R - first - m) * H * 4);
      for (int k = 0; k < 3; k++)
        multiply<E>(false, m, H, words, a, ld, packed[k], qkv + k * H, N, BIAS,
                    &ahead, bias[k]);
      float* q = address_of_row_0(qkv, first, N);
      for (long unit = g.begin * p.heads; unit < g.end * p.heads; unit++)
        attend<E>(p, Unit(p, unit), {q, q + H, q + 2 * H, N},
                  address_of_row_0(joined, first, H), room);
      if (kept.qkv) {
        copy_streamed(qkv, m * N, kept.qkv + first * N);
        copy_streamed(joined, m * H, kept.joined + first * H);
      }
      times<E>(joined, m, H, x_words, packed[3], H, out, H, BIAS, nullptr,
               bias[3]);
      finish(job.residual, first, m, x, out, kept.sums, Y);
    }
    streamed();
  }
}

struct Gradients {
  float *X, *W[3], *b[3], *Wo, *bo, *gamma, *beta;  // null: not needed
};

template <class E>
void backward(const Job& job, const Kept& kept, const float* dY,
              const Gradients& to) {
  const Problem& p = job.attention;
  const long H = p.H, N = 3 * H;
  const long words = E::words(H), n_words = E::words(N);
  const int threads = team(16.0 * p.R * H * H);
  const long rows = rows_at_a_time(p.R, threads, 4 * H);
  // One sequence may be longer than a group
  const long T = p.longest(), most = std::max(rows, T);
  const long half = E::words(most);
  const long parts = ceil_div(H, NR);
  Scratch& shared = team_scratch();
  shared.reset(4 * padded(H) * (words + n_words) + 128 +
               Sums::bytes(N * H, threads) + Sums::bytes(H * H, threads) +
               Sums::bytes(N, threads) + Sums::bytes(H, threads) +
               TeamNormSums::bytes(H, threads));
  word<E>* wo = shared.take<word<E>>(padded(H) * words);
  word<E>* w = shared.take<word<E>>(padded(H) * n_words);
  const Sums W(shared, N * H, threads), Wo(shared, H * H, threads);
  const Sums b(shared, N, threads), bo(shared, H, threads);
  const TeamNormSums norms(shared, H, threads);
  // One product gives the gradient of X through all three weights
  std::vector<float> joined_W(N * H);
  for (int k = 0; k < 3; k++)
    std::copy(job.W[k], job.W[k] + H * H, joined_W.data() + k * H * H);
  Preparation packing;
  Rooms& rooms = team_rooms(
      threads, 4 * (most * (2 * H + H + N + n_words) + half * (padded(H) +
      N)) + 512 + GradientRoom<E>::bytes(p, T));
#pragma omp parallel num_threads(threads)
  {
    float *dW = W.cleared(), *dWo = Wo.cleared();
    float *db = b.cleared(), *dbo = bo.cleared();
    const NormSums norm = norms.cleared();
    Scratch& own = rooms.mine();
    float* dx = own.take<float>(most * H);
    float* dz = own.take<float>(most * H);
    float* dj = own.take<float>(most * H);
    float* dq = own.take<float>(most * N);
    word<E>* as_is = own.take<word<E>>(most * n_words);
    word<E>* turned = own.take<word<E>>(half * N);
    word<E>* panels = own.take<word<E>>(half * padded(H));
    const GradientRoom<E> room(p, T, own);
    packing.all(2 * parts, [&](long i) {
      const long at = i % parts * NR, n = std::min<long>(NR, H - at);
      if (i < parts)
        pack_panel<E>(job.Wo + at, H, H, n, wo + at * words);
      else
        pack_panel<E>(joined_W.data() + at, H, N, n, w + at * n_words);
    });
    long begin, end;
    share_sequences(p, omp_get_num_threads(), omp_get_thread_num(), &begin,
                    &end);
    for (Group g; begin < end; begin = g.end) {
      g = group(p, begin, end, rows);
      const long first = p.offsets[g.begin], m = p.offsets[g.end] - first;
      const long after = first + m;
      const long next = std::min(m, p.offsets[end] - after);
      const float *x = job.X + first * H, *joined = kept.joined + first * H;
      finish_back(job.residual, first, m, dY, kept.sums, norm, dx, dz);
      add_rows_to(dbo, dz, H, m, H);
      add_transposed<E>(dz, H, joined, H, m, turned, panels, dWo);
      Ahead ahead(stripes(m, H));
      ahead.fetch(kept.qkv + first * N, m * N * 4);
      ahead.fetch(x, m * H * 4);
      times<E>(dz, m, H, as_is, wo, H, dj, H, ZERO, &ahead);
      float *q = kept.qkv, *d = address_of_row_0(dq, first, N);
      for (long unit = g.begin * p.heads; unit < g.end * p.heads; unit++)
        attend_back<E>(p, Unit(p, unit), {q, q + H, q + 2 * H, N},
                       address_of_row_0(dj, first, H), {d, d + H, d + 2 * H, N},
                       room);
      add_rows_to(db, dq, N, m, N);
      if (to.X) {
        float* const rows_X = to.X + first * H;
        std::copy(dx, dx + m * H, rows_X);
        Ahead later(stripes(m, H));
        later.fetch(dY + after * H, next * H * 4);
        later.fetch(kept.sums.hat + after * H, next * H * 4);
        later.fetch(kept.joined + after * H, next * H * 4);
        times<E>(dq, m, N, as_is, w, H, rows_X, H, ADD, &later);
      }
      add_transposed<E>(dq, N, x, H, m, turned, panels, dW);
    }
#pragma omp barrier
    for (int k = 0; k < 3; k++) {
      W.add_up(to.W[k], k * H * H, H * H);
      b.add_up(to.b[k], k * H, H);
    }
    Wo.add_up(to.Wo);
    bo.add_up(to.bo);
    norms.add_up(to.gamma, to.beta);
  }
}

struct Inputs : Numbered {
  const bool has_bias;
  const int X, W, b;  // W, b: of queries, keys, values and output
  const int gamma, beta, offsets, lens, weights_noise, noise;
  explicit Inputs(const Attrs& attrs)
      : has_bias(number(attrs, "bias", 1) != 0), X(next()), W(several(4)),
        b(several(has_bias ? 4 : 0)), gamma(next()), beta(next()),
        offsets(next()), lens(next()),
        weights_noise(next(drops(attrs, "weights_p"))),
        noise(next(drops(attrs))) {}
};

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Inputs at(attrs);
  const Shape x = (*in)[at.X], lens = (*in)[at.lens];
  const unsigned heads = (unsigned)number(attrs, "num_heads", 1);
  if (x.size() != 2 || lens.size() != 1)
    return fail("self_attention needs rows (R, H) and lens (B,)");
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
  for (int noise : {at.weights_noise, at.noise})
    if (noise >= 0) (*in)[noise] = {64};
  (*out)[0] = x;
  return MX_SUCCESS;
}

// True if each row belongs to one sequence.
bool covers(const Problem& p) {
  return p.offsets[0] == 0 && p.offsets[p.B] == p.R && p.apart();
}

class SelfAttention : public SavingOp {
 public:
  explicit SelfAttention(const Attrs& attrs)
      : SavingOp(attrs), at_(attrs),
        heads_((long)number(attrs, "num_heads", 1)),
        causal_(number(attrs, "causal", 0) != 0) {}

 private:
  MXReturnValue run(MXTensor* in, float* Y) override {
    const Job job = job_of(in);
    const Problem& p = job.attention;
    if (!covers(p))
      return fail("self_attention needs offsets that rise from 0 to " +
                  std::to_string(p.R) + ", the number of rows");
    if (keeps) {
      memory.reset(4 * p.R * (5 * p.H + 1) + 256);
      kept_.qkv = memory.take<float>(p.R * 3 * p.H);
      kept_.joined = memory.take<float>(p.R * p.H);
      kept_.sums = normalized(p.R, p.H);
    }
    pick(bf16, NO_TILES, D2LBERT_VECTORS(forward))(job, kept_, Y);
    return MX_SUCCESS;
  }

  void run_back(MXTensor* in, const float* dY, Tensors* grads) override {
    const auto grad = [&](int k) { return floats((*grads)[k]); };
    Gradients to = {};
    to.X = grad(at_.X);
    for (int k = 0; k < 3; k++) {
      to.W[k] = grad(at_.W + k);
      if (at_.has_bias) to.b[k] = grad(at_.b + k);
    }
    to.Wo = grad(at_.W + 3);
    if (at_.has_bias) to.bo = grad(at_.b + 3);
    to.gamma = grad(at_.gamma);
    to.beta = grad(at_.beta);
    for (int k = at_.offsets; k < at_.count(); k++) clear((*grads)[k]);
    pick(bf16, NO_TILES, D2LBERT_VECTORS(backward))(job_of(in), kept_, dY,
                                                    to);
  }

  Job job_of(MXTensor* in) const {
    MXTensor& x = in[at_.X];
    MXTensor &offsets = in[at_.offsets], &lens = in[at_.lens];
    const long R = x.shape[0], H = x.shape[1];
    Job job = {{R, H, (long)lens.size(), heads_, H / heads_, ints(offsets),
                ints(lens), (float)(1 / std::sqrt((double)H / heads_)),
                dropout("weights_p", in, at_.weights_noise), causal_},
               residual(H, in[at_.gamma], in[at_.beta],
                        dropout("p", in, at_.noise)),
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
  Kept kept_ = {};
};

}  // namespace

REGISTER_OP(d2lbert_self_attention)
    .setCreateOpState(Caught<create<SelfAttention>>::call, "cpu")
    .setParseAttrs(Caught<numbered<Inputs>>::call)
    .setInferType(Caught<rows_and_floats<Inputs>>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
