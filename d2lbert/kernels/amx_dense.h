// d2lbert_dense by AMX tiles. dense.cc includes it, and has functions of the
// same names for vectors.

namespace tiled {

using namespace amx;

// The number of rows in a block that takes `bytes` a row. A block fits in half
// of the second-level cache, and each thread has at least two blocks.
inline long rows_of_block(long rows, int threads, double bytes) {
  const long most = std::max(2L, (long)(600e3 / bytes) / (2 * SIDE));
  const long block = ceil_div(ceil_div(rows, 2 * threads), 2 * SIDE);
  return std::max(1L, std::min({block, most, 8L})) * 2 * SIDE;
}

template <int P>
void forward(long R, long K, long N, const float* X, const float* W,
             const float* b, Act act, float* Y, float* Z) {
  const int threads = team(2.0 * R * K * N);
  const long strips = ceil_div(N, 2 * SIDE), strip = bytes<P>(2 * SIDE, K);
  const long block = rows_of_block(R, threads, 2.0 * P * K);
  const long blocks = ceil_div(R, block);
  // With few rows, threads share the columns, too.
  const long groups = blocks >= 2 * threads ? 1 : std::min(strips, 8L);
  Scratch& shared = team_scratch();
  shared.reset(strips * strip + strips * 2 * SIDE * 4 + 128);
  char* packed = shared.take<char>(strips * strip);
  float* bias = shared.take<float>(strips * 2 * SIDE);
  std::fill(bias, bias + strips * 2 * SIDE, 0.f);
  if (b) std::copy(b, b + N, bias);
  const bool starts = is_start(range_of(bias, N));
  Range weights;
  Rest rest(R);
  Rooms& rooms = team_rooms(threads, bytes<P>(block, K) + block + 128);
#pragma omp parallel num_threads(threads)
  {
    const InUse tiles;
    Scratch& own = rooms.mine();
    char* rows = own.take<char>(bytes<P>(block, K));
    char* marks = own.take<char>(block);
    Range mine;
#pragma omp for schedule(static) nowait
    for (long s = 0; s < strips; s++) {
      const float* from = W + s * 2 * SIDE * K;
      const long n = std::min(2 * SIDE, N - s * 2 * SIDE);
      mine.add(range_of_rows(from, K, n, K));
      along<P, true>(from, K, n, K, packed + s * strip);
    }
#pragma omp critical(d2lbert_range)
    weights.add(mine);
#pragma omp barrier
#pragma omp for schedule(static) collapse(2)
    for (long i = 0; i < blocks; i++)
      for (long g = 0; g < groups; g++) {
        const long first = i * block, m = std::min(block, R - first);
        for (long r = 0; r < m; r++)
          marks[r] = !starts || !fit<P>(range_of(X + (first + r) * K, K),
                                        weights, K);
        if (!g) std::copy(marks, marks + m, rest.marks() + first);
        along<P, false>(X + first * K, K, m, K, rows, marks);
        long s0, s1;
        share(strips, groups, g, &s0, &s1);
        Ahead ahead(ceil_div(m, 2 * SIDE) * (s1 - s0));
        if (groups == 1 && i + 1 < blocks) {
          const long next = std::min(block, R - first - m);
          ahead.fetch(X + (first + m) * K, next * K * 4);
          ahead.fetch((Z ? Z : Y) + (first + m) * N, next * N * 4);
        }
        for (long s = s0; s < s1; s++) {
          const long column = s * 2 * SIDE, at = first * N + column;
          const long n = std::min(2 * SIDE, N - column);
          float* c = (Z ? Z : Y) + at;
          multiply<P>(m, n, K, rows, packed + s * strip, c, N, BIAS,
                      bias + column, &ahead);
          if (act == NONE) continue;
          for (long r = 0; r < m; r++)
            for (long j = 0; j < n; j += VL)
              store(Y + at + r * N + j, apply(act, load(c + r * N + j,
                                                        n - j)), n - j);
        }
      }
  }
  const long n = rest.count();
  if (!n) return;
  const std::vector<float> x = rest.gather(X, K);
  std::vector<float> y(n * N), z(Z ? n * N : 0);
  d2lbert::forward<Fp32>(n, K, N, x.data(), W, b, act, y.data(),
                         Z ? z.data() : nullptr);
  rest.scatter(y, Y, N);
  if (Z) rest.scatter(z, Z, N);
}

// True if tiles can compute the part that a row has in dX and in dW, as far as
// they are wanted.
template <int P>
bool fits(const float* dz, long N, const float* x, long K, long R,
          const Range& weights, bool dX, bool dW) {
  const Range z = range_of(dz, N);
  return (!dX || fit<P>(z, weights, N)) &&
         (!dW || fit<P>(z, range_of(x, K), R));
}

// Pack W (N x K) as the second factor of dX, and extend `range` by its range.
// All threads of a team call it, and it ends with a barrier.
template <int P>
void pack_weights(const float* W, long N, long K, char* to, Range* range) {
  Range mine;
#pragma omp for schedule(static) nowait
  for (long j = 0; j < K; j += SIDE) {
    const long n = std::min(SIDE, K - j);
    mine.add(range_of_columns(W + j, K, N, n));
    across<P, false>(W + j, K, N, n, to + bytes<P>(j, N));
  }
#pragma omp critical(d2lbert_range)
  range->add(mine);
#pragma omp barrier
}

template <int P>
void backward_by_rows(long R, long K, long N, const float* X, const float* W,
                      Act act, const float* dY, const float* saved, float* dX,
                      float* dW, float* db, Rest* rest) {
  const int threads = team(4.0 * R * K * N);
  const long block = rows_of_block(R, threads, (4.0 + 2 * P) * (K + N));
  const long blocks = ceil_div(R, block);
  Scratch& shared = team_scratch();
  shared.reset(bytes<P>(K, N) + 64 + Sums::bytes(N * K, threads) +
               Sums::bytes(N, threads));
  char* packed = shared.take<char>(bytes<P>(K, N));
  const Sums weights(shared, N * K, threads), biases(shared, N, threads);
  Range range;
  Rooms& rooms = team_rooms(
      threads, block * N * 4 + bytes<P>(block, N) + bytes<P>(N, block) +
      bytes<P>(K, block) + 512);
#pragma omp parallel num_threads(threads)
  {
    const InUse tiles;
    float *const own_W = weights.cleared(), *const own_b = biases.cleared();
    Scratch& own = rooms.mine();
    float* dZ = own.take<float>(block * N);
    char* rows = own.take<char>(bytes<P>(block, N));
    char* turned = own.take<char>(bytes<P>(N, block));
    char* x = own.take<char>(bytes<P>(K, block));
    if (dX) pack_weights<P>(W, N, K, packed, &range);
#pragma omp for schedule(static)
    for (long i = 0; i < blocks; i++) {
      const long first = i * block, m = std::min(block, R - first);
      const float* dy = dY + first * N;
      activation_gradient(act, m, N, dy, saved + first * N, dZ, own_b);
      const float* dz = act == NONE ? dy : dZ;
      char* marks = rest->marks() + first;
      for (long r = 0; r < m; r++)
        marks[r] = !fits<P>(dz + r * N, N, X + (first + r) * K, K, R, range,
                            dX, dW);
      if (dX) {
        along<P, false>(dz, N, m, N, rows, marks);
        multiply<P>(m, K, N, rows, packed, dX + first * K, K, ZERO);
      }
      if (dW) {
        across<P, true>(dz, N, m, N, turned, marks);
        across<P, false>(X + first * K, K, m, K, x, marks);
        Ahead ahead(ceil_div(N, 2 * SIDE) * ceil_div(K, 2 * SIDE));
        const long next = std::min(block, R - first - m);
        ahead.fetch(dy + m * N, next * N * 4);
        if (act != NONE) ahead.fetch(saved + (first + m) * N, next * N * 4);
        ahead.fetch(X + (first + m) * K, next * K * 4);
        if (dX) ahead.fetch(dX + (first + m) * K, next * K * 4);
        multiply<P>(N, K, m, turned, x, own_W, K, ADD, nullptr, &ahead);
      }
    }
    weights.add_up(dW);
    biases.add_up(db);
  }
}

template <int P>
void backward_by_columns(long R, long K, long N, const float* X,
                         const float* W, Act act, const float* dY,
                         const float* saved, float* dX, float* dW, float* db,
                         Rest* rest) {
  const int threads = team(4.0 * R * K * N);
  const long block = rows_of_block(R, threads, 2.0 * P * N);
  const long blocks = ceil_div(R, block), deep = P == 1 ? 512 : 256;
  const long columns =
      ceil_div(ceil_div(N, threads), 2 * SIDE) * 2 * SIDE;
  Scratch& shared = team_scratch();
  shared.reset(bytes<P>(K, N) + (act == NONE ? 0 : R * N) * 4 + 128);
  char* packed = shared.take<char>(bytes<P>(K, N));
  float* dZ = act == NONE ? nullptr : shared.take<float>(R * N);
  const float* dz = dZ ? dZ : dY;
  Range range;
  Rooms& rooms = team_rooms(
      threads, bytes<P>(block, N) + bytes<P>(columns, deep) + bytes<P>(K,
      deep) + 256);
#pragma omp parallel num_threads(threads)
  {
    const InUse tiles;
    Scratch& own = rooms.mine();
    char* rows = own.take<char>(bytes<P>(block, N));
    char* turned = own.take<char>(bytes<P>(columns, deep));
    char* x = own.take<char>(bytes<P>(K, deep));
    if (dX) pack_weights<P>(W, N, K, packed, &range);
#pragma omp for schedule(static)
    for (long i = 0; i < blocks; i++) {
      const long first = i * block, m = std::min(block, R - first);
      activation_gradient(act, m, N, dY + first * N, saved + first * N,
                          dZ ? dZ + first * N : nullptr, nullptr);
      char* marks = rest->marks() + first;
      for (long r = first; r < first + m; r++)
        rest->marks()[r] =
            !fits<P>(dz + r * N, N, X + r * K, K, R, range, dX, dW);
      if (!dX) continue;
      along<P, false>(dz + first * N, N, m, N, rows, marks);
      multiply<P>(m, K, N, rows, packed, dX + first * K, K, ZERO);
    }
#pragma omp for schedule(static)
    for (long c = 0; c < N; c += columns) {
      const long n = std::min(columns, N - c);
      for (long first = 0; dW && first < R; first += deep) {
        const long m = std::min(deep, R - first);
        const char* marks = rest->marks() + first;
        across<P, true>(dz + first * N + c, N, m, n, turned, marks);
        across<P, false>(X + first * K, K, m, K, x, marks);
        multiply<P>(n, K, m, turned, x, dW + c * K, K, first ? ADD : ZERO);
      }
      if (!db) continue;
      std::fill(db + c, db + c + n, 0.f);
      add_rows_to(db + c, dz + c, N, R, n);
    }
  }
}

template <int P>
void backward(long R, long K, long N, const float* X, const float* W,
              Act act, const float* dY, const float* saved, float* dX,
              float* dW, float* db) {
  Rest rest(R);
  (N * K * 4 <= 1 << 20 ? backward_by_rows<P> : backward_by_columns<P>)(
      R, K, N, X, W, act, dY, saved, dX, dW, db, &rest);
  const long n = rest.count();
  if (!n) return;
  const std::vector<float> x = rest.gather(X, K), dy = rest.gather(dY, N);
  std::vector<float> kept, dx(dX ? n * K : 0), dw(dW ? N * K : 0);
  if (act != NONE) kept = rest.gather(saved, N);
  d2lbert::backward<Fp32>(n, K, N, x.data(), W, act, dy.data(), kept.data(),
                          dX ? dx.data() : nullptr, dW ? dw.data() : nullptr,
                          nullptr);
  if (dX) rest.scatter(dx, dX, K);
  for (size_t i = 0; i < dw.size(); i++) dW[i] += dw[i];
}

}  // namespace tiled
