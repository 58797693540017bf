// A BERT encoder at eight bits, from tokens to their vectors.
//
// One call computes all layers. Each thread takes whole sequences through all
// layers. If there are too few sequences, threads share the columns and the
// attention heads of each layer. The result has the same bits in both cases:
// one thread computes each number, from one row or sequence, in a fixed order.
//
// H hiddens, F feed-forward hiddens, N heads of width D, R rows.
#include "int8.h"

#include <omp.h>
#include <pthread.h>

#include <atomic>
#include <deque>
#include <memory>
#include <thread>

#include "door.h"

namespace d2lbert {
namespace int8 {
namespace {

// A sum over a row has 16 lanes on every instruction set, so that its order is
// the same.
constexpr int LANES = 16, PARTS = LANES / VL;

struct Lanes {
  vf part[PARTS] = {};
  // Add the second half of the lanes to the first half, until one is left.
  float sum() const {
    vf left[PARTS];
    for (int i = 0; i < PARTS; i++) left[i] = part[i];
    for (int half = PARTS / 2; half; half /= 2)
      for (int i = 0; i < half; i++) left[i] = left[i] + left[i + half];
    return d2lbert::sum(left[0]);
  }
};

// Load min(n, VL) whole numbers as floats, followed by zeros.
inline vf numbers_of(const int8_t* from, long n) {
  typedef int8_t bytes __attribute__((vector_size(VL)));
  bytes some{};
  std::memcpy(&some, from, n < VL ? n : VL);
  return __builtin_convertvector(some, vf);
}

inline vf first_lanes_of(vf v, long n) {
  return n >= VL ? v : pick(count() < (int)n, v, vf{});
}

struct Norm {
  Aligned<float> gamma, beta;
  float epsilon = 0;

  // to (H,) = LayerNorm(x), with zeros up to a multiple of LANES. It may be x.
  void operator()(const float* x, long H, float* to) const {
    Lanes sums, squares;
    for (long j = 0; j < H; j += LANES)
#pragma GCC unroll 4
      for (int i = 0; i < PARTS; i++) sums.part[i] += load(x + j + i * VL);
    const float mean = sums.sum() / (float)H;
    for (long j = 0; j < H; j += LANES)
#pragma GCC unroll 4
      for (int i = 0; i < PARTS; i++) {
        const long k = j + i * VL;
        const vf off = first_lanes_of(load(x + k) - mean, H - k);
        squares.part[i] += off * off;
      }
    const float variance = squares.sum() / (float)H;
    const float scale = 1.f / std::sqrt(variance + epsilon);
    for (long j = 0; j < ceil_div(H, LANES) * LANES; j += VL) {
      const vf y = (load(x + j) - mean) * scale;
      // Zeros follow a row of NaN, too
      store(to + j, first_lanes_of(y * load(gamma + j) + load(beta + j),
                                   H - j));
    }
  }
};

// During its lifetime this thread computes with denormal numbers and rounds to
// nearest, whatever the caller has set.
struct Rounding {
#if defined(__SSE2__)
  const unsigned before = _mm_getcsr();
  Rounding() { _mm_setcsr(0x1f80); }
  ~Rounding() { _mm_setcsr(before); }
#elif defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
  const unsigned before = __builtin_aarch64_get_fpcr();
  Rounding() { __builtin_aarch64_set_fpcr(0); }
  ~Rounding() { __builtin_aarch64_set_fpcr(before); }
#endif
};

// Threads that go through the same layers together.
class Team {
 public:
  explicit Team(int size) : size_(size) {}
  // A barrier: returns after all threads have called it.
  void meet() {
    if (size_ == 1) return;
    const long turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int i = 0; turn_.load(std::memory_order_acquire) == turn; i++)
      if (i > 2000) std::this_thread::yield();
  }
  int size() const { return size_; }

