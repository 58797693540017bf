// d2lbert_attention_qkv by AMX tiles. attention.cc includes it, and has
// functions of the same names for vectors.

namespace tiled {

using namespace amx;

constexpr long ROWS = 8 * SIDE;  // rows of scores held at a time

// True if tiles can compute the output of a head of a sequence.
template <int P>
bool fits(const Parts& in, long start, long m, long n, long D) {
  const Range q = range_of_rows(in.q + start, in.ld, m, D);
  const Range k = range_of_rows(in.k + start, in.ld, n, D);
  const Range v = range_of_columns(in.v + start, in.ld, n, D);
  return fit<P>(q, k, D) && is_usual<P>(v) && v.least >= power(SMALLEST);
}

// True if tiles can compute its gradients, too. There the gradient of the
// scores is a factor.
template <int P>
bool fits_back(const Parts& in, long start, const float* d_out, long H,
               long m, long n, long D) {
  const Range d = range_of_rows(d_out, H, m, D);
  const Range v = range_of_rows(in.v + start, in.ld, n, D);
  return fits<P>(in, start, m, n, D) && fit<P>(d, v, D) &&
         (!d.top || !v.top ||
          exponent(d.top) + exponent(v.top) + 2 < LARGEST - 20);
}

// The marked heads, which are outside the range of tiles. Vector code computes
// all heads of their sequences: in `problem`, other sequences have length zero.
// `copy` then selects the marked heads.
class Others {
 public:
  explicit Others(const Problem& p) : p_(p), marks_(p.B * p.heads) {}
  void mark(long unit) { marks_[unit] = 1; }
  bool any() const {
    return std::find(marks_.begin(), marks_.end(), 1) != marks_.end();
  }
  Problem problem() {
    lens_.assign(p_.B, 0);
    for (size_t unit = 0; unit < marks_.size(); unit++)
      if (marks_[unit]) lens_[unit / p_.heads] = p_.lens[unit / p_.heads];
    Problem part = p_;
    part.lens = lens_.data();
    return part;
  }
  // Copy the columns and rows of the marked heads.
  void copy(const float* from, long from_ld, float* to, long to_ld) const {
    for (size_t unit = 0; unit < marks_.size(); unit++) {
      if (!marks_[unit]) continue;
      long first, last, keys;
      p_.sequence(unit / p_.heads, &first, &last, &keys);
      const long column = unit % p_.heads * p_.size;
      for (long i = first; i < last; i++)
        std::copy(from + i * from_ld + column,
                  from + i * from_ld + column + p_.size,
                  to + i * to_ld + column);
    }
  }

