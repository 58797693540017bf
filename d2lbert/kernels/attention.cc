// d2lbert_attention, d2lbert_attention_qkv: scaled dot-product attention of
// several heads over sequences that lie one after the other in the rows of
// one matrix. Nothing is computed for keys beyond a sequence's length, and
// no score leaves the cache.
#include "op.h"

namespace d2lbert {
namespace {

constexpr long QUERIES = 8 * MR;  // rows of scores held at a time

// Q, K, V, or their gradients, as columns of rows ld apart.
struct Parts {
  float *q, *k, *v;
  long ld;
};

struct Problem {
  long R, H, B, heads, size;
  const int32_t *offsets, *lens;
  float scale;
  Dropout dropout;

  // Rows [first, last) are sequence b's queries, the first `keys` its keys.
  void sequence(long b, long* first, long* last, long* keys) const {
    *first = std::min<long>(std::max<long>(offsets[b], 0), R);
    *last = std::min<long>(std::max<long>(offsets[b + 1], *first), R);
    *keys = std::min<long>(std::max<long>(lens[b], 0), *last - *first);
  }

  long longest() const {
    long most = 0, first, last, keys;
    for (long b = 0; b < B; b++) {
      sequence(b, &first, &last, &keys);
      most = std::max(most, last - first);
    }
    return most;
  }
};

// Scores to weights, in place; zeros in the rest of the last vector. Returns
// the logarithm of the sum of exponentials.
float softmax(float* s, long n, float scale) {
  const vi lane = count();
  const vf nothing = splat(-INFINITY);
  const long whole = n / VL * VL;
  vf top = nothing;
  for (long j = 0; j < whole; j += VL) top = larger(load(s + j), top);
  if (whole < n)  // without the padding's zeros
    top = larger(pick(lane < (int)(n - whole), load(s + whole), nothing),
                 top);
  const float most = maximum(top);
  vf total{};
  for (long j = 0; j < n; j += VL) {
    vf e = exp((load(s + j) - most) * scale);
    if (j == whole) e = pick(lane < (int)(n - whole), e, vf{});
    store(s + j, e);
    total += e;
  }
  const float denominator = sum(total), inverse = 1 / denominator;
  for (long j = 0; j < n; j += VL) store(s + j, load(s + j) * inverse);
  return most * scale + std::log(denominator);
}

// The part of a row that the next head, or the next sequence, begins with.
struct Next {
  long row, column, size;
  Next(const Problem& p, long h, long first, long last)
      : row(h + 1 < p.heads ? first : last),
        column((h + 1) % p.heads * p.size), size(p.size) {}
  void fetch(const float* x, long ld, long r) const {
    const float* from = x + (row + r) * ld + column;
    for (long j = 0; j < size; j += 16) __builtin_prefetch(from + j, 0, 2);
  }
};

void clear_rows(float* x, long ld, long rows, long columns) {
  for (long i = 0; i < rows; i++) std::memset(x + i * ld, 0, 4 * columns);
}

// A row's scores to the weights that V is multiplied by, in place. Returns
// the logarithm of the sum of exponentials.
float weigh(const Problem& p, long place, long n, float* s) {
  const float normal = softmax(s, n, p.scale);
  if (!p.dropout.on()) return normal;
  const vi lane = count();
  const Draws draws = p.dropout.row(place);
  for (long j = 0; j < n; j += VL)
    store(s + j,
          load(s + j) * p.dropout.factors(draws, (vu)(lane + (int)j)));
  return normal;
}

// A head of a sequence.
struct Unit {
  long head, column, first, last, keys;
  Unit(const Problem& p, long unit)
      : head(unit % p.heads), column(head * p.size) {
    p.sequence(unit / p.heads, &first, &last, &keys);
  }
  // What comes of no keys at all.
  void clear_output(const Problem& p, float* out, float* lse) const {
    clear_rows(out + first * p.H + column, p.H, last - first, p.size);
    for (long i = first; i < last; i++) lse[i * p.heads + head] = 0;
  }
  // Keys beyond the length have no gradient; without any, queries neither.
  void clear_gradients(const Problem& p, const Parts& grad) const {
    const long to = first * grad.ld + column, rest = to + keys * grad.ld;
    if (!keys) clear_rows(grad.q + to, grad.ld, last - first, p.size);
    for (float* g : {grad.k, grad.v})
      clear_rows(g + rest, grad.ld, last - first - keys, p.size);
  }
};

// Rows that belong to no sequence get zeros.
void clear_gaps(const Problem& p, float* x, long ld, long columns) {
  long end = 0, first, last, keys;
  for (long b = 0; b < p.B; b++) {
    p.sequence(b, &first, &last, &keys);
    if (first > end) clear_rows(x + end * ld, ld, first - end, columns);
    end = std::max(end, last);
  }
  clear_rows(x + end * ld, ld, p.R - end, columns);
}

template <class E>
void forward(const Problem& p, const Parts& in, float* out, float* lse) {
  const long D = p.size, T = p.longest(), width = padded(T);
  const long d_words = E::words(D), t_words = E::words(T);
  clear_gaps(p, out, p.H, p.H);
  clear_gaps(p, lse, p.heads, p.heads);
#pragma omp parallel num_threads(team(8.0 * p.R * T * p.H))
  {
    Scratch& own = own_scratch();
    own.reset(4 * (width * d_words + padded(D) * t_words + QUERIES * width +
                   QUERIES * (d_words + t_words)) + 512);
    word<E>* keys_t = own.take<word<E>>(width * d_words);
    word<E>* values = own.take<word<E>>(padded(D) * t_words);
    float* S = own.take<float>(QUERIES * width);
    word<E>* query = own.take<word<E>>(QUERIES * d_words);
    word<E>* weight = own.take<word<E>>(QUERIES * t_words);
#pragma omp for schedule(dynamic, 4) nowait
    for (long unit = 0; unit < p.B * p.heads; unit++) {
      const Unit u(p, unit);
      const long first = u.first, last = u.last, n = u.keys, h = u.head;
      const long column = u.column, start = first * in.ld + column;
      if (!n) {
        u.clear_output(p, out, lse);
        continue;
      }
      const long ns = ceil_div(n, VL) * VL;
      const Next next(p, h, first, last);
      pack_t<E>(in.k + start, in.ld, D, n, keys_t);
      pack<E>(in.v + start, in.ld, n, D, values);
      for (long i = first; i < last; i += QUERIES) {
        const long m = std::min(QUERIES, last - i);
        long lda = in.ld;
        const word<E>* q =
            as_rows(in.q + i * in.ld + column, lda, m, D, query);
        multiply<E>(false, m, ns, d_words, q, lda, keys_t, S, ns, ZERO);
        for (long r = 0; r < m; r++) {
          float* s = S + r * ns;
          const long place = (i + r) * p.heads + h;
          for (const float* x : {in.q, in.k, in.v})
            next.fetch(x, in.ld, i - first + r);
          lse[place] = weigh(p, place, n, s);
        }
        lda = ns;
        const word<E>* w = as_rows(S, lda, m, n, weight);
        multiply<E>(false, m, D, E::words(n), w, lda, values,
                    out + i * p.H + column, p.H, ZERO);
      }
    }
  }
}

// A row's weights, as V was multiplied by them, from its scores s, and their
// gradient from that of the weights, ds; both have n numbers of ns, zeros
// after them.
void score_gradient(const Problem& p, long place, long n, long ns,
                    float normal, float* s, float* ds) {
  const vi lane = count();
  const Draws draws = p.dropout.row(place);
  vf total{};
  for (long j = 0; j < ns; j += VL) {
    vf w = exp(load(s + j) * p.scale - normal), d = load(ds + j);
    if (n - j < VL) w = pick(lane < (int)(n - j), w, vf{});
    if (p.dropout.on())
      d *= p.dropout.factors(draws, (vu)(lane + (int)j));
    total += w * d;
    store(s + j, w);
    store(ds + j, d);
  }
  const float mean = sum(total);
  for (long j = 0; j < ns; j += VL) {
    const vf w = load(s + j);
    store(ds + j, (load(ds + j) - mean) * w * p.scale);
    if (p.dropout.on())
      store(s + j, w * p.dropout.factors(draws, (vu)(lane + (int)j)));
  }
}

template <class E>
void backward(const Problem& p, const Parts& in, const float* d_out,
              const float* lse, const Parts& grad) {
  const long D = p.size, T = p.longest(), width = padded(T);
  const long d_words = E::words(D), t_words = E::words(T);
  const long q_words = E::words(QUERIES), d_width = padded(D);
  for (float* g : {grad.q, grad.k, grad.v}) clear_gaps(p, g, grad.ld, p.H);
#pragma omp parallel num_threads(team(20.0 * p.R * T * p.H))
  {
    Scratch& own = own_scratch();
    own.reset(4 * (2 * width * d_words + d_width * t_words +
                   2 * d_width * q_words + 2 * QUERIES * width +
                   QUERIES * (d_words + t_words) + q_words * width) + 1024);
    word<E>* keys_t = own.take<word<E>>(width * d_words);
    word<E>* values_t = own.take<word<E>>(width * d_words);
    word<E>* keys = own.take<word<E>>(d_width * t_words);
    word<E>* queries = own.take<word<E>>(d_width * q_words);
    word<E>* d_outs = own.take<word<E>>(d_width * q_words);
    float* S = own.take<float>(QUERIES * width);
    float* dS = own.take<float>(QUERIES * width);
    word<E>* as_is = own.take<word<E>>(QUERIES * std::max(d_words, t_words));
    word<E>* turned = own.take<word<E>>(q_words * width);
#pragma omp for schedule(dynamic, 4) nowait
    for (long unit = 0; unit < p.B * p.heads; unit++) {
      const Unit u(p, unit);
      const long first = u.first, last = u.last, n = u.keys, h = u.head;
      const long column = u.column, start = first * in.ld + column;
      const long to = first * grad.ld + column;
      u.clear_gradients(p, grad);
      if (!n) continue;
      const long ns = ceil_div(n, VL) * VL, n_words = E::words(n);
      const Next next(p, h, first, last);
      pack_t<E>(in.k + start, in.ld, D, n, keys_t);
      pack_t<E>(in.v + start, in.ld, D, n, values_t);
      pack<E>(in.k + start, in.ld, n, D, keys);
      for (long i = first; i < last; i += QUERIES) {
        const long m = std::min(QUERIES, last - i), m_words = E::words(m);
        const float* q = in.q + i * in.ld + column;
        const float* d_o = d_out + i * p.H + column;
        const Start mode = i == first ? ZERO : ADD;
        long lda = in.ld;
        const word<E>* a = as_rows(q, lda, m, D, as_is);
        multiply<E>(false, m, ns, d_words, a, lda, keys_t, S, ns, ZERO);
        lda = p.H;
        a = as_rows(d_o, lda, m, D, as_is);
        multiply<E>(false, m, ns, d_words, a, lda, values_t, dS, ns, ZERO);
        for (long r = 0; r < m; r++) {
          float *s = S + r * ns, *ds = dS + r * ns;
          const long place = (i + r) * p.heads + h;
          for (const float* x : {in.q, in.k, in.v})
            next.fetch(x, in.ld, i - first + r);
          next.fetch(d_out, p.H, i - first + r);
          score_gradient(p, place, n, ns, lse[place], s, ds);
        }
        lda = ns;
        a = as_rows(dS, lda, m, n, as_is);
        multiply<E>(false, m, D, n_words, a, lda, keys,
                    grad.q + i * grad.ld + column, grad.ld, ZERO);
        lda = ns;
        a = as_columns(S, lda, m, n, turned);
        pack<E>(d_o, p.H, m, D, d_outs);
        multiply<E>(true, n, D, m_words, a, lda, d_outs, grad.v + to,
                    grad.ld, mode);
        lda = ns;
        a = as_columns(dS, lda, m, n, turned);
        pack<E>(q, in.ld, m, D, queries);
        multiply<E>(true, n, D, m_words, a, lda, queries, grad.k + to,
                    grad.ld, mode);
      }
    }
  }
}

#if D2LBERT_AMX
#include "amx_attention.h"
#endif

// Inputs: Q, K, V or QKV together; offsets, lens[, noise].
template <bool TOGETHER>
struct Op {
  static constexpr int PARTS = TOGETHER ? 1 : 3;

