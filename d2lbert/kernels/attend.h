// Attention of one head over one sequence, and its gradient, for the operators
// with attention. No score leaves the cache.
#pragma once
#include "op.h"

namespace d2lbert {

constexpr long QUERIES = 8 * MR;  // rows of scores held at a time

// Q, K and V, or their gradients: columns of a matrix, whose rows are ld apart.
struct Parts {
  float *q, *k, *v;
  long ld;
};

// R rows, H hiddens, B sequences; size: H / heads.
struct Problem {
  long R, H, B, heads, size;
  const int32_t *offsets, *lens;
  float scale;
  Dropout dropout;
  bool causal;  // a query attends to no key after its own position

  // Sequence b has rows [first, last). All of them are queries, and the first
  // `keys` of them are keys.
  void sequence(long b, long* first, long* last, long* keys) const {
    *first = std::min<long>(std::max<long>(offsets[b], 0), R);
    *last = std::min<long>(std::max<long>(offsets[b + 1], *first), R);
    *keys = std::min<long>(std::max<long>(lens[b], 0), *last - *first);
  }

  // The number of keys that a query attends to, out of n keys. query: its
  // position in the sequence.
  long seen(long query, long n) const {
    return causal ? std::min(query + 1, n) : n;
  }

  // True if no two sequences share a row.
  bool apart() const { return std::is_sorted(offsets, offsets + B + 1); }

