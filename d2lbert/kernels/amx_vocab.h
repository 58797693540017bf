// d2lbert_vocab_ce by AMX tiles. vocab.cc includes it, and has a function of
// the same name for vectors.

namespace tiled {

using namespace amx;

constexpr long COLUMNS = 256;  // words of the vocabulary at a time
constexpr long ROWS = 256;     // rows whose exponentials are kept

// db[j] += sum over rows of factor * e, for exponentials e (m x n) that are
// packed for a sum over rows. There is memory for a multiple of 32 factors.
inline void add_rows(const char* e, long m, long n, const float* factor,
                     float* db) {
  const long deep = depth(m);
  for (long j = 0; j < n; j++, e += j % SIDE ? 64 : deep * TILE - 15 * 64) {
    vf total{};
    for (long d = 0; d < deep; d++) {
      const vu pair = load<vu>(e + d * TILE);
      total += (vf)(pair << 16) * load(factor + d * DEPTH) +
               (vf)(pair & 0xffff0000u) * load(factor + d * DEPTH + SIDE);
    }
    db[j] += sum(total);
  }
}

// The cross-entropy of rows that all are in the range of tiles.
template <int P>
void usual_rows(const Job& job) {
  const long M = job.M, H = job.H, V = job.V;
  const bool grad = job.dW != nullptr;
  const int threads = team(2.0 * M * H * V);
  const long chunks = std::max(1L, ceil_div(M, ROWS));
  const long chunk = ceil_div(ceil_div(M, chunks), DEPTH) * DEPTH;
  const long units = ceil_div(V, 2 * SIDE);
  // With one part, both packings of W are kept for all chunks of rows, and
  // exponentials are kept packed. With three parts both would take more memory
  // than the exponentials.
  const bool once = P == 1 && chunks > 1;
  if (grad) {
    std::memset(job.dX, 0, 4 * M * H);
    std::memset(job.db, 0, 4 * V);
  }
  const long w_t_size = bytes<P>(COLUMNS, H), w_size = bytes<P>(H, COLUMNS);
  const long e_size = bytes<P>(COLUMNS, chunk);
  Scratch& shared = team_scratch();
  Rooms& rooms = team_rooms();
  std::vector<Part> parts;
  bool fits = true;
#pragma omp parallel num_threads(threads)
  {
    const InUse tiles;
    const int t = omp_get_thread_num();
    const int team_size = omp_get_num_threads();
    const long widest = ceil_div(units, team_size) * 2 * SIDE;
    const long held = grad ? ceil_div(widest, COLUMNS) : 1;
    const long copies = once ? ceil_div(widest, COLUMNS) : 1;
    const long logits = P == 3 ? held : 1, kept = P == 3 ? 1 : held;
#pragma omp single
    fits = has_memory([&] {
      parts = allot(shared, team_size, chunk, held, grad ? H : 0);
      rooms.reserve(
          team_size,
          copies * (w_t_size + w_size) + kept * e_size + bytes<P>(chunk, H) +
              bytes<P>(chunk, COLUMNS) + bytes<P>(H, chunk) +
              4 * (logits * chunk * COLUMNS + chunk * (H + 3) + COLUMNS) +
              2048);
    });
    if (fits) {
      long v0, v1;
      share(units, team_size, t, &v0, &v1);
      v0 *= 2 * SIDE;
      v1 = std::min(v1 * 2 * SIDE, V);
      const Part& mine = parts[t];
      Scratch& own = rooms.mine();
      char* w_t = own.take<char>(copies * w_t_size);
      char* w = own.take<char>(copies * w_size);
      char* turned = own.take<char>(kept * e_size);
      char* x = own.take<char>(bytes<P>(chunk, H));
      char* e = own.take<char>(bytes<P>(chunk, COLUMNS));
      char* x_columns = own.take<char>(bytes<P>(H, chunk));
      float* L = own.take<float>(logits * chunk * COLUMNS);
      float* scaled = own.take<float>(chunk * H);
      float* bias = own.take<float>(COLUMNS);
      float* factor = own.take<float>(chunk);
      float* tops = own.take<float>(chunk);
      float* shares = own.take<float>(chunk);
      for (long first = 0; first < M; first += chunk) {
        const long m = std::min(chunk, M - first);
        begin(mine, m);
        if (grad) std::memset(mine.dX, 0, 4 * whole(m) * H);
        along<P, false>(job.X + first * H, H, m, H, x);
        for (long v = v0, block = 0; v < v1; v += COLUMNS, block++) {
          const long n = std::min(COLUMNS, v1 - v), copy = once ? block : 0;
          float* l = P == 3 && grad ? L + block * chunk * COLUMNS : L;
          if (!once || !first)
            along<P, true>(job.W + v * H, H, n, H, w_t + copy * w_t_size);
          std::fill(bias, bias + COLUMNS, 0.f);
          std::copy(job.b + v, job.b + v + n, bias);
          multiply<P>(whole(m), whole(n), H, x, w_t + copy * w_t_size, l,
                      COLUMNS, BIAS, bias);
          Ahead ahead(m);
          const long next = std::max(0L, std::min(COLUMNS, v1 - v - COLUMNS));
          if (!once || !first)
            ahead.fetch(job.W + (v + n) * H, next * H * 4);
          exponentials(job, first, m, v, n, l, COLUMNS, mine, ahead);
          if (!grad) continue;
          std::copy(mine.reference, mine.reference + m,
                    mine.references + block * chunk);
          along<P, false>(l, COLUMNS, m, n, e);
          if (!once || !first)
            across<P, false>(job.W + v * H, H, n, H, w + copy * w_size);
          multiply<P>(whole(m), H, n, e, w + copy * w_size, mine.dX, H, ADD);
          if (P == 1)
            across<P, true>(l, COLUMNS, m, n, turned + block * e_size);
        }
#pragma omp barrier
        normalize(job, first, m, parts, t == 0, tops, shares);
        if (grad) {
          std::fill(factor, factor + chunk, 0.f);
          for (long v = v0, block = 0; v < v1; v += COLUMNS, block++) {
            const long n = std::min(COLUMNS, v1 - v);
            const float* reference = mine.references + block * chunk;
            if (!block || std::memcmp(reference, reference - chunk, 4 * m)) {
              scale_rows(job, first, m, reference, tops, shares, factor,
                         scaled);
              across<P, false>(scaled, H, m, H, x_columns);
            }
            const char* a = turned + (P == 3 ? 0 : block * e_size);
            if (P == 3) {
              const float* l = L + block * chunk * COLUMNS;
              across<P, true>(l, COLUMNS, m, n, turned);
              d2lbert::add_rows(l, COLUMNS, m, n, factor, job.db + v,
                                Ahead(m));
            } else {
              add_rows(a, m, n, factor, job.db + v);
            }
            Ahead ahead(ceil_div(n, 2 * SIDE) * ceil_div(H, 2 * SIDE));
            const long next =
                std::max(0L, std::min(COLUMNS, v1 - v - COLUMNS));
            ahead.fetch(job.dW + (v + n) * H, next * H * 4);
            multiply<P>(n, H, m, a, x_columns, job.dW + v * H, H,
                        first ? ADD : ZERO, nullptr, &ahead);
          }
          subtract_labels(job, first, m, v0, v1);
#pragma omp for schedule(static) nowait
          for (long r = 0; r < m; r++)
            sum_row(job, first, r, parts, shares[r], tops[r]);
        }
#pragma omp barrier
      }
    }
  }
  if (!fits) throw std::bad_alloc();
}

// The cross-entropy of all rows: vector code computes the rows outside the
// range of tiles, and tiles the others.
template <int P>
void vocabulary(const Job& job) {
  const long M = job.M, H = job.H, V = job.V;
  Range weights;
#pragma omp parallel num_threads(team(1.0 * V * H))
  {
    Range mine;
#pragma omp for schedule(static) nowait
    for (long v = 0; v < V; v++) mine.add(range_of(job.W + v * H, H));
#pragma omp critical(d2lbert_range)
    weights.add(mine);
  }
  Rest rest(M);
  for (long r = 0; r < M; r++)
    rest.marks()[r] = !fit<P>(range_of(job.X + r * H, H), weights, H) ||
                      !is_usual<P>(range_of(job.weights + r, 1));
  const long n = rest.count();
  if (!n) return usual_rows<P>(job);
  const std::vector<float> x = rest.gather(job.X, H);
  const std::vector<float> w = rest.gather(job.weights, 1);
  const std::vector<int32_t> labels = rest.gather(job.labels, 1);
  std::vector<float> rows(n), dx, dw, db;
  Job part = job;
  part.M = n;
  part.X = x.data();
  part.weights = w.data();
  part.labels = labels.data();
  part.rows = rows.data();
  if (job.dW) {
    dx.resize(n * H);
    dw.resize(V * H);
    db.resize(V);
    part.dX = dx.data();
    part.dW = dw.data();
    part.db = db.data();
  }
  d2lbert::vocabulary<Fp32>(part);
  // The rows for tiles, with zeros in place of the rows above
  std::vector<float> X(job.X, job.X + M * H);
  std::vector<float> counted(job.weights, job.weights + M);
  rest.scatter(std::vector<float>(n * H), X.data(), H);
  rest.scatter(std::vector<float>(n), counted.data(), 1);
  Job usual = job;
  usual.X = X.data();
  usual.weights = counted.data();
  if (n < M) {
    usual_rows<P>(usual);
  } else if (job.dW) {
    std::memset(job.dW, 0, 4 * V * H);
    std::memset(job.db, 0, 4 * V);
  }
  rest.scatter(rows, job.rows, 1);
  if (!job.dW) return;
  rest.scatter(dx, job.dX, H);
  for (long i = 0; i < V * H; i++) job.dW[i] += dw[i];
  for (long v = 0; v < V; v++) job.db[v] += db[v];
}

}  // namespace tiled
