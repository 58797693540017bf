// This file computes the operator d2lbert_attention_qkv by AMX tiles.
// attention.cc includes this file, and has `forward` and `backward` with the
// same arguments for vector instructions. P: the number of bfloat16 parts of a
// number (amx.h). D: numbers in a row of a head.

namespace tiled {

using namespace amx;

// The number of queries whose scores are held at a time: the rows of 8 tiles.
constexpr long TILE_QUERY_BLOCK = 8 * SIDE;

// True if all numbers of one head of a sequence, with m queries and n keys, are
// in the range in which tiles can compute the output. begin: the index of the
// head's first number in in.q, in.k and in.v.
template <int P>
bool can_attend(const QueryKeyValue& in, long begin, long m, long n, long D) {
  const Range q = range_of_rows(in.q + begin, in.ld, m, D);
  const Range k = range_of_rows(in.k + begin, in.ld, n, D);
  const Range v = range_of_columns(in.v + begin, in.ld, n, D);
  // The output is a product of weights and V. Before dropout, the largest
  // weight of a query is between 1 / n and 1, so its exponent counts as zero.
  // So the exponent of the largest number of each nonzero column of V must be
  // at least MIN_PRODUCT_EXPONENT.
  return tiles_can_multiply<P>(q, k, D) && in_tile_range<P>(v) &&
         v.least_top >= bits_of_power(MIN_PRODUCT_EXPONENT);
}

// True if tiles can compute the gradients of q, k and v. This includes
// `can_attend`, since `backward` computes the weights again. d_out: the
// gradient of the output of this head, with rows H numbers apart.
template <int P>
bool can_attend_back(const QueryKeyValue& in, long begin, const float* d_out,
                     long H, long m, long n, long D) {
  const Range d = range_of_rows(d_out, H, m, D);
  const Range v = range_of_rows(in.v + begin, in.ld, n, D);
  if (!can_attend<P>(in, begin, m, n, D) || !tiles_can_multiply<P>(d, v, D))
    return false;
  if (!d.top) return true;  // all gradients are zero
  // The transposed weights are multiplied by d_out: as for V in `can_attend`
  if (range_of_columns(d_out, H, m, D).least_top <
      bits_of_power(MIN_PRODUCT_EXPONENT))
    return false;
  if (!v.top) return true;  // the gradient of the scores is zero
  // The gradient of the scores is multiplied by K and Q, so its numbers must
  // stay below 2^MAX_EXPONENT. A number of d_out times a number of V is below
  // 2^product_exponent. 2^20 leaves room for the sum of D such products, and
  // for the scale of dropout.
  const long product_exponent = exponent(d.top) + exponent(v.top) + 2;
  if (product_exponent >= MAX_EXPONENT - 20) return false;
  // The products with K and Q have small numbers, too
  const long least_exponent = exponent(d.least_top) + exponent(v.least_top);
  auto can_multiply = [&](const float* factor, long rows) {
    const Range r = range_of_columns(factor + begin, in.ld, rows, D);
    return least_exponent + exponent(r.least_top) >= MIN_PRODUCT_EXPONENT;
  };
  return can_multiply(in.k, n) && can_multiply(in.q, m);
}

// The heads whose numbers are outside the range of tiles, each a head of one
// sequence. The caller marks such a head by its index (`SequenceHead` in
// attend.h). Vector code then computes all heads of each sequence with a marked
// head, and `copy_marked` copies only the marked heads.
class ExcludedHeads {
 public:
  explicit ExcludedHeads(const Problem& p) : p_(p), marks_(p.B * p.heads) {}
  // Different threads may mark different heads at the same time.
  void mark(long index) { marks_[index] = 1; }
  bool any() const {
    return std::find(marks_.begin(), marks_.end(), 1) != marks_.end();
  }
  // The arguments for vector code. Sequences without a marked head have length
  // zero. This object must exist as long as the result.
  Problem vector_problem() {
    lens_.assign(p_.B, 0);
    for (size_t index = 0; index < marks_.size(); index++)
      if (marks_[index]) lens_[index / p_.heads] = p_.lens[index / p_.heads];
    Problem result = p_;
    result.lens = lens_.data();
    return result;
  }
  // Copy the marked heads from one matrix to another. Both matrices have all
  // heads.
  void copy_marked(const float* from, long from_ld, float* to,
                   long to_ld) const {
    for (size_t index = 0; index < marks_.size(); index++) {
      if (!marks_[index]) continue;
      const SequenceHead part(p_, index);
      for (long i = part.first; i < part.last; i++)
        std::copy_n(from + i * from_ld + part.column, p_.head_size,
                    to + i * to_ld + part.column);
    }
  }