 private:
  const int size_;
  std::atomic<int> arrived_{0};
  std::atomic<long> turn_{0};
};

// A thread of a team, number `part`.
struct Place {
  Team& team;
  int part;
  // The share of this thread in n items: [first, last).
  long first(long n) const { return n * part / team.size(); }
  long last(long n) const { return n * (part + 1) / team.size(); }
};

struct Block {
  Dense qkv, out, in, back;
  Norm after_attention, after_network;
};

struct Sizes {
  int64_t vocabulary, segments, positions, E, H, F, heads, blocks, act;
};

// The embeddings. words (V, E): of tokens, at eight bits, with scales (V,), and
// multiplied by `factor`. segments (S, E) or null, and positions (T, E).
struct Tables {
  const int8_t* words;
  const float *scales, *segments, *positions;
  float factor;
};

// CHUNK: rows that a thread takes through all layers at a time. CUT: rows that
// go through the feed-forward network at a time, so that they stay in cache.
constexpr long CHUNK = 96, CUT = 96;

// The output for a sequence: all rows, the first row, or the mean of all rows.
// The order is the order of ROWS in int8.py.
enum Rows { ALL, FIRST, MEAN };

// Memory of a team, and of each thread in it. A thread keeps its own x, a copy
// of all rows.
struct Shared {
  float *qkv, *context, *y, *hidden;
};
struct Own {
  float *x, *scale, *q, *scores;
  Number* numbers;
};

class Encoder {
 public:
  Encoder(const Sizes& sizes, float epsilon, const Tables& tables)
      : s_(sizes), D_(sizes.H / sizes.heads), table_(tables),
        blocks_(sizes.blocks) {
    for (auto norm : norms()) norm->epsilon = epsilon;
  }

  Dense* dense(long which) {
    if (which == 4 * s_.blocks) return &projection_;
    Block& b = blocks_.at(which / 4);
    Dense* all[] = {&b.qkv, &b.out, &b.in, &b.back};
    return all[which % 4];
  }

  void put_dense(long which, long N, long K, const int8_t* q,
                 const float* scale, const float* bias) {
    // The weights of queries include the division of scores by sqrt(D)
    const bool has_queries = which % 4 == 0 && which < 4 * s_.blocks;
    *dense(which) = Dense(N, K, q, scale, bias, has_queries ? s_.H : 0,
                          1.f / std::sqrt((float)D_));
  }

  void put_norm(long which, const float* gamma, const float* beta) {
    Norm& norm = *norms().at(which);
    const long n = which == 2 * s_.blocks ? s_.E : s_.H;
    norm.gamma = Aligned<float>(aligned(n));
    norm.beta = Aligned<float>(aligned(n));
    std::copy(gamma, gamma + n, (float*)norm.gamma);
    std::copy(beta, beta + n, (float*)norm.beta);
  }

  void check(long B, const int64_t* offsets, const int32_t* ids,
             const int32_t* segments, long layers,
             const int32_t* order) const {
    require(B > 0 && offsets[0] == 0);
    for (long b = 0; b < B; b++)
      require(offsets[b] < offsets[b + 1] &&
              offsets[b + 1] - offsets[b] <= s_.positions);
    require_range(ids, offsets[B], 0, s_.vocabulary);
    if (s_.segments) require_range(segments, offsets[B], 0, s_.segments);
    require_range(order, layers, 0, s_.blocks);
  }

  // Bytes of scratch memory: `own_bytes` of one thread, `shared_bytes` of the
  // whole team. T: tokens of the longest sequence.
  size_t own_bytes(long rows, long T) const {
    return rows * (4 * widest_x() + sizeof(Number) * widest() + 4) +
           4 * LANES * (T + D_ + VL) + 4096;
  }
  size_t shared_bytes(long rows) const {
    return rows * 4 * (aligned(3 * s_.H) + 2 * aligned(s_.H)) + 4096 +
           std::min(rows, CUT) * 4 * aligned(std::max(s_.F, s_.E));
  }
  Own own(Scratch& memory, long rows, long T) const {
    Own o;
    o.x = memory.take<float>(rows * widest_x());
    o.scale = memory.take<float>(rows);
    o.q = memory.take<float>(LANES * (D_ + VL));
    o.scores = memory.take<float>(LANES * T);
    o.numbers = memory.take<Number>(rows * widest());
    return o;
  }
  Shared shared(Scratch& memory, long rows) const {
    Shared s;
    // Vectors are read beyond the last row's end
    s.qkv = memory.take<float>(rows * aligned(3 * s_.H) + LANES);
    s.context = memory.take<float>(rows * aligned(s_.H));
    s.y = memory.take<float>(rows * aligned(s_.H));
    s.hidden = memory.take<float>(std::min(rows, CUT) *
                                  aligned(std::max(s_.F, s_.E)));
    return s;
  }

