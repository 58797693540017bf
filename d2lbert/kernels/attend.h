// Scaled dot-product attention of one head over one sequence, and its gradient.
// gemm.h explains words, and the template argument E.
#pragma once
#include "op.h"

namespace d2lbert {

// The queries whose scores are computed at a time, so that the scores stay in
// cache: the rows of 8 tiles of gemm.h.
constexpr long QUERY_BLOCK = 8 * MR;

// Queries, keys and values, or their gradients: columns of one matrix, whose
// rows begin ld numbers apart.
struct QueryKeyValue {
  float *q, *k, *v;
  long ld;
};

// The arguments of attention, for R rows of H hidden units, and B sequences.
// offsets (B + 1,): the row at which each sequence begins, and the end of the
// last sequence. lens (B,): the rows of each sequence before the padding.
struct Problem {
  long R, H, B, heads, head_size;
  const int32_t *offsets, *lens;
  float scale;      // the factor of the scores in the softmax
  Dropout dropout;  // of the attention weights
  bool causal;      // a query attends to no key after its own position

  // Find the rows of sequence b, [first, last): all are queries, and the first
  // num_keys are keys. Even if offsets or lens are wrong, no row is outside the
  // matrix.
  void find_sequence(long b, long* first, long* last, long* num_keys) const {
    *first = std::min<long>(std::max<long>(offsets[b], 0), R);
    *last = std::min<long>(std::max<long>(offsets[b + 1], *first), R);
    *num_keys = std::min<long>(std::max<long>(lens[b], 0), *last - *first);
  }

  long num_visible_keys(long query_position, long num_keys) const {
    return causal ? std::min(query_position + 1, num_keys) : num_keys;
  }

