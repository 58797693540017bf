// This file computes scaled dot-product attention of one head over one
// sequence, and the gradient of attention, for attention.cc and
// self_attention.cc. The scores of a few queries are computed at a time, so
// that the scores stay in cache.
#pragma once
#include "op.h"

namespace d2lbert {

constexpr long QUERIES = 8 * MR;  // queries whose scores are held at a time

// Queries, keys and values, or their gradients: three blocks of columns of one
// matrix, whose rows begin ld numbers apart.
struct QueryKeyValue {
  float *q, *k, *v;
  long ld;
};

// The arguments of attention: R rows of H hiddens, B sequences, and the number
// of heads. head_size is H / heads. offsets (B + 1,): the row at which each
// sequence begins, and the end of the last sequence. lens (B,): the number of
// rows of each sequence before the padding.
struct Problem {
  long R, H, B, heads, head_size;
  const int32_t *offsets, *lens;
  float scale;      // the factor of the scores
  Dropout dropout;  // of the attention weights
  bool causal;      // a query attends to no key after its own position

  // Sequence b has rows [first, last). All these rows are queries, and the
  // first `keys` rows are keys. No row is outside the matrix, even if offsets
  // or lens are wrong.
  void sequence(long b, long* first, long* last, long* keys) const {
    *first = std::min<long>(std::max<long>(offsets[b], 0), R);
    *last = std::min<long>(std::max<long>(offsets[b + 1], *first), R);
    *keys = std::min<long>(std::max<long>(lens[b], 0), *last - *first);
  }

  // The number of keys that a query attends to, out of n keys. query: the
  // position of the query in the sequence.
  long visible_keys(long query, long n) const {
    return causal ? std::min(query + 1, n) : n;
  }

  // True if the offsets never decrease, so that no two sequences share a row.
  bool has_sorted_offsets() const {
    return std::is_sorted(offsets, offsets + B + 1);
  }