  // Take the sequences [first, last) through the blocks in `order`. out: (R, H)
  // for ALL; (B, H) for FIRST and MEAN.
  void encode(const Place& place, const Shared& shared, const Own& own,
              long first, long last, const int64_t* offsets,
              const int32_t* ids, const int32_t* segments, long layers,
              const int32_t* order, Rows which, float* out) const {
    const long begin = offsets[first], rows = offsets[last] - begin;
    const long ldx = aligned(s_.H);
    clear_rest(shared.context, place.first(rows), place.last(rows));
    embed(place, shared, own, first, last, offsets, ids, segments);
    for (long k = 0; k < layers; k++)
      layer(blocks_[order[k]], place, shared, own, first, last, offsets);
    if (which != ALL) {
      for (long b = first + place.first(last - first);
           b < first + place.last(last - first); b++) {
        float* x = own.x + (offsets[b] - begin) * ldx;
        if (which == MEAN) average(x, offsets[b + 1] - offsets[b]);
        put(x, out + b * s_.H);
      }
      return;
    }
    for (long r = place.first(rows); r < place.last(rows); r++)
      put(own.x + r * ldx, out + (begin + r) * s_.H);
  }

 private:
  std::vector<Norm*> norms() {
    std::vector<Norm*> all;
    for (Block& b : blocks_) {
      all.push_back(&b.after_attention);
      all.push_back(&b.after_network);
    }
    all.push_back(&embedding_norm_);
    return all;
  }

  long widest_x() const { return aligned(std::max(s_.H, s_.E)); }
  long widest() const { return aligned(std::max({s_.H, s_.F, s_.E})); }

  // Write a row. NaN has many bit patterns, and instruction sets produce
  // different ones, so all become the same.
  void put(const float* x, float* to) const {
    for (long j = 0; j < s_.H; j += VL) {
      const vf v = load(x + j);
      store(to + j, pick(v == v, v, splat(NAN)), s_.H - j);
    }
  }

  // Replace the first of T rows by the mean of all, added from first to last.
  void average(float* x, long T) const {
    const long ld = aligned(s_.H);
    for (long j = 0; j < s_.H; j += VL) {
      vf sum = load(x + j);
      for (long r = 1; r < T; r++) sum = sum + load(x + r * ld + j);
      store(x + j, sum / (float)T);
    }
  }

  void quantize_rows(const float* x, long ld, long rows, long K,
                     const Own& own) const {
    for (long r = 0; r < rows; r++)
      own.scale[r] = quantize(x + r * ld, K, own.numbers + r * aligned(K));
  }

  void multiply(const Dense& dense, const Place& place, const Own& own,
                long from, long rows, long K, Act act, float* y,
                long ldy) const {
    dense(own.numbers + from * aligned(K), aligned(K), own.scale + from,
          rows, place.first(dense.panels()), place.last(dense.panels()), act,
          y, ldy);
  }

