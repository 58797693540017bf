// A BERT encoder with 8-bit weights: from ids of tokens to vectors.
//
// Each thread takes whole sequences through all layers. If the batch has too
// few tokens for that, the threads form a team and divide the outputs and the
// attention heads of each layer. The bits of the result are the same in both
// cases: one thread computes each number in a fixed order.
//
// B: the number of sequences. R: the number of rows, one for each token of all
// sequences. T: tokens in a sequence. H: the size of the vector of a token. F:
// the number of hidden units of the feed-forward network. N, K: the numbers of
// outputs and inputs of a layer. E, D: the sizes of an embedding and of a head.
#include "int8.h"

#include <omp.h>

#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include "bounds_check.h"
#include "fork.h"

namespace d2lbert {
namespace int8 {
namespace {

std::atomic<bool> wants_tiles{false};   // int8_use_tiles

// Sums over a row have 16 lanes on every instruction set, so that the order of
// additions is the same.
constexpr int LANES = 16, VECTORS = LANES / VL;

// The vectors of values (V of attention) that `weighted_sums` loads at a time.
constexpr int VALUE_VECTORS = 2;

struct Lanes {
  vf vector[VECTORS] = {};
  // Add the second half of the lanes to the first half, until one lane is left.
  float sum() const {
    vf sums[VECTORS];
    for (int i = 0; i < VECTORS; i++) sums[i] = vector[i];
    for (int half = VECTORS / 2; half; half /= 2)
      for (int i = 0; i < half; i++) sums[i] = sums[i] + sums[i + half];
    return d2lbert::sum(sums[0]);
  }
};

// Load min(n, VL) bytes as floats, followed by zeros.
inline vf load_bytes(const int8_t* from, long n) {
  typedef int8_t bytes __attribute__((vector_size(VL)));
  bytes loaded{};
  std::memcpy(&loaded, from, n < VL ? n : VL);
  return __builtin_convertvector(loaded, vf);
}

// The first n lanes of v, followed by zeros.
inline vf keep_first(vf v, long n) {
  return n >= VL ? v : pick(lane_indices() < (int)n, v, vf{});
}

struct Norm {
  AlignedArray<float> gamma, beta;
  float epsilon = 0;

  // to (size,) = LayerNorm(x). x has zeros from `size` up to a multiple of
  // LANES, and `to` gets such zeros. x and `to` may be the same array.
  void operator()(const float* x, long size, float* to) const {
    Lanes sums, squares;
    for (long j = 0; j < size; j += LANES)
#pragma GCC unroll 4
      for (int i = 0; i < VECTORS; i++) sums.vector[i] += load(x + j + i * VL);
    const float mean = sums.sum() / (float)size;
    for (long j = 0; j < size; j += LANES)
#pragma GCC unroll 4
      for (int i = 0; i < VECTORS; i++) {
        const long k = j + i * VL;
        const vf centered = keep_first(load(x + k) - mean, size - k);
        squares.vector[i] += centered * centered;
      }
    const float variance = squares.sum() / (float)size;
    const float scale = 1.f / std::sqrt(variance + epsilon);
    for (long j = 0; j < ceil_div(size, LANES) * LANES; j += VL) {
      const vf normalized = (load(x + j) - mean) * scale;
      const vf y = normalized * load(gamma + j) + load(beta + j);
      // gamma and beta are 0 from `size` on, but NaN * 0 is NaN
      store(to + j, keep_first(y, size - j));
    }
  }
};

// While an object exists, its thread has the processor's default mode: rounding
// to nearest, keeping denormal numbers. No effect with clang on Arm.
struct StandardRounding {
#if defined(__SSE2__)
  const unsigned callers_mode = _mm_getcsr();
  StandardRounding() { _mm_setcsr(0x1f80); }
  ~StandardRounding() { _mm_setcsr(callers_mode); }
#elif defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
  const unsigned callers_mode = __builtin_aarch64_get_fpcr();
  StandardRounding() { __builtin_aarch64_set_fpcr(0); }
  ~StandardRounding() { __builtin_aarch64_set_fpcr(callers_mode); }
#endif
};

// Threads that compute each layer together, or one thread alone.
class Team {
 public:
  explicit Team(int size) : size_(size) {}
  // Wait until all threads of the team have called this.
  void barrier() {
    if (size_ == 1) return;
    const long phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    // Most waits are shorter than 2,000 loads, a few microseconds. In a longer
    // wait, another thread may need this core
    for (int i = 0; phase_.load(std::memory_order_acquire) == phase; i++)
      if (i > 2000) std::this_thread::yield();
  }
  int size() const { return size_; }