  long longest() const {
    long most = 0, first, last, keys;
    for (long b = 0; b < B; b++) {
      sequence(b, &first, &last, &keys);
      most = std::max(most, last - first);
    }
    return most;
  }
};

// The largest of n scores; anything may follow them in the last vector.
inline float largest(const float* s, long n) {
  const vi lane = count();
  const vf nothing = splat(-INFINITY);
  const long whole = n / VL * VL;
  vf top = nothing;
  for (long j = 0; j < whole; j += VL) top = larger(load(s + j), top);
  if (whole < n)
    top = larger(pick(lane < (int)(n - whole), load(s + whole), nothing),
                 top);
  return maximum(top);
}

// Turn n scores into weights, in place; zeros fill the last vector.
inline void softmax(float* s, long n, float scale) {
  const vi lane = count();
  const long whole = n / VL * VL;
  const float most = largest(s, n);
  vf total{};
  for (long j = 0; j < n; j += VL) {
    vf e = exp((load(s + j) - most) * scale);
    if (j == whole) e = pick(lane < (int)(n - whole), e, vf{});
    store(s + j, e);
    total += e;
  }
  const float inverse = 1 / sum(total);
  for (long j = 0; j < n; j += VL) store(s + j, load(s + j) * inverse);
}

// Prefetches the rows that are read next: the next head of this sequence, or
// the first head of the next sequence.
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

inline void clear_rows(float* x, long ld, long rows, long columns) {
  for (long i = 0; i < rows; i++) std::memset(x + i * ld, 0, 4 * columns);
}

// Turn the scores s of a query into attention weights after dropout, in place.
// All weights after the first n of `keys` are zero. place: numbers each pair of
// a query and a head, for dropout.
inline void weigh(const Problem& p, long place, long n, long keys, float* s) {
  softmax(s, n, p.scale);
  for (long j = ceil_div(n, VL) * VL; j < keys; j += VL) store(s + j, vf{});
  if (!p.dropout.on()) return;
  const vi lane = count();
  const Draws draws = p.dropout.row(place);
  for (long j = 0; j < n; j += VL)
    store(s + j,
          load(s + j) * p.dropout.factors(draws, (vu)(lane + (int)j)));
}

// One head of one sequence.
struct Unit {
  long head, column, first, last, keys;
  Unit(const Problem& p, long unit)
      : head(unit % p.heads), column(head * p.size) {
    p.sequence(unit / p.heads, &first, &last, &keys);
  }
  // Write the output of a sequence without keys: zeros.
  void clear_output(const Problem& p, float* out) const {
    clear_rows(out + first * p.H + column, p.H, last - first, p.size);
  }
  // Write zeros to the gradients of keys and values in rows of padding. Without
  // any keys, the gradients of the queries are zero, too.
  void clear_gradients(const Problem& p, const Parts& grad) const {
    const long to = first * grad.ld + column, rest = to + keys * grad.ld;
    if (!keys) clear_rows(grad.q + to, grad.ld, last - first, p.size);
    for (float* g : {grad.k, grad.v})
      clear_rows(g + rest, grad.ld, last - first - keys, p.size);
  }
};

// Write zeros to the rows that belong to no sequence.
inline void clear_gaps(const Problem& p, float* x, long ld, long columns) {
  long end = 0, first, last, keys;
  for (long b = 0; b < p.B; b++) {
    p.sequence(b, &first, &last, &keys);
    if (first > end) clear_rows(x + end * ld, ld, first - end, columns);
    end = std::max(end, last);
  }
  clear_rows(x + end * ld, ld, p.R - end, columns);
}

// Turn the scores s of a query into weights after dropout, and ds, the gradient
// of these weights, into the gradient of the scores. Both arrays have ns
// numbers; after the first n, zeros are written. The maximum and the sum are
// computed again, not saved. A saved logarithm of a large sum would be too
// coarse for weights that add up to 1, and the forward pass may have used other
// instructions.
inline void score_gradient(const Problem& p, long place, long n, long ns,
                           float* s, float* ds) {
  const vi lane = count();
  const Draws draws = p.dropout.row(place);
  const float most = largest(s, n);
  vf total{}, change{};
  for (long j = 0; j < ns; j += VL) {
    vf e = exp((load(s + j) - most) * p.scale), d = load(ds + j);
    if (n - j < VL) e = pick(lane < (int)(n - j), e, vf{});
    if (p.dropout.on())
      d *= p.dropout.factors(draws, (vu)(lane + (int)j));
    total += e;
    change += e * d;
    store(s + j, e);
    store(ds + j, d);
  }
  const float inverse = 1 / sum(total), mean = sum(change) * inverse;
  for (long j = 0; j < ns; j += VL) {
    const vf w = load(s + j) * inverse;
    store(ds + j, (load(ds + j) - mean) * w * p.scale);
    store(s + j, p.dropout.on()
                     ? w * p.dropout.factors(draws, (vu)(lane + (int)j))
                     : w);
  }
}

// Scratch memory for a head of the longest sequence, which has T rows.
template <class E>
struct Room {
  word<E> *keys_t, *values, *query, *weight;
  float* S;
  static size_t bytes(const Problem& p, long T) {
    const long D = p.size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    return 4 * (width * d_words + padded(D) * t_words + QUERIES * width +
                QUERIES * (d_words + t_words)) + 512;
  }
  Room(const Problem& p, long T, Scratch& own) {
    const long D = p.size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    keys_t = own.take<word<E>>(width * d_words);
    values = own.take<word<E>>(padded(D) * t_words);
    S = own.take<float>(QUERIES * width);
    query = own.take<word<E>>(QUERIES * d_words);
    weight = own.take<word<E>>(QUERIES * t_words);
  }
};

// Compute the output of one head of one sequence.
template <class E>
void attend(const Problem& p, const Unit& u, const Parts& in, float* out,
            const Room<E>& room) {
  const long D = p.size, d_words = E::words(D);
  const long first = u.first, last = u.last, n = u.keys, h = u.head;
  const long column = u.column, start = first * in.ld + column;
  if (!n) return u.clear_output(p, out);
  const long ns = ceil_div(n, VL) * VL;
  const Next next(p, h, first, last);
  pack_t<E>(in.k + start, in.ld, D, n, room.keys_t);
  pack<E>(in.v + start, in.ld, n, D, room.values);
  for (long i = first; i < last; i += QUERIES) {
    const long m = std::min(QUERIES, last - i);
    long lda = in.ld;
    const word<E>* q =
        as_rows(in.q + i * in.ld + column, lda, m, D, room.query);
    multiply<E>(false, m, ns, d_words, q, lda, room.keys_t, room.S, ns, ZERO);
    for (long r = 0; r < m; r++) {
      float* s = room.S + r * ns;
      const long place = (i + r) * p.heads + h;
      for (const float* x : {in.q, in.k, in.v})
        next.fetch(x, in.ld, i - first + r);
      weigh(p, place, p.seen(i - first + r, n), n, s);
    }
    lda = ns;
    const word<E>* w = as_rows(room.S, lda, m, n, room.weight);
    multiply<E>(false, m, D, E::words(n), w, lda, room.values,
                out + i * p.H + column, p.H, ZERO);
  }
}

// Scratch memory for the gradients of a head of the longest sequence.
template <class E>
struct GradientRoom {
  word<E> *keys_t, *values_t, *keys, *queries, *d_outs, *as_is, *turned;
  float *S, *dS;
  static size_t bytes(const Problem& p, long T) {
    const long D = p.size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    const long q_words = E::words(QUERIES), d_width = padded(D);
    return 4 * (2 * width * d_words + d_width * t_words +
                2 * d_width * q_words + 2 * QUERIES * width +
                QUERIES * (d_words + t_words) + q_words * width) + 1024;
  }
  GradientRoom(const Problem& p, long T, Scratch& own) {
    const long D = p.size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    const long q_words = E::words(QUERIES), d_width = padded(D);
    keys_t = own.take<word<E>>(width * d_words);
    values_t = own.take<word<E>>(width * d_words);
    keys = own.take<word<E>>(d_width * t_words);
    queries = own.take<word<E>>(d_width * q_words);
    d_outs = own.take<word<E>>(d_width * q_words);
    S = own.take<float>(QUERIES * width);
    dS = own.take<float>(QUERIES * width);
    as_is = own.take<word<E>>(QUERIES * std::max(d_words, t_words));
    turned = own.take<word<E>>(q_words * width);
  }
};

// Compute the gradients of one head of one sequence.
template <class E>
void attend_back(const Problem& p, const Unit& u, const Parts& in,
                 const float* d_out, const Parts& grad,
                 const GradientRoom<E>& room) {
  const long D = p.size, d_words = E::words(D);
  const long first = u.first, last = u.last, n = u.keys, h = u.head;
  const long column = u.column, start = first * in.ld + column;
  const long to = first * grad.ld + column;
  u.clear_gradients(p, grad);
  if (!n) return;
  const long ns = ceil_div(n, VL) * VL, n_words = E::words(n);
  const Next next(p, h, first, last);
  pack_t<E>(in.k + start, in.ld, D, n, room.keys_t);
  pack_t<E>(in.v + start, in.ld, D, n, room.values_t);
  pack<E>(in.k + start, in.ld, n, D, room.keys);
  for (long i = first; i < last; i += QUERIES) {
    const long m = std::min(QUERIES, last - i), m_words = E::words(m);
    const float* q = in.q + i * in.ld + column;
    const float* d_o = d_out + i * p.H + column;
    const Start mode = i == first ? ZERO : ADD;
    long lda = in.ld;
    const word<E>* a = as_rows(q, lda, m, D, room.as_is);
    multiply<E>(false, m, ns, d_words, a, lda, room.keys_t, room.S, ns, ZERO);
    lda = p.H;
    a = as_rows(d_o, lda, m, D, room.as_is);
    multiply<E>(false, m, ns, d_words, a, lda, room.values_t, room.dS, ns,
                ZERO);
    for (long r = 0; r < m; r++) {
      float *s = room.S + r * ns, *ds = room.dS + r * ns;
      const long place = (i + r) * p.heads + h;
      for (const float* x : {in.q, in.k, in.v})
        next.fetch(x, in.ld, i - first + r);
      next.fetch(d_out, p.H, i - first + r);
      score_gradient(p, place, p.seen(i - first + r, n), ns, s, ds);
    }
    lda = ns;
    a = as_rows(room.dS, lda, m, n, room.as_is);
    multiply<E>(false, m, D, n_words, a, lda, room.keys,
                grad.q + i * grad.ld + column, grad.ld, ZERO);
    lda = ns;
    a = as_columns(room.S, lda, m, n, room.turned);
    pack<E>(d_o, p.H, m, D, room.d_outs);
    multiply<E>(true, n, D, m_words, a, lda, room.d_outs, grad.v + to,
                grad.ld, mode);
    lda = ns;
    a = as_columns(room.dS, lda, m, n, room.turned);
    pack<E>(q, in.ld, m, D, room.queries);
    multiply<E>(true, n, D, m_words, a, lda, room.queries, grad.k + to,
                grad.ld, mode);
  }
}

}  // namespace d2lbert