  // own.x = the sums of embeddings, normalized, and projected from E to H.
  void embed(const Place& place, const Shared& shared, const Own& own,
             long first, long last, const int64_t* offsets,
             const int32_t* ids, const int32_t* segments) const {
    const long E = s_.E, ld = aligned(E), begin = offsets[first];
    const long rows = offsets[last] - begin;
    for (long b = first; b < last; b++)
      for (long i = offsets[b]; i < offsets[b + 1]; i++) {
        const int8_t* word = table_.words + ids[i] * E;
        const float scale = table_.scales[ids[i]];
        const float* at = table_.positions + (i - offsets[b]) * E;
        const float* kind =
            s_.segments ? table_.segments + segments[i] * E : at;
        float* x = own.x + (i - begin) * ld;
        for (long j = 0; j < ceil_div(E, LANES) * LANES; j += VL) {
          const long n = E - j;
          if (n <= 0) {
            store(x + j, vf{});
            continue;
          }
          vf sum = numbers_of(word + j, n) * scale * table_.factor;
          if (s_.segments) sum = sum + load(kind + j, n);
          store(x + j, sum + load(at + j, n));
        }
        if (embedding_norm_.gamma) embedding_norm_(x, E, x);
      }
    if (!projection_.outputs()) return;
    quantize_rows(own.x, ld, rows, E, own);
    multiply(projection_, place, own, 0, rows, E, NONE, shared.y,
             aligned(s_.H));
    place.team.meet();
    std::copy(shared.y, shared.y + rows * aligned(s_.H), own.x);
    clear_rest(own.x, 0, rows);
    place.team.meet();
  }

  void layer(const Block& block, const Place& place, const Shared& shared,
             const Own& own, long first, long last,
             const int64_t* offsets) const {
    const long H = s_.H, F = s_.F, ldx = aligned(H), ldq = aligned(3 * H);
    const long begin = offsets[first], rows = offsets[last] - begin;
    quantize_rows(own.x, ldx, rows, H, own);
    multiply(block.qkv, place, own, 0, rows, H, NONE, shared.qkv, ldq);
    place.team.meet();
    const long jobs = (last - first) * s_.heads;
    for (long i = place.first(jobs); i < place.last(jobs); i++) {
      const long b = first + i / s_.heads, head = i % s_.heads;
      const long row = offsets[b] - begin;
      attend(shared.qkv + row * ldq + head * D_, ldq,
             offsets[b + 1] - offsets[b],
             shared.context + row * ldx + head * D_, ldx, own);
    }
    place.team.meet();
    quantize_rows(shared.context, ldx, rows, H, own);
    multiply(block.out, place, own, 0, rows, H, NONE, shared.y, ldx);
    place.team.meet();
    for (long from = 0; from < rows; from += CUT) {
      const long some = std::min(CUT, rows - from);
      float* x = own.x + from * ldx;
      add_norm(x, shared.y + from * ldx, some, block.after_attention);
      quantize_rows(x, ldx, some, H, own);
      multiply(block.in, place, own, 0, some, H, (Act)s_.act, shared.hidden,
               aligned(F));
      place.team.meet();
      quantize_rows(shared.hidden, aligned(F), some, F, own);
      multiply(block.back, place, own, 0, some, F, NONE,
               shared.y + from * ldx, ldx);
      place.team.meet();
      add_norm(x, shared.y + from * ldx, some, block.after_network);
    }
    // No team.meet() here: the next layer first writes shared.qkv, which no
    // thread reads any more.
  }

  // Zeros after the H numbers of each row, as far as vectors reach.
  void clear_rest(float* x, long first, long last) const {
    const long ld = aligned(s_.H);
    for (long r = first; s_.H < ld && r < last; r++)
      std::fill(x + r * ld + s_.H, x + (r + 1) * ld, 0.f);
  }

  void add_norm(float* x, const float* y, long rows, const Norm& norm) const {
    const long ld = aligned(s_.H);
    for (long r = 0; r < rows; r++, x += ld, y += ld) {
      for (long j = 0; j < ceil_div(s_.H, LANES) * LANES; j += VL)
        store(x + j, first_lanes_of(load(x + j) + load(y + j), s_.H - j));
      norm(x, s_.H, x);
    }
  }

  // Attention of one head in one sequence. q (T, D): the queries; the keys are
  // H numbers further, the values 2H. Scores have a lane for each query. So
  // sums over keys run from the first to the last, for any width of a vector.
  void attend(const float* q, long ld, long T, float* to, long ldt,
              const Own& own) const {
    const float *k = q + s_.H, *v = k + s_.H;
    for (long i = 0; i < T; i += LANES) {
      const long some = std::min<long>(LANES, T - i);
      turn(q + i * ld, ld, some, own.q);
      const Lanes most = score(own.q, k, ld, T, own.scores);
      Lanes total;
      for (long j = 0; j < T; j++)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) {
          float* at = own.scores + j * LANES + p * VL;
          const vf e = exponential(load(at) - most.part[p]);
          total.part[p] += e;
          store(at, e);
        }
      float inverse[LANES];
      for (int p = 0; p < PARTS; p++)
        store(inverse + p * VL, 1.f / total.part[p]);
      weigh(own.scores, v, ld, T, some, inverse, to + i * ldt, ldt);
    }
  }

