// The operator d2lbert_dense: Y = act(Z) with Z = X W^T + b, for X (R, K), W
// (N, K) and b (N,). W and b may consist of several arrays each. These parts
// are joined along N, for one product.
#include <time.h>

#include "act.h"

namespace d2lbert {
namespace {

// Like `share` (op.h), but parts begin at multiples of MR, the rows of a tile.
void share_tiles(long n, int parts, int part, long* first, long* end) {
  share(ceil_div(n, MR), parts, part, first, end);
  *first *= MR;
  *end = std::min(*end * MR, n);
}

// R rows, divided into blocks of at most max_rows (a multiple of MR) rows. If
// there are fewer than 16 blocks for each thread, the rows are divided evenly:
// otherwise most threads would wait for the thread with the most rows.
class RowBlocks {
 public:
  RowBlocks(long R, int threads, long max_rows)
      : R_(R), max_rows_(max_rows), count_(ceil_div(R, max_rows)),
        divides_evenly_(count_ < 16 * threads) {
    // The same number of blocks for each thread
    if (divides_evenly_) count_ = ceil_div(R, threads * max_rows) * threads;
  }
  long count() const { return count_; }
  // Store the rows of block i, [first, first + m), in *first and *m.
  void get_rows(long i, long* first, long* m) const {
    long end = std::min((i + 1) * max_rows_, R_);
    *first = i * max_rows_;
    if (divides_evenly_) share_tiles(R_, (int)count_, (int)i, first, &end);
    *m = end - *first;
  }