  // The number of rows of the longest sequence.
  long longest_sequence() const {
    long longest = 0, first, last, keys;
    for (long b = 0; b < B; b++) {
      sequence(b, &first, &last, &keys);
      longest = std::max(longest, last - first);
    }
    return longest;
  }
};

// The largest of n scores. The last vector may hold other data after the
// scores.
inline float largest(const float* s, long n) {
  const vi lane = lane_indices();
  const vf nothing = splat(-INFINITY);
  const long tail = n / VL * VL;  // the beginning of a partial vector
  vf top = nothing;
  for (long j = 0; j < tail; j += VL) top = larger(load(s + j), top);
  if (tail < n)
    top = larger(pick(lane < (int)(n - tail), load(s + tail), nothing),
                 top);
  return maximum(top);
}

// Replace n scores by softmax(scale * scores). Zeros fill the last vector.
inline void softmax(float* s, long n, float scale) {
  const vi lane = lane_indices();
  const long tail = n / VL * VL;  // the beginning of a partial vector
  const float top = largest(s, n);
  vf total{};
  for (long j = 0; j < n; j += VL) {
    vf e = exp((load(s + j) - top) * scale);
    if (j == tail) e = pick(lane < (int)(n - tail), e, vf{});
    store(s + j, e);
    total += e;
  }
  const float inverse = 1 / sum(total);
  for (long j = 0; j < n; j += VL) store(s + j, load(s + j) * inverse);
}

// Prefetches the rows of the head that is computed next: the next head of this
// sequence, which has rows [first, last), or head 0 of the next sequence.
struct NextHead {
  long row, column, size;
  NextHead(const Problem& p, long head, long first, long last)
      : row(head + 1 < p.heads ? first : last),
        column((head + 1) % p.heads * p.head_size), size(p.head_size) {}
  // Prefetch row r of the next head in the matrix x.
  void fetch(const float* x, long ld, long r) const {
    const float* from = x + (row + r) * ld + column;
    // 16 numbers fill a cache line
    for (long j = 0; j < size; j += 16) __builtin_prefetch(from + j, 0, 2);
  }
};

// Write zeros to x (rows x columns), whose rows begin ld numbers apart.
inline void clear_rows(float* x, long ld, long rows, long columns) {
  for (long i = 0; i < rows; i++) std::memset(x + i * ld, 0, 4 * columns);
}

// Replace the scores s of a query by attention weights after dropout. s has
// `keys` numbers, in whole vectors. The query attends to the first `visible`
// keys; the other weights are zero. dropout_row: the row of random numbers of
// this query and head.
inline void scores_to_weights(const Problem& p, long dropout_row, long visible,
                              long keys, float* s) {
  softmax(s, visible, p.scale);
  for (long j = ceil_div(visible, VL) * VL; j < keys; j += VL)
    store(s + j, vf{});
  if (!p.dropout.on()) return;
  const vi lane = lane_indices();
  const Draws draws = p.dropout.row(dropout_row);
  for (long j = 0; j < visible; j += VL)
    store(s + j,
          load(s + j) * p.dropout.factors(draws, (vu)(lane + (int)j)));
}

// One head of one sequence: the index of the head, its first column, and the
// rows and keys of the sequence, as `Problem::sequence` returns them.
struct SequenceHead {
  long head, column, first, last, keys;
  // index: the number of this head, counted through all heads of sequence 0,
  // then through all heads of sequence 1, and so on.
  SequenceHead(const Problem& p, long index)
      : head(index % p.heads), column(head * p.head_size) {
    p.sequence(index / p.heads, &first, &last, &keys);
  }
  // Write zeros to the output. Call this if the sequence has no keys.
  void clear_output(const Problem& p, float* out) const {
    clear_rows(out + first * p.H + column, p.H, last - first, p.head_size);
  }
  // Write zeros to the gradients of keys and values in rows of padding. If the
  // sequence has no keys, write zeros to the gradients of queries, too.
  void clear_gradients(const Problem& p, const QueryKeyValue& grad) const {
    const long begin = first * grad.ld + column;
    const long padding = begin + keys * grad.ld;
    if (!keys) clear_rows(grad.q + begin, grad.ld, last - first, p.head_size);
    for (float* g : {grad.k, grad.v})
      clear_rows(g + padding, grad.ld, last - first - keys, p.head_size);
  }
};

// Write zeros to the rows of x that belong to no sequence.
inline void clear_gaps(const Problem& p, float* x, long ld, long columns) {
  long end = 0, first, last, keys;
  for (long b = 0; b < p.B; b++) {
    p.sequence(b, &first, &last, &keys);
    if (first > end) clear_rows(x + end * ld, ld, first - end, columns);
    end = std::max(end, last);
  }
  clear_rows(x + end * ld, ld, p.R - end, columns);
}

// Replace the scores s of a query by attention weights after dropout. Replace
// ds, the gradient of these weights, by the gradient of the scores. Both arrays
// have `size` numbers, a multiple of VL. The query attends to the first
// `visible` keys; the numbers of the other keys become zeros.
// The maximum and the sum of the softmax are computed again, not saved. A saved
// logarithm of a large sum would be too coarse for weights that add up to 1.
// Also, the forward pass may have used another kernel.
inline void score_gradient(const Problem& p, long dropout_row, long visible,
                           long size, float* s, float* ds) {
  const vi lane = lane_indices();
  const Draws draws = p.dropout.row(dropout_row);
  const float top = largest(s, visible);
  vf total{}, weighted{};
  for (long j = 0; j < size; j += VL) {
    vf e = exp((load(s + j) - top) * p.scale), d = load(ds + j);
    if (visible - j < VL) e = pick(lane < (int)(visible - j), e, vf{});
    if (p.dropout.on())
      d *= p.dropout.factors(draws, (vu)(lane + (int)j));
    total += e;
    weighted += e * d;
    store(s + j, e);
    store(ds + j, d);
  }
  const float inverse = 1 / sum(total), mean = sum(weighted) * inverse;
  for (long j = 0; j < size; j += VL) {
    const vf w = load(s + j) * inverse;
    store(ds + j, (load(ds + j) - mean) * w * p.scale);
    store(s + j, p.dropout.on()
                     ? w * p.dropout.factors(draws, (vu)(lane + (int)j))
                     : w);
  }
}

// Scratch memory of `attend` for one head of one sequence. A word: see gemm.h.
// T: the number of rows of the longest sequence.
template <class E>
struct AttendMemory {
  word<E> *keys_t, *values;             // packed K^T and V
  word<E> *query_words, *weight_words;  // left factors, of QUERIES rows
  float* S;                             // scores, then weights, of QUERIES rows
  static size_t bytes(const Problem& p, long T) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    // + 512: each array may need up to 64 bytes more for alignment
    return 4 * (width * d_words + padded(D) * t_words + QUERIES * width +
                QUERIES * (d_words + t_words)) + 512;
  }
  AttendMemory(const Problem& p, long T, Scratch& own) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    keys_t = own.take<word<E>>(width * d_words);
    values = own.take<word<E>>(padded(D) * t_words);
    S = own.take<float>(QUERIES * width);
    query_words = own.take<word<E>>(QUERIES * d_words);
    weight_words = own.take<word<E>>(QUERIES * t_words);
  }
};