  // to (D, LANES) = the transpose of x, which has `rows` rows, at most LANES.
  // Zeros replace missing rows.
  void turn(const float* x, long ld, long rows, float* to) const {
    static const float nothing[LANES] = {};
    for (int p = 0; p < PARTS; p++)
      for (long d = 0; d < D_; d += VL) {
        const uint32_t* row[VL];
        for (int r = 0; r < VL; r++)
          row[r] = (const uint32_t*)(p * VL + r < rows
                                         ? x + (p * VL + r) * ld + d
                                         : nothing);
        transpose(row, (uint32_t*)(to + d * LANES + p * VL), LANES);
      }
  }

  // Compute scores (T, LANES) for transposed queries q (D, LANES). Returns the
  // largest score of each query.
  Lanes score(const float* q, const float* k, long ld, long T,
              float* scores) const {
    constexpr int KEYS = VL == 16 ? 8 : VL == 8 ? 4 : 2;
    Lanes most;
    for (vf& part : most.part) part = splat(-INFINITY);
    for (long j = 0; j < T; j += KEYS) {
      const float* key[KEYS];
      for (int n = 0; n < KEYS; n++) key[n] = k + std::min(j + n, T - 1) * ld;
      vf sums[KEYS][PARTS] = {};
      for (long d = 0; d < D_; d++)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) {
          const vf x = load(q + d * LANES + p * VL);
#pragma GCC unroll 8
          for (int n = 0; n < KEYS; n++)
            sums[n][p] = sums[n][p] + splat(key[n][d]) * x;
        }
      const long some = std::min<long>(KEYS, T - j);
#pragma GCC unroll 8
      for (int n = 0; n < KEYS; n++)
        if (n < some)
#pragma GCC unroll 4
          for (int p = 0; p < PARTS; p++) {
            store(scores + (j + n) * LANES + p * VL, sums[n][p]);
            most.part[p] = larger(sums[n][p], most.part[p]);
          }
    }
    return most;
  }

  // to (some, D) = inverse * (weightsᵀ v), for weights (T, LANES), v (T, D)
  // and a factor `inverse` of each query.
  void weigh(const float* weights, const float* v, long ld, long T,
             long some, const float* inverse, float* to, long ldt) const {
    constexpr int QUERIES = VL == 16 ? 8 : 4, WIDE = 2;
    for (long i = 0; i < some; i += QUERIES)
      for (long d = 0; d < D_; d += WIDE * VL) {
        vf sums[QUERIES][WIDE] = {};
        for (long j = 0; j < T; j++) {
          vf x[WIDE];
#pragma GCC unroll 2
          for (int w = 0; w < WIDE; w++)
            x[w] = load(v + j * ld + d + w * VL);
#pragma GCC unroll 8
          for (int n = 0; n < QUERIES; n++)
#pragma GCC unroll 2
            for (int w = 0; w < WIDE; w++)
              sums[n][w] =
                  sums[n][w] + splat(weights[j * LANES + i + n]) * x[w];
        }
#pragma GCC unroll 8
        for (int n = 0; n < QUERIES; n++)
          if (i + n < some)
#pragma GCC unroll 2
            for (int w = 0; w < WIDE; w++)
              if (D_ - d > w * VL)
                store(to + (i + n) * ldt + d + w * VL,
                      inverse[i + n] * sums[n][w], D_ - d - w * VL);
      }
  }

  const Sizes s_;
  const long D_;
  const Tables table_;
  std::vector<Block> blocks_;
  Norm embedding_norm_;
  Dense projection_;
};