 private:
  long R_, max_rows_, count_;
  bool divides_evenly_;
};

// Prefetch a part of C, `rows` rows of NR columns, which will be written.
inline void prefetch_output(const float* c, long ld, long rows) {
  // 16 numbers fill a cache line
  for (long r = 0; r < rows; r++)
    for (long j = 0; j < NR; j += 16)
      __builtin_prefetch(c + r * ld + j, 1, 2);
}

// The size of a slice of a row of X, or of dZ, in words (gemm.h). The products
// of all slices are added up. So one slice of each row of a block stays in
// cache while it is multiplied by all panels of W.
long slice_words(long row_words) {
  return row_words > 2048 ? 1024 : std::max(1L, row_words);
}

// The words that `conflict_free_rows` may need for one slice of m rows.
long slice_copy_words(long m, long row_words) {
  return m * (slice_words(row_words) + ROW_GAP);
}

// The number of rows in a block, such that one slice of each row stays in
// cache. Each block reads all of W (in the backward pass, of its transpose): N
// rows of `words` words. A W of more than 12 MB comes from memory, not from the
// last-level cache. Then processors with AVX-512 get larger blocks, since their
// second-level cache has a megabyte or more. A bf16 number counts as 4 bytes,
// too.
template <class E>
long sliced_block_rows(long R, int threads, long words, long N) {
  const double slice_bytes = 4.0 * slice_words(words) * E::PER_WORD;
  const double megabytes_of_W = 4e-6 * words * E::PER_WORD * N;
  const double cache_bytes = VL == 16 && megabytes_of_W > 12 ? 450e3 : 200e3;
  return block_rows(R, threads, 4, slice_bytes, cache_bytes);
}

// Compute C (m x N) = bias + x B for the panels [p0, p1) of B, slice by slice.
// x (m x K): rows of X or dZ. b: all panels of B. bias: padded(N) numbers, or
// null. x_words: slice_copy_words(m, E::words(K)) words of scratch memory. When
// a part of C is complete, done(at, rows, columns) is called, where `at` is the
// index in C of the first number of this part.
template <class E, class F>
inline void multiply_long_rows(const float* x, long m, long K,
                               const word<E>* b, long p0, long p1,
                               const float* bias, float* c, long N,
                               word<E>* x_words, Prefetcher* ahead, F done) {
  const long words = E::words(K), max_words = slice_words(words);
  // One pass even if K is 0, for the bias
  for (long k = 0; !k || k < words; k += max_words) {
    const long num_words = std::min(max_words, words - k);
    const long first_column = k * E::PER_WORD;  // of the slice, in x
    const bool is_last_slice = k + max_words >= words;
    const Start start = k ? ADD : bias ? BIAS : ZERO;
    long lda = K;  // changed if the rows are copied
    const word<E>* a = conflict_free_rows(
        x + first_column, lda, m,
        std::min(num_words * E::PER_WORD, K - first_column), x_words);
    for (long p = p0; p < p1; p++)
      for (long r = 0; r < m; r += STRIPE) {
        const long n = std::min<long>(NR, N - p * NR);
        const long rows = std::min(STRIPE, m - r), at = r * N + p * NR;
        if (ahead) ahead->step();
        // Only the next stripe: a whole block of wide rows would evict the
        // panels from the cache
        if (r + STRIPE < m)
          prefetch_output(c + at + STRIPE * N, N,
                          std::min(STRIPE, m - r - STRIPE));
        else if (p + 1 < p1)
          prefetch_output(c + (p + 1) * NR, N, std::min(STRIPE, m));
        multiply_panel<E>(false, rows, n, num_words, a + r * lda, lda,
                          b + p * NR * words + k * NR, c + at, N, start,
                          bias ? bias + p * NR : nullptr);
        if (is_last_slice) done(at, rows, n);
      }
  }
}

// Compute Y, and Z if it is not null. b may be null.
template <class E>
void forward(long R, long K, long N, const float* X, const float* W,
             const float* b, Act act, float* Y, float* Z) {
  const int threads = team(2.0 * R * K * N);
  const long words = E::words(K), panels = ceil_div(N, NR);
  const long block = sliced_block_rows<E>(R, threads, words, N);  // rows
  const RowBlocks row_blocks(R, threads, block);
  const long blocks = row_blocks.count();
  // With few rows, the threads also divide the columns, into groups of panels
  const long groups = blocks >= 2 * threads ? 1 : std::min<long>(panels, 8);
  Scratch& shared = team_scratch();
  // + 128: each array may need up to 64 bytes more for alignment
  shared.reset((padded(N) * words + padded(N)) * 4 + 128);
  word<E>* packed = shared.take<word<E>>(padded(N) * words);
  float* bias = shared.take<float>(padded(N));
  std::fill(bias, bias + padded(N), 0.f);
  if (b) std::copy(b, b + N, bias);
  SharedWork packing;
  ThreadScratch& scratch = thread_scratch(
      threads, slice_copy_words(block, words) * 4);
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = scratch.mine();
    word<E>* x_words = own.take<word<E>>(slice_copy_words(block, words));
    packing.complete(panels, [&](long p) {
      pack_panel_t<E>(W + p * NR * K, K, K, std::min<long>(NR, N - p * NR),
                      packed + p * NR * words);
    });
    // Dynamic, because a core may be busy with other work, such as Python
#pragma omp for schedule(dynamic, chunk_size(blocks, threads)) \
    collapse(2) nowait
    for (long i = 0; i < blocks; i++)
      for (long g = 0; g < groups; g++) {
        long first, m, p0, p1;
        row_blocks.get_rows(i, &first, &m);
        share(panels, groups, g, &p0, &p1);
        Prefetcher ahead(ceil_div(m, STRIPE) * (p1 - p0));
        const bool has_one_slice = slice_words(words) == words;
        if (groups == 1 && i + 1 < blocks && has_one_slice) {
          const long next_m = std::min(m, R - first - m);
          ahead.add(X + (first + m) * K, next_m * K * 4);
        }
        // Without Z, Y holds Z before the activation
        float *const y = Y + first * N, *const z = Z ? Z + first * N : y;
        multiply_long_rows<E>(X + first * K, m, K, packed, p0, p1, bias, z, N,
                              x_words, &ahead,
                              [&](long at, long rows, long n) {
          for (long r = 0; act != NONE && r < rows; r++, at += N)
            for (long j = 0; j < n; j += VL)
              store(y + at + j, apply(act, load(z + at + j, n - j)), n - j);
        });
      }
  }
}

// Compute dZ (m x N) from dY. saved: the Z or Y that the gradient needs (see
// act.h). If act is NONE, dZ is not written, since it equals dY. Add the sum of
// the rows of dZ to db, unless db is null.
void activation_gradient(Act act, long m, long N, const float* dY,
                         const float* saved, float* dZ, float* db) {
  if (act != NONE)
    for (long i = 0; i < m * N; i += VL)
      store(dZ + i, gradient(act, load(dY + i, m * N - i),
                          load(saved + i, m * N - i)), m * N - i);
  if (db) add_rows_to(db, act == NONE ? dY : dZ, N, m, N);
}

// Compute dX, dW and db, except null ones, in one pass over the rows. Each
// thread sums a dW of its own over its rows, in cache. saved: see
// `activation_gradient`.
template <class E>
void backward_by_rows(long R, long K, long N, const float* X, const float* W,
                      Act act, const float* dY, const float* saved, float* dX,
                      float* dW, float* db) {
  const int threads = team(4.0 * R * K * N);
  const long block = block_rows(R, threads, 4, 4.0 * (K + N));  // rows
  const long words_per_row = E::words(N);  // of dZ
  const long words_per_column = E::words(block);  // of a block of X or dZ
  Scratch& shared = team_scratch();
  shared.reset(4 * padded(K) * words_per_row + 64 +
               Sums::bytes(N * K, threads) + Sums::bytes(N, threads));
  word<E>* packed = shared.take<word<E>>(padded(K) * words_per_row);
  const Sums sums_W(shared, N * K, threads), sums_b(shared, N, threads);
  SharedWork packing;
  ThreadScratch& scratch = thread_scratch(
      threads, (block * N + padded(K) * words_per_column +
                block * words_per_row + words_per_column * N) * 4 + 512);
#pragma omp parallel num_threads(threads)
  {
    float *const own_dW = sums_W.cleared(), *const own_db = sums_b.cleared();
    Scratch& own = scratch.mine();
    float* dZ = own.take<float>(block * N);
    word<E>* x_panels = own.take<word<E>>(padded(K) * words_per_column);
    word<E>* dz_by_row = own.take<word<E>>(block * words_per_row);
    word<E>* dz_by_column = own.take<word<E>>(words_per_column * N);
    packing.complete(dX ? ceil_div(K, NR) : 0, [&](long p) {
      pack_panel<E>(W + p * NR, K, N, std::min<long>(NR, K - p * NR),
                    packed + p * NR * words_per_row);
    });
    // The threads divide tiles of MR rows, not blocks: there are too few blocks
    // to divide them evenly.
    long begin, end;
    share_tiles(R, omp_get_num_threads(), omp_get_thread_num(), &begin, &end);
    for (long first = begin; first < end; first += block) {
      const long m = std::min(block, end - first);
      const float* dy = dY + first * N;
      activation_gradient(act, m, N, dy, saved + first * N, dZ, own_db);
      const float* dz = act == NONE ? dy : dZ;
      if (dX) {
        Prefetcher ahead(num_stripes(m, K));
        if (dW) ahead.add(X + first * K, m * K * 4);  // for dW below
        multiply_rows<E>(dz, m, N, dz_by_row, packed, K, dX + first * K, K,
                         ZERO, &ahead);
      }
      if (dW) {
        Prefetcher ahead(num_stripes(N, K));
        const long next_m = std::min(block, end - first - m);
        ahead.add(dy + m * N, next_m * N * 4);
        if (act != NONE) ahead.add(saved + (first + m) * N, next_m * N * 4);
        if (dX) ahead.add(dX + (first + m) * K, next_m * K * 4);
        add_transposed<E>(dz, N, X + first * K, K, m, dz_by_column, x_panels,
                          own_dW, &ahead);
      }
    }
#pragma omp barrier
    sums_W.add_up(dW);
    sums_b.add_up(db);
  }
}

// A team divides dW, which has `tiles` tiles of MR rows and `panels` panels of
// NR columns, into a part for each thread. Return the number of parts along the
// rows, a divisor of team_size, for which a thread reads the least of dZ and X.
int parts_along_rows(long tiles, long panels, int team_size) {
  int best = 1;
  double fewest_columns = INFINITY;
  for (int row_parts = 1; row_parts <= team_size; row_parts++) {
    if (team_size % row_parts) continue;
    const int column_parts = team_size / row_parts;
    const double columns_read = (double)MR * ceil_div(tiles, row_parts) +
                                (double)NR * ceil_div(panels, column_parts);
    if (columns_read < fewest_columns) {
      fewest_columns = columns_read;
      best = row_parts;
    }
  }
  return best;
}

// The number of columns of dZ (rows of dW) that are packed at a time. They stay
// in cache while the panels of X come from the last-level cache.
constexpr long DZ_COLUMNS = 8 * MR;

constexpr long FEW_COLUMNS = 1536;
// The number of rows that are summed at a time, for k columns of X. More rows
// save additions to dW, but take more cache. With AVX-512, in the sizes of BERT
// base: 1,024 rows of 768 columns are 3 MB, 512 rows of 3,072 columns are 6 MB.
inline long rows_summed(long k) {
  return (k > FEW_COLUMNS ? 1 : 2) * (VL == 16 ? 512 : 256);
}

// The words of scratch memory that a thread needs in `weight_gradient`, for
// max_rows rows and k columns of X.
template <class E>
long gradient_words(long max_rows, long k) {
  return padded(k) * E::words(max_rows) +
         DZ_COLUMNS / MR * column_block_words<E>(max_rows);
}

// The same for K columns or fewer, which may need more words, because
// `rows_summed` doubles for few columns.
template <class E>
long max_gradient_words(long R, long K) {
  const long few = std::min(K, FEW_COLUMNS);
  return std::max(gradient_words<E>(std::min(rows_summed(K), R), K),
                  gradient_words<E>(std::min(rows_summed(few), R), few));
}

// Compute this thread's parts of dW = dZ^T X and of db. All threads of a team
// call this function. dW or db may be null. own: scratch memory of
// max_gradient_words(R, K) words.
template <class E>
void weight_gradient(long R, long K, long N, const float* X, const float* dz,
                     float* dW, float* db, Scratch& own) {
  const int team_size = omp_get_num_threads(), t = omp_get_thread_num();
  const long tiles = ceil_div(N, MR), panels = ceil_div(K, NR);
  const int row_parts = parts_along_rows(tiles, panels, team_size);
  const int column_parts = team_size / row_parts;
  // This thread multiplies columns [c0, c1) of dZ by panels [p0, p1) of X
  long c0, c1, p0, p1;
  share_tiles(N, row_parts, t / column_parts, &c0, &c1);
  share(panels, column_parts, t % column_parts, &p0, &p1);
  const long k0 = p0 * NR, k1 = std::min(p1 * NR, K);
  const long step = rows_summed(k1 - k0), max_rows = std::min(step, R);
  if (t % column_parts) db = nullptr;  // another thread sums these columns
  if (db) std::fill(db + c0, db + c1, 0.f);
  if (!R && dW)  // the loop over rows below writes nothing
    for (long c = c0; c < c1; c++)
      std::memset(dW + c * K + k0, 0, 4 * (k1 - k0));
  own.clear();  // arrays of an earlier pass are not needed any more
  word<E>* x_panels = own.take<word<E>>(padded(k1 - k0) * E::words(max_rows));
  word<E>* dz_blocks =
      own.take<word<E>>(DZ_COLUMNS / MR * column_block_words<E>(max_rows));
  for (long first = 0; first < R; first += step) {
    const long m = std::min(step, R - first), words = E::words(m);
    if (dW) pack<E>(X + first * K + k0, K, m, k1 - k0, x_panels);
    for (long c = c0; c < c1; c += DZ_COLUMNS) {
      const long n = std::min(DZ_COLUMNS, c1 - c);
      const float* dz_part = dz + first * N + c;
      if (db) add_rows_to(db + c, dz_part, N, m, n);
      if (!dW) continue;
      pack_column_blocks<E>(dz_part, N, m, n, dz_blocks);
      for (long p = p0; p < p1; p++) {
        const word<E>* x_panel = x_panels + (p - p0) * NR * words;
        float* to = dW + c * K + p * NR;
        for (long r = 0; r < n; r += MR) {
          if (p + 1 < p1)
            prefetch_output(to + r * K + NR, K, std::min<long>(MR, n - r));
          multiply_panel<E>(true, std::min<long>(MR, n - r),
                            std::min<long>(NR, K - p * NR), words,
                            dz_blocks + r / MR * column_block_words<E>(m),
                            TILE_LD, x_panel,
                            to + r * K, K, first ? ADD : ZERO);
        }
      }
    }
  }
}

// Like `backward_by_rows`, for large weights. One pass over the rows gives dX.
// In a second pass each thread computes a part of dW and db.
template <class E>
void backward_by_columns(long R, long K, long N, const float* X,
                         const float* W, Act act, const float* dY,
                         const float* saved, float* dX, float* dW,
                         float* db) {
  const int threads = team(4.0 * R * K * N);
  const long words = E::words(N);
  const long block = sliced_block_rows<E>(R, threads, words, K);  // rows
  const RowBlocks row_blocks(R, threads, block);
  Scratch& shared = team_scratch();
  shared.reset((padded(K) * words + (act == NONE ? 0 : R * N)) * 4 + 256);
  word<E>* packed = shared.take<word<E>>(padded(K) * words);
  float* dZ = act == NONE ? nullptr : shared.take<float>(R * N);
  const float* dz = dZ ? dZ : dY;
  SharedWork packing;
  ThreadScratch& scratch = thread_scratch(
      threads, 4 * std::max(slice_copy_words(block, words),
                            max_gradient_words<E>(R, K)) + 128);
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = scratch.mine();
    word<E>* dz_words = own.take<word<E>>(slice_copy_words(block, words));
    packing.complete(dX ? ceil_div(K, PACK_COLUMNS) : 0, [&](long i) {
      pack<E>(W + i * PACK_COLUMNS, K, N,
              std::min(PACK_COLUMNS, K - i * PACK_COLUMNS),
              packed + i * PACK_COLUMNS * words);
    });
#pragma omp for schedule(static)
    for (long i = 0; i < row_blocks.count(); i++) {
      long first, m;
      row_blocks.get_rows(i, &first, &m);
      activation_gradient(act, m, N, dY + first * N, saved + first * N,
                          dZ ? dZ + first * N : nullptr, nullptr);
      if (!dX) continue;
      multiply_long_rows<E>(dz + first * N, m, N, packed, 0, ceil_div(K, NR),
                            nullptr, dX + first * K, K, dz_words, nullptr,
                            [](long, long, long) {});
    }
    weight_gradient<E>(R, K, N, X, dz, dW, db, own);
  }
}

