// Operators for cross-entropy with integer labels.
//
// d2lbert_vocab_ce computes the loss from vectors X (M, H), and from the matrix
// W (V, H) and the biases b (V,) of the layer that computes logits for V
// vocabulary words. No array (M, V) exists: each thread takes a range of the
// vocabulary, and computes logits for a chunk of rows and a block of vocabulary
// words at a time. d2lbert_softmax_ce computes the loss from logits (M, V).
#include <cmath>
#include <numeric>

#include "op.h"

namespace d2lbert {
namespace {

// BLOCK: about 224 vocabulary words. It is a multiple of MR and of NR, since
// these words are columns of tiles in one product and rows of tiles in another.
constexpr long UNIT = std::lcm(MR, NR);
constexpr long BLOCK = UNIT * std::max<long>(1, 224 / UNIT);
// The largest number of rows in a chunk. The exponentials of a chunk stay in
// the last-level cache, if they fit, until the sums of the rows are known.
// Smaller chunks would pack W more often. With AVX-512 products are faster, so
// packing takes a larger share of the time.
constexpr long MAX_CHUNK = ((VL == 16 ? 462 : 252) + MR - 1) / MR * MR;

// db (n,) += the sum over r of row_scale[r] * e[r], for e (m x n), whose rows
// begin ld numbers apart. ahead: prefetches the next block meanwhile.
void add_weighted_rows(const float* e, long ld, long m, long n,
                       const float* row_scale, float* db, Prefetcher ahead) {
  for (long r = 0; r < m; r++) {
    ahead.step();
    for (long j = 0; j < n; j += VL)
      store(db + j,
            load(db + j, n - j) + row_scale[r] * load(e + r * ld + j, n - j),
            n - j);
  }
}

// The same for e in bfloat16. A word (gemm.h) has the numbers of two adjacent
// rows, the first row in its lower half.
void add_weighted_rows(const uint32_t* e, long ld, long m, long n,
                       const float* row_scale, float* db, Prefetcher ahead) {
  for (long r = 0; r < m; r += 2) {
    ahead.step();
    ahead.step();
    const float next_scale = r + 1 < m ? row_scale[r + 1] : 0.f;
    for (long j = 0; j < n; j += VL) {
      const vu pair = load<vu>(e + r / 2 * ld + j, n - j);
      store(db + j,
            load(db + j, n - j) + row_scale[r] * (vf)(pair << 16) +
                next_scale * (vf)(pair & 0xffff0000u),
            n - j);
    }
  }
}

struct Job {
  long M, H, V;
  const float *X, *W, *b;
  const int32_t* labels;
  const float* weights;  // of the rows of X
  float* row_losses;     // without the weights
  float *dX, *dW, *db;   // all null if no gradients are wanted
};

// The results of one thread for the rows of a chunk, from its range of the
// vocabulary.
struct Part {
  float* reference;         // subtracted from the logits before exp
  float* total;             // the sum of the exponentials
  float* label_logit;       // 0 if the range of another thread has the label
  float* block_references;  // for each block, the reference subtracted there
  float* dX;                // the exponentials times W; null without gradients
};

// Take a `Part` for each thread from `shared`. H: 0 without gradients.
std::vector<Part> allocate_parts(Scratch& shared, int team_size, long chunk,
                                 long num_blocks, long H) {
  // + 96: room for the alignment of five arrays
  shared.reset(team_size * 4 * (chunk * (3 + num_blocks + H) + 96));
  std::vector<Part> parts(team_size);
  for (Part& part : parts) {
    part.reference = shared.take<float>(chunk);
    part.total = shared.take<float>(chunk);
    part.label_logit = shared.take<float>(chunk);
    part.block_references = shared.take<float>(chunk * num_blocks);
    part.dX = H ? shared.take<float>(chunk * H) : nullptr;
  }
  return parts;
}

// Reset a part, except its dX, for the m rows of the next chunk.
void reset_part(const Part& part, long m) {
  // Below usual logits, but not -infinity: -infinity minus -infinity would be
  // NaN
  std::fill(part.reference, part.reference + m, -1e30f);
  std::fill(part.total, part.total + m, 0.f);
  std::fill(part.label_logit, part.label_logit + m, 0.f);
}

// A logit may exceed the reference by this much: exp(30) is 1.1e13.
constexpr float MAX_EXCESS = 30;

// Replace the logits (m x n) of rows [first, first + m) and of vocabulary words
// [v, v + n) by exp(logit - reference), and add the exponentials to the totals.
// If the largest logit of a row exceeds the reference by more than MAX_EXCESS,
// it becomes the reference, and the total and dX so far are scaled. Smaller
// excesses are allowed, so that usually all blocks of a row have one reference.
void exponentiate(const Job& job, long first, long m, long v, long n,
                  float* logits, long ld, const Part& part, Prefetcher ahead) {
  const vi lane = lane_indices();
  for (long r = 0; r < m; r++) {
    ahead.step();
    float* row = logits + r * ld;
    const long label_column = clipped(job.labels[first + r], job.V) - v;
    if (label_column >= 0 && label_column < n)
      part.label_logit[r] = row[label_column];
    const float largest = maximum(row, n);
    if (largest > part.reference[r] + MAX_EXCESS) {
      const float old = part.reference[r];
      part.reference[r] = largest;
      const float shrink = std::exp(old - largest);
      part.total[r] *= shrink;
      if (part.dX)
        for (long j = 0; j < job.H; j++) part.dX[r * job.H + j] *= shrink;
    }
    const float reference = part.reference[r];
    vf total{};
    for (long j = 0; j < n; j += VL) {
      vf e = exp(load(row + j, n - j) - reference);
      if (n - j < VL) e = pick(lane < (int)(n - j), e, vf{});
      store(row + j, e, n - j);
      total += e;
    }
    part.total[r] += sum(total);
  }
}

// Combine the parts of all threads. tops (m,): the largest reference of each
// row. quotients (m,): the weight of each row over its sum of exp(logit - top).
// Every thread computes both for all rows, in the same order, which saves a
// barrier.
void combine_parts(const Job& job, long first, long m,
                   const std::vector<Part>& parts, bool writes_losses,
                   float* tops, float* quotients) {
  for (long r = 0; r < m; r++) {
    float top = parts[0].reference[r], total = 0, label_logit = 0;
    for (const Part& part : parts) top = std::max(top, part.reference[r]);
    for (const Part& part : parts) {
      total += part.total[r] * std::exp(part.reference[r] - top);
      label_logit += part.label_logit[r];  // zero in all parts except one
    }
    tops[r] = top;
    quotients[r] = job.weights[first + r] / total;
    if (writes_losses)
      job.row_losses[first + r] = top - label_logit + std::log(total);
  }
}

// Compute row_scale (m,) for a block: exp(logit - reference[r]) * row_scale[r]
// is the softmax times the weight of row r. scaled (m x H): the rows of X times
// row_scale, so that the transposed exponentials times `scaled` are a part of
// dW.
void scale_rows(const Job& job, long first, long m, const float* reference,
                const float* tops, const float* quotients, float* row_scale,
                float* scaled) {
  const long H = job.H;
  for (long r = 0; r < m; r++) {
    row_scale[r] = quotients[r] * std::exp(reference[r] - tops[r]);
    for (long j = 0; j < H; j += VL)
      store(scaled + r * H + j,
            row_scale[r] * load(job.X + (first + r) * H + j, H - j), H - j);
  }
}

// Subtract the terms of the labels from rows [v0, v1) of dW and db. The
// gradient of the logits is weight * (softmax - one-hot label).
void subtract_labels(const Job& job, long first, long m, long v0, long v1) {
  const long H = job.H;
  for (long r = 0; r < m; r++) {
    const long label = clipped(job.labels[first + r], job.V);
    if (label < v0 || label >= v1) continue;
    const float weight = job.weights[first + r];
    const float* x_row = job.X + (first + r) * H;
    float* to = job.dW + label * H;
    for (long j = 0; j < H; j += VL)
      store(to + j, load(to + j, H - j) - weight * load(x_row + j, H - j),
            H - j);
    job.db[label] -= weight;
  }
}

// Add the dX of all parts to rows [first, first + m) of job.dX, and subtract
// the terms of the labels. All threads of a team must call this function, and
// each computes some of the rows.
void sum_dX(const Job& job, long first, long m,
            const std::vector<Part>& parts, const float* tops,
            const float* quotients) {
  const long H = job.H;
#pragma omp for schedule(static) nowait
  for (long r = 0; r < m; r++) {
    const float weight = job.weights[first + r];
    float* to = job.dX + (first + r) * H;
    for (const Part& part : parts) {
      const float factor = quotients[r] * std::exp(part.reference[r] - tops[r]);
      const float* dX_row = part.dX + r * H;
      for (long j = 0; j < H; j += VL)
        store(to + j, load(to + j, H - j) + factor * load(dX_row + j, H - j),
              H - j);
    }
    const float* w_row = job.W + clipped(job.labels[first + r], job.V) * H;
    for (long j = 0; j < H; j += VL)
      store(to + j, load(to + j, H - j) - weight * load(w_row + j, H - j),
            H - j);
  }
}

// d2lbert_vocab_ce by vectors, in precision E (gemm.h).
template <class E>
void vocab_loss(const Job& job) {
  const long M = job.M, H = job.H, V = job.V;
  const bool has_grad = job.dW != nullptr;
  const int threads = team(2.0 * M * H * V);
  const long num_chunks = std::max<long>(1, ceil_div(M, MAX_CHUNK));
  const long chunk = ceil_div(ceil_div(M, num_chunks), MR) * MR;  // rows
  const long h_words = E::words(H), chunk_words = E::words(chunk);
  const long block_words = E::words(BLOCK);
  const long num_panels = ceil_div(V, NR);
  // In fp32 the exponentials of all blocks stay in L, where the logits were. In
  // bf16 they are copied, as words, to e_columns.
  const bool in_place = E::PER_WORD == 1;
  if (has_grad) {
    if (M)
      std::memset(job.dX, 0, 4 * M * H);
    else  // there is no first chunk, which would initialize dW
      std::memset(job.dW, 0, 4 * V * H);
    std::memset(job.db, 0, 4 * V);
  }
  Scratch& shared = team_scratch();
  ThreadScratch& scratch = thread_scratch();
  std::vector<Part> parts;
  bool has_memory = true;
#pragma omp parallel num_threads(threads)
  {
    const int t = omp_get_thread_num();
    const int team_size = omp_get_num_threads();
    // Every thread has a range of at most max_range vocabulary words, and so
    // of rows of W, dW and db
    const long max_range = ceil_div(num_panels, team_size) * NR;
    const long kept_blocks = has_grad ? ceil_div(max_range, BLOCK) : 1;
    const long L_blocks = in_place ? kept_blocks : 1;
#pragma omp single
    has_memory = try_reserve([&] {
      parts = allocate_parts(shared, team_size, chunk, kept_blocks,
                             has_grad ? H : 0);
      // + 2048: more than the alignment of the arrays below takes
      scratch.reserve(
          team_size,
          4 * (BLOCK * h_words + padded(H) * block_words + chunk * h_words +
               chunk * BLOCK * L_blocks + chunk * block_words +
               (in_place ? 0 : kept_blocks * chunk_words * BLOCK) +
               padded(H) * chunk_words + chunk * (H + 3) + BLOCK) + 2048);
    });
    if (has_memory) {
      long first_panel, end_panel;
      share(num_panels, team_size, t, &first_panel, &end_panel);
      const long v0 = first_panel * NR, v1 = std::min(end_panel * NR, V);
      const Part& mine = parts[t];
      Scratch& own = scratch.mine();
      // L: logits, then exponentials. e_rows: the exponentials of a block in
      // the layout "rows". e_columns: the exponentials of all blocks in the
      // layout "columns".
      word<E>* w_t_panels = own.take<word<E>>(BLOCK * h_words);
      word<E>* w_panels = own.take<word<E>>(padded(H) * block_words);
      word<E>* x_rows = own.take<word<E>>(chunk * h_words);
      float* L = own.take<float>(chunk * BLOCK * L_blocks);
      word<E>* e_rows = own.take<word<E>>(chunk * block_words);
      word<E>* e_columns =
          own.take<word<E>>(in_place ? 0 : kept_blocks * chunk_words * BLOCK);
      word<E>* scaled_panels = own.take<word<E>>(padded(H) * chunk_words);
      float* scaled = own.take<float>(chunk * H);
      float* bias = own.take<float>(BLOCK);
      float* row_scale = own.take<float>(chunk);
      float* tops = own.take<float>(chunk);
      float* quotients = own.take<float>(chunk);
      auto kept_exponentials = [&](long block) {
        return in_place ? (const word<E>*)(L + block * chunk * BLOCK)
                        : e_columns + block * chunk_words * BLOCK;
      };
      for (long first = 0; first < M; first += chunk) {
        const long m = std::min(chunk, M - first);
        reset_part(mine, m);
        if (has_grad) std::memset(mine.dX, 0, 4 * m * H);
        long x_ld = H;
        const word<E>* x = as_rows(job.X + first * H, x_ld, m, H, x_rows);
        // Compute the exponentials of all blocks, and this thread's dX
        for (long v = v0, block = 0; v < v1; v += BLOCK, block++) {
          const long n = std::min(BLOCK, v1 - v);
          const long next_n = std::max(0L, std::min(BLOCK, v1 - v - BLOCK));
          float* block_L = L_blocks > 1 ? L + block * chunk * BLOCK : L;
          pack_t<E>(job.W + v * H, H, H, n, w_t_panels);
          std::fill(bias, bias + BLOCK, 0.f);
          std::copy(job.b + v, job.b + v + n, bias);
          multiply<E>(false, m, n, h_words, x, x_ld, w_t_panels, block_L,
                      BLOCK, BIAS, nullptr, bias);
          Prefetcher ahead(m);
          ahead.add(job.W + (v + n) * H, next_n * H * 4);
          if (next_n && L_blocks > 1)
            ahead.add(block_L + chunk * BLOCK, m * BLOCK * 4);
          exponentiate(job, first, m, v, n, block_L, BLOCK, mine, ahead);
          if (!has_grad) continue;
          std::copy(mine.reference, mine.reference + m,
                    mine.block_references + block * chunk);
          long ld = BLOCK;  // in bf16, `as_rows` changes ld
          const word<E>* e = as_rows(block_L, ld, m, n, e_rows);
          pack<E>(job.W + v * H, H, n, H, w_panels);
          multiply<E>(false, m, H, E::words(n), e, ld, w_panels, mine.dX, H,
                      ADD);
          ld = BLOCK;
          // bf16 copies the exponentials to e_columns. fp32 does nothing.
          as_columns(block_L, ld, m, n,
                     e_columns + block * chunk_words * BLOCK);
        }
#pragma omp barrier  // until all parts are complete
        combine_parts(job, first, m, parts, t == 0, tops, quotients);
        if (has_grad) {
          // Compute rows [v0, v1) of dW and db
          for (long v = v0, block = 0; v < v1; v += BLOCK, block++) {
            const long n = std::min(BLOCK, v1 - v);
            const long next_n = std::max(0L, std::min(BLOCK, v1 - v - BLOCK));
            const float* reference = mine.block_references + block * chunk;
            // Two blocks with the same references have the same row_scale
            if (!block || std::memcmp(reference, reference - chunk, 4 * m)) {
              scale_rows(job, first, m, reference, tops, quotients, row_scale,
                         scaled);
              pack<E>(scaled, H, m, H, scaled_panels);
            }
            // In bf16, `as_columns` has written rows of n words
            long ld = in_place ? BLOCK : n;
            const word<E>* e = kept_exponentials(block);
            multiply<E>(true, n, H, E::words(m), e, ld, scaled_panels,
                        job.dW + v * H, H, first == 0 ? ZERO : ADD);
            Prefetcher ahead(m);
            ahead.add(job.dW + (v + n) * H, next_n * H * 4);
            if (next_n)
              ahead.add(kept_exponentials(block + 1), E::words(m) * BLOCK * 4);
            add_weighted_rows(e, ld, m, n, row_scale, job.db + v, ahead);
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

#if D2LBERT_AMX
#include "amx_vocab.h"
#endif

namespace vocab {

enum { X, W, B, LABELS, WEIGHTS, INPUTS };
// Outputs. LOSS (1,): the sum of the losses of the rows times their weights.
// ROW_LOSSES (M,): the loss of each row without its weight. DX, DW and DB, the
// gradients of LOSS, exist only if wants_grad.
enum { LOSS, ROW_LOSSES, DX, DW, DB, OUTPUTS };

bool wants_grad(const Attrs& attrs) { return number(attrs, "grad", 1) != 0; }

MXReturnValue parse(const Attrs& attrs, int* inputs, int* outputs) {
  *inputs = INPUTS;
  *outputs = wants_grad(attrs) ? OUTPUTS : ROW_LOSSES + 1;
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  const Shape x = (*in)[X];
  Shape w = (*in)[W];
  if (x.size() != 2 || w.size() != 2)
    return fail("vocab_ce needs X (M, H) and W (V, H)");
  w[1] = x[1];
  const Shape b = {w[0]}, rows = {x[0]};
  *in = {x, w, b, rows, rows};
  const Shapes all = {{1}, rows, x, w, b};  // the outputs, with gradients
  std::copy(all.begin(), all.begin() + out->size(), out->begin());
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs& attrs, Tensors* in, Tensors* out,
                          const OpResource&) {
  MXTensor &x = (*in)[X], &w = (*in)[W];
  Job job = {x.shape[0], x.shape[1], w.shape[0], floats(x), floats(w),
             floats((*in)[B]), ints((*in)[LABELS]), floats((*in)[WEIGHTS]),
             floats((*out)[ROW_LOSSES]), nullptr, nullptr, nullptr};
  if (wants_grad(attrs)) {
    job.dX = floats((*out)[DX]);
    job.dW = floats((*out)[DW]);
    job.db = floats((*out)[DB]);
  }
  const bool bf16 = wants_bf16(attrs);
  if (bf16 && !D2LBERT_BF16) return fail(BF16_ERROR);
  if (job.M && !job.V) return fail("vocab_ce needs at least one word");
  // With M = 0, only the functions for vectors set dW to zeros
  pick_kernel(bf16, job.M ? std::min(job.H, job.V) : NO_TILES,
              D2LBERT_PRODUCTS(vocab_loss))(job);
  double loss = 0;
  for (long r = 0; r < job.M; r++)
    loss += (double)job.weights[r] * job.row_losses[r];
  floats((*out)[LOSS])[0] = (float)loss;
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  if (!wants_grad(attrs))
    return fail("vocab_ce was called with grad=0 and keeps no gradients");
  const BackwardArrays arrays(*in, OUTPUTS);
  const float upstream = floats(arrays.gradients[LOSS])[0];
  const int saved[] = {DX, DW, DB}, inputs[] = {X, W, B};
  for (int k = 0; k < 3; k++) {
    // The gradient for an upstream gradient of 1
    const float* saved_grad = floats(arrays.outputs[saved[k]]);
    float* grad = floats((*out)[inputs[k]]);
    const long n = arrays.outputs[saved[k]].size();
    if (!grad) continue;
#pragma omp parallel for schedule(static) num_threads(team(n))
    for (long i = 0; i < n; i += VL)
      store(grad + i, upstream * load(saved_grad + i, n - i), n - i);
  }
  zero_gradient((*out)[LABELS]);
  float* d_weights = floats((*out)[WEIGHTS]);
  MXTensor& row_losses = arrays.outputs[ROW_LOSSES];
  if (d_weights)
    for (long r = 0; r < row_losses.size(); r++)
      d_weights[r] = upstream * floats(row_losses)[r];
  return MX_SUCCESS;
}

}  // namespace vocab

// d2lbert_first returns its first input, the loss of d2lbert_vocab_ce. Only the
// backward pass of d2lbert_vocab_ce reads its other outputs. Without
// d2lbert_first, MXNet would fill their gradients with zeros in each step.
// d2lbert_first leaves them uninitialized, since no code reads them.
namespace first {

MXReturnValue parse(const Attrs& attrs, int* inputs, int* outputs) {
  *inputs = (int)number(attrs, "inputs", 1);
  *outputs = 1;
  return MX_SUCCESS;
}

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  (*out)[0] = (*in)[0];
  return MX_SUCCESS;
}

// Forward and backward: in the backward pass, in[0] is the gradient of the
// output, and out[0] is the gradient of the first input.
MXReturnValue run(const Attrs&, Tensors* in, Tensors* out, const OpResource&) {
  MXTensor &from = (*in)[0], &to = (*out)[0];
  if (floats(to)) std::memcpy(floats(to), floats(from), 4 * from.size());
  return MX_SUCCESS;
}

}  // namespace first

// d2lbert_softmax_ce
namespace logits {

enum { LOGITS, LABELS, WEIGHTS, INPUTS };
// Outputs. LOSS (M,). STATS (M, 2): the largest logit of each row, and 1 / the
// sum of exp(logit - largest).
enum { LOSS, STATS, OUTPUTS };

MXReturnValue infer_shape(const Attrs&, Shapes* in, Shapes* out) {
  const Shape x = (*in)[LOGITS];
  if (x.size() != 2) return fail("softmax_ce needs logits (M, V)");
  const Shape rows = {x[0]};
  (*in)[LABELS] = (*in)[WEIGHTS] = rows;
  *out = {rows, {rows[0], 2}};
  return MX_SUCCESS;
}

// True if a row does not fill a vector: scalar code computes it, in double.
bool is_narrow(long V) { return V < VL; }

MXReturnValue run_forward(const Attrs&, Tensors* in, Tensors* out,
                          const OpResource&) {
  const float *X = floats((*in)[LOGITS]), *weights = floats((*in)[WEIGHTS]);
  const int32_t* labels = ints((*in)[LABELS]);
  const long M = (*in)[LOGITS].shape[0], V = (*in)[LOGITS].shape[1];
  if (M && !V) return fail("softmax_ce needs at least one class");
  float *loss = floats((*out)[LOSS]), *stats = floats((*out)[STATS]);
#pragma omp parallel for schedule(static) num_threads(team(20.0 * M * V))
  for (long i = 0; i < M; i++) {
    const float* x = X + i * V;
    const vi lane = lane_indices();
    // At least -1e30: -infinity minus -infinity would be NaN
    const float largest = std::max(maximum(x, V), -1e30f);
    stats[2 * i] = largest;
    if (is_narrow(V)) {
      double total = 0;
      for (long j = 0; j < V; j++) total += std::exp((double)x[j] - largest);
      stats[2 * i + 1] = (float)(1 / total);
      const double label_logit = x[clipped(labels[i], V)];
      loss[i] =
          (float)(weights[i] * (largest - label_logit + std::log(total)));
      continue;
    }
    vf totals{};
    for (long j = 0; j < V; j += VL) {
      vf e = exp(load(x + j, V - j) - largest);
      if (V - j < VL) e = pick(lane < (int)(V - j), e, vf{});
      totals += e;
    }
    const float total = sum(totals);
    stats[2 * i + 1] = 1 / total;
    loss[i] =
        weights[i] * (largest - x[clipped(labels[i], V)] + std::log(total));
  }
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs&, Tensors* in, Tensors* out,
                           const OpResource&) {
  const BackwardArrays arrays(*in, OUTPUTS);
  MXTensor& logits = arrays.inputs[LOGITS];
  const float *d_loss = floats(arrays.gradients[LOSS]), *X = floats(logits);
  const int32_t* labels = ints(arrays.inputs[LABELS]);
  const float* weights = floats(arrays.inputs[WEIGHTS]);
  const float* stats = floats(arrays.outputs[STATS]);
  const long M = logits.shape[0], V = logits.shape[1];
  float *dX = floats((*out)[LOGITS]), *d_weights = floats((*out)[WEIGHTS]);
  zero_gradient((*out)[LABELS]);
#pragma omp parallel for schedule(static) num_threads(team(20.0 * M * V))
  for (long i = 0; i < M; i++) {
    const float* x = X + i * V;
    const long label = clipped(labels[i], V);
    const float largest = stats[2 * i], inverse_total = stats[2 * i + 1];
    if (d_weights)
      d_weights[i] = d_loss[i] * (largest - x[label] - std::log(inverse_total));
    if (!dX) continue;
    // The gradient of the logits is c * (softmax - one-hot label)
    const float c = d_loss[i] * weights[i], scale = c * inverse_total;
    if (is_narrow(V))
      for (long j = 0; j < V; j++)
        dX[i * V + j] = (float)(scale * std::exp((double)x[j] - largest));
    else
      for (long j = 0; j < V; j += VL)
        store(dX + i * V + j, scale * exp(load(x + j, V - j) - largest), V - j);
    dX[i * V + label] -= c;
  }
  return MX_SUCCESS;
}

}  // namespace logits

}  // namespace

REGISTER_OP(d2lbert_vocab_ce)
    .setForward(Caught<vocab::run_forward>::call, "cpu")
    .setBackward(Caught<vocab::run_backward>::call, "cpu")
    .setParseAttrs(Caught<vocab::parse>::call)
    .setInferType(Caught<floats_except<vocab::LABELS>>::call)
    .setInferShape(Caught<vocab::infer_shape>::call);

REGISTER_OP(d2lbert_first)
    .setForward(Caught<first::run>::call, "cpu")
    .setBackward(Caught<first::run>::call, "cpu")
    .setParseAttrs(Caught<first::parse>::call)
    .setInferType(Caught<all_floats>::call)
    .setInferShape(Caught<first::infer_shape>::call);

REGISTER_OP(d2lbert_softmax_ce)
    .setForward(Caught<logits::run_forward>::call, "cpu")
    .setBackward(Caught<logits::run_backward>::call, "cpu")
    .setParseAttrs(Caught<fixed_counts<logits::INPUTS, logits::OUTPUTS>>::call)
    .setInferType(Caught<floats_except<logits::LABELS>>::call)
    .setInferShape(Caught<logits::infer_shape>::call);

}  // namespace d2lbert