// True for the thread that called fork, in the child process. Only this thread
// is left, and libgomp would wait for the others forever.
thread_local bool is_after_fork = false;
const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { is_after_fork = true; });

// The number of multiplications from which several threads are faster, half a
// millisecond of one thread. The other threads sleep between calls. They wake
// on the processor of the calling thread, and leave it only after some calls.
constexpr double WORTH = 5e7 * GROUP;

int threads_for(double products) {
  return products < WORTH || is_after_fork
             ? 1
             : std::max(1, omp_get_max_threads());
}

// Scratch memory for a thread of the teams that the calling thread leads, kept
// for its next call.
Scratch& memory_of(int thread) {
  static thread_local std::deque<Scratch> all;
  while ((int)all.size() <= thread) all.emplace_back();
  return all[thread];
}

// The bounds of chunks of sequences, from 0 to B. A chunk has at most `rows`
// rows, or one sequence.
std::vector<long> chunks(long B, const int64_t* offsets, long rows) {
  std::vector<long> ends{0};
  for (long b = 0; b < B; b++)
    if (b + 1 == B || offsets[b + 2] - offsets[ends.back()] > rows)
      ends.push_back(b + 1);
  return ends;
}

struct Call {
  const Encoder& encoder;
  long B;
  const int64_t* offsets;
  const int32_t *ids, *segments;
  long layers;
  const int32_t* order;
  Rows which;
  float* out;

  void operator()(const Place& place, const Shared& shared, const Own& own,
                  long first, long last) const {
    encoder.encode(place, shared, own, first, last, offsets, ids, segments,
                   layers, order, which, out);
  }

  void run(double products) const {
    const long rows = offsets[B];
    const int threads = threads_for(products * rows);
    long each = CHUNK, longest = 0;
    for (long b = 0; b < B; b++)
      longest = std::max(longest, (long)(offsets[b + 1] - offsets[b]));
    const bool together = threads > 1 && rows <= CHUNK * threads / 2;
    if (together)
      each = rows;
    else    // each thread gets the same number of chunks of similar sizes
      each = std::max(
          longest, ceil_div(rows, threads * ceil_div(rows, threads * CHUNK)));
    const std::vector<long> ends = chunks(B, offsets, each);
    const long count = ends.size() - 1;
    long most = 0;
    for (long c = 0; c < count; c++)
      most = std::max(most, (long)(offsets[ends[c + 1]] - offsets[ends[c]]));
    const size_t own = encoder.own_bytes(most, longest);
    const size_t shared = encoder.shared_bytes(most);
    std::vector<Scratch*> memory(threads);
    for (int t = 0; t < threads; t++) {
      memory[t] = &memory_of(t);
      memory[t]->reset(own + shared);
    }
    if (threads == 1) {
      Team alone(1);
      Rounding here;
      const Shared shared = encoder.shared(*memory[0], most);
      const Own own = encoder.own(*memory[0], most, longest);
      for (long c = 0; c < count; c++)
        (*this)({alone, 0}, shared, own, ends[c], ends[c + 1]);
      return;
    }
    std::atomic<long> next{0};
    std::unique_ptr<Team> team;
    Shared whole;
#pragma omp parallel num_threads(threads)
    {
      const int me = omp_get_thread_num();
      if (together) {
#pragma omp single
        {
          team.reset(new Team(omp_get_num_threads()));
          whole = encoder.shared(*memory[0], most);
        }
        Rounding here;
        const Own own = encoder.own(*memory[me], most, longest);
        for (long c = 0; c < count; c++) {
          (*this)({*team, me}, whole, own, ends[c], ends[c + 1]);
          team->meet();
        }
      } else {
        Team alone(1);
        const Shared shared = encoder.shared(*memory[me], most);
        const Own own = encoder.own(*memory[me], most, longest);
        Rounding here;
        for (long c; (c = next.fetch_add(1)) < count;)
          (*this)({alone, 0}, shared, own, ends[c], ends[c + 1]);
      }
    }
  }
};

}  // namespace
}  // namespace int8
}  // namespace d2lbert

using namespace d2lbert;
using namespace d2lbert::int8;

