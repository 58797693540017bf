// d2lbert_dense: act(X W^T + b). The backward pass includes the gradient of the
// activation. W and b may consist of several arrays, whose outputs are joined
// side by side; one product computes all of them.
#include <time.h>

#include "act.h"

namespace d2lbert {
namespace {

// R rows, divided into blocks of at most `most` rows, a multiple of MR. If each
// thread has few blocks, their sizes differ by one tile at most. Otherwise the
// other threads would wait for the thread with the largest share.
class Blocks {
 public:
  Blocks(long R, int threads, long most)
      : R_(R), most_(most), count_(ceil_div(R, most)),
        even_(count_ < 16 * threads) {
    if (even_) count_ = ceil_div(R, threads * most) * threads;
  }
  long count() const { return count_; }
  // Block i: rows [first, first + m).
  void at(long i, long* first, long* m) const {
    long last = (i + 1) * most_;
    *first = i * most_;
    if (even_) {
      share(ceil_div(R_, MR), (int)count_, (int)i, first, &last);
      *first *= MR;
      last *= MR;
    }
    *m = std::min(last, R_) - *first;
  }

 private:
  long R_, most_, count_;
  bool even_;
};

// Prefetch the rows of a panel that will be written.
inline void fetch_rows(const float* c, long ld, long rows) {
  for (long r = 0; r < rows; r++)
    for (long j = 0; j < NR; j += 16)
      __builtin_prefetch(c + r * ld + j, 1, 2);
}

// The number of words of a row that are summed at a time. Long rows are cut
// into slices, so that the slices of a block of rows stay in cache during the
// passes over the panels of W.
long slice(long words) { return words > 2048 ? 1024 : std::max(1L, words); }

// Room in words for the slices of m rows, which `near_rows` may copy.
template <class E>
long slice_room(long m, long words) {
  return m * (slice(words) + FAR_APART);
}

// The number of rows of a block, whose slices stay in cache. Each block reads
// all of W (N x K). If W has more than 12 MB, it comes from memory, not from
// the last-level cache. Then blocks are larger on processors with AVX-512,
// whose second-level cache has a megabyte.
template <class E>
long long_block(long R, int threads, long words, long N) {
  const double bytes = 4.0 * slice(words) * E::EACH;
  return block_rows(R, threads, 4, bytes,
                    VL == 16 && 4e-6 * words * E::EACH * N > 12 ? 450e3
                                                               : 200e3);
}

// Panels [p0, p1) of to (m x N) = bias + x b, for x (m x K) and packed b, one
// stripe of rows after the other. `room` holds a slice. Calls
// done(offset in `to`, rows, columns) for each finished part.
template <class E, class F>
inline void long_rows(const float* x, long m, long K, const word<E>* b,
                      long p0, long p1, const float* bias, float* to, long N,
                      word<E>* room, Ahead* ahead, F done) {
  const long words = E::words(K), step = slice(words);
  for (long k = 0; !k || k < words; k += step) {
    const long now = std::min(step, words - k), from = k * E::EACH;
    long lda = K;
    const word<E>* a = near_rows(x + from, lda, m,
                                 std::min(now * E::EACH, K - from), room);
    for (long p = p0; p < p1; p++)
      for (long r = 0; r < m; r += STRIPE) {
        const long n = std::min<long>(NR, N - p * NR);
        const long rows = std::min(STRIPE, m - r), at = r * N + p * NR;
        if (ahead) ahead->step();
        // Prefetch only the next output stripe: a whole block of wide rows
        // would evict the panels from the cache.
        if (r + STRIPE < m)
          fetch_rows(to + at + STRIPE * N, N,
                     std::min(STRIPE, m - r - STRIPE));
        else if (p + 1 < p1)
          fetch_rows(to + (p + 1) * NR, N, std::min(STRIPE, m));
        panel<E>(false, rows, n, now, a + r * lda, lda,
                 b + p * NR * words + k * NR, to + at, N,
                 k ? ADD : bias ? BIAS : ZERO, bias ? bias + p * NR : bias);
        if (k + step >= words) done(at, rows, n);
      }
  }
}

template <class E>
void forward(long R, long K, long N, const float* X, const float* W,
             const float* b, Act act, float* Y, float* Z) {
  const int threads = team(2.0 * R * K * N);
  const long words = E::words(K), panels = ceil_div(N, NR);
  const long block = long_block<E>(R, threads, words, N);
  const Blocks all(R, threads, block);
  const long blocks = all.count();
  // With few rows, threads share the columns, too.
  const long groups = blocks >= 2 * threads ? 1 : std::min<long>(panels, 8);
  Scratch& shared = team_scratch();
  shared.reset((padded(N) * words + padded(N)) * 4 + 128);
  word<E>* packed = shared.take<word<E>>(padded(N) * words);
  float* bias = shared.take<float>(padded(N));
  std::fill(bias, bias + padded(N), 0.f);
  if (b) std::copy(b, b + N, bias);
  Preparation packing;
  Rooms& rooms = team_rooms(threads, slice_room<E>(block, words) * 4);
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = rooms.mine();
    word<E>* rows = own.take<word<E>>(slice_room<E>(block, words));
    packing.all(panels, [&](long p) {
      pack_panel_t<E>(W + p * NR * K, K, K, std::min<long>(NR, N - p * NR),
                      packed + p * NR * words);
    });
    // A core may be busy for a while, for example with Python, which prepares
    // the next operators. So the schedule is dynamic.
#pragma omp for schedule(dynamic, at_once(blocks, threads)) collapse(2) nowait
    for (long i = 0; i < blocks; i++)
      for (long g = 0; g < groups; g++) {
        long first, m, p0, p1;
        all.at(i, &first, &m);
        share(panels, groups, g, &p0, &p1);
        Ahead ahead(ceil_div(m, STRIPE) * (p1 - p0));
        if (groups == 1 && i + 1 < blocks && slice(words) == words) {
          const long next = std::min(m, R - first - m);
          ahead.fetch(X + (first + m) * K, next * K * 4);
        }
        float *const y = Y + first * N, *const z = Z ? Z + first * N : y;
        long_rows<E>(X + first * K, m, K, packed, p0, p1, bias, z, N, rows,
                     &ahead, [&](long at, long rows, long n) {
          for (long r = 0; act != NONE && r < rows; r++, at += N)
            for (long j = 0; j < n; j += VL)
              store(y + at + j, apply(act, load(z + at + j, n - j)), n - j);
        });
      }
  }
}

// Compute dZ, the gradient of the activation's argument, for m rows. Add its
// sum over these rows to db, unless that is null.
void activation_gradient(Act act, long m, long N, const float* dY,
                         const float* saved, float* dZ, float* db) {
  if (act != NONE)
    for (long i = 0; i < m * N; i += VL)
      store(dZ + i, gradient(act, load(dY + i, m * N - i),
                          load(saved + i, m * N - i)), m * N - i);
  if (db) add_rows_to(db, act == NONE ? dY : dZ, N, m, N);
}

// For weights so small that each thread has a dW of its own in cache. One pass
// over the rows gives dX, dW and db.
template <class E>
void backward_by_rows(long R, long K, long N, const float* X, const float* W,
                      Act act, const float* dY, const float* saved, float* dX,
                      float* dW, float* db) {
  const int threads = team(4.0 * R * K * N);
  const long block = block_rows(R, threads, 4, 4.0 * (K + N));
  const long words = E::words(N);
  const long half = E::words(block);
  Scratch& shared = team_scratch();
  shared.reset(4 * padded(K) * words + 64 + Sums::bytes(N * K, threads) +
               Sums::bytes(N, threads));
  word<E>* packed = shared.take<word<E>>(padded(K) * words);
  const Sums weights(shared, N * K, threads), biases(shared, N, threads);
  Preparation packing;
  Rooms& rooms = team_rooms(
      threads, (block * N + padded(K) * half + block * words + half * N) * 4
      + 512);
#pragma omp parallel num_threads(threads)
  {
    float *const own_W = weights.cleared(), *const own_b = biases.cleared();
    Scratch& own = rooms.mine();
    float* dZ = own.take<float>(block * N);
    word<E>* x = own.take<word<E>>(padded(K) * half);
    word<E>* as_is = own.take<word<E>>(block * words);
    word<E>* turned = own.take<word<E>>(half * N);
    packing.all(dX ? ceil_div(K, NR) : 0, [&](long p) {
      pack_panel<E>(W + p * NR, K, N, std::min<long>(NR, K - p * NR),
                    packed + p * NR * words);
    });
    // Threads share tiles of rows: few blocks could not be shared evenly.
    long begin, end;
    share(ceil_div(R, MR), omp_get_num_threads(), omp_get_thread_num(),
          &begin, &end);
    end = std::min(end * MR, R);
    for (long first = begin * MR; first < end; first += block) {
      const long m = std::min(block, end - first);
      const float* dy = dY + first * N;
      activation_gradient(act, m, N, dy, saved + first * N, dZ, own_b);
      const float* dz = act == NONE ? dy : dZ;
      if (dX) {
        Ahead ahead(stripes(m, K));
        if (dW) ahead.fetch(X + first * K, m * K * 4);
        times<E>(dz, m, N, as_is, packed, K, dX + first * K, K, ZERO, &ahead);
      }
      if (dW) {
        Ahead ahead(stripes(N, K));
        const long next = std::min(block, end - first - m);
        ahead.fetch(dy + m * N, next * N * 4);
        if (act != NONE) ahead.fetch(saved + (first + m) * N, next * N * 4);
        if (dX) ahead.fetch(dX + (first + m) * K, next * K * 4);
        add_transposed<E>(dz, N, X + first * K, K, m, turned, x, own_W,
                          &ahead);
      }
    }
#pragma omp barrier
    weights.add_up(dW);
    biases.add_up(db);
  }
}

// A team divides a product of `tiles` tiles of rows by `panels` panels, with a
// part for each thread. Return the number of parts along the rows for which a
// part reads the least of both operands.
int parts_down(long tiles, long panels, int team_size) {
  int best = 1;
  double least = INFINITY;
  for (int down = 1; down <= team_size; down++) {
    if (team_size % down) continue;
    const int across = team_size / down;
    const double read = (double)MR * ceil_div(tiles, down) +
                        (double)NR * ceil_div(panels, across);
    if (read < least) {
      least = read;
      best = down;
    }
  }
  return best;
}

// The columns of dZ, which are rows of dW, at a time. Their tiles are held
// while each panel of X, read from the last-level cache, is multiplied by them.
constexpr long HIGH = 8 * MR;

// Rows of X summed at a time, for k columns of X. More rows save additions to
// dW, but take more cache. With AVX-512, in the sizes of BERT base: 1,024 rows
// of 768 columns are 3 MB, 512 rows of 3,072 columns are 6 MB.
inline long rows_summed(long k) {
  return (k > 1536 ? 1 : 2) * (VL == 16 ? 512 : 256);
}

// Words that a thread needs for `most` rows and k columns of X.
template <class E>
long gradient_room(long most, long k) {
  return padded(k) * E::words(most) + HIGH / MR * tile_size<E>(most);
}

// Words for any part of K columns that a thread may get. Fewer columns may need
// more words, because `rows_summed` then doubles.
template <class E>
long most_gradient_room(long R, long K) {
  const long few = std::min(K, 1536L);
  return std::max(gradient_room<E>(std::min(rows_summed(K), R), K),
                  gradient_room<E>(std::min(rows_summed(few), R), few));
}

// Compute this thread's part of dW = dZ^T X, and of db.
template <class E>
void weight_gradient(long R, long K, long N, const float* X, const float* dz,
                     float* dW, float* db, Scratch& own) {
  const int team_size = omp_get_num_threads(), t = omp_get_thread_num();
  const long tiles = ceil_div(N, MR), panels = ceil_div(K, NR);
  const int down = parts_down(tiles, panels, team_size);
  const int across = team_size / down;
  long c0, c1, p0, p1;
  share(tiles, down, t / across, &c0, &c1);
  share(panels, across, t % across, &p0, &p1);
  c0 *= MR;
  c1 = std::min(c1 * MR, N);
  const long k0 = p0 * NR, k1 = std::min(p1 * NR, K);
  const long deep = rows_summed(k1 - k0);
  if (t % across) db = nullptr;
  if (db) std::fill(db + c0, db + c1, 0.f);
  if (!R && dW)
    for (long c = c0; c < c1; c++)
      std::memset(dW + c * K + k0, 0, 4 * (k1 - k0));
  const long most = std::min(deep, R);
  own.clear();
  word<E>* x = own.take<word<E>>(padded(k1 - k0) * E::words(most));
  word<E>* turned = own.take<word<E>>(HIGH / MR * tile_size<E>(most));
  for (long first = 0; first < R; first += deep) {
    const long m = std::min(deep, R - first), words = E::words(m);
    if (dW) pack<E>(X + first * K + k0, K, m, k1 - k0, x);
    for (long c = c0; c < c1; c += HIGH) {
      const long n = std::min(HIGH, c1 - c);
      const float* from = dz + first * N + c;
      if (db) add_rows_to(db + c, from, N, m, n);
      if (!dW) continue;
      pack_columns<E>(from, N, m, n, turned);
      for (long p = p0; p < p1; p++) {
        const word<E>* panel_x = x + (p - p0) * NR * words;
        float* to = dW + c * K + p * NR;
        for (long r = 0; r < n; r += MR) {
          if (p + 1 < p1)
            fetch_rows(to + r * K + NR, K, std::min<long>(MR, n - r));
          panel<E>(true, std::min<long>(MR, n - r),
                   std::min<long>(NR, K - p * NR), words,
                   turned + r / MR * tile_size<E>(m), TILE_LD, panel_x,
                   to + r * K, K, first ? ADD : ZERO);
        }
      }
    }
  }
}

// For large weights. One pass over the rows gives dX. In a second pass each
// thread computes a part of dW and db.
template <class E>
void backward_by_columns(long R, long K, long N, const float* X,
                         const float* W, Act act, const float* dY,
                         const float* saved, float* dX, float* dW,
                         float* db) {
  const int threads = team(4.0 * R * K * N);
  const long words = E::words(N);
  const long block = long_block<E>(R, threads, words, K);
  const Blocks all(R, threads, block);
  Scratch& shared = team_scratch();
  shared.reset((padded(K) * words + (act == NONE ? 0 : R * N)) * 4 + 256);
  word<E>* packed = shared.take<word<E>>(padded(K) * words);
  float* dZ = act == NONE ? nullptr : shared.take<float>(R * N);
  const float* dz = dZ ? dZ : dY;
  Preparation packing;
  Rooms& rooms = team_rooms(
      threads, 4 * std::max(slice_room<E>(block, words),
                            most_gradient_room<E>(R, K)) + 128);
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = rooms.mine();
    word<E>* rows = own.take<word<E>>(slice_room<E>(block, words));
    packing.all(dX ? ceil_div(K, WIDE) : 0, [&](long i) {
      pack<E>(W + i * WIDE, K, N, std::min(WIDE, K - i * WIDE),
              packed + i * WIDE * words);
    });
#pragma omp for schedule(static)
    for (long i = 0; i < all.count(); i++) {
      long first, m;
      all.at(i, &first, &m);
      activation_gradient(act, m, N, dY + first * N, saved + first * N,
                          dZ ? dZ + first * N : nullptr, nullptr);
      if (!dX) continue;
      long_rows<E>(dz + first * N, m, N, packed, 0, ceil_div(K, NR), nullptr,
                   dX + first * K, K, rows, nullptr,
                   [](long, long, long) {});
    }
    weight_gradient<E>(R, K, N, X, dz, dW, db, own);
  }
}