 private:
  const Problem& p_;
  std::vector<char> marks_;
  std::vector<int32_t> lens_;
};

template <int P>
void forward(const Problem& p, const Parts& in, float* out) {
  const long D = p.size, T = p.longest(), width = whole(T);
  Others others(p);
  clear_gaps(p, out, p.H, p.H);
  const int threads = team(8.0 * p.R * T * p.H);
  Rooms& rooms = team_rooms(
      threads, bytes<P>(T, D) + bytes<P>(D, T) + 4 * ROWS * width +
      bytes<P>(ROWS, D) + bytes<P>(ROWS, T) + 512);
#pragma omp parallel num_threads(threads)
  {
    const InUse tiles;
    Scratch& own = rooms.mine();
    char* keys_t = own.take<char>(bytes<P>(T, D));
    char* values = own.take<char>(bytes<P>(D, T));
    float* S = own.take<float>(ROWS * width);
    char* query = own.take<char>(bytes<P>(ROWS, D));
    char* weight = own.take<char>(bytes<P>(ROWS, T));
#pragma omp for schedule(dynamic, 4)
    for (long unit = 0; unit < p.B * p.heads; unit++) {
      const Unit u(p, unit);
      const long first = u.first, last = u.last, n = u.keys, h = u.head;
      const long column = u.column, start = first * in.ld + column;
      if (!n) {
        u.clear_output(p, out);
        continue;
      }
      if (!fits<P>(in, start, last - first, n, D)) {
        others.mark(unit);
        continue;
      }
      const long ns = whole(n);
      const Next next(p, h, first, last);
      along<P, true>(in.k + start, in.ld, n, D, keys_t);
      across<P, false>(in.v + start, in.ld, n, D, values);
      for (long i = first; i < last; i += ROWS) {
        const long m = std::min(ROWS, last - i);
        along<P, false>(in.q + i * in.ld + column, in.ld, m, D, query);
        multiply<P>(whole(m), ns, D, query, keys_t, S, ns, ZERO);
        for (long r = 0; r < m; r++) {
          float* s = S + r * ns;
          const long place = (i + r) * p.heads + h;
          for (const float* x : {in.q, in.k, in.v})
            next.fetch(x, in.ld, i - first + r);
          weigh(p, place, p.seen(i - first + r, n), n, s);
        }
        along<P, false>(S, ns, m, n, weight);
        multiply<P>(m, D, n, weight, values, out + i * p.H + column, p.H,
                    ZERO);
      }
    }
  }
  if (!others.any()) return;
  std::vector<float> o(p.R * p.H);
  d2lbert::forward<Fp32>(others.problem(), in, o.data());
  others.copy(o.data(), p.H, out, p.H);
}

template <int P>
void backward(const Problem& p, const Parts& in, const float* d_out,
              const Parts& grad) {
  const long D = p.size, T = p.longest(), width = whole(T);
  Others others(p);
  for (float* g : {grad.q, grad.k, grad.v}) clear_gaps(p, g, grad.ld, p.H);
  const int threads = team(20.0 * p.R * T * p.H);
  Rooms& rooms = team_rooms(
      threads, 2 * bytes<P>(T, D) + bytes<P>(D, T) + 2 * bytes<P>(D, ROWS) +
      8 * ROWS * width + bytes<P>(ROWS, std::max(D, T)) + bytes<P>(T, ROWS) +
      1024);
#pragma omp parallel num_threads(threads)
  {
    const InUse tiles;
    Scratch& own = rooms.mine();
    char* keys_t = own.take<char>(bytes<P>(T, D));
    char* values_t = own.take<char>(bytes<P>(T, D));
    char* keys = own.take<char>(bytes<P>(D, T));
    char* queries = own.take<char>(bytes<P>(D, ROWS));
    char* d_outs = own.take<char>(bytes<P>(D, ROWS));
    float* S = own.take<float>(ROWS * width);
    float* dS = own.take<float>(ROWS * width);
    char* as_is = own.take<char>(bytes<P>(ROWS, std::max(D, T)));
    char* turned = own.take<char>(bytes<P>(T, ROWS));
#pragma omp for schedule(dynamic, 4)
    for (long unit = 0; unit < p.B * p.heads; unit++) {
      const Unit u(p, unit);
      const long first = u.first, last = u.last, n = u.keys, h = u.head;
      const long column = u.column, start = first * in.ld + column;
      const long to = first * grad.ld + column;
      u.clear_gradients(p, grad);
      if (!n) continue;
      if (!fits_back<P>(in, start, d_out + first * p.H + column, p.H,
                        last - first, n, D)) {
        others.mark(unit);
        continue;
      }
      const long ns = whole(n);
      const Next next(p, h, first, last);
      along<P, true>(in.k + start, in.ld, n, D, keys_t);
      along<P, true>(in.v + start, in.ld, n, D, values_t);
      across<P, false>(in.k + start, in.ld, n, D, keys);
      for (long i = first; i < last; i += ROWS) {
        const long m = std::min(ROWS, last - i);
        const float* q = in.q + i * in.ld + column;
        const float* d_o = d_out + i * p.H + column;
        const Start mode = i == first ? ZERO : ADD;
        along<P, false>(q, in.ld, m, D, as_is);
        multiply<P>(whole(m), ns, D, as_is, keys_t, S, ns, ZERO);
        along<P, false>(d_o, p.H, m, D, as_is);
        multiply<P>(whole(m), ns, D, as_is, values_t, dS, ns, ZERO);
        for (long r = 0; r < m; r++) {
          float *s = S + r * ns, *ds = dS + r * ns;
          const long place = (i + r) * p.heads + h;
          for (const float* x : {in.q, in.k, in.v})
            next.fetch(x, in.ld, i - first + r);
          next.fetch(d_out, p.H, i - first + r);
          score_gradient(p, place, p.seen(i - first + r, n), ns, s, ds);
        }
        along<P, false>(dS, ns, m, n, as_is);
        multiply<P>(m, D, n, as_is, keys, grad.q + i * grad.ld + column,
                    grad.ld, ZERO);
        across<P, true>(S, ns, m, n, turned);
        across<P, false>(d_o, p.H, m, D, d_outs);
        multiply<P>(n, D, m, turned, d_outs, grad.v + to, grad.ld, mode);
        across<P, true>(dS, ns, m, n, turned);
        across<P, false>(q, in.ld, m, D, queries);
        multiply<P>(n, D, m, turned, queries, grad.k + to, grad.ld, mode);
      }
    }
  }
  if (!others.any()) return;
  std::vector<float> g(p.R * 3 * p.H);
  const Parts parts = {g.data(), g.data() + p.H, g.data() + 2 * p.H,
                       3 * p.H};
  d2lbert::backward<Fp32>(others.problem(), in, d_out, parts);
  others.copy(parts.q, parts.ld, grad.q, grad.ld);
  others.copy(parts.k, parts.ld, grad.k, grad.ld);
  others.copy(parts.v, parts.ld, grad.v, grad.ld);
}

}  // namespace tiled
