// `kernels.ops.adam` on a CPU: Adam with decoupled weight decay and clipping by
// the global norm, over all arrays of a net at once.
//
// MXNet's own operator updates one array in each call. Here Python passes all
// arrays, and MXNet's engine runs the step when no other code reads or writes
// them. Python does not wait, and can prepare the operators of the next step.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include "op.h"

namespace d2lbert {
namespace {

// Functions of the loaded MXNet library. `array` is a handle.
struct Arrays {
  int (*wait)(void* array);  // until pending writes are done
  int (*device)(void* array, int* kind, int* number);
  int (*type)(void* array, int* type);
  int (*storage)(void* array, int* storage);
  int (*shape)(void* array, int* dims, const int** shape);
  int (*data)(void* array, void** data);
  int (*same)(void* array, void** other);  // makes a handle of the same memory
  int (*release)(void* array);
  // Queue call(with), then drop(with). The engine waits for the arrays to read
  // and to write. The last three arguments are properties, which are null, a
  // priority and a name.
  int (*push)(void (*call)(void*, void*), void* with, void (*drop)(void*),
              const int* device, void** read, int num_read, void** written,
              int num_written, const void*, int, const char*);
};

constexpr int CPU = 1, PINNED = 3, DENSE = 0;

// Elements that a thread takes at a time. Their squares are summed separately,
// so the global norm does not depend on the number of threads.
constexpr long BLOCK = 8192;

struct Parameter {
  float *weight, *gradient, *mean, *variance;
  long size;
  float rate, keep;  // keep: 1 - decay
};

struct Block {
  const Parameter* of;
  long first, size;
};

enum { DONE, NOT_OURS, MXNET_FAILED, NO_MEMORY };

// Store the number of elements. NOT_OURS unless the array is dense and float32,
// on a CPU.
int measure(const Arrays& about, void* array, long* size) {
  int kind, number, type, storage, dims;
  const int* shape;
  if (about.device(array, &kind, &number) || about.type(array, &type) ||
      about.storage(array, &storage) || about.shape(array, &dims, &shape))
    return MXNET_FAILED;
  if ((kind != CPU && kind != PINNED) || type != kFloat32 || storage != DENSE)
    return NOT_OURS;
  *size = 1;
  for (int d = 0; d < dims; d++) *size *= shape[d];
  return DONE;
}

// The sum of the squares of n numbers.
double squares(const float* x, long n) {
  double sums[16] = {}, all = 0;
  for (; n >= 16; x += 16, n -= 16)
    for (int k = 0; k < 16; k++) sums[k] += (double)x[k] * x[k];
  for (int k = 0; k < n; k++) sums[k] += (double)x[k] * x[k];
  for (int k = 0; k < 16; k++) all += sums[k];
  return all;
}

// The update of a block. The constants are floats, as in MXNet's Adam, so that
// 1 - beta is exact. scale: the factor of gradients.
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

// Treats denormal numbers as zeros during its lifetime. After many zero
// gradients running means become denormal, and each of them then costs some
// CPUs a hundred cycles in every step.
struct WithoutDenormals {
#ifdef __SSE2__
  const unsigned before = _mm_getcsr();
  WithoutDenormals() { _mm_setcsr(before | 0x8040); }
  ~WithoutDenormals() { _mm_setcsr(before); }
#endif
};

// One step, from the call of Python until it is computed.
class Step {
 public:
  Step(const Arrays& about, long n, Rule rule, double rescale, double clip)
      : about_(about), all_(n), gradients_(n, nullptr), rule_(rule),
        rescale_(rescale), clip_(clip) {}

  ~Step() {
    for (void* gradient : gradients_)
      if (gradient) about_.release(gradient);
  }