template <class E>
void backward(long R, long K, long N, const float* X, const float* W,
              Act act, const float* dY, const float* saved, float* dX,
              float* dW, float* db) {
  (N * K * 4 <= 1 << 20 ? backward_by_rows<E> : backward_by_columns<E>)(
      R, K, N, X, W, act, dY, saved, dX, dW, db);
}

#if D2LBERT_AMX
#include "amx_dense.h"
#endif

struct Inputs : Numbered {
  const int parts;  // of W, and of b
  const int X, W, b;
  explicit Inputs(const Attrs& attrs)
      : parts((int)number(attrs, "parts", 1)), X(next()), W(several(parts)),
        b(several(number(attrs, "bias", 1) != 0 ? parts : 0)) {}
  bool has_bias() const { return b >= 0; }
};

enum { Y, ARGUMENT };  // outputs; ARGUMENT: the argument of the activation

// The number of elements in all parts.
long joined_size(const MXTensor* all, int parts) {
  long count = 0;
  for (int k = 0; k < parts; k++) count += all[k].size();
  return count;
}

// Memory for joined parts, one for each calling thread.
Scratch& joined_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// All parts, copied one after the other; a single part is not copied.
const float* join(MXTensor* all, int parts, Scratch& room) {
  if (parts == 1) return floats(all[0]);
  float* const joined = room.take<float>(joined_size(all, parts));
  float* to = joined;
  for (int k = 0; k < parts; k++)
    to = std::copy_n(floats(all[k]), all[k].size(), to);
  return joined;
}