// Compute the output of u, a head of a sequence. in, out: the matrices with all
// rows and heads.
template <class E>
void attend(const Problem& p, const SequenceHead& u, const QueryKeyValue& in,
            float* out, const AttendMemory<E>& memory) {
  const long D = p.head_size, d_words = E::words(D);
  const long first = u.first, last = u.last, n = u.keys, head = u.head;
  const long column = u.column, begin = first * in.ld + column;
  if (!n) return u.clear_output(p, out);
  const long padded_n = ceil_div(n, VL) * VL;  // rounded up to whole vectors
  const NextHead next(p, head, first, last);
  pack_t<E>(in.k + begin, in.ld, D, n, memory.keys_t);
  pack<E>(in.v + begin, in.ld, n, D, memory.values);
  for (long i = first; i < last; i += QUERIES) {
    const long m = std::min(QUERIES, last - i);
    long lda = in.ld;
    const word<E>* q =
        as_rows(in.q + i * in.ld + column, lda, m, D, memory.query_words);
    multiply<E>(false, m, padded_n, d_words, q, lda, memory.keys_t, memory.S,
                padded_n, ZERO);
    for (long r = 0; r < m; r++) {
      float* s = memory.S + r * padded_n;
      const long dropout_row = (i + r) * p.heads + head;
      for (const float* x : {in.q, in.k, in.v})
        next.fetch(x, in.ld, i - first + r);
      scores_to_weights(p, dropout_row, p.visible_keys(i - first + r, n), n, s);
    }
    lda = padded_n;
    const word<E>* w = as_rows(memory.S, lda, m, n, memory.weight_words);
    multiply<E>(false, m, D, E::words(n), w, lda, memory.values,
                out + i * p.H + column, p.H, ZERO);
  }
}