extern "C" {

// The instructions that multiply, in words.
const char* int8_product() { return PRODUCT; }

// Quantize w (N, K) to whole numbers q (N, K), with a scale (N,) for each row.
void int8_quantize(const float* w, int64_t N, int64_t K, int8_t* q,
                   float* scale) {
  Rounding here;
  for (int64_t n = 0; n < N; n++, w += K, q += K) {
    int32_t most = 0;
    for (int64_t k = 0; k < K; k++) {
      int32_t word;
      std::memcpy(&word, w + k, 4);
      most = std::max(most, word & INT32_MAX);
    }
    const Scale s(most);
    scale[n] = s.from;
    for (int64_t k = 0; k < K; k++)
      q[k] = s.to ? (int8_t)std::nearbyint(w[k] * s.to) : 0;
  }
}

// y (R, N) = act(x wᵀ + bias), for tests of the product alone.
int int8_apply(int64_t R, int64_t N, int64_t K, const float* x,
               const int8_t* q, const float* scale, const float* bias,
               int act, float* y) try {
  Rounding here;
  const Dense dense(N, K, q, scale, bias);
  const Aligned<float> rows(aligned(K)), to(R * aligned(N));
  const Aligned<Number> numbers(R * aligned(K));
  std::vector<float> scales(R);
  for (int64_t r = 0; r < R; r++) {
    std::copy(x + r * K, x + (r + 1) * K, (float*)rows);
    scales[r] = quantize(rows, K, numbers + r * aligned(K));
  }
  dense(numbers, aligned(K), scales.data(), R, 0, dense.panels(), (Act)act,
        to, aligned(N));
  for (int64_t r = 0; r < R; r++)
    std::copy(to + r * aligned(N), to + r * aligned(N) + N, y + r * N);
  return kDone;
} catch (...) {
  return failure();
}

// sizes: the fields of `Sizes`. words, scales, factor, segments and positions:
// the fields of `Tables`. These arrays must outlive the encoder.
int int8_new(const int64_t* sizes, double epsilon, const int8_t* words,
             const float* scales, double factor, const float* segments,
             const float* positions, void** encoder) try {
  Sizes s;
  std::memcpy(&s, sizes, sizeof s);
  require(s.heads > 0 && s.H % s.heads == 0 && s.act >= 0 && s.act < 4);
  *encoder = new Encoder(
      s, (float)epsilon,
      {words, scales, segments, positions, (float)factor});
  return kDone;
} catch (...) {
  return failure();
}

// which: for block b, 4b is the layer of queries, keys and values, 4b + 1 the
// output of attention, 4b + 2 and 4b + 3 the feed-forward network. 4 times the
// number of blocks is the layer from E to H.
int int8_put_dense(void* encoder, int64_t which, int64_t N, int64_t K,
                   const int8_t* q, const float* scale,
                   const float* bias) try {
  ((Encoder*)encoder)->put_dense(which, N, K, q, scale, bias);
  return kDone;
} catch (...) {
  return failure();
}

// which: for block b, 2b is the LayerNorm after attention, 2b + 1 after the
// feed-forward network. 2 times the number of blocks is for the embeddings.
int int8_put_norm(void* encoder, int64_t which, const float* gamma,
                  const float* beta) try {
  ((Encoder*)encoder)->put_norm(which, gamma, beta);
  return kDone;
} catch (...) {
  return failure();
}

// offsets (B + 1,); ids and segments (R,). order (layers,): the blocks to
// apply. products: the number of multiplications for a row. which: a `Rows`.
int int8_encode(const void* encoder, int64_t B, const int64_t* offsets,
                const int32_t* ids, const int32_t* segments, int64_t layers,
                const int32_t* order, double products, int which,
                float* out) try {
  const Encoder& e = *(const Encoder*)encoder;
  e.check(B, offsets, ids, segments, layers, order);
  require(which >= ALL && which <= MEAN);
  Call{e, B, offsets, ids, segments, layers, order, (Rows)which, out}.run(
      products);
  return kDone;
} catch (...) {
  return failure();
}

void int8_free(void* encoder) { delete (Encoder*)encoder; }

}  // extern "C"