  // If false, two sequences may share a row.
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

// Like `maximum` in simd.h, for s with memory for whole vectors.
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
  const long tail_begin = n / VL * VL;
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

// The head after `head` of the sequence with rows [first, last). After the last
// head of a sequence, head 0 of the next sequence follows.
struct NextHead {
  long first_row, first_column, size;
  NextHead(const Problem& p, long head, long first, long last)
      : first_row(head + 1 < p.heads ? first : last),
        first_column((head + 1) % p.heads * p.head_size), size(p.head_size) {}
  void prefetch_row(const float* x, long ld, long r) const {
    const float* from = x + (first_row + r) * ld + first_column;
    // 16 numbers fill a cache line
    for (long j = 0; j < size; j += 16) __builtin_prefetch(from + j, 0, 2);
  }
};

inline void clear_rows(float* x, long ld, long rows, long columns) {
  for (long i = 0; i < rows; i++) std::memset(x + i * ld, 0, 4 * columns);
}

// Replace the scores s of a query by attention weights after dropout. s has
// num_keys numbers, rounded up to whole vectors. Only the first num_visible
// weights are not zero. dropout_row: the row of random numbers (`Draws`) of
// this query and head.
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

// One head of one sequence. column: the first column of the head. [first,
// last): the rows of the sequence.
struct SequenceHead {
  long head, column, first, last, num_keys;
  // index: the number of the sequence times p.heads, plus `head`.
  SequenceHead(const Problem& p, long index)
      : head(index % p.heads), column(head * p.head_size) {
    p.find_sequence(index / p.heads, &first, &last, &num_keys);
  }
  // The output of a sequence without keys is zero.
  void clear_output(const Problem& p, float* out) const {
    clear_rows(out + first * p.H + column, p.H, last - first, p.head_size);
  }
  // Write zeros to the gradients of keys and values in rows of padding, and of
  // queries if the sequence has no keys.
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

// Like `scores_to_weights`, and also replace ds, the gradient of the weights,
// by the gradient of the scores. s and ds have `size` numbers, a multiple of
// VL. The sum of exp(score) is computed again. A saved logarithm of the sum, if
// large, would be too coarse for weights that add up to 1. Also, the forward
// pass may have used another kernel (amx_attention.h).
inline void backpropagate_scores(const Problem& p, long dropout_row,
                                 long num_visible, long size, float* s,
                                 float* ds) {
  const vi lane = lane_indices();
  const Draws draws = p.dropout.row(dropout_row);
  const float top = largest(s, num_visible);
  vf total{}, weighted{};
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

// Scratch memory of `attend`. T: the number of rows of the longest sequence.
template <class E>
struct AttendMemory {
  word<E> *keys_t, *values;           // packed K^T and V
  word<E> *query_rows, *weight_rows;  // left factors, of QUERY_BLOCK rows
  float* S;  // scores, then weights, of QUERY_BLOCK rows
  static size_t bytes(const Problem& p, long T) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    // A word or float has 4 bytes. + 512: up to 64 to align each array
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

// Compute the output of `part`. in, out: the matrices with all rows and heads.
template <class E>
void attend(const Problem& p, const SequenceHead& part,
            const QueryKeyValue& in, float* out,
            const AttendMemory<E>& memory) {
  const long D = p.head_size, d_words = E::words(D);
  const long first = part.first, last = part.last, n = part.num_keys;
  const long column = part.column, begin = first * in.ld + column;
  if (!n) return part.clear_output(p, out);
  const long scores_per_row = ceil_div(n, VL) * VL;
  const NextHead next(p, part.head, first, last);
  pack_t<E>(in.k + begin, in.ld, D, n, memory.keys_t);
  pack<E>(in.v + begin, in.ld, n, D, memory.values);
  for (long i = first; i < last; i += QUERY_BLOCK) {
    const long m = std::min(QUERY_BLOCK, last - i);
    long lda = in.ld;  // `as_rows` changes lda if it copies the rows
    const word<E>* q =
        as_rows(in.q + i * in.ld + column, lda, m, D, memory.query_rows);
    multiply<E>(false, m, scores_per_row, d_words, q, lda, memory.keys_t,
                memory.S, scores_per_row, ZERO);
    for (long r = 0; r < m; r++) {
      float* s = memory.S + r * scores_per_row;
      const long position = i - first + r;  // of the query
      const long dropout_row = (i + r) * p.heads + part.head;
      for (const float* x : {in.q, in.k, in.v})
        next.prefetch_row(x, in.ld, position);
      scores_to_weights(p, dropout_row, p.num_visible_keys(position, n), n, s);
    }
    lda = scores_per_row;
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
  float *S, *dS;  // of QUERY_BLOCK rows, for `backpropagate_scores`
  static size_t bytes(const Problem& p, long T) {
    const long D = p.head_size, width = padded(T);
    const long d_words = E::words(D), t_words = E::words(T);
    const long q_words = E::words(QUERY_BLOCK), d_width = padded(D);
    // + 1024: up to 64 to align each array
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

// Compute grad, the gradient of `in`, for `part`, from d_out, the gradient of
// the output. The matrices have all rows and heads.
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
  const long scores_per_row = ceil_div(n, VL) * VL;
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
    // `as_rows` and `as_columns` change lda if they copy the left factor
    long lda = in.ld;
    const word<E>* a = as_rows(q, lda, m, D, memory.left_rows);
    multiply<E>(false, m, scores_per_row, d_words, a, lda, memory.keys_t,
                memory.S, scores_per_row, ZERO);
    lda = p.H;
    a = as_rows(d_o, lda, m, D, memory.left_rows);
    multiply<E>(false, m, scores_per_row, d_words, a, lda, memory.values_t,
                memory.dS, scores_per_row, ZERO);
    for (long r = 0; r < m; r++) {
      float* s = memory.S + r * scores_per_row;
      float* ds = memory.dS + r * scores_per_row;
      const long position = i - first + r;  // of the query
      const long dropout_row = (i + r) * p.heads + part.head;
      for (const float* x : {in.q, in.k, in.v})
        next.prefetch_row(x, in.ld, position);
      next.prefetch_row(d_out, p.H, position);
      backpropagate_scores(p, dropout_row, p.num_visible_keys(position, n),
                           scores_per_row, s, ds);
    }
    lda = scores_per_row;
    a = as_rows(memory.dS, lda, m, n, memory.left_rows);
    multiply<E>(false, m, D, n_words, a, lda, memory.keys,
                grad.q + i * grad.ld + column, grad.ld, ZERO);
    lda = scores_per_row;
    a = as_columns(memory.S, lda, m, n, memory.left_columns);
    pack<E>(d_o, p.H, m, D, memory.d_outs);
    multiply<E>(true, n, D, m_words, a, lda, memory.d_outs, grad.v + grad_begin,
                grad.ld, start);
    lda = scores_per_row;
    a = as_columns(memory.dS, lda, m, n, memory.left_columns);
    pack<E>(q, in.ld, m, D, memory.queries);
    multiply<E>(true, n, D, m_words, a, lda, memory.queries,
                grad.k + grad_begin, grad.ld, start);
  }
}

}  // namespace d2lbert
