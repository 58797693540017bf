// This file computes scaled dot-product attention of one head over one
// sequence, and the gradient of attention, for attention.cc and
// self_attention.cc. The scores of QUERY_BLOCK queries are computed at a time,
// so that the scores stay in cache. gemm.h explains words, and the template
// argument E.
#pragma once
#include "op.h"

namespace d2lbert {

// Queries whose scores are held at a time: the rows of 8 tiles of gemm.h.
constexpr long QUERY_BLOCK = 8 * MR;

// Queries, keys and values, or their gradients: three blocks of columns of one
// matrix, whose rows begin ld numbers apart.
struct QueryKeyValue {
  float *q, *k, *v;
  long ld;
};

// The arguments of attention: R rows of H hidden units, B sequences, and the
// number of heads. head_size is H / heads. offsets (B + 1,): the row at which
// each sequence begins, and the end of the last sequence. lens (B,): the number
// of rows of each sequence before the padding.
struct Problem {
  long R, H, B, heads, head_size;
  const int32_t *offsets, *lens;
  float scale;      // the factor of the scores in the softmax
  Dropout dropout;  // of the attention weights
  bool causal;      // a query attends to no key after its own position

  // Find the rows of sequence b, [first, last). All these rows are queries, and
  // the first num_keys rows are keys. No row is outside the matrix, even if
  // offsets or lens are wrong.
  void find_sequence(long b, long* first, long* last, long* num_keys) const {
    *first = std::min<long>(std::max<long>(offsets[b], 0), R);
    *last = std::min<long>(std::max<long>(offsets[b + 1], *first), R);
    *num_keys = std::min<long>(std::max<long>(lens[b], 0), *last - *first);
  }

  // The number of keys that a query attends to, out of n keys. query: the
  // position of the query in the sequence.
  long num_visible_keys(long query, long n) const {
    return causal ? std::min(query + 1, n) : n;
  }

  // True if the offsets never decrease, so that no two sequences share a row.
  bool has_sorted_offsets() const {
    return std::is_sorted(offsets, offsets + B + 1);
  }