  static bool drops(const Attrs& attrs) { return number(attrs, "p", 0) > 0; }

  static Parts parts(Tensors* t, int at, long H) {
    if (TOGETHER) {
      float* x = floats((*t)[at]);
      return {x, x + H, x + 2 * H, 3 * H};
    }
    return {floats((*t)[at]), floats((*t)[at + 1]), floats((*t)[at + 2]), H};
  }

  static Problem problem(const Attrs& attrs, Tensors* in, int at) {
    const long R = (*in)[at].shape[0];
    const long H = (*in)[at].shape[1] / (TOGETHER ? 3 : 1);
    const long heads = (long)number(attrs, "num_heads", 1);
    MXTensor &offsets = (*in)[at + PARTS], &lens = (*in)[at + PARTS + 1];
    return {R, H, (long)lens.size(), heads, H / heads, ints(offsets),
            ints(lens), (float)(1 / std::sqrt((double)H / heads)),
            Dropout(number(attrs, "p", 0),
                    drops(attrs) ? floats((*in)[at + PARTS + 2]) : nullptr)};
  }

  static MXReturnValue parse(const Attrs& attrs, int* inputs, int* outputs) {
    *inputs = PARTS + 2 + (drops(attrs) ? 1 : 0);
    *outputs = 2;  // heads joined; logarithms of the softmax's sums
    return MX_SUCCESS;
  }