 private:
  const int size_;
  std::atomic<int> arrived_{0};
  std::atomic<long> phase_{0};   // the number of completed barriers
};

// Thread number `index` of a team.
struct Member {
  Team& team;
  int index;
  // The share of this thread in n items is [first(n), last(n)).
  long first(long n) const { return n * index / team.size(); }
  long last(long n) const { return n * (index + 1) / team.size(); }
};

struct Block {
  Dense qkv, attention_out, ffn1, ffn2;
  Norm attention_norm, ffn_norm;
};

// In the order of `sizes` in int8.py. act: an `Act`.
struct Sizes {
  int64_t vocabulary, num_segments, num_positions, E, H, F, num_heads,
      num_blocks, act;
};

// Embeddings. For tokens, they are tokens (vocabulary, E) times token_scales
// (vocabulary,) times factor. segments may be null.
struct Tables {
  const int8_t* tokens;
  const float *token_scales, *segments, *positions;
  float factor;
};

// The largest chunk, in rows, if no sequence is longer and there is no team.
constexpr long CHUNK_ROWS = 96;
// The rows that go through the feed-forward network at a time, so that their F
// hidden units stay in cache.
constexpr long FFN_ROWS = 96;

// The vectors to return for a sequence: of all tokens, of the first token, or
// the mean of all. In the order of ROWS in int8.py.
enum OutputRows { ALL, FIRST, MEAN };

// Arguments of int8_encode. Sequence b has the rows [offsets[b],
// offsets[b + 1]) of ids and segments. order (num_applied,): the indices of the
// blocks to apply. out: (R, H) for ALL; (B, H) for FIRST and MEAN.
struct Batch {
  long B;
  const int64_t* offsets;
  const int32_t *ids, *segments;
  long num_applied;
  const int32_t* order;
  OutputRows output_rows;
  float* out;
  long length(long b) const { return offsets[b + 1] - offsets[b]; }
};

// Sequences [first, last) of a batch, which go through the layers together.
// They have `rows` rows, from first_row on.
struct Chunk {
  long first, last, first_row, rows;
  Chunk(const Batch& batch, long first, long last)
      : first(first), last(last), first_row(batch.offsets[first]),
        rows(batch.offsets[last] - first_row) {}
};

// Memory of a team, for a chunk. qkv (rows, 3H): queries, keys and values.
// context (rows, H): the outputs of all heads. hidden (FFN_ROWS, F): the output
// of ffn1. y (rows, H): the output of attention_out, ffn2 or projection_. Rows
// of these arrays, and of x and inputs below, have padding (`row_length`).
struct SharedMemory {
  float *qkv, *context, *y, *hidden;
};

// Memory of a thread. x (rows, H): the vectors of a chunk. A copy in each
// thread saves barriers. inputs, scale: quantized rows. queries (D, LANES):
// LANES queries, transposed. scores (T, LANES): their scores.
struct OwnMemory {
  float *x, *scale, *queries, *scores;
  Input* inputs;
};

class Encoder {
 public:
  Encoder(const Sizes& sizes, float epsilon, const Tables& tables)
      : sizes_(sizes), D_(sizes.H / sizes.num_heads), ld_(row_length(sizes.H)),
        tables_(tables), blocks_(sizes.num_blocks) {
    for (auto norm : norms()) norm->epsilon = epsilon;
  }

  // For the indices see int8_put_dense and int8_put_norm below.
  void put_dense(long index, long N, long K, const int8_t* q,
                 const float* scale, const float* bias) {
    // The weights of queries include the division of scores by sqrt(D)
    const bool has_queries = index % 4 == 0 && index < 4 * sizes_.num_blocks;
    *dense(index) = Dense(N, K, q, scale, bias, has_queries ? sizes_.H : 0,
                          1.f / std::sqrt((float)D_));
  }