template <class E>
void backward(long R, long K, long N, const float* X, const float* W,
              Act act, const float* dY, const float* saved, float* dX,
              float* dW, float* db) {
  // A dW of up to 1 MiB for each thread stays in cache
  (N * K * 4 <= 1 << 20 ? backward_by_rows<E> : backward_by_columns<E>)(
      R, K, N, X, W, act, dY, saved, dX, dW, db);
}

#if D2LBERT_AMX
#include "amx_dense.h"
#endif

struct Inputs : IndexedInputs {
  const int num_parts;  // of W, and of b if there is a bias
  const int X, W, b;
  explicit Inputs(const Attrs& attrs)
      : num_parts((int)number(attrs, "parts", 1)), X(next()),
        W(next_n(num_parts)),
        b(next_n(number(attrs, "bias", 1) != 0 ? num_parts : 0)) {}
  bool has_bias() const { return b >= 0; }
};

enum { Y, Z };  // outputs

long joined_size(const MXTensor* parts, int num_parts) {
  long count = 0;
  for (int k = 0; k < num_parts; k++) count += parts[k].size();
  return count;
}

// Scratch memory of the calling thread, for joined parts. They cannot be in
// `team_scratch`, which the product resets.
Scratch& joined_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Return all parts as one array, which is in `memory` if there are several.
const float* join(MXTensor* parts, int num_parts, Scratch& memory) {
  if (num_parts == 1) return floats(parts[0]);
  float* const joined = memory.take<float>(joined_size(parts, num_parts));
  float* to = joined;
  for (int k = 0; k < num_parts; k++)
    to = std::copy_n(floats(parts[k]), parts[k].size(), to);
  return joined;
}

