// The operator d2lbert_vocab_ce by AMX tiles. vocab.cc includes this file, and
// explains `Job` and `Part`. amx.h explains P, packed factors, and the range of
// tiles.

namespace tiled {

using namespace amx;

constexpr long VOCAB_BLOCK = 256;  // vocabulary words in a block
constexpr long CHUNK_ROWS = 256;   // rows of X in a chunk, at most

// db[j] += sum over r of row_scale[r] * e[r, j]. e: the columns of exponentials
// (m x n), packed as a left factor with P = 1. row_scale has zeros after its m
// numbers, up to a multiple of 32.
inline void add_weighted_rows(const char* e, long m, long n,
                              const float* row_scale, float* db) {
  const long sum_tiles = tiles_along(m);
  for (long j = 0; j < n; j++) {
    // Column j is a row of 64 bytes in each of sum_tiles tiles
    const char* column =
        e + j / SIDE * sum_tiles * TILE_BYTES + j % SIDE * 64;
    vf total{};
    for (long d = 0; d < sum_tiles; d++) {
      const vu pair = load<vu>(column + d * TILE_BYTES);
      total += (vf)(pair << 16) * load(row_scale + d * DEPTH) +
               (vf)(pair & 0xffff0000u) * load(row_scale + d * DEPTH + SIDE);
    }
    db[j] += sum(total);
  }
}

// `vocab_loss` for X, W and `job.weights` in the range of tiles. M must not be
// 0, as the first chunk initializes dW.
template <int P>
void loss_in_range(const Job& job) {
  const long M = job.M, H = job.H, V = job.V;
  const bool has_grad = job.dW != nullptr;
  const int threads = team(2.0 * M * H * V);
  const long num_chunks = ceil_div(M, CHUNK_ROWS);
  const long chunk = ceil_div(ceil_div(M, num_chunks), DEPTH) * DEPTH;  // rows
  // Each thread gets some pairs of tiles. A pair has 32 vocabulary words
  const long tile_pairs = ceil_div(V, 2 * SIDE);
  // With P = 3, packed numbers take more memory than floats. So W is packed
  // again in each chunk, and the exponentials are kept as floats.
  constexpr bool KEEPS_PACKED = P == 1;
  const bool keeps_packed_W = KEEPS_PACKED && num_chunks > 1;
  if (has_grad) {
    std::memset(job.dX, 0, 4 * M * H);
    std::memset(job.db, 0, 4 * V);
  }
  const long w_t_bytes = packed_bytes<P>(VOCAB_BLOCK, H);
  const long w_bytes = packed_bytes<P>(H, VOCAB_BLOCK);
  const long e_bytes = packed_bytes<P>(VOCAB_BLOCK, chunk);
  Scratch& shared = team_scratch();
  ThreadScratch& scratch = thread_scratch();
  std::vector<Part> parts;
  bool has_memory = true;
#pragma omp parallel num_threads(threads)
  {
    const ConfiguredTiles tiles;
    const int t = omp_get_thread_num();
    const int team_size = omp_get_num_threads();
    // Each thread has a range of the vocabulary, of at most max_blocks blocks.
    // With gradients, the exponentials of all blocks are kept
    const long max_blocks = ceil_div(
        ceil_div(tile_pairs, team_size) * 2 * SIDE, VOCAB_BLOCK);
    const long kept_blocks = has_grad ? max_blocks : 1;
    // The numbers of blocks in the arrays below: in w_t and w, L, e_columns
    const long w_blocks = keeps_packed_W ? max_blocks : 1;
    const long logit_blocks = KEEPS_PACKED ? 1 : kept_blocks;
    const long e_blocks = KEEPS_PACKED ? kept_blocks : 1;
#pragma omp single
    has_memory = try_reserve([&] {
      parts = allocate_parts(shared, team_size, chunk, kept_blocks,
                             has_grad ? H : 0);
      scratch.reserve(
          team_size,
          w_blocks * (w_t_bytes + w_bytes) + e_blocks * e_bytes +
              packed_bytes<P>(chunk, H) + packed_bytes<P>(chunk, VOCAB_BLOCK) +
              packed_bytes<P>(H, chunk) +
              4 * (logit_blocks * chunk * VOCAB_BLOCK + chunk * (H + 3) +
                   VOCAB_BLOCK) + 2048);
    });
    if (has_memory) {
      long pair_begin, pair_end;
      share(tile_pairs, team_size, t, &pair_begin, &pair_end);
      const long v0 = pair_begin * 2 * SIDE;
      const long v1 = std::min(pair_end * 2 * SIDE, V);
      const Part& mine = parts[t];
      Scratch& own = scratch.mine();
      // w_t and w: blocks of W^T and of W, packed as right factors. x_rows: the
      // rows of X, packed as a left factor. L: logits, then exponentials.
      // e_rows and e_columns: exponentials, packed as left factors by rows and
      // by columns. scaled: see `scale_rows`. scaled_columns: the columns of
      // `scaled`, packed as a right factor.
      char* w_t = own.take<char>(w_blocks * w_t_bytes);
      char* w = own.take<char>(w_blocks * w_bytes);
      char* e_columns = own.take<char>(e_blocks * e_bytes);
      char* x_rows = own.take<char>(packed_bytes<P>(chunk, H));
      char* e_rows = own.take<char>(packed_bytes<P>(chunk, VOCAB_BLOCK));
      char* scaled_columns = own.take<char>(packed_bytes<P>(H, chunk));
      float* L = own.take<float>(logit_blocks * chunk * VOCAB_BLOCK);
      float* scaled = own.take<float>(chunk * H);
      float* bias = own.take<float>(VOCAB_BLOCK);
      float* row_scale = own.take<float>(chunk);
      float* tops = own.take<float>(chunk);
      float* quotients = own.take<float>(chunk);
      for (long first = 0; first < M; first += chunk) {
        const long m = std::min(chunk, M - first);
        const bool packs_W = !keeps_packed_W || first == 0;
        reset_part(mine, m);
        // tile_padded: a product below adds whole tiles of rows to dX
        if (has_grad) std::memset(mine.dX, 0, 4 * tile_padded(m) * H);
        pack_rows<P, LEFT>(job.X + first * H, H, m, H, x_rows);
        for (long v = v0, block = 0; v < v1; v += VOCAB_BLOCK, block++) {
          const long n = std::min(VOCAB_BLOCK, v1 - v);
          const long w_slot = keeps_packed_W ? block : 0;
          char* const block_w_t = w_t + w_slot * w_t_bytes;
          char* const block_w = w + w_slot * w_bytes;
          const long slot = logit_blocks > 1 ? block : 0;
          float* block_L = L + slot * chunk * VOCAB_BLOCK;
          if (packs_W)
            pack_rows<P, RIGHT>(job.W + v * H, H, n, H, block_w_t);
          std::fill(bias, bias + VOCAB_BLOCK, 0.f);
          std::copy(job.b + v, job.b + v + n, bias);
          multiply<P>(tile_padded(m), tile_padded(n), H, x_rows, block_w_t,
                      block_L, VOCAB_BLOCK, BIAS, bias);
          Prefetcher ahead(m);
          const long next_n =
              std::max(0L, std::min(VOCAB_BLOCK, v1 - v - VOCAB_BLOCK));
          if (packs_W) ahead.add(job.W + (v + n) * H, next_n * H * 4);
          exponentiate(job, first, m, v, n, block_L, VOCAB_BLOCK, mine, ahead);
          if (!has_grad) continue;
          std::copy(mine.reference, mine.reference + m,
                    mine.block_references + block * chunk);
          pack_rows<P, LEFT>(block_L, VOCAB_BLOCK, m, n, e_rows);
          if (packs_W)
            pack_columns<P, RIGHT>(job.W + v * H, H, n, H, block_w);
          multiply<P>(tile_padded(m), H, n, e_rows, block_w, mine.dX, H, ADD);
          if (KEEPS_PACKED)
            pack_columns<P, LEFT>(block_L, VOCAB_BLOCK, m, n,
                                  e_columns + block * e_bytes);
        }
#pragma omp barrier  // until all parts are complete
        combine_parts(job, first, m, parts, t == 0, tops, quotients);
        if (has_grad) {
          // For P = 1, `add_weighted_rows` also reads the padding of
          // row_scale, which must be zero
          std::fill(row_scale, row_scale + chunk, 0.f);
          for (long v = v0, block = 0; v < v1; v += VOCAB_BLOCK, block++) {
            const long n = std::min(VOCAB_BLOCK, v1 - v);
            const float* reference = mine.block_references + block * chunk;
            // Two blocks with the same references have the same row_scale
            if (!block || std::memcmp(reference, reference - chunk, 4 * m)) {
              scale_rows(job, first, m, reference, tops, quotients, row_scale,
                         scaled);
              pack_columns<P, RIGHT>(scaled, H, m, H, scaled_columns);
            }
            const char* e = e_columns + (KEEPS_PACKED ? block * e_bytes : 0);
            if (!KEEPS_PACKED) {
              const float* block_L = L + block * chunk * VOCAB_BLOCK;
              pack_columns<P, LEFT>(block_L, VOCAB_BLOCK, m, n, e_columns);
              // A Prefetcher without ranges does nothing
              d2lbert::add_weighted_rows(block_L, VOCAB_BLOCK, m, n, row_scale,
                                         job.db + v, Prefetcher(m));
            } else {
              add_weighted_rows(e, m, n, row_scale, job.db + v);
            }
            Prefetcher ahead(ceil_div(n, 2 * SIDE) * ceil_div(H, 2 * SIDE));
            const long next_n =
                std::max(0L, std::min(VOCAB_BLOCK, v1 - v - VOCAB_BLOCK));
            ahead.add(job.dW + (v + n) * H, next_n * H * 4);
            multiply<P>(n, H, m, e, scaled_columns, job.dW + v * H, H,
                        first == 0 ? ZERO : ADD, nullptr, &ahead);
          }
          subtract_labels(job, first, m, v0, v1);
          sum_dX(job, first, m, parts, tops, quotients);
        }
#pragma omp barrier  // until no thread reads the parts
      }
    }
  }
  if (!has_memory) throw std::bad_alloc();
}

// Like `vocab_loss` in vocab.cc, but by tiles. Rows outside the range of tiles
// are excluded, and computed by `vocab_loss` in vocab.cc.
template <int P>
void vocab_loss(const Job& job) {
  const long M = job.M, H = job.H, V = job.V;
  Range w_range;
#pragma omp parallel num_threads(team(1.0 * V * H))
  {
    Range own_range;
#pragma omp for schedule(static) nowait
    for (long v = 0; v < V; v++) own_range.add(range_of(job.W + v * H, H));
#pragma omp critical(d2lbert_range)
    w_range.add(own_range);
  }
  ExcludedRows excluded(M);
  // In the gradient of W, tiles multiply rows of X times their weights. So a
  // weight outside the range excludes its row, too
  for (long r = 0; r < M; r++)
    excluded.marks()[r] =
        !tiles_can_multiply<P>(range_of(job.X + r * H, H), w_range, H) ||
        !in_tile_range<P>(range_of(job.weights + r, 1));
  const long num_excluded = excluded.count();
  if (!num_excluded) return loss_in_range<P>(job);
  const std::vector<float> x = excluded.gather(job.X, H);
  const std::vector<float> weights = excluded.gather(job.weights, 1);
  const std::vector<int32_t> labels = excluded.gather(job.labels, 1);
  std::vector<float> losses(num_excluded), dx, dw, db;
  Job vector_job = job;
  vector_job.M = num_excluded;
  vector_job.X = x.data();
  vector_job.weights = weights.data();
  vector_job.labels = labels.data();
  vector_job.row_losses = losses.data();
  if (job.dW) {
    dx.resize(num_excluded * H);
    dw.resize(V * H);
    db.resize(V);
    vector_job.dX = dx.data();
    vector_job.dW = dw.data();
    vector_job.db = db.data();
  }
  d2lbert::vocab_loss<Fp32>(vector_job);
  // For tiles, zeros replace the excluded rows and their weights
  std::vector<float> tile_X(job.X, job.X + M * H);
  std::vector<float> tile_weights(job.weights, job.weights + M);
  excluded.scatter(std::vector<float>(num_excluded * H), tile_X.data(), H);
  excluded.scatter(std::vector<float>(num_excluded), tile_weights.data(), 1);
  Job tile_job = job;
  tile_job.X = tile_X.data();
  tile_job.weights = tile_weights.data();
  if (num_excluded < M) {
    loss_in_range<P>(tile_job);
  } else if (job.dW) {  // no row is left for tiles
    std::memset(job.dW, 0, 4 * V * H);
    std::memset(job.db, 0, 4 * V);
  }
  excluded.scatter(losses, job.row_losses, 1);
  if (!job.dW) return;
  excluded.scatter(dx, job.dX, H);
  for (long i = 0; i < V * H; i++) job.dW[i] += dw[i];
  for (long v = 0; v < V; v++) job.db[v] += db[v];
}

}  // namespace tiled