  void put_norm(long index, const float* gamma, const float* beta) {
    Norm& norm = *norms().at(index);
    const long n = index == 2 * sizes_.num_blocks ? sizes_.E : sizes_.H;
    norm.gamma = AlignedArray<float>(row_length(n));
    norm.beta = AlignedArray<float>(row_length(n));
    std::copy(gamma, gamma + n, (float*)norm.gamma);
    std::copy(beta, beta + n, (float*)norm.beta);
  }

  // Throw std::out_of_range unless this encoder can encode the batch.
  void check(const Batch& batch) const {
    const int64_t* offsets = batch.offsets;
    require(batch.B > 0 && offsets[0] == 0);
    for (long b = 0; b < batch.B; b++)
      require(offsets[b] < offsets[b + 1] &&
              batch.length(b) <= sizes_.num_positions);
    require_range(batch.ids, offsets[batch.B], 0, sizes_.vocabulary);
    if (sizes_.num_segments)
      require_range(batch.segments, offsets[batch.B], 0, sizes_.num_segments);
    require_range(batch.order, batch.num_applied, 0, sizes_.num_blocks);
  }

  // The bytes of OwnMemory and SharedMemory, for chunks of at most `rows` rows
  // and sequences of at most T tokens. + 4096: room for the alignment of
  // arrays, and for the vectors after qkv (`shared_memory`).
  size_t own_bytes(long rows, long T) const {
    return rows * (4 * x_length() + 4) +
           rows_to_allocate(rows) * sizeof(Input) * inputs_length() +
           4 * LANES * (T + D_ + VL) + 4096;
  }
  size_t shared_bytes(long rows) const {
    return rows * 4 * (row_length(3 * sizes_.H) + 2 * ld_) + 4096 +
           std::min(rows, FFN_ROWS) * 4 * row_length(sizes_.F);
  }
  OwnMemory own_memory(Scratch& scratch, long rows, long T) const {
    OwnMemory own;
    own.x = scratch.take<float>(rows * x_length());
    own.scale = scratch.take<float>(rows);
    // `transpose_rows` writes D rounded up to whole vectors
    own.queries = scratch.take<float>(LANES * (D_ + VL));
    own.scores = scratch.take<float>(LANES * T);
    own.inputs = scratch.take<Input>(rows_to_allocate(rows) * inputs_length());
    return own;
  }
  SharedMemory shared_memory(Scratch& scratch, long rows) const {
    SharedMemory shared;
    // `weighted_sums` loads VALUE_VECTORS vectors, also beyond the last row
    shared.qkv = scratch.take<float>(rows * row_length(3 * sizes_.H) +
                                     VALUE_VECTORS * VL);
    shared.context = scratch.take<float>(rows * ld_);
    shared.y = scratch.take<float>(rows * ld_);
    shared.hidden = scratch.take<float>(std::min(rows, FFN_ROWS) *
                                        row_length(sizes_.F));
    return shared;
  }

  // Encode a chunk, and write its vectors to batch.out.
  void encode_chunk(const Member& member, const SharedMemory& shared,
                    const OwnMemory& own, const Batch& batch,
                    const Chunk& chunk) const {
    const long rows = chunk.rows, sequences = chunk.last - chunk.first;
    // `attend` writes no padding, and `quantize` reads it
    clear_padding(shared.context, member.first(rows), member.last(rows));
    embed(member, shared, own, batch, chunk);
    for (long k = 0; k < batch.num_applied; k++)
      apply_block(blocks_[batch.order[k]], member, shared, own, batch, chunk);
    if (batch.output_rows == ALL) {
      for (long r = member.first(rows); r < member.last(rows); r++)
        write_row(own.x + r * ld_,
                  batch.out + (chunk.first_row + r) * sizes_.H);
      return;
    }
    for (long i = member.first(sequences); i < member.last(sequences); i++) {
      const long b = chunk.first + i;
      float* x = own.x + (batch.offsets[b] - chunk.first_row) * ld_;
      if (batch.output_rows == MEAN) average(x, batch.length(b));
      write_row(x, batch.out + b * sizes_.H);
    }
  }