// Return memory for the joined gradients of parts, or null if no part needs a
// gradient. For a single part it is the memory of its gradient.
float* joined_gradient(MXTensor* parts, int num_parts, Scratch& memory) {
  if (num_parts == 1) return floats(parts[0]);
  bool is_needed = false;
  for (int k = 0; k < num_parts; k++)
    is_needed |= floats(parts[k]) != nullptr;
  if (!is_needed) return nullptr;
  return memory.take<float>(joined_size(parts, num_parts));
}

// Copy the joined gradients to the parts that need a gradient.
void split_gradient(const float* joined, MXTensor* parts, int num_parts) {
  if (num_parts == 1 || !joined) return;
  for (int k = 0; k < num_parts; k++) {
    const long size = parts[k].size();
    if (floats(parts[k])) std::copy_n(joined, size, floats(parts[k]));
    joined += size;
  }
}

// Z is an output only if a gradient is wanted that needs it.
int count_outputs(const Attrs& attrs, Act act) {
  return needs_argument(act) && number(attrs, "grad", 1) != 0 ? 2 : 1;
}

MXReturnValue parse(const Attrs& attrs, int* num_in, int* num_out) {
  Act act;
  if (parse_act(attrs, &act) != MX_SUCCESS) return MX_FAIL;
  *num_in = Inputs(attrs).num_inputs();
  *num_out = count_outputs(attrs, act);
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Inputs at(attrs);
  const Shape x = (*in)[at.X];
  Shape y = x;
  if (!x.empty()) y.back() = 0;
  for (int k = 0; k < at.num_parts; k++) {
    Shape& w = (*in)[at.W + k];
    if (x.empty() || w.size() != 2)
      return fail("dense needs X (..., K) and W (N, K)");
    w[1] = x.back();
    if (at.has_bias()) (*in)[at.b + k] = {w[0]};
    y.back() += w[0];
  }
  for (Shape& s : *out) s = y;
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs& attrs, Tensors* in, Tensors* out,
                          const OpResource&) {
  Act act;
  parse_act(attrs, &act);
  const Inputs at(attrs);
  const long N = (*out)[Y].shape.back(), K = (*in)[at.W].shape[1];
  const long R = N ? (*out)[Y].size() / N : 0;
  const bool bf16 = wants_bf16(attrs);
  if (bf16 && !D2LBERT_BF16) return fail(BF16_ERROR);
  // NO_TILES without rows, as in `run_backward`
  const auto run =
      pick_kernel(bf16, R ? std::min(K, N) : NO_TILES,
                  D2LBERT_PRODUCTS(forward));
  Scratch& memory = joined_scratch();
  if (at.num_parts > 1) memory.reset(4 * N * (K + 1) + 128);
  const float* W = join(&(*in)[at.W], at.num_parts, memory);
  const float* b =
      at.has_bias() ? join(&(*in)[at.b], at.num_parts, memory) : nullptr;
  run(R, K, N, floats((*in)[at.X]), W, b, act, floats((*out)[Y]),
      out->size() > Z ? floats((*out)[Z]) : nullptr);
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  Act act;
  parse_act(attrs, &act);
  const int num_outputs = count_outputs(attrs, act);
  if (needs_argument(act) && num_outputs == 1)
    return fail("dense with grad=0 keeps nothing for gradients");
  const Inputs at(attrs);
  const BackwardArrays arrays(*in, num_outputs);
  MXTensor& dY = arrays.gradients[Y];
  const long N = dY.shape.back(), K = arrays.inputs[at.W].shape[1];
  const long R = N ? dY.size() / N : 0;
  const bool bf16 = wants_bf16(attrs);
  if (bf16 && !D2LBERT_BF16) return fail(BF16_ERROR);
  // Without rows, some code for AMX tiles would leave dW unwritten
  const auto run =
      pick_kernel(bf16, R ? std::min(K, N) : NO_TILES,
                  D2LBERT_PRODUCTS(backward));
  Scratch& memory = joined_scratch();
  if (at.num_parts > 1) memory.reset(8 * N * (K + 1) + 256);
  const float* W = join(&arrays.inputs[at.W], at.num_parts, memory);
  // MXNet may pass memory for the gradient of a frozen W, too
  const bool is_frozen = number(attrs, "frozen", 0) != 0;
  float *dW = nullptr, *db = nullptr;
  if (!is_frozen) dW = joined_gradient(&(*out)[at.W], at.num_parts, memory);
  if (at.has_bias())
    db = joined_gradient(&(*out)[at.b], at.num_parts, memory);
  // The last output: Z if it exists, else Y
  const float* saved = floats(arrays.outputs[num_outputs - 1]);
  run(R, K, N, floats(arrays.inputs[at.X]), W, act, floats(dY), saved,
      floats((*out)[at.X]), dW, db);
  split_gradient(dW, &(*out)[at.W], at.num_parts);
  if (at.has_bias()) split_gradient(db, &(*out)[at.b], at.num_parts);
  return MX_SUCCESS;
}

