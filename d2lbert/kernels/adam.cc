// A step of Adam on a CPU, with decoupled weight decay and clipping by the
// global norm: `kernels.ops.adam`.
//
// MXNet's own operator updates one array in each call. Here one call queues the
// step for all arrays of a net. Python waits for the previous step, but not for
// this step, and can prepare the next step meanwhile.
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

// Functions of the loaded MXNet library, in the order of `_ndarray_functions`
// in fused.py. array: an NDArrayHandle. A function returns 0 unless it fails.
struct MXNetFunctions {
  int (*wait_for_writes)(void* array);
  int (*device)(void* array, int* kind, int* number);
  int (*type)(void* array, int* type);
  int (*storage)(void* array, int* storage);
  int (*shape)(void* array, int* num_dims, const int** shape);
  int (*data)(void* array, void** data);
  int (*shallow_copy)(void* array, void** copy);
  int (*release)(void* array);
  // Queue run(context, work), then free(work). The engine calls `run` when no
  // other operation writes the arrays in `read`, or uses the arrays in
  // `written`. device: its kind and number.
  int (*push)(void (*run)(void* context, void* work), void* work,
              void (*free)(void*), const int* device, void** read,
              int num_read, void** written, int num_written,
              const void* properties, int priority, const char* name);
};

// MXNet's codes: two kinds of devices, and the storage type of dense arrays.
constexpr int CPU = 1, PINNED = 3, DENSE = 0;

// The squares of each block are summed separately, and these sums are added in
// order. So the global norm does not depend on the number of threads.
constexpr long BLOCK_SIZE = 8192;  // elements

// The arrays of a parameter, of `size` elements each. mean and variance: the
// running means of the gradient and of its square.
struct Parameter {
  float *weight, *gradient, *mean, *variance;
  long size;
  float rate;          // the learning rate, with bias correction
  float decay_factor;  // multiplies the weight
};

// Elements [first, first + size) of a parameter.
struct Block {
  const Parameter* parameter;
  long first, size;
};

// The statuses of d2lbert_adam, in the order of fused.py.
enum { DONE, UNSUPPORTED, MXNET_FAILED, NO_MEMORY };

// Store the number of elements of an array in *size. Returns UNSUPPORTED unless
// this is a dense float32 array on a CPU.
int count_elements(const MXNetFunctions& mxnet, void* array, long* size) {
  int kind, number, type, storage, num_dims;
  const int* shape;
  if (mxnet.device(array, &kind, &number) || mxnet.type(array, &type) ||
      mxnet.storage(array, &storage) || mxnet.shape(array, &num_dims, &shape))
    return MXNET_FAILED;
  const bool is_on_cpu = kind == CPU || kind == PINNED;
  const bool is_supported =
      is_on_cpu && type == kFloat32 && storage == DENSE;
  if (!is_supported) return UNSUPPORTED;
  *size = 1;
  for (int d = 0; d < num_dims; d++) *size *= shape[d];
  return DONE;
}

double sum_of_squares(const float* x, long n) {
  // 16 separate sums allow the compiler to use vectors
  double sums[16] = {}, total = 0;
  for (; n >= 16; x += 16, n -= 16)
    for (int k = 0; k < 16; k++) sums[k] += (double)x[k] * x[k];
  for (int k = 0; k < n; k++) sums[k] += (double)x[k] * x[k];
  for (int k = 0; k < 16; k++) total += sums[k];
  return total;
}

// The update of a block. The constants are floats, as in MXNet's Adam: for beta
// from 0.5 to 1, 1 - beta then has no rounding error.
struct Update {
  float beta1, beta2, epsilon;

  void operator()(const Block& block, float gradient_scale) const {
    const Parameter& p = *block.parameter;
    float *w = p.weight + block.first, *m = p.mean + block.first,
          *v = p.variance + block.first;
    const float* g = p.gradient + block.first;
    for (long i = 0; i < block.size; i += VL) {
      const long n = block.size - i;
      const vf gradient = gradient_scale * load(g + i, n);
      const vf mean =
          fused_multiply_add(beta1, load(m + i, n), (1 - beta1) * gradient);
      const vf variance = fused_multiply_add(
          beta2, load(v + i, n), (1 - beta2) * gradient * gradient);
      store(m + i, mean, n);
      store(v + i, variance, n);
      store(w + i,
            fused_multiply_add(-p.rate,
                               mean / (square_root(variance) + epsilon),
                               p.decay_factor * load(w + i, n)),
            n);
    }
  }
};

// Makes this thread treat denormal numbers as zeros. After many zero gradients,
// running means become denormal, and each denormal mean costs some CPUs a
// hundred cycles in every step.
struct WithoutDenormals {
#ifdef __SSE2__
  const unsigned saved_flags = _mm_getcsr();
  // "flush to zero" and "denormals are zero"
  WithoutDenormals() { _mm_setcsr(saved_flags | 0x8040); }
  ~WithoutDenormals() { _mm_setcsr(saved_flags); }
#endif
};

// One step of Adam, which exists until MXNet has run it.
class Step {
 public:
  Step(const MXNetFunctions& mxnet, long n, Update update, double rescale,
       double clip)
      : mxnet_(mxnet), parameters_(n), gradient_handles_(n, nullptr),
        update_(update), rescale_(rescale), clip_(clip) {}