 private:
  Dense* dense(long index) {
    if (index == 4 * sizes_.num_blocks) return &projection_;
    Block& b = blocks_.at(index / 4);
    Dense* layers[] = {&b.qkv, &b.attention_out, &b.ffn1, &b.ffn2};
    return layers[index % 4];
  }

  // All LayerNorms, in the order of their indices (int8_put_norm).
  std::vector<Norm*> norms() {
    std::vector<Norm*> all;
    for (Block& b : blocks_) {
      all.push_back(&b.attention_norm);
      all.push_back(&b.ffn_norm);
    }
    all.push_back(&embedding_norm_);
    return all;
  }

  // Row lengths in OwnMemory. Before the projection, a row has E numbers.
  long x_length() const { return row_length(std::max(sizes_.H, sizes_.E)); }
  long inputs_length() const {
    return row_length(std::max({sizes_.H, sizes_.F, sizes_.E}));
  }

  // Copy a row of H numbers. Each NaN gets the same bit pattern, since
  // instruction sets produce different patterns.
  void write_row(const float* x, float* to) const {
    for (long j = 0; j < sizes_.H; j += VL) {
      const vf v = load(x + j);
      store(to + j, pick(v == v, v, splat(NAN)), sizes_.H - j);
    }
  }

  // Replace the first of T rows x by their mean, adding from first to last.
  void average(float* x, long T) const {
    for (long j = 0; j < sizes_.H; j += VL) {
      vf sum = load(x + j);
      for (long r = 1; r < T; r++) sum = sum + load(x + r * ld_ + j);
      store(x + j, sum / (float)T);
    }
  }

  // Set own.inputs and own.scale to the quantized rows x (rows, K).
  void quantize_rows(const float* x, long ld, long rows, long K,
                     const OwnMemory& own) const {
    for (long r = 0; r < rows; r++)
      own.scale[r] = quantize(x + r * ld, K, own.inputs + r * row_length(K));
  }

  // Apply a dense layer to the rows in own.inputs. Write this thread's share of
  // the outputs to y.
  void multiply(const Dense& dense, const Member& member,
                const OwnMemory& own, long rows, long K, Act act, float* y,
                long ldy) const {
    dense(own.inputs, row_length(K), own.scale, rows,
          member.first(dense.panels()), member.last(dense.panels()), act, y,
          ldy);
  }

  // Set own.x to the embeddings of the tokens, after embedding_norm_ and
  // projection_ if these are set.
  void embed(const Member& member, const SharedMemory& shared,
             const OwnMemory& own, const Batch& batch,
             const Chunk& chunk) const {
    const long E = sizes_.E, ld = row_length(E), rows = chunk.rows;
    for (long b = chunk.first; b < chunk.last; b++)
      for (long i = batch.offsets[b]; i < batch.offsets[b + 1]; i++) {
        const int8_t* token = tables_.tokens + batch.ids[i] * E;
        const float scale = tables_.token_scales[batch.ids[i]];
        const float* position =
            tables_.positions + (i - batch.offsets[b]) * E;
        const float* segment =
            sizes_.num_segments ? tables_.segments + batch.segments[i] * E
                                : nullptr;
        float* x = own.x + (i - chunk.first_row) * ld;
        for (long j = 0; j < ceil_div(E, LANES) * LANES; j += VL) {
          const long n = E - j;
          if (n <= 0) {
            store(x + j, vf{});
            continue;
          }
          vf sum = load_bytes(token + j, n) * scale * tables_.factor;
          if (segment) sum = sum + load(segment + j, n);
          store(x + j, sum + load(position + j, n));
        }
        if (embedding_norm_.gamma) embedding_norm_(x, E, x);
      }
    if (!projection_.is_set()) return;
    quantize_rows(own.x, ld, rows, E, own);
    multiply(projection_, member, own, rows, E, NONE, shared.y, ld_);
    member.team.barrier();
    std::copy(shared.y, shared.y + rows * ld_, own.x);
    clear_padding(own.x, 0, rows);
    member.team.barrier();
  }