  // The number of rows of the longest sequence.
  long longest_sequence() const {
    long longest = 0, first, last, num_keys;
    for (long b = 0; b < B; b++) {
      find_sequence(b, &first, &last, &num_keys);
      longest = std::max(longest, last - first);
    }
    return longest;
  }
};

// The largest of n scores. The memory of the last vector may have other data
// after the scores, which does not count.
inline float largest(const float* s, long n) {
  const vi lane = lane_indices();
  const vf lowest = splat(-INFINITY);
  const long tail_begin = n / VL * VL;  // the tail: scores of a partial vector
  vf top = lowest;
  for (long j = 0; j < tail_begin; j += VL) top = larger(load(s + j), top);
  if (tail_begin < n) {
    const vf tail = pick(lane < (int)(n - tail_begin), load(s + tail_begin),
                         lowest);
    top = larger(tail, top);
  }
  return maximum(top);
}

// Replace n scores by softmax(scale * scores). Zeros fill the last vector.
inline void softmax(float* s, long n, float scale) {
  const vi lane = lane_indices();
  const long tail_begin = n / VL * VL;  // the tail: scores of a partial vector
  const float top = largest(s, n);
  vf total{};
  for (long j = 0; j < n; j += VL) {
    vf e = exp((load(s + j) - top) * scale);
    if (j == tail_begin) e = pick(lane < (int)(n - tail_begin), e, vf{});
    store(s + j, e);
    total += e;
  }
  const float inverse = 1 / sum(total);
  for (long j = 0; j < n; j += VL) store(s + j, load(s + j) * inverse);
}

// Prefetches the rows of the head after `head`: the next head of this sequence,
// or head 0 of the next sequence. This sequence has rows [first, last). row,
// column: where the head to prefetch begins in a matrix. size: its columns.
struct NextHead {
  long row, column, size;
  NextHead(const Problem& p, long head, long first, long last)
      : row(head + 1 < p.heads ? first : last),
        column((head + 1) % p.heads * p.head_size), size(p.head_size) {}
  // Prefetch row r of the next head in the matrix x.
  void prefetch_row(const float* x, long ld, long r) const {
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
// num_keys numbers, rounded up to whole vectors. The query attends to the first
// num_visible keys; the other weights are zero. dropout_row: the index of the
// random numbers of this query and head.
inline void scores_to_weights(const Problem& p, long dropout_row,
                              long num_visible, long num_keys, float* s) {
  softmax(s, num_visible, p.scale);
  for (long j = ceil_div(num_visible, VL) * VL; j < num_keys; j += VL)
    store(s + j, vf{});
  if (!p.dropout.on()) return;
  const vi lane = lane_indices();
  const Draws draws = p.dropout.row(dropout_row);
  for (long j = 0; j < num_visible; j += VL)
    store(s + j,
          load(s + j) * p.dropout.factors(draws, (vu)(lane + (int)j)));
}

// One head of one sequence: the number of the head, its first column, and the
// rows [first, last) and the number of keys of the sequence.
struct SequenceHead {
  long head, column, first, last, num_keys;
  // index: counts all heads of sequence 0, then all heads of sequence 1, and so
  // on.
  SequenceHead(const Problem& p, long index)
      : head(index % p.heads), column(head * p.head_size) {
    p.find_sequence(index / p.heads, &first, &last, &num_keys);
  }
  // Write zeros to the output. Call this if the sequence has no keys.
  void clear_output(const Problem& p, float* out) const {
    clear_rows(out + first * p.H + column, p.H, last - first, p.head_size);
  }
  // Write zeros to the gradients of keys and values in rows of padding. If the
  // sequence has no keys, write zeros to the gradients of queries, too.
  void clear_gradients(const Problem& p, const QueryKeyValue& grad) const {
    const long num_rows = last - first, begin = first * grad.ld + column;
    const long padding_begin = begin + num_keys * grad.ld;
    if (!num_keys) clear_rows(grad.q + begin, grad.ld, num_rows, p.head_size);
    for (float* g : {grad.k, grad.v})
      clear_rows(g + padding_begin, grad.ld, num_rows - num_keys, p.head_size);
  }
};

// Write zeros to the rows of x that belong to no sequence.
inline void clear_gaps(const Problem& p, float* x, long ld, long columns) {
  long end = 0, first, last, num_keys;
  for (long b = 0; b < p.B; b++) {
    p.find_sequence(b, &first, &last, &num_keys);
    if (first > end) clear_rows(x + end * ld, ld, first - end, columns);
    end = std::max(end, last);
  }
  clear_rows(x + end * ld, ld, p.R - end, columns);
}

// Replace the scores s of a query by attention weights after dropout. Replace
// ds, the gradient of these weights, by the gradient of the scores. Both arrays
// have `size` numbers, a multiple of VL. The query attends to the first
// num_visible keys; the numbers of the other keys become zeros. dropout_row: as
// for `scores_to_weights`.
// The maximum and the sum of the softmax are computed again, not saved. Other
// programs save the logarithm of the sum of exp(score). But a large logarithm
// would be too coarse for weights that add up to 1. Also, the forward pass may
// have used another kernel (amx_attention.h).
inline void backpropagate_scores(const Problem& p, long dropout_row,
                                 long num_visible, long size, float* s,
                                 float* ds) {
  const vi lane = lane_indices();
  const Draws draws = p.dropout.row(dropout_row);
  const float top = largest(s, num_visible);
  vf total{}, weighted{};  // the sums of e, and of e times the gradient d
  for (long j = 0; j < size; j += VL) {
    vf e = exp((load(s + j) - top) * p.scale), d = load(ds + j);
    if (num_visible - j < VL)
      e = pick(lane < (int)(num_visible - j), e, vf{});
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

// Scratch memory of `attend` for one head of one sequence. T: the number of
// rows of the longest sequence. D: numbers in a row of the head.
template <class E>
struct AttendMemory {
  word<E> *keys_t, *values;           // packed K^T and V
  word<E> *query_rows, *weight_rows;  // left factors, of QUERY_BLOCK rows
  float* S;  // scores, then weights, of QUERY_BLOCK rows
  static size_t bytes(const Problem& p, long T) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    // A word or float has 4 bytes. + 512: each array may need up to 64 bytes
    // more for alignment
    return 4 * (width * d_words + padded(D) * t_words + QUERY_BLOCK * width +
                QUERY_BLOCK * (d_words + t_words)) + 512;
  }
  AttendMemory(const Problem& p, long T, Scratch& own) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    keys_t = own.take<word<E>>(width * d_words);
    values = own.take<word<E>>(padded(D) * t_words);
    S = own.take<float>(QUERY_BLOCK * width);
    query_rows = own.take<word<E>>(QUERY_BLOCK * d_words);
    weight_rows = own.take<word<E>>(QUERY_BLOCK * t_words);
  }
};

// Compute the output of one head of one sequence, `part`. in, out: the matrices
// with all rows and heads.
template <class E>
void attend(const Problem& p, const SequenceHead& part,
            const QueryKeyValue& in, float* out,
            const AttendMemory<E>& memory) {
  const long D = p.head_size, d_words = E::words(D);
  const long first = part.first, last = part.last, n = part.num_keys;
  const long column = part.column, begin = first * in.ld + column;
  if (!n) return part.clear_output(p, out);
  const long row_size = ceil_div(n, VL) * VL;  // numbers in a row of scores
  const NextHead next(p, part.head, first, last);
  pack_t<E>(in.k + begin, in.ld, D, n, memory.keys_t);
  pack<E>(in.v + begin, in.ld, n, D, memory.values);
  for (long i = first; i < last; i += QUERY_BLOCK) {
    const long m = std::min(QUERY_BLOCK, last - i);
    long lda = in.ld;  // `as_rows` changes lda if it copies the rows
    const word<E>* q =
        as_rows(in.q + i * in.ld + column, lda, m, D, memory.query_rows);
    multiply<E>(false, m, row_size, d_words, q, lda, memory.keys_t, memory.S,
                row_size, ZERO);
    for (long r = 0; r < m; r++) {
      float* s = memory.S + r * row_size;
      const long query = i - first + r;  // the position in the sequence
      const long dropout_row = (i + r) * p.heads + part.head;
      for (const float* x : {in.q, in.k, in.v})
        next.prefetch_row(x, in.ld, query);
      scores_to_weights(p, dropout_row, p.num_visible_keys(query, n), n, s);
    }
    lda = row_size;
    const word<E>* w = as_rows(memory.S, lda, m, n, memory.weight_rows);
    multiply<E>(false, m, D, E::words(n), w, lda, memory.values,
                out + i * p.H + column, p.H, ZERO);
  }
}

// Scratch memory of `attend_back`, like `AttendMemory`.
template <class E>
struct AttendBackMemory {
  word<E> *keys_t, *values_t, *keys, *queries, *d_outs;  // packed
  word<E> *left_rows, *left_columns;  // left factors, in the two layouts
  // s and ds of `backpropagate_scores`, for QUERY_BLOCK queries. S: scores,
  // then weights. dS: the gradient of the weights, then of the scores
  float *S, *dS;
  static size_t bytes(const Problem& p, long T) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    const long q_words = E::words(QUERY_BLOCK), d_width = padded(D);
    // + 1024: for alignment, as in `AttendMemory`
    return 4 * (2 * width * d_words + d_width * t_words +
                2 * d_width * q_words + 2 * QUERY_BLOCK * width +
                QUERY_BLOCK * (d_words + t_words) + q_words * width) + 1024;
  }
  AttendBackMemory(const Problem& p, long T, Scratch& own) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    const long q_words = E::words(QUERY_BLOCK), d_width = padded(D);
    keys_t = own.take<word<E>>(width * d_words);
    values_t = own.take<word<E>>(width * d_words);
    keys = own.take<word<E>>(d_width * t_words);
    queries = own.take<word<E>>(d_width * q_words);
    d_outs = own.take<word<E>>(d_width * q_words);
    S = own.take<float>(QUERY_BLOCK * width);
    dS = own.take<float>(QUERY_BLOCK * width);
    left_rows = own.take<word<E>>(QUERY_BLOCK * std::max(d_words, t_words));
    left_columns = own.take<word<E>>(q_words * width);
  }
};

// Compute grad, the gradient of `in`, for one head of one sequence, `part`.
// d_out: the gradient of the output. The matrices have all rows and heads.
template <class E>
void attend_back(const Problem& p, const SequenceHead& part,
                 const QueryKeyValue& in, const float* d_out,
                 const QueryKeyValue& grad,
                 const AttendBackMemory<E>& memory) {
  const long D = p.head_size, d_words = E::words(D);
  const long first = part.first, last = part.last, n = part.num_keys;
  const long column = part.column, begin = first * in.ld + column;
  const long grad_begin = first * grad.ld + column;
  part.clear_gradients(p, grad);
  if (!n) return;
  const long row_size = ceil_div(n, VL) * VL;  // numbers in a row of scores
  const long n_words = E::words(n);
  const NextHead next(p, part.head, first, last);
  pack_t<E>(in.k + begin, in.ld, D, n, memory.keys_t);
  pack_t<E>(in.v + begin, in.ld, D, n, memory.values_t);
  pack<E>(in.k + begin, in.ld, n, D, memory.keys);
  for (long i = first; i < last; i += QUERY_BLOCK) {
    const long m = std::min(QUERY_BLOCK, last - i), m_words = E::words(m);
    const float* q = in.q + i * in.ld + column;
    const float* d_o = d_out + i * p.H + column;
    // The gradients of keys and values are sums over all blocks of queries
    const Start start = i == first ? ZERO : ADD;
    // a: the left factor of each product. `as_rows` and `as_columns` change lda
    // if they copy the factor
    long lda = in.ld;
    const word<E>* a = as_rows(q, lda, m, D, memory.left_rows);
    multiply<E>(false, m, row_size, d_words, a, lda, memory.keys_t, memory.S,
                row_size, ZERO);
    lda = p.H;
    a = as_rows(d_o, lda, m, D, memory.left_rows);
    multiply<E>(false, m, row_size, d_words, a, lda, memory.values_t,
                memory.dS, row_size, ZERO);
    for (long r = 0; r < m; r++) {
      float* s = memory.S + r * row_size;
      float* ds = memory.dS + r * row_size;
      const long query = i - first + r;  // the position in the sequence
      const long dropout_row = (i + r) * p.heads + part.head;
      for (const float* x : {in.q, in.k, in.v})
        next.prefetch_row(x, in.ld, query);
      next.prefetch_row(d_out, p.H, query);
      backpropagate_scores(p, dropout_row, p.num_visible_keys(query, n),
                           row_size, s, ds);
    }
    lda = row_size;
    a = as_rows(memory.dS, lda, m, n, memory.left_rows);
    multiply<E>(false, m, D, n_words, a, lda, memory.keys,
                grad.q + i * grad.ld + column, grad.ld, ZERO);
    lda = row_size;
    a = as_columns(memory.S, lda, m, n, memory.left_columns);
    pack<E>(d_o, p.H, m, D, memory.d_outs);
    multiply<E>(true, n, D, m_words, a, lda, memory.d_outs, grad.v + grad_begin,
                grad.ld, start);
    lda = row_size;
    a = as_columns(memory.dS, lda, m, n, memory.left_columns);
    pack<E>(q, in.ld, m, D, memory.queries);
    multiply<E>(true, n, D, m_words, a, lda, memory.queries,
                grad.k + grad_begin, grad.ld, start);
  }
}

}  // namespace d2lbert