  ~Step() {
    for (void* handle : gradient_handles_)
      if (handle) mxnet_.release(handle);
  }

  // Store parameter i, and return a status. The other arguments are as for
  // d2lbert_adam. Waits for the previous step. `mxnet_.data` converts a weight
  // in a layout of oneDNN to the usual layout. No prediction may change the
  // layout again before this step: see `fused.adam`. The gradient may not be
  // computed yet, so `run` reads its address.
  int set_parameter(long i, void* const arrays[4], double rate, double decay) {
    Parameter& p = parameters_[i];
    constexpr int GRADIENT_INDEX = 1;
    float** const addresses[] = {&p.weight, nullptr, &p.mean, &p.variance};
    for (int k = 0; k < 4; k++) {
      long size;
      const int status = count_elements(mxnet_, arrays[k], &size);
      if (status != DONE) return status;
      if (k == 0) p.size = size;
      if (size != p.size) return UNSUPPORTED;
      if (k == GRADIENT_INDEX) {
        if (mxnet_.shallow_copy(arrays[k], &gradient_handles_[i]))
          return MXNET_FAILED;
      } else if (mxnet_.wait_for_writes(arrays[k]) ||
                 mxnet_.data(arrays[k], (void**)addresses[k])) {
        return MXNET_FAILED;
      }
    }
    p.rate = (float)rate;
    p.decay_factor = (float)(1 - decay);
    return DONE;
  }

  // Arrays without elements may have equal addresses.
  bool writes_distinct_arrays() const {
    std::vector<float*> written_data;
    for (const Parameter& p : parameters_)
      if (p.size)
        written_data.insert(written_data.end(), {p.weight, p.mean, p.variance});
    std::sort(written_data.begin(), written_data.end());
    return std::adjacent_find(written_data.begin(), written_data.end()) ==
           written_data.end();
  }

  // MXNet's engine calls this.
  void run() {
    std::vector<Block> blocks;
    double num_elements = 0;
    for (size_t i = 0; i < parameters_.size(); i++) {
      Parameter& p = parameters_[i];
      if (mxnet_.data(gradient_handles_[i], (void**)&p.gradient))
        throw std::runtime_error("Adam: a gradient has no memory");
      for (long first = 0; first < p.size; first += BLOCK_SIZE)
        blocks.push_back({&p, first, std::min(BLOCK_SIZE, p.size - first)});
      num_elements += p.size;
    }
    const long num_blocks = blocks.size();
    const int threads = team(10 * num_elements);
    const float scale = (float)gradient_scale(blocks, threads);
#pragma omp parallel num_threads(threads)
    {
      WithoutDenormals without_denormals;
#pragma omp for schedule(dynamic) nowait
      for (long b = 0; b < num_blocks; b++) update_(blocks[b], scale);
    }
  }

 private:
  // The factor of all gradients: rescale_, reduced if the global norm of the
  // rescaled gradients is above clip_.
  double gradient_scale(const std::vector<Block>& blocks, int threads) const {
    const bool has_limit = clip_ > 0;
    if (!has_limit) return rescale_;
    const long num_blocks = blocks.size();
    std::vector<double> block_sums(num_blocks);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long b = 0; b < num_blocks; b++)
      block_sums[b] = sum_of_squares(
          blocks[b].parameter->gradient + blocks[b].first, blocks[b].size);
    double total = 0;
    for (double sum : block_sums) total += sum;
    const double norm = std::abs(rescale_) * std::sqrt(total);
    return norm > clip_ ? rescale_ / (norm / clip_) : rescale_;
  }

  const MXNetFunctions mxnet_;
  std::vector<Parameter> parameters_;
  std::vector<void*> gradient_handles_;
  const Update update_;
  double rescale_, clip_;
};

}  // namespace

// Queue a step of Adam for n parameters, and return a status. arrays (4n): for
// each parameter the weight, the gradient, and the running means of the
// gradient and of its square. The other arguments are as for `ops.adam`.
extern "C" int d2lbert_adam(const MXNetFunctions* mxnet, long n, void** arrays,
                            const double* rates, const double* decays,
                            double beta1, double beta2, double epsilon,
                            double rescale, double clip) try {
  if (!n) return DONE;
  const Update update = {(float)beta1, (float)beta2, (float)epsilon};
  std::unique_ptr<Step> step(new Step(*mxnet, n, update, rescale, clip));
  std::vector<void*> read, written;
  for (long i = 0; i < n; i++, arrays += 4) {
    const int status = step->set_parameter(i, arrays, rates[i], decays[i]);
    if (status != DONE) return status;
    written.insert(written.end(), {arrays[0], arrays[2], arrays[3]});
    read.push_back(arrays[1]);
  }
  // The engine would wait forever for an array that is written twice
  if (!step->writes_distinct_arrays()) return UNSUPPORTED;
  int device[2];
  if (mxnet->device(written[0], &device[0], &device[1])) return MXNET_FAILED;
  // From here on MXNet deletes the step, even after an error
  const bool has_failed = mxnet->push(
      [](void*, void* step) { ((Step*)step)->run(); }, step.release(),
      [](void* step) { delete (Step*)step; }, device, read.data(), (int)n,
      written.data(), (int)written.size(), nullptr, 0, "d2lbert_adam");
  return has_failed ? MXNET_FAILED : DONE;
} catch (const std::bad_alloc&) {
  return NO_MEMORY;
}

}  // namespace d2lbert