  // Replace own.x by the output of a block.
  void apply_block(const Block& block, const Member& member,
                   const SharedMemory& shared, const OwnMemory& own,
                   const Batch& batch, const Chunk& chunk) const {
    const long H = sizes_.H, F = sizes_.F, rows = chunk.rows;
    const long ldq = row_length(3 * H);
    quantize_rows(own.x, ld_, rows, H, own);
    multiply(block.qkv, member, own, rows, H, NONE, shared.qkv, ldq);
    member.team.barrier();
    const long heads = (chunk.last - chunk.first) * sizes_.num_heads;
    for (long i = member.first(heads); i < member.last(heads); i++) {
      const long b = chunk.first + i / sizes_.num_heads;
      const long column = i % sizes_.num_heads * D_;
      const long row = batch.offsets[b] - chunk.first_row;
      attend(shared.qkv + row * ldq + column, ldq, batch.length(b),
             shared.context + row * ld_ + column, ld_, own);
    }
    member.team.barrier();
    quantize_rows(shared.context, ld_, rows, H, own);
    multiply(block.attention_out, member, own, rows, H, NONE, shared.y, ld_);
    member.team.barrier();
    for (long r = 0; r < rows; r += FFN_ROWS) {
      const long n = std::min(FFN_ROWS, rows - r);
      // y: first the output of attention_out, then the output of ffn2
      float *x = own.x + r * ld_, *y = shared.y + r * ld_;
      add_norm(x, y, n, block.attention_norm);
      quantize_rows(x, ld_, n, H, own);
      multiply(block.ffn1, member, own, n, H, (Act)sizes_.act, shared.hidden,
               row_length(F));
      member.team.barrier();
      quantize_rows(shared.hidden, row_length(F), n, F, own);
      multiply(block.ffn2, member, own, n, F, NONE, y, ld_);
      member.team.barrier();
      add_norm(x, y, n, block.ffn_norm);
    }
    // No barrier: the next block first writes shared.qkv, which no thread reads
    // any more
  }

  // Set the padding of the rows [first, last) of x (rows, H) to zero.
  void clear_padding(float* x, long first, long last) const {
    for (long r = first; r < last; r++)
      std::fill(x + r * ld_ + sizes_.H, x + (r + 1) * ld_, 0.f);
  }

  // x = LayerNorm(x + y), for rows of H numbers.
  void add_norm(float* x, const float* y, long rows, const Norm& norm) const {
    for (long r = 0; r < rows; r++, x += ld_, y += ld_) {
      for (long j = 0; j < ceil_div(sizes_.H, LANES) * LANES; j += VL)
        store(x + j, keep_first(load(x + j) + load(y + j), sizes_.H - j));
      norm(x, sizes_.H, x);
    }
  }

  // to (T, D) = the output of a head for a sequence. queries (T, D): a part of
  // the rows of qkv. A vector of scores belongs to one key and VL queries. So
  // each sum over keys goes from the first key to the last, whatever VL is.
  void attend(const float* queries, long ld, long T, float* to, long ldt,
              const OwnMemory& own) const {
    const float *keys = queries + sizes_.H, *values = keys + sizes_.H;
    for (long i = 0; i < T; i += LANES) {
      const long num_queries = std::min<long>(LANES, T - i);
      transpose_rows(queries + i * ld, ld, num_queries, own.queries);
      const Lanes max = compute_scores(own.queries, keys, ld, T, own.scores);
      // Exponentials replace the scores
      Lanes total;
      for (long j = 0; j < T; j++)
#pragma GCC unroll 4
        for (int p = 0; p < VECTORS; p++) {
          float* scores = own.scores + j * LANES + p * VL;
          const vf e = exponential(load(scores) - max.vector[p]);
          total.vector[p] += e;
          store(scores, e);
        }
      float inverse[LANES];
      for (int p = 0; p < VECTORS; p++)
        store(inverse + p * VL, 1.f / total.vector[p]);
      weighted_sums(own.scores, inverse, values, ld, T, num_queries,
                    to + i * ldt, ldt);
    }
  }

