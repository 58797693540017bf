// Adam with decoupled weight decay and clipping by the common norm, over all
// arrays of a net in one go: what `kernels.ops.adam` is on a CPU.
//
// It is no operator of MXNet's, which would see an array at a time: Python
// hands it the arrays, it waits until nobody writes or reads them, and works
// on their memory.
#include <cmath>
#include <vector>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include "op.h"

namespace d2lbert {
namespace {

// MXNet's own functions about an array, from the library that is loaded.
struct Arrays {
  int (*wait)(void* array);
  int (*device)(void* array, int* kind, int* number);
  int (*type)(void* array, int* type);
  int (*storage)(void* array, int* storage);
  int (*shape)(void* array, int* dims, const int** shape);
  int (*data)(void* array, void** data);
};

constexpr int CPU = 1, PINNED = 3, DENSE = 0;

// Elements that one thread takes at a time, and whose squares are added up
// apart from all others: their sum depends on nothing but this number.
constexpr long BLOCK = 8192;

struct Parameter {
  float *weight, *gradient, *mean, *variance;
  long size;
  float rate, keep;  // keep: what decay leaves of a weight
};

struct Block {
  const Parameter* of;
  long first, size;
};

enum { DONE, NOT_OURS, MXNET_FAILED };

int find(const Arrays& about, void* array, long* size, float** data) {
  int kind, number, type, storage, dims;
  const int* shape;
  // The memory last: an array that waits for others may move until then
  if (about.wait(array) || about.device(array, &kind, &number) ||
      about.type(array, &type) || about.storage(array, &storage) ||
      about.shape(array, &dims, &shape))
    return MXNET_FAILED;
  if ((kind != CPU && kind != PINNED) || type != kFloat32 || storage != DENSE)
    return NOT_OURS;
  *size = 1;
  for (int d = 0; d < dims; d++) *size *= shape[d];
  return about.data(array, (void**)data) ? MXNET_FAILED : DONE;
}

double squares(const float* x, long n) {
  double sums[16] = {}, all = 0;
  for (; n >= 16; x += 16, n -= 16)
    for (int k = 0; k < 16; k++) sums[k] += (double)x[k] * x[k];
  for (int k = 0; k < n; k++) sums[k] += (double)x[k] * x[k];
  for (int k = 0; k < 16; k++) all += sums[k];
  return all;
}

// The constants of the means as MXNet's Adam has them: floats, whose
// complements are exact.
struct Rule {
  float beta1, beta2, epsilon, scale;

  void operator()(const Block& block) const {
    const Parameter& p = *block.of;
    float *w = p.weight + block.first, *m = p.mean + block.first,
          *v = p.variance + block.first;
    const float* g = p.gradient + block.first;
    for (long i = 0; i < block.size; i += VL) {
      const long n = block.size - i;
      const vf gradient = scale * load(g + i, n);
      const vf mean =
          d2lbert::fused(beta1, load(m + i, n), (1 - beta1) * gradient);
      const vf variance = d2lbert::fused(
          beta2, load(v + i, n), (1 - beta2) * gradient * gradient);
      store(m + i, mean, n);
      store(v + i, variance, n);
      store(w + i,
            d2lbert::fused(-p.rate, mean / (root(variance) + epsilon),
                           p.keep * load(w + i, n)),
            n);
    }
  }
};

// Means of gradients that have long been zero end as numbers too small to be
// normal, each of which costs some CPUs a hundred cycles in every step.
struct WithoutDenormals {
#ifdef __SSE2__
  const unsigned before = _mm_getcsr();
  WithoutDenormals() { _mm_setcsr(before | 0x8040); }
  ~WithoutDenormals() { _mm_setcsr(before); }
#endif
};

}  // namespace

// arrays: n times weight, gradient, mean and variance; rates: the learning
// rate of each, with its correction of bias; decays: the share that each
// weight loses; clip: the limit of the norm of all gradients, times rescale,
// or 0 for none.
extern "C" int d2lbert_adam(const Arrays* about, long n, void** arrays,
                            const double* rates, const double* decays,
                            double beta1, double beta2, double epsilon,
                            double rescale, double clip) {
  std::vector<Parameter> all(n);
  std::vector<Block> blocks;
  double total = 0;
  for (long i = 0; i < n; i++) {
    Parameter& p = all[i];
    float** const to[] = {&p.weight, &p.gradient, &p.mean, &p.variance};
    for (int k = 0; k < 4; k++) {
      long size;
      if (int failed = find(*about, arrays[4 * i + k], &size, to[k]))
        return failed;
      if (k && size != p.size) return NOT_OURS;
      p.size = size;
    }
    p.rate = (float)rates[i];
    p.keep = (float)(1 - decays[i]);
    for (long first = 0; first < p.size; first += BLOCK)
      blocks.push_back({&p, first, std::min(BLOCK, p.size - first)});
    total += p.size;
  }
  const long count = blocks.size();
  const int threads = team(10 * total);
  double scale = rescale;
  if (clip > 0) {
    std::vector<double> sums(count);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long b = 0; b < count; b++)
      sums[b] = squares(blocks[b].of->gradient + blocks[b].first,
                        blocks[b].size);
    double norm = 0;
    for (double sum : sums) norm += sum;
    norm = std::abs(rescale) * std::sqrt(norm);
    if (norm > clip) scale = rescale / (norm / clip);
  }
  const Rule rule = {(float)beta1, (float)beta2, (float)epsilon,
                     (float)scale};
#pragma omp parallel num_threads(threads)
  {
    WithoutDenormals here;
#pragma omp for schedule(static)
    for (long b = 0; b < count; b++) rule(blocks[b]);
  }
  return DONE;
}

}  // namespace d2lbert