// Scratch memory of `attend_back`, like `AttendMemory`.
template <class E>
struct AttendBackMemory {
  word<E> *keys_t, *values_t, *keys, *queries, *d_outs;  // packed
  word<E> *row_words, *column_words;  // left factors, in the two layouts
  float *S, *dS;  // the arrays s and ds of `score_gradient`, for QUERIES rows
  static size_t bytes(const Problem& p, long T) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    const long q_words = E::words(QUERIES), d_width = padded(D);
    return 4 * (2 * width * d_words + d_width * t_words +
                2 * d_width * q_words + 2 * QUERIES * width +
                QUERIES * (d_words + t_words) + q_words * width) + 1024;
  }
  AttendBackMemory(const Problem& p, long T, Scratch& own) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    const long q_words = E::words(QUERIES), d_width = padded(D);
    keys_t = own.take<word<E>>(width * d_words);
    values_t = own.take<word<E>>(width * d_words);
    keys = own.take<word<E>>(d_width * t_words);
    queries = own.take<word<E>>(d_width * q_words);
    d_outs = own.take<word<E>>(d_width * q_words);
    S = own.take<float>(QUERIES * width);
    dS = own.take<float>(QUERIES * width);
    row_words = own.take<word<E>>(QUERIES * std::max(d_words, t_words));
    column_words = own.take<word<E>>(q_words * width);
  }
};

// Compute grad, the gradient of `in`, for u, one head of one sequence. d_out:
// the gradient of the output. The matrices have all rows and heads.
template <class E>
void attend_back(const Problem& p, const SequenceHead& u,
                 const QueryKeyValue& in, const float* d_out,
                 const QueryKeyValue& grad,
                 const AttendBackMemory<E>& memory) {
  const long D = p.head_size, d_words = E::words(D);
  const long first = u.first, last = u.last, n = u.keys, head = u.head;
  const long column = u.column, begin = first * in.ld + column;
  const long grad_begin = first * grad.ld + column;
  u.clear_gradients(p, grad);
  if (!n) return;
  const long padded_n = ceil_div(n, VL) * VL;  // rounded up to whole vectors
  const long n_words = E::words(n);
  const NextHead next(p, head, first, last);
  pack_t<E>(in.k + begin, in.ld, D, n, memory.keys_t);
  pack_t<E>(in.v + begin, in.ld, D, n, memory.values_t);
  pack<E>(in.k + begin, in.ld, n, D, memory.keys);
  for (long i = first; i < last; i += QUERIES) {
    const long m = std::min(QUERIES, last - i), m_words = E::words(m);
    const float* q = in.q + i * in.ld + column;
    const float* d_o = d_out + i * p.H + column;
    const Start start = i == first ? ZERO : ADD;
    long lda = in.ld;
    // a: the left factor of each product
    const word<E>* a = as_rows(q, lda, m, D, memory.row_words);
    multiply<E>(false, m, padded_n, d_words, a, lda, memory.keys_t, memory.S,
                padded_n, ZERO);
    lda = p.H;
    a = as_rows(d_o, lda, m, D, memory.row_words);
    multiply<E>(false, m, padded_n, d_words, a, lda, memory.values_t,
                memory.dS, padded_n, ZERO);
    for (long r = 0; r < m; r++) {
      float* s = memory.S + r * padded_n;
      float* ds = memory.dS + r * padded_n;
      const long dropout_row = (i + r) * p.heads + head;
      for (const float* x : {in.q, in.k, in.v})
        next.fetch(x, in.ld, i - first + r);
      next.fetch(d_out, p.H, i - first + r);
      score_gradient(p, dropout_row, p.visible_keys(i - first + r, n),
                     padded_n, s, ds);
    }
    lda = padded_n;
    a = as_rows(memory.dS, lda, m, n, memory.row_words);
    multiply<E>(false, m, D, n_words, a, lda, memory.keys,
                grad.q + i * grad.ld + column, grad.ld, ZERO);
    lda = padded_n;
    a = as_columns(memory.S, lda, m, n, memory.column_words);
    pack<E>(d_o, p.H, m, D, memory.d_outs);
    multiply<E>(true, n, D, m_words, a, lda, memory.d_outs, grad.v + grad_begin,
                grad.ld, start);
    lda = padded_n;
    a = as_columns(memory.dS, lda, m, n, memory.column_words);
    pack<E>(q, in.ld, m, D, memory.queries);
    multiply<E>(true, n, D, m_words, a, lda, memory.queries,
                grad.k + grad_begin, grad.ld, start);
  }
}

}  // namespace d2lbert