  // to (D, LANES) = the transpose of x (rows, D), with zeros for missing rows.
  void transpose_rows(const float* x, long ld, long rows, float* to) const {
    static const float zeros[LANES] = {};
    for (int p = 0; p < VECTORS; p++)
      for (long d = 0; d < D_; d += VL) {
        const uint32_t* row[VL];
        for (int r = 0; r < VL; r++)
          row[r] = (const uint32_t*)(p * VL + r < rows
                                         ? x + (p * VL + r) * ld + d
                                         : zeros);
        transpose(row, (uint32_t*)(to + d * LANES + p * VL), LANES);
      }
  }

  // scores (T, LANES) = keys (T, D) times transposed queries (D, LANES). Return
  // the largest score of each query.
  Lanes compute_scores(const float* queries, const float* keys, long ld,
                       long T, float* scores) const {
    constexpr int KEYS = 8 / VECTORS;   // keys at a time: 8 vectors of sums
    Lanes max;
    for (vf& vector : max.vector) vector = splat(-INFINITY);
    for (long j = 0; j < T; j += KEYS) {
      // The last key replaces missing keys, whose scores are not stored
      const float* key[KEYS];
      for (int n = 0; n < KEYS; n++)
        key[n] = keys + std::min(j + n, T - 1) * ld;
      vf sums[KEYS][VECTORS] = {};
      for (long d = 0; d < D_; d++)
#pragma GCC unroll 4
        for (int p = 0; p < VECTORS; p++) {
          const vf x = load(queries + d * LANES + p * VL);
#pragma GCC unroll 8
          for (int n = 0; n < KEYS; n++)
            sums[n][p] = sums[n][p] + splat(key[n][d]) * x;
        }
#pragma GCC unroll 8
      for (int n = 0; n < KEYS; n++)
        if (n < T - j)
#pragma GCC unroll 4
          for (int p = 0; p < VECTORS; p++) {
            store(scores + (j + n) * LANES + p * VL, sums[n][p]);
            max.vector[p] = larger(sums[n][p], max.vector[p]);
          }
    }
    return max;
  }

  // to (num_queries, D) = inverse * (weightsᵀ values), for weights (T, LANES)
  // and values (T, D). inverse (LANES,): 1 / the sum of the weights of each
  // query.
  void weighted_sums(const float* weights, const float* inverse,
                     const float* values, long ld, long T, long num_queries,
                     float* to, long ldt) const {
    constexpr int QUERIES = VL == 16 ? 8 : 4;   // queries at a time
    for (long i = 0; i < num_queries; i += QUERIES)
      for (long d = 0; d < D_; d += VALUE_VECTORS * VL) {
        vf sums[QUERIES][VALUE_VECTORS] = {};
        for (long j = 0; j < T; j++) {
          vf x[VALUE_VECTORS];
#pragma GCC unroll 2
          for (int w = 0; w < VALUE_VECTORS; w++)
            x[w] = load(values + j * ld + d + w * VL);
#pragma GCC unroll 8
          for (int n = 0; n < QUERIES; n++)
#pragma GCC unroll 2
            for (int w = 0; w < VALUE_VECTORS; w++)
              sums[n][w] =
                  sums[n][w] + splat(weights[j * LANES + i + n]) * x[w];
        }
#pragma GCC unroll 8
        for (int n = 0; n < QUERIES; n++)
          if (i + n < num_queries)
#pragma GCC unroll 2
            for (int w = 0; w < VALUE_VECTORS; w++)
              if (D_ - d > w * VL)
                store(to + (i + n) * ldt + d + w * VL,
                      inverse[i + n] * sums[n][w], D_ - d - w * VL);
      }
  }