// Memory for the joined gradients of parts, or null if no part needs one. A
// single part gets its own memory.
float* room_for(MXTensor* all, int parts, Scratch& room) {
  if (parts == 1) return floats(all[0]);
  bool wanted = false;
  for (int k = 0; k < parts; k++) wanted |= !!floats(all[k]);
  return wanted ? room.take<float>(joined_size(all, parts)) : nullptr;
}

// Copy joined gradients to the parts that need them.
void split(const float* joined, MXTensor* all, int parts) {
  if (parts == 1 || !joined) return;
  for (int k = 0; k < parts; joined += all[k++].size())
    if (floats(all[k])) std::copy_n(joined, all[k].size(), floats(all[k]));
}

// The gradient of some activations needs their argument as a second output.
int num_outputs(const Attrs& attrs, Act act) {
  return needs_argument(act) && number(attrs, "grad", 1) != 0 ? 2 : 1;
}

MXReturnValue parse(const Attrs& attrs, int* inputs, int* outputs) {
  Act act;
  if (parse_act(attrs, &act) != MX_SUCCESS) return MX_FAIL;
  *inputs = Inputs(attrs).count();
  *outputs = num_outputs(attrs, act);
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Inputs at(attrs);
  const Shape x = (*in)[at.X];
  Shape y = x;
  if (!x.empty()) y.back() = 0;
  for (int k = 0; k < at.parts; k++) {
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
  if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
  const auto run =
      pick(bf16, R ? std::min(K, N) : 0, D2LBERT_PRODUCTS(forward));
  Scratch& room = joined_scratch();
  if (at.parts > 1) room.reset(4 * N * (K + 1) + 128);
  const float* W = join(&(*in)[at.W], at.parts, room);
  const float* b =
      at.has_bias() ? join(&(*in)[at.b], at.parts, room) : nullptr;
  run(R, K, N, floats((*in)[at.X]), W, b, act, floats((*out)[Y]),
      out->size() > ARGUMENT ? floats((*out)[ARGUMENT]) : nullptr);
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  Act act;
  parse_act(attrs, &act);
  const int outputs = num_outputs(attrs, act);
  if (needs_argument(act) && outputs == 1)
    return fail("dense with grad=0 keeps nothing for gradients");
  const Inputs at(attrs);
  const Saved saved(*in, outputs);
  MXTensor& dY = saved.gradients[Y];
  const long N = dY.shape.back(), K = saved.inputs[at.W].shape[1];
  const long R = N ? dY.size() / N : 0;
  const bool bf16 = wants_bf16(attrs);
  if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
  const auto run =
      pick(bf16, R ? std::min(K, N) : 0, D2LBERT_PRODUCTS(backward));
  Scratch& room = joined_scratch();
  if (at.parts > 1) room.reset(8 * N * (K + 1) + 256);
  const float* W = join(&saved.inputs[at.W], at.parts, room);
  // MXNet passes memory for gradients that are not needed, too. With frozen=1
  // the caller promises that W needs none.
  const bool frozen = number(attrs, "frozen", 0) != 0;
  float* dW = frozen ? nullptr : room_for(&(*out)[at.W], at.parts, room);
  float* db =
      at.has_bias() ? room_for(&(*out)[at.b], at.parts, room) : nullptr;
  run(R, K, N, floats(saved.inputs[at.X]), W, act, floats(dY),
      floats(saved.outputs[outputs - 1]), floats((*out)[at.X]), dW, db);
  split(dW, &(*out)[at.W], at.parts);
  if (at.has_bias()) split(db, &(*out)[at.b], at.parts);
  return MX_SUCCESS;
}

}  // namespace

// The CPU seconds of one thread for X W^T by the kernel `product`, the least of
// `times` runs. Infinite if tiles are denied.
double trial(Product product, long R, long K, long N, const float* X,
             const float* W, float* Y, int times) {
  decltype(&forward<Fp32>) runs[] = {D2LBERT_PRODUCTS(forward)};
  double least = INFINITY;
  if (product >= TILES && !permitted()) return least;
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  for (int i = 0; i < times; i++) {
    timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    runs[product](R, K, N, X, W, nullptr, NONE, Y, nullptr);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    least = std::min(least, to.tv_sec - from.tv_sec +
                                1e-9 * (to.tv_nsec - from.tv_nsec));
  }
  omp_set_num_threads(threads);
  return least;
}

REGISTER_OP(d2lbert_dense)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<parse>::call)
    .setInferType(Caught<all_floats>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert

extern "C" double d2lbert_trial(int product, long R, long K, long N,
                                const float* X, const float* W, float* Y,
                                int times) try {
  return d2lbert::trial((d2lbert::Product)product, R, K, N, X, W, Y, times);
} catch (const std::bad_alloc&) {
  return INFINITY;
}