 private:
  const Problem& p_;
  std::vector<char> marks_;    // for each head of each sequence
  std::vector<int32_t> lens_;  // the lengths of `vector_problem`
};

template <int P>
void forward(const Problem& p, const QueryKeyValue& in, float* out) {
  const long D = p.head_size, T = p.longest_sequence(), width = tile_padded(T);
  ExcludedHeads excluded(p);
  clear_gaps(p, out, p.H, p.H);
  const int threads = team(8.0 * p.R * T * p.H);
  ThreadScratch& scratch = thread_scratch(
      threads, packed_bytes<P>(T, D) + packed_bytes<P>(D, T) +
      4 * TILE_QUERY_BLOCK * width + packed_bytes<P>(TILE_QUERY_BLOCK, D) +
      packed_bytes<P>(TILE_QUERY_BLOCK, T) + 512);
#pragma omp parallel num_threads(threads)
  {
    const ConfiguredTiles tiles;
    // As in `AttendMemory` (attend.h), but packed for tiles
    Scratch& own = scratch.mine();
    char* keys_t = own.take<char>(packed_bytes<P>(T, D));
    char* values = own.take<char>(packed_bytes<P>(D, T));
    // S: scores, then weights
    float* S = own.take<float>(TILE_QUERY_BLOCK * width);
    char* query_rows = own.take<char>(packed_bytes<P>(TILE_QUERY_BLOCK, D));
    char* weight_rows = own.take<char>(packed_bytes<P>(TILE_QUERY_BLOCK, T));
#pragma omp for schedule(dynamic, 4)
    for (long index = 0; index < p.B * p.heads; index++) {
      const SequenceHead part(p, index);
      const long first = part.first, last = part.last, n = part.num_keys;
      const long column = part.column, begin = first * in.ld + column;
      if (!n) {
        part.clear_output(p, out);
        continue;
      }
      if (!can_attend<P>(in, begin, last - first, n, D)) {
        excluded.mark(index);
        continue;
      }
      const long padded_n = tile_padded(n);  // the numbers in a row of scores
      const NextHead next(p, part.head, first, last);
      pack_rows<P, RIGHT>(in.k + begin, in.ld, n, D, keys_t);
      pack_columns<P, RIGHT>(in.v + begin, in.ld, n, D, values);
      for (long i = first; i < last; i += TILE_QUERY_BLOCK) {
        const long m = std::min(TILE_QUERY_BLOCK, last - i);
        pack_rows<P, LEFT>(in.q + i * in.ld + column, in.ld, m, D, query_rows);
        multiply<P>(tile_padded(m), padded_n, D, query_rows, keys_t, S,
                    padded_n, ZERO);
        for (long r = 0; r < m; r++) {
          float* s = S + r * padded_n;
          const long query = i - first + r;  // the position in the sequence
          const long dropout_row = (i + r) * p.heads + part.head;
          for (const float* x : {in.q, in.k, in.v})
            next.prefetch_row(x, in.ld, query);
          scores_to_weights(p, dropout_row, p.num_visible_keys(query, n), n,
                            s);
        }
        pack_rows<P, LEFT>(S, padded_n, m, n, weight_rows);
        multiply<P>(m, D, n, weight_rows, values, out + i * p.H + column, p.H,
                    ZERO);
      }
    }
  }
  if (!excluded.any()) return;
  std::vector<float> all_heads(p.R * p.H);  // the output of vector code
  d2lbert::forward<Fp32>(excluded.vector_problem(), in, all_heads.data());
  excluded.copy_marked(all_heads.data(), p.H, out, p.H);
}

template <int P>
void backward(const Problem& p, const QueryKeyValue& in, const float* d_out,
              const QueryKeyValue& grad) {
  const long D = p.head_size, T = p.longest_sequence(), width = tile_padded(T);
  ExcludedHeads excluded(p);
  for (float* g : {grad.q, grad.k, grad.v}) clear_gaps(p, g, grad.ld, p.H);
  const int threads = team(20.0 * p.R * T * p.H);
  ThreadScratch& scratch = thread_scratch(
      threads, 2 * packed_bytes<P>(T, D) + packed_bytes<P>(D, T) +
      2 * packed_bytes<P>(D, TILE_QUERY_BLOCK) + 8 * TILE_QUERY_BLOCK * width +
      packed_bytes<P>(TILE_QUERY_BLOCK, std::max(D, T)) +
      packed_bytes<P>(T, TILE_QUERY_BLOCK) + 1024);
#pragma omp parallel num_threads(threads)
  {
    const ConfiguredTiles tiles;
    // As in `AttendBackMemory` (attend.h), but packed for tiles
    Scratch& own = scratch.mine();
    char* keys_t = own.take<char>(packed_bytes<P>(T, D));
    char* values_t = own.take<char>(packed_bytes<P>(T, D));
    char* keys = own.take<char>(packed_bytes<P>(D, T));
    char* queries = own.take<char>(packed_bytes<P>(D, TILE_QUERY_BLOCK));
    char* d_outs = own.take<char>(packed_bytes<P>(D, TILE_QUERY_BLOCK));
    // S: scores, then weights. dS: the gradient of weights, then of scores
    float* S = own.take<float>(TILE_QUERY_BLOCK * width);
    float* dS = own.take<float>(TILE_QUERY_BLOCK * width);
    // Left factors: rows of queries, d_out or dS, and columns of S or dS
    char* left_rows =
        own.take<char>(packed_bytes<P>(TILE_QUERY_BLOCK, std::max(D, T)));
    char* left_columns = own.take<char>(packed_bytes<P>(T, TILE_QUERY_BLOCK));
#pragma omp for schedule(dynamic, 4)
    for (long index = 0; index < p.B * p.heads; index++) {
      const SequenceHead part(p, index);
      const long first = part.first, last = part.last, n = part.num_keys;
      const long column = part.column, begin = first * in.ld + column;
      const long grad_begin = first * grad.ld + column;
      part.clear_gradients(p, grad);
      if (!n) continue;
      if (!can_attend_back<P>(in, begin, d_out + first * p.H + column, p.H,
                              last - first, n, D)) {
        excluded.mark(index);
        continue;
      }
      const long padded_n = tile_padded(n);  // the numbers in a row of scores
      const NextHead next(p, part.head, first, last);
      pack_rows<P, RIGHT>(in.k + begin, in.ld, n, D, keys_t);
      pack_rows<P, RIGHT>(in.v + begin, in.ld, n, D, values_t);
      pack_columns<P, RIGHT>(in.k + begin, in.ld, n, D, keys);
      for (long i = first; i < last; i += TILE_QUERY_BLOCK) {
        const long m = std::min(TILE_QUERY_BLOCK, last - i);
        const float* q = in.q + i * in.ld + column;
        const float* d_o = d_out + i * p.H + column;
        // The gradients of keys and values are sums over all blocks of queries
        const Start start = i == first ? ZERO : ADD;
        pack_rows<P, LEFT>(q, in.ld, m, D, left_rows);
        multiply<P>(tile_padded(m), padded_n, D, left_rows, keys_t, S,
                    padded_n, ZERO);
        pack_rows<P, LEFT>(d_o, p.H, m, D, left_rows);
        multiply<P>(tile_padded(m), padded_n, D, left_rows, values_t, dS,
                    padded_n, ZERO);
        for (long r = 0; r < m; r++) {
          float *s = S + r * padded_n, *ds = dS + r * padded_n;
          const long query = i - first + r;  // the position in the sequence
          const long dropout_row = (i + r) * p.heads + part.head;
          for (const float* x : {in.q, in.k, in.v})
            next.prefetch_row(x, in.ld, query);
          next.prefetch_row(d_out, p.H, query);
          backpropagate_scores(p, dropout_row, p.num_visible_keys(query, n),
                               padded_n, s, ds);
        }
        pack_rows<P, LEFT>(dS, padded_n, m, n, left_rows);
        multiply<P>(m, D, n, left_rows, keys, grad.q + i * grad.ld + column,
                    grad.ld, ZERO);
        pack_columns<P, LEFT>(S, padded_n, m, n, left_columns);
        pack_columns<P, RIGHT>(d_o, p.H, m, D, d_outs);
        multiply<P>(n, D, m, left_columns, d_outs, grad.v + grad_begin,
                    grad.ld, start);
        pack_columns<P, LEFT>(dS, padded_n, m, n, left_columns);
        pack_columns<P, RIGHT>(q, in.ld, m, D, queries);
        multiply<P>(n, D, m, left_columns, queries, grad.k + grad_begin,
                    grad.ld, start);
      }
    }
  }
  if (!excluded.any()) return;
  std::vector<float> all_heads(p.R * 3 * p.H);  // the gradient of QKV
  float* const g = all_heads.data();
  const QueryKeyValue by_vectors = {g, g + p.H, g + 2 * p.H, 3 * p.H};
  d2lbert::backward<Fp32>(excluded.vector_problem(), in, d_out, by_vectors);
  excluded.copy_marked(by_vectors.q, by_vectors.ld, grad.q, grad.ld);
  excluded.copy_marked(by_vectors.k, by_vectors.ld, grad.k, grad.ld);
  excluded.copy_marked(by_vectors.v, by_vectors.ld, grad.v, grad.ld);
}

}  // namespace tiled
