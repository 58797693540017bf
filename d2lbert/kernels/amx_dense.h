// The operator d2lbert_dense by AMX tiles. dense.cc includes this file, has
// functions of the same names for vectors, and explains R, K and N. amx.h
// explains P, packed factors, and the range of tiles.

namespace tiled {

using namespace amx;

// Rows and columns are divided into pairs of tiles, because `multiply` computes
// 2 x 2 tiles at a time.
constexpr long TILE_PAIR = 2 * SIDE;

// The number of rows in a block, which takes row_bytes for each. 600 kB are
// less than half of the second-level cache of a CPU with AMX (2 MB). Except for
// rounding up, each thread gets two blocks or more.
inline long tile_block_rows(long rows, int threads, double row_bytes) {
  const long max_pairs = std::max(2L, (long)(600e3 / row_bytes) / TILE_PAIR);
  const long pairs = ceil_div(ceil_div(rows, 2 * threads), TILE_PAIR);
  return std::max(1L, std::min({pairs, max_pairs, 8L})) * TILE_PAIR;
}

template <int P>
void forward(long R, long K, long N, const float* X, const float* W,
             const float* b, Act act, float* Y, float* Z) {
  const int threads = team(2.0 * R * K * N);
  const long pairs = ceil_div(N, TILE_PAIR);
  const long pair_bytes = packed_bytes<P>(TILE_PAIR, K);
  const long block = tile_block_rows(R, threads, 2.0 * P * K);
  const long blocks = ceil_div(R, block);
  // With few rows, the threads also divide the columns, into groups of pairs
  const long groups = blocks >= 2 * threads ? 1 : std::min(pairs, 8L);
  Scratch& shared = team_scratch();
  shared.reset(pairs * pair_bytes + pairs * TILE_PAIR * 4 + 128);
  char* packed = shared.take<char>(pairs * pair_bytes);
  float* bias = shared.take<float>(pairs * TILE_PAIR);
  std::fill(bias, bias + pairs * TILE_PAIR, 0.f);
  if (b) std::copy(b, b + N, bias);
  const bool bias_fits = can_start_sum(range_of(bias, N));
  float* const out = Z ? Z : Y;  // without Z, Y holds Z before the activation
  Range weight_range;
  ExcludedRows excluded(R);
  ThreadScratch& scratch = thread_scratch(
      threads, packed_bytes<P>(block, K) + block + 128);
#pragma omp parallel num_threads(threads)
  {
    const ConfiguredTiles tiles;
    Scratch& own = scratch.mine();
    char* x_rows = own.take<char>(packed_bytes<P>(block, K));
    char* marks = own.take<char>(block);
    Range own_range;
#pragma omp for schedule(static) nowait
    for (long p = 0; p < pairs; p++) {
      const float* from = W + p * TILE_PAIR * K;
      const long n = std::min(TILE_PAIR, N - p * TILE_PAIR);
      own_range.add(range_of_rows(from, K, n, K));
      pack_rows<P, RIGHT>(from, K, n, K, packed + p * pair_bytes);
    }
#pragma omp critical(d2lbert_range)
    weight_range.add(own_range);
#pragma omp barrier
#pragma omp for schedule(static) collapse(2)
    for (long i = 0; i < blocks; i++)
      for (long g = 0; g < groups; g++) {
        const long first = i * block, m = std::min(block, R - first);
        for (long r = 0; r < m; r++) {
          const Range row_range = range_of(X + (first + r) * K, K);
          const bool fits =
              bias_fits && tiles_can_multiply<P>(row_range, weight_range, K);
          marks[r] = !fits;
        }
        // All groups of a block have the same marks
        if (!g) std::copy(marks, marks + m, excluded.marks() + first);
        pack_rows<P, LEFT>(X + first * K, K, m, K, x_rows, marks);
        long p0, p1;
        share(pairs, groups, g, &p0, &p1);
        Prefetcher ahead(ceil_div(m, TILE_PAIR) * (p1 - p0));
        if (groups == 1 && i + 1 < blocks) {
          const long next_m = std::min(block, R - first - m);
          ahead.add(X + (first + m) * K, next_m * K * 4);
          ahead.add(out + (first + m) * N, next_m * N * 4);
        }
        for (long p = p0; p < p1; p++) {
          const long column = p * TILE_PAIR, at = first * N + column;
          const long n = std::min(TILE_PAIR, N - column);
          float* c = out + at;
          multiply<P>(m, n, K, x_rows, packed + p * pair_bytes, c, N, BIAS,
                      bias + column, &ahead);
          if (act == NONE) continue;
          for (long r = 0; r < m; r++)
            for (long j = 0; j < n; j += VL)
              store(Y + at + r * N + j,
                    apply(act, load(c + r * N + j, n - j)), n - j);
        }
      }
  }
  const long num_excluded = excluded.count();
  if (!num_excluded) return;
  const std::vector<float> x = excluded.gather(X, K);
  std::vector<float> y(num_excluded * N), z(Z ? num_excluded * N : 0);
  d2lbert::forward<Fp32>(num_excluded, K, N, x.data(), W, b, act, y.data(),
                         Z ? z.data() : nullptr);
  excluded.scatter(y, Y, N);
  if (Z) excluded.scatter(z, Z, N);
}

// True if tiles can multiply dz (N,) and x (K,), the same row of dZ and X, for
// the wanted gradients: dX = dZ W, and dW = dZ^T X, a sum over R rows.
template <int P>
bool tiles_can_multiply_row(const float* dz, long N, const float* x, long K,
                            long R, const Range& weight_range, bool wants_dX,
                            bool wants_dW) {
  const Range dz_range = range_of(dz, N);
  if (wants_dX && !tiles_can_multiply<P>(dz_range, weight_range, N))
    return false;
  return !wants_dW || tiles_can_multiply<P>(dz_range, range_of(x, K), R);
}

// Pack W (N x K) as the right factor of dX = dZ W, and add its range to
// `weight_range`. All threads of a team call this. It ends with a barrier.
template <int P>
void pack_weights(const float* W, long N, long K, char* to,
                  Range* weight_range) {
  Range own_range;
#pragma omp for schedule(static) nowait
  for (long j = 0; j < K; j += SIDE) {
    const long n = std::min(SIDE, K - j);
    own_range.add(range_of_columns(W + j, K, N, n));
    pack_columns<P, RIGHT>(W + j, K, N, n, to + packed_bytes<P>(j, N));
  }
#pragma omp critical(d2lbert_range)
  weight_range->add(own_range);
#pragma omp barrier
}

// Like `backward_by_rows` in dense.cc, but rows outside the range of tiles are
// only marked in `excluded`: their dX and their terms in dW are missing. db has
// the terms of all rows.
template <int P>
void backward_by_rows(long R, long K, long N, const float* X, const float* W,
                      Act act, const float* dY, const float* saved, float* dX,
                      float* dW, float* db, ExcludedRows* excluded) {
  const int threads = team(4.0 * R * K * N);
  const long block = tile_block_rows(R, threads, (4.0 + 2 * P) * (K + N));
  const long blocks = ceil_div(R, block);
  Scratch& shared = team_scratch();
  shared.reset(packed_bytes<P>(K, N) + 64 + Sums::bytes(N * K, threads) +
               Sums::bytes(N, threads));
  char* packed = shared.take<char>(packed_bytes<P>(K, N));
  const Sums sums_W(shared, N * K, threads), sums_b(shared, N, threads);
  Range weight_range;
  ThreadScratch& scratch = thread_scratch(
      threads, block * N * 4 + packed_bytes<P>(block, N) +
      packed_bytes<P>(N, block) + packed_bytes<P>(K, block) + 512);
#pragma omp parallel num_threads(threads)
  {
    const ConfiguredTiles tiles;
    float *const own_dW = sums_W.cleared(), *const own_db = sums_b.cleared();
    Scratch& own = scratch.mine();
    float* dZ = own.take<float>(block * N);
    char* dz_rows = own.take<char>(packed_bytes<P>(block, N));
    char* dz_columns = own.take<char>(packed_bytes<P>(N, block));
    char* x_columns = own.take<char>(packed_bytes<P>(K, block));
    if (dX) pack_weights<P>(W, N, K, packed, &weight_range);
#pragma omp for schedule(static)
    for (long i = 0; i < blocks; i++) {
      const long first = i * block, m = std::min(block, R - first);
      const float* dy = dY + first * N;
      activation_gradient(act, m, N, dy, saved + first * N, dZ, own_db);
      const float* dz = act == NONE ? dy : dZ;
      char* marks = excluded->marks() + first;
      for (long r = 0; r < m; r++)
        marks[r] = !tiles_can_multiply_row<P>(dz + r * N, N,
                                              X + (first + r) * K, K, R,
                                              weight_range, dX != nullptr,
                                              dW != nullptr);
      if (dX) {
        pack_rows<P, LEFT>(dz, N, m, N, dz_rows, marks);
        multiply<P>(m, K, N, dz_rows, packed, dX + first * K, K, ZERO);
      }
      if (dW) {
        pack_columns<P, LEFT>(dz, N, m, N, dz_columns, marks);
        pack_columns<P, RIGHT>(X + first * K, K, m, K, x_columns, marks);
        Prefetcher ahead(ceil_div(N, TILE_PAIR) * ceil_div(K, TILE_PAIR));
        const long next_m = std::min(block, R - first - m);
        ahead.add(dy + m * N, next_m * N * 4);
        if (act != NONE) ahead.add(saved + (first + m) * N, next_m * N * 4);
        ahead.add(X + (first + m) * K, next_m * K * 4);
        if (dX) ahead.add(dX + (first + m) * K, next_m * K * 4);
        multiply<P>(N, K, m, dz_columns, x_columns, own_dW, K, ADD, nullptr,
                    &ahead);
      }
    }
    sums_W.add_up(dW);
    sums_b.add_up(db);
  }
}

// Like `backward_by_columns` in dense.cc. excluded: as in `backward_by_rows`.
template <int P>
void backward_by_columns(long R, long K, long N, const float* X,
                         const float* W, Act act, const float* dY,
                         const float* saved, float* dX, float* dW, float* db,
                         ExcludedRows* excluded) {
  const int threads = team(4.0 * R * K * N);
  const long block = tile_block_rows(R, threads, 2.0 * P * N);
  const long blocks = ceil_div(R, block);
  const long chunk = P == 1 ? 512 : 256;  // rows of dZ in a product for dW
  // Columns of dZ (rows of dW) for each thread
  const long columns = ceil_div(ceil_div(N, threads), TILE_PAIR) * TILE_PAIR;
  Scratch& shared = team_scratch();
  shared.reset(packed_bytes<P>(K, N) + (act == NONE ? 0 : R * N) * 4 + 128);
  char* packed = shared.take<char>(packed_bytes<P>(K, N));
  float* dZ = act == NONE ? nullptr : shared.take<float>(R * N);
  const float* dz = dZ ? dZ : dY;
  Range weight_range;
  ThreadScratch& scratch = thread_scratch(
      threads, packed_bytes<P>(block, N) + packed_bytes<P>(columns, chunk) +
      packed_bytes<P>(K, chunk) + 256);
#pragma omp parallel num_threads(threads)
  {
    const ConfiguredTiles tiles;
    Scratch& own = scratch.mine();
    char* dz_rows = own.take<char>(packed_bytes<P>(block, N));
    char* dz_columns = own.take<char>(packed_bytes<P>(columns, chunk));
    char* x_columns = own.take<char>(packed_bytes<P>(K, chunk));
    if (dX) pack_weights<P>(W, N, K, packed, &weight_range);
#pragma omp for schedule(static)
    for (long i = 0; i < blocks; i++) {
      const long first = i * block, m = std::min(block, R - first);
      activation_gradient(act, m, N, dY + first * N, saved + first * N,
                          dZ ? dZ + first * N : nullptr, nullptr);
      char* marks = excluded->marks() + first;
      for (long r = 0; r < m; r++)
        marks[r] = !tiles_can_multiply_row<P>(dz + (first + r) * N, N,
                                              X + (first + r) * K, K, R,
                                              weight_range, dX != nullptr,
                                              dW != nullptr);
      if (!dX) continue;
      pack_rows<P, LEFT>(dz + first * N, N, m, N, dz_rows, marks);
      multiply<P>(m, K, N, dz_rows, packed, dX + first * K, K, ZERO);
    }
#pragma omp for schedule(static)
    for (long c = 0; c < N; c += columns) {
      const long n = std::min(columns, N - c);
      for (long first = 0; dW && first < R; first += chunk) {
        const long m = std::min(chunk, R - first);
        const char* marks = excluded->marks() + first;
        pack_columns<P, LEFT>(dz + first * N + c, N, m, n, dz_columns, marks);
        pack_columns<P, RIGHT>(X + first * K, K, m, K, x_columns, marks);
        multiply<P>(n, K, m, dz_columns, x_columns, dW + c * K, K,
                    first ? ADD : ZERO);
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
  ExcludedRows excluded(R);
  (N * K * 4 <= 1 << 20 ? backward_by_rows<P> : backward_by_columns<P>)(
      R, K, N, X, W, act, dY, saved, dX, dW, db, &excluded);
  const long num_excluded = excluded.count();
  if (!num_excluded) return;
  const std::vector<float> x = excluded.gather(X, K);
  const std::vector<float> dy = excluded.gather(dY, N);
  std::vector<float> dx(dX ? num_excluded * K : 0), dw(dW ? N * K : 0);
  std::vector<float> saved_rows;
  if (act != NONE) saved_rows = excluded.gather(saved, N);
  // No db: db has the terms of all rows already
  d2lbert::backward<Fp32>(num_excluded, K, N, x.data(), W, act, dy.data(),
                          saved_rows.data(), dX ? dx.data() : nullptr,
                          dW ? dw.data() : nullptr, nullptr);
  if (dX) excluded.scatter(dx, dX, K);
  for (size_t i = 0; i < dw.size(); i++) dW[i] += dw[i];
}

}  // namespace tiled