  static MXReturnValue infer_type(const Attrs&, std::vector<int>* in,
                                  std::vector<int>* out) {
    std::fill(in->begin(), in->end(), kFloat32);
    (*in)[PARTS] = (*in)[PARTS + 1] = kInt32;
    std::fill(out->begin(), out->end(), kFloat32);
    return MX_SUCCESS;
  }

  static MXReturnValue infer_shape(const Attrs& attrs, Shapes* in,
                                   Shapes* out) {
    const Shape x = (*in)[0], lens = (*in)[PARTS + 1];
    const unsigned heads = (unsigned)number(attrs, "num_heads", 1);
    if (x.size() != 2 || lens.size() != 1)
      return fail("attention needs rows (R, H) and lens (B,)");
    const unsigned H = x[1] / (TOGETHER ? 3 : 1);
    if (!heads || H % heads || (TOGETHER && x[1] % 3))
      return fail(std::to_string(heads) + " heads do not divide " +
                  std::to_string(H) + " hiddens");
    for (int i = 1; i < PARTS; i++) (*in)[i] = x;
    (*in)[PARTS] = {lens[0] + 1};
    if (drops(attrs)) (*in)[PARTS + 2] = {64};
    *out = {{x[0], H}, {x[0], heads}};
    return MX_SUCCESS;
  }

