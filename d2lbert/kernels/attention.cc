// The operator d2lbert_attention_qkv: scaled dot-product attention of several
// heads. QKV (R, 3H) has queries, keys and values side by side. attend.h
// explains offsets and lens. The output (R, H) is zero in rows outside of the
// sequences.
#include "attend.h"

namespace d2lbert {
namespace {

template <class E>
void forward(const Problem& p, const QueryKeyValue& in, float* out) {
  clear_gaps(p, out, p.H, p.H);
  const long T = p.longest_sequence();
  const int threads = team(8.0 * p.R * T * p.H);
  ThreadScratch& scratch = thread_scratch(
      threads, AttendMemory<E>::bytes(p, T));
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = scratch.mine();
    const AttendMemory<E> memory(p, T, own);
#pragma omp for schedule(dynamic, 4) nowait
    for (long i = 0; i < p.B * p.heads; i++)
      attend<E>(p, SequenceHead(p, i), in, out, memory);
  }
}

// Compute grad, the gradient of `in`, from d_out, the gradient of the output.
template <class E>
void backward(const Problem& p, const QueryKeyValue& in, const float* d_out,
              const QueryKeyValue& grad) {
  for (float* g : {grad.q, grad.k, grad.v}) clear_gaps(p, g, grad.ld, p.H);
  const long T = p.longest_sequence();
  const int threads = team(20.0 * p.R * T * p.H);
  ThreadScratch& scratch = thread_scratch(
      threads, AttendBackMemory<E>::bytes(p, T));
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = scratch.mine();
    const AttendBackMemory<E> memory(p, T, own);
#pragma omp for schedule(dynamic, 4) nowait
    for (long i = 0; i < p.B * p.heads; i++)
      attend_back<E>(p, SequenceHead(p, i), in, d_out, grad, memory);
  }
}

#if D2LBERT_AMX
#include "amx_attention.h"  // tiled::forward and tiled::backward
#endif

struct Inputs : IndexedInputs {
  const int QKV, offsets, lens, noise;  // noise: see `Dropout` in simd.h
  explicit Inputs(const Attrs& attrs)
      : QKV(next()), offsets(next()), lens(next()),
        noise(next(has_dropout(attrs))) {}
};

QueryKeyValue split_qkv(MXTensor& QKV, long H) {
  float* x = floats(QKV);
  return {x, x + H, x + 2 * H, 3 * H};
}

Problem problem_of(const Attrs& attrs, const Inputs& at, MXTensor* in) {
  const long R = in[at.QKV].shape[0], H = in[at.QKV].shape[1] / 3;
  const long heads = (long)number(attrs, "num_heads", 1);
  MXTensor &offsets = in[at.offsets], &lens = in[at.lens];
  const float scale = (float)(1 / std::sqrt((double)H / heads));
  const Dropout dropout(number(attrs, "p", 0),
                        at.noise >= 0 ? floats(in[at.noise]) : nullptr);
  const bool causal = number(attrs, "causal", 0) != 0;
  return {R, H, (long)lens.size(), heads, H / heads, ints(offsets),
          ints(lens), scale, dropout, causal};
}

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Inputs at(attrs);
  const Shape x = (*in)[at.QKV], lens = (*in)[at.lens];
  const unsigned heads = (unsigned)number(attrs, "num_heads", 1);
  if (x.size() != 2 || x[1] % 3 || lens.size() != 1)
    return fail("attention_qkv needs QKV (R, 3H) and lens (B,)");
  const unsigned H = x[1] / 3;
  if (!heads || H % heads)
    return fail(std::to_string(heads) + " heads do not divide " +
                std::to_string(H) + " hiddens");
  (*in)[at.offsets] = {lens[0] + 1};
  if (at.noise >= 0) (*in)[at.noise] = {64};
  *out = {{x[0], H}};
  return MX_SUCCESS;
}

MXReturnValue run_forward(const Attrs& attrs, Tensors* in, Tensors* out,
                          const OpResource&) {
  const Inputs at(attrs);
  const Problem p = problem_of(attrs, at, in->data());
  if (!p.has_sorted_offsets())
    return fail("attention_qkv needs offsets that never decrease");
  const bool bf16 = wants_bf16(attrs);
  if (bf16 && !D2LBERT_BF16) return fail(BF16_ERROR);
  pick_kernel(bf16, p.head_size, D2LBERT_PRODUCTS(forward))(
      p, split_qkv((*in)[at.QKV], p.H), floats((*out)[0]));
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  const Inputs at(attrs);
  const BackwardArrays arrays(*in, 1);
  const Problem p = problem_of(attrs, at, arrays.inputs);
  const bool bf16 = wants_bf16(attrs);
  if (bf16 && !D2LBERT_BF16) return fail(BF16_ERROR);
  // The inputs after QKV have no derivative, so their gradients are zero
  for (int k = at.offsets; k < at.num_inputs(); k++) zero_gradient((*out)[k]);
  if (floats((*out)[at.QKV]))
    pick_kernel(bf16, p.head_size, D2LBERT_PRODUCTS(backward))(
        p, split_qkv(arrays.inputs[at.QKV], p.H), floats(arrays.gradients[0]),
        split_qkv((*out)[at.QKV], p.H));
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_attention_qkv)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<count_inputs<Inputs>>::call)
    .setInferType(Caught<floats_except_lens<Inputs>>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