  // Read the size and the addresses of parameter i. This waits for arrays that
  // will be changed, at most until the previous step ends. If MXNet has
  // reordered a weight for oneDNN, it restores the order here, and must not
  // reorder it again: see `fused.adam`. The address of a gradient is read
  // later, after the gradient is written.
  int take(long i, void* const arrays[4], double rate, double decay) {
    Parameter& p = all_[i];
    float** const to[] = {&p.weight, nullptr, &p.mean, &p.variance};
    for (int k = 0; k < 4; k++) {
      long size;
      if (int failed = measure(about_, arrays[k], &size)) return failed;
      if (k && size != p.size) return NOT_OURS;
      p.size = size;
      if (k == 1 ? about_.same(arrays[k], &gradients_[i])
                 : about_.wait(arrays[k]) ||
                       about_.data(arrays[k], (void**)to[k]))
        return MXNET_FAILED;
    }
    p.rate = (float)rate;
    p.keep = (float)(1 - decay);
    return DONE;
  }

  // True if no two of the arrays that are written share memory.
  bool apart() const {
    std::vector<float*> written;
    for (const Parameter& p : all_)
      if (p.size)
        written.insert(written.end(), {p.weight, p.mean, p.variance});
    std::sort(written.begin(), written.end());
    return std::adjacent_find(written.begin(), written.end()) ==
           written.end();
  }

  void carry_out() {
    std::vector<Block> blocks;
    double total = 0;
    for (size_t i = 0; i < all_.size(); i++) {
      Parameter& p = all_[i];
      if (about_.data(gradients_[i], (void**)&p.gradient))
        throw std::runtime_error("Adam: a gradient has no memory");
      for (long first = 0; first < p.size; first += BLOCK)
        blocks.push_back({&p, first, std::min(BLOCK, p.size - first)});
      total += p.size;
    }
    const long count = blocks.size();
    const int threads = team(10 * total);
    rule_.scale = (float)scale(blocks, threads);
#pragma omp parallel num_threads(threads)
    {
      WithoutDenormals here;
#pragma omp for schedule(dynamic) nowait
      for (long b = 0; b < count; b++) rule_(blocks[b]);
    }
  }

 private:
  // The factor of gradients that limits their global norm to clip.
  double scale(const std::vector<Block>& blocks, int threads) const {
    if (!(clip_ > 0)) return rescale_;
    const long count = blocks.size();
    std::vector<double> sums(count);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long b = 0; b < count; b++)
      sums[b] = squares(blocks[b].of->gradient + blocks[b].first,
                        blocks[b].size);
    double norm = 0;
    for (double sum : sums) norm += sum;
    norm = std::abs(rescale_) * std::sqrt(norm);
    return norm > clip_ ? rescale_ / (norm / clip_) : rescale_;
  }

  const Arrays about_;
  std::vector<Parameter> all_;
  std::vector<void*> gradients_;
  Rule rule_;
  double rescale_, clip_;
};

}  // namespace

// arrays: the weight, gradient, mean and variance of each of n parameters.
// rates: the learning rate of each parameter, bias correction included. decays:
// the share that each weight loses. Gradients are multiplied by rescale, and
// clip limits their global norm after that; 0 means no limit. Returns before
// the step is computed.
extern "C" int d2lbert_adam(const Arrays* about, long n, void** arrays,
                            const double* rates, const double* decays,
                            double beta1, double beta2, double epsilon,
                            double rescale, double clip) try {
  if (!n) return DONE;
  std::unique_ptr<Step> step(new Step(
      *about, n, {(float)beta1, (float)beta2, (float)epsilon, 1}, rescale,
      clip));
  std::vector<void*> read, written;
  for (long i = 0; i < n; i++, arrays += 4) {
    if (int failed = step->take(i, arrays, rates[i], decays[i]))
      return failed;
    written.insert(written.end(), {arrays[0], arrays[2], arrays[3]});
    read.push_back(arrays[1]);
  }
  // The engine would wait forever for an array that is written twice
  if (!step->apart()) return NOT_OURS;
  int device[2];
  if (about->device(written[0], &device[0], &device[1])) return MXNET_FAILED;
  // From here on MXNet deletes the step, even after an error
  const int failed = about->push(
      [](void*, void* it) { ((Step*)it)->carry_out(); }, step.release(),
      [](void* it) { delete (Step*)it; }, device, read.data(), (int)n,
      written.data(), (int)written.size(), nullptr, 0, "d2lbert_adam");
  return failed ? MXNET_FAILED : DONE;
} catch (const std::bad_alloc&) {
  return NO_MEMORY;
}

}  // namespace d2lbert