  static MXReturnValue run_forward(const Attrs& attrs, Tensors* in,
                                   Tensors* out, const OpResource&) {
    const Problem p = problem(attrs, in, 0);
    const bool bf16 = wants_bf16(attrs);
    if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
    const auto run = pick(bf16, p.size, D2LBERT_PRODUCTS(forward));
    run(p, parts(in, 0, p.H), floats((*out)[0]), floats((*out)[1]));
    return MX_SUCCESS;
  }

  static MXReturnValue run_backward(const Attrs& attrs, Tensors* in,
                                    Tensors* out, const OpResource&) {
    const Problem p = problem(attrs, in, 2);
    const bool bf16 = wants_bf16(attrs);
    if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
    const auto run = pick(bf16, p.size, D2LBERT_PRODUCTS(backward));
    Parts grad = parts(out, 0, p.H);
    // The framework leaves out what no one asked for; it is computed anyway.
    std::vector<float> unwanted;
    if (!TOGETHER && !(grad.q && grad.k && grad.v)) {
      unwanted.resize(p.R * p.H);
      for (float** g : {&grad.q, &grad.k, &grad.v})
        if (!*g) *g = unwanted.data();
    }
    run(p, parts(in, 2, p.H), floats((*in)[0]), floats(in->back()), grad);
    for (size_t i = PARTS; i < out->size(); i++) clear((*out)[i]);
    return MX_SUCCESS;
  }
};

}  // namespace

REGISTER_OP(d2lbert_attention)
    .setForward(Op<false>::run_forward, "cpu")
    .setBackward(Op<false>::run_backward, "cpu")
    .setParseAttrs(Op<false>::parse)
    .setInferType(Op<false>::infer_type)
    .setInferShape(Op<false>::infer_shape);

REGISTER_OP(d2lbert_attention_qkv)
    .setForward(Op<true>::run_forward, "cpu")
    .setBackward(Op<true>::run_backward, "cpu")
    .setParseAttrs(Op<true>::parse)
    .setInferType(Op<true>::infer_type)
    .setInferShape(Op<true>::infer_shape);

}  // namespace d2lbert