  const Sizes sizes_;
  const long D_, ld_;
  const Tables tables_;
  std::vector<Block> blocks_;
  Norm embedding_norm_;
  Dense projection_;
};

// Fewer multiplications take less than half a millisecond, and one thread is
// faster. Other threads sleep between calls, wake on the core of the calling
// thread, and move to other cores only after some calls. One instruction makes
// PER_WORD products in each lane.
constexpr double MIN_PARALLEL_PRODUCTS = 5e7 * PER_WORD;

int threads_for(double products) {
  return products < MIN_PARALLEL_PRODUCTS || is_fork_child
             ? 1
             : std::max(1, omp_get_max_threads());
}

// Memory for a thread of this call. The calling thread keeps it for its next
// call.
Scratch& scratch_of(int thread) {
  static thread_local std::deque<Scratch> all;
  while ((int)all.size() <= thread) all.emplace_back();
  return all[thread];
}

// Divide a batch into chunks of at most max_rows rows, of whole sequences.
// max_rows: at least the length of the longest sequence.
std::vector<Chunk> divide(const Batch& batch, long max_rows) {
  std::vector<Chunk> chunks;
  long first = 0;
  for (long next = 1; next <= batch.B; next++) {
    // A chunk ends before a sequence that does not fit
    if (next == batch.B ||
        batch.offsets[next + 1] - batch.offsets[first] > max_rows) {
      chunks.emplace_back(batch, first, next);
      first = next;
    }
  }
  return chunks;
}

void encode_batch(const Encoder& encoder, const Batch& batch,
                  double row_products) {
  const long R = batch.offsets[batch.B];
  const int threads = threads_for(row_products * R);
  long T = 0;           // of the longest sequence
  for (long b = 0; b < batch.B; b++) T = std::max(T, batch.length(b));
  // A team, if each thread would have at most half a chunk
  const bool as_team = threads > 1 && R <= CHUNK_ROWS * threads / 2;
  long max_rows = R;    // a team has one chunk
  if (!as_team) {
    // Similar chunks, about equally many for each thread, so that the threads
    // end at about the same time
    const long chunks_per_thread = ceil_div(R, threads * CHUNK_ROWS);
    max_rows = std::max(T, ceil_div(R, threads * chunks_per_thread));
  }
  const std::vector<Chunk> chunks = divide(batch, max_rows);
  long rows = 0;        // of the largest chunk
  for (const Chunk& chunk : chunks) rows = std::max(rows, chunk.rows);
  std::vector<Scratch*> scratch(threads);
  for (int t = 0; t < threads; t++) {
    scratch[t] = &scratch_of(t);
    scratch[t]->reset(encoder.own_bytes(rows, T) + encoder.shared_bytes(rows));
  }
  std::atomic<size_t> next_chunk{0};
  auto take_chunks = [&](int thread) {
    StandardRounding rounding;
    Team alone(1);
    const SharedMemory shared = encoder.shared_memory(*scratch[thread], rows);
    const OwnMemory own = encoder.own_memory(*scratch[thread], rows, T);
    for (size_t c; (c = next_chunk.fetch_add(1)) < chunks.size();)
      encoder.encode_chunk({alone, 0}, shared, own, batch, chunks[c]);
  };
  if (threads == 1) return take_chunks(0);
  // Not on the heap, since a parallel region must not request memory
  std::optional<Team> team;
  SharedMemory shared;
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    if (as_team) {
#pragma omp single
      {
        team.emplace(omp_get_num_threads());
        shared = encoder.shared_memory(*scratch[0], rows);
      }
      StandardRounding rounding;
      const OwnMemory own = encoder.own_memory(*scratch[thread], rows, T);
      encoder.encode_chunk({*team, thread}, shared, own, batch, chunks[0]);
    } else {
      take_chunks(thread);
    }
  }
}

}  // namespace

bool uses_tiles() {
  return wants_tiles && D2LBERT_INT8_TILES && tiles_permitted();
}

}  // namespace int8
}  // namespace d2lbert

using namespace d2lbert;
using namespace d2lbert::int8;