// Limits parallel regions to one thread while an object lives.
struct OneThread {
  const int old_limit = omp_get_max_threads();
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(old_limit); }
};

}  // namespace

// The CPU seconds of one thread for Y = X W^T by `kernel`, in the fastest of
// `runs` runs. Infinite for a kernel with tiles that are not permitted.
double trial(Kernel kernel, long R, long K, long N, const float* X,
             const float* W, float* Y, int runs) {
  decltype(&forward<Fp32>) functions[] = {D2LBERT_PRODUCTS(forward)};
  if (kernel >= TILES && !tiles_permitted()) return INFINITY;
  double fastest = INFINITY;
  const OneThread one_thread;
  for (int i = 0; i < runs; i++) {
    timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    functions[kernel](R, K, N, X, W, nullptr, NONE, Y, nullptr);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    fastest = std::min(fastest, to.tv_sec - from.tv_sec +
                                    1e-9 * (to.tv_nsec - from.tv_nsec));
  }
  return fastest;
}

REGISTER_OP(d2lbert_dense)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<parse>::call)
    .setInferType(Caught<all_floats>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert

// For Python: `trial`, infinite if memory runs out.
extern "C" double d2lbert_trial(int kernel, long R, long K, long N,
                                const float* X, const float* W, float* Y,
                                int runs) try {
  return d2lbert::trial((d2lbert::Kernel)kernel, R, K, N, X, W, Y, runs);
} catch (const std::bad_alloc&) {
  return INFINITY;
}
