// `forward` and `backward` of attention.cc by AMX tiles. attention.cc includes
// this file. amx.h explains P. D: the numbers in a row of a head.

namespace tiled {

using namespace amx;

constexpr long TILE_QUERY_BLOCK = 8 * SIDE;  // like QUERY_BLOCK in attend.h

// True if tiles can compute the output of one head of one sequence. m, n: the
// numbers of queries and keys. begin: the index of the head's first number in
// in.q, in.k and in.v.
template <int P>
bool can_attend(const QueryKeyValue& in, long begin, long m, long n, long D) {
  const Range q_range = range_of_rows(in.q + begin, in.ld, m, D);
  const Range k_range = range_of_rows(in.k + begin, in.ld, n, D);
  const Range v_range = range_of_columns(in.v + begin, in.ld, n, D);
  // The output is a product of weights and V. Before dropout, the largest
  // weight of a query is between 1 / n and 1, so its exponent counts as zero
  return tiles_can_multiply<P>(q_range, k_range, D) &&
         in_tile_range<P>(v_range) &&
         v_range.least_max >= bits_of_power(MIN_PRODUCT_EXPONENT);
}

// The same for the gradients. This includes `can_attend`, since `backward`
// computes the weights again. d_out: the gradient of the output of this head.
template <int P>
bool can_attend_back(const QueryKeyValue& in, long begin, const float* d_out,
                     long d_out_ld, long m, long n, long D) {
  const Range d_range = range_of_rows(d_out, d_out_ld, m, D);
  const Range v_range = range_of_rows(in.v + begin, in.ld, n, D);
  if (!can_attend<P>(in, begin, m, n, D) ||
      !tiles_can_multiply<P>(d_range, v_range, D))
    return false;
  if (!d_range.max) return true;  // all gradients are zero
  // The transposed weights are multiplied by d_out: as for V in `can_attend`
  if (range_of_columns(d_out, d_out_ld, m, D).least_max <
      bits_of_power(MIN_PRODUCT_EXPONENT))
    return false;
  if (!v_range.max) return true;  // the gradient of the scores is zero
  // The gradient of the scores is multiplied by K and Q, so its numbers must
  // stay below 2^MAX_EXPONENT. A number of d_out times a number of V is below
  // 2^product_exponent. 2^20 leaves room for the sum of D such products, and
  // for the scale of dropout.
  const long product_exponent =
      exponent(d_range.max) + exponent(v_range.max) + 2;
  if (product_exponent >= MAX_EXPONENT - 20) return false;
  // Nor may the products with K and Q be too small
  const long least_exponent =
      exponent(d_range.least_max) + exponent(v_range.least_max);
  auto is_large_enough = [&](const float* factor, long rows) {
    const Range r = range_of_columns(factor + begin, in.ld, rows, D);
    return least_exponent + exponent(r.least_max) >= MIN_PRODUCT_EXPONENT;
  };
  return is_large_enough(in.k, n) && is_large_enough(in.q, m);
}

// The heads with numbers outside the range of tiles, each a head of one
// sequence. index: as for `SequenceHead` (attend.h). Vector code computes all
// heads of each sequence with a marked head, and `copy_marked` copies only the
// marked heads.
class ExcludedHeads {
 public:
  explicit ExcludedHeads(const Problem& p) : p_(p), marks_(p.B * p.heads) {}
  // Different threads may mark different heads at the same time.
  void mark(long index) { marks_[index] = 1; }
  bool any() const {
    return std::find(marks_.begin(), marks_.end(), 1) != marks_.end();
  }
  // The arguments for vector code, valid as long as this object. Sequences
  // without a marked head have length zero.
  Problem vector_problem() {
    lens_.assign(p_.B, 0);
    for (size_t index = 0; index < marks_.size(); index++)
      if (marks_[index]) lens_[index / p_.heads] = p_.lens[index / p_.heads];
    Problem problem = p_;
    problem.lens = lens_.data();
    return problem;
  }
  // Copy the marked heads between two matrices of all heads.
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
  std::vector<int32_t> lens_;  // of `vector_problem`
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
      const long padded_n = tile_padded(n);
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
          const long position = i - first + r;  // in the sequence
          const long dropout_row = (i + r) * p.heads + part.head;
          for (const float* x : {in.q, in.k, in.v})
            next.prefetch_row(x, in.ld, position);
          scores_to_weights(p, dropout_row, p.num_visible_keys(position, n), n,
                            s);
        }
        pack_rows<P, LEFT>(S, padded_n, m, n, weight_rows);
        multiply<P>(m, D, n, weight_rows, values, out + i * p.H + column, p.H,
                    ZERO);
      }
    }
  }
  if (!excluded.any()) return;
  std::vector<float> vector_out(p.R * p.H);
  d2lbert::forward<Fp32>(excluded.vector_problem(), in, vector_out.data());
  excluded.copy_marked(vector_out.data(), p.H, out, p.H);
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
    float* S = own.take<float>(TILE_QUERY_BLOCK * width);
    float* dS = own.take<float>(TILE_QUERY_BLOCK * width);
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
      const long padded_n = tile_padded(n);
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
          const long position = i - first + r;  // in the sequence
          const long dropout_row = (i + r) * p.heads + part.head;
          for (const float* x : {in.q, in.k, in.v})
            next.prefetch_row(x, in.ld, position);
          next.prefetch_row(d_out, p.H, position);
          backpropagate_scores(p, dropout_row, p.num_visible_keys(position, n),
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
  std::vector<float> qkv_grad(p.R * 3 * p.H);
  float* const g = qkv_grad.data();
  const QueryKeyValue vector_grad = {g, g + p.H, g + 2 * p.H, 3 * p.H};
  d2lbert::backward<Fp32>(excluded.vector_problem(), in, d_out, vector_grad);
  excluded.copy_marked(vector_grad.q, vector_grad.ld, grad.q, grad.ld);
  excluded.copy_marked(vector_grad.k, vector_grad.ld, grad.k, grad.ld);
  excluded.copy_marked(vector_grad.v, vector_grad.ld, grad.v, grad.ld);
}

}  // namespace tiled