extern "C" {

// Multiply by AMX tiles from now on, if `use` is not 0 and tiles can be used.
// Return 1 if tiles multiply, else 0.
int int8_use_tiles(int use) {
  wants_tiles = use != 0;
  return uses_tiles();
}

// A name for the instructions that multiply.
const char* int8_product() { return uses_tiles() ? "AMX" : DOT_INSTRUCTIONS; }

// Quantize w (N, K) to integers q (N, K), with a scale (N,) for each row.
void int8_quantize(const float* w, int64_t N, int64_t K, int8_t* q,
                   float* scale) {
  StandardRounding rounding;
  for (int64_t n = 0; n < N; n++, w += K, q += K) {
    int32_t max_bits = 0;   // of the largest |w|
    for (int64_t k = 0; k < K; k++) {
      int32_t bits;
      std::memcpy(&bits, w + k, 4);
      max_bits = std::max(max_bits, bits & INT32_MAX);
    }
    const Factors factors(max_bits);
    scale[n] = factors.scale;
    for (int64_t k = 0; k < K; k++)
      q[k] = factors.to_int ? (int8_t)std::nearbyint(w[k] * factors.to_int) : 0;
  }
}

// For tests of one layer: y (R, N) = act(x wᵀ + bias), for x (R, K) and weights
// w, which are q (N, K) times scale (N,). bias (N,) may be null.
int int8_apply(int64_t R, int64_t N, int64_t K, const float* x,
               const int8_t* q, const float* scale, const float* bias,
               int act, float* y) try {
  StandardRounding rounding;
  const Dense dense(N, K, q, scale, bias);
  const long ldx = row_length(K), ldy = row_length(N);
  const AlignedArray<float> row(ldx), outputs(R * ldy);
  const AlignedArray<Input> inputs(rows_to_allocate(R) * ldx);
  std::vector<float> scales(R);
  for (int64_t r = 0; r < R; r++) {
    std::copy(x + r * K, x + (r + 1) * K, (float*)row);
    scales[r] = quantize(row, K, inputs + r * ldx);
  }
  dense(inputs, ldx, scales.data(), R, 0, dense.panels(), (Act)act, outputs,
        ldy);
  for (int64_t r = 0; r < R; r++)
    std::copy(outputs + r * ldy, outputs + r * ldy + N, y + r * N);
  return kDone;
} catch (...) {
  return failure();
}

// Construct an encoder without layers. sizes: the fields of `Sizes`. tokens,
// token_scales, factor, segments and positions: the fields of `Tables`, whose
// arrays must outlive the encoder.
int int8_new(const int64_t* sizes, double epsilon, const int8_t* tokens,
             const float* token_scales, double factor, const float* segments,
             const float* positions, void** encoder) try {
  Sizes s;
  std::memcpy(&s, sizes, sizeof s);
  require(s.num_heads > 0 && s.H % s.num_heads == 0 && s.act >= NONE &&
          s.act <= GELU_NEW);
  *encoder = new Encoder(
      s, (float)epsilon,
      {tokens, token_scales, segments, positions, (float)factor});
  return kDone;
} catch (...) {
  return failure();
}

// Set a dense layer: weights q (N, K) times scale (N,), and bias (N,) or null.
// In block b, index 4b is for queries, keys and values, 4b + 1 for the output
// of attention, 4b + 2 and 4b + 3 for the feed-forward network. The index after
// the last block is for the projection from E to H.
int int8_put_dense(void* encoder, int64_t index, int64_t N, int64_t K,
                   const int8_t* q, const float* scale,
                   const float* bias) try {
  ((Encoder*)encoder)->put_dense(index, N, K, q, scale, bias);
  return kDone;
} catch (...) {
  return failure();
}

// Set a LayerNorm. In block b, index 2b is for the LayerNorm after attention,
// 2b + 1 for the LayerNorm after the feed-forward network. The index after the
// last block is for the LayerNorm of the embeddings.
int int8_put_norm(void* encoder, int64_t index, const float* gamma,
                  const float* beta) try {
  ((Encoder*)encoder)->put_norm(index, gamma, beta);
  return kDone;
} catch (...) {
  return failure();
}

// Encode a `Batch`, with offsets (B + 1,), ids (R,) and segments (R,).
// row_products: the number of multiplications for one row.
int int8_encode(const void* encoder, int64_t B, const int64_t* offsets,
                const int32_t* ids, const int32_t* segments,
                int64_t num_applied, const int32_t* order,
                double row_products, int output_rows, float* out) try {
  const Encoder& e = *(const Encoder*)encoder;
  require(output_rows >= ALL && output_rows <= MEAN);
  const Batch batch{B, offsets, ids, segments, num_applied, order,
                    (OutputRows)output_rows, out};
  e.check(batch);
  encode_batch(e, batch, row_products);
  return kDone;
} catch (...) {
  return failure();
}

void int8_free(void* encoder) { delete (Encoder*)encoder; }

}  // extern "C"
