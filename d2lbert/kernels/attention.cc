// d2lbert_attention_qkv: scaled dot-product attention of several heads. The
// rows of a matrix hold one sequence after the other, with queries, keys and
// values side by side. Padding, the rows beyond the length of a sequence, is
// no key and takes no time as one. No score leaves the cache.
#include "attend.h"

namespace d2lbert {
namespace {

template <class E>
void forward(const Problem& p, const Parts& in, float* out) {
  clear_gaps(p, out, p.H, p.H);
  const long T = p.longest();
  const int threads = team(8.0 * p.R * T * p.H);
  Rooms& rooms = team_rooms(threads, Room<E>::bytes(p, T));
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = rooms.mine();
    const Room<E> room(p, T, own);
#pragma omp for schedule(dynamic, 4) nowait
    for (long unit = 0; unit < p.B * p.heads; unit++)
      attend<E>(p, Unit(p, unit), in, out, room);
  }
}

template <class E>
void backward(const Problem& p, const Parts& in, const float* d_out,
              const Parts& grad) {
  for (float* g : {grad.q, grad.k, grad.v}) clear_gaps(p, g, grad.ld, p.H);
  const long T = p.longest();
  const int threads = team(20.0 * p.R * T * p.H);
  Rooms& rooms = team_rooms(threads, GradientRoom<E>::bytes(p, T));
#pragma omp parallel num_threads(threads)
  {
    Scratch& own = rooms.mine();
    const GradientRoom<E> room(p, T, own);
#pragma omp for schedule(dynamic, 4) nowait
    for (long unit = 0; unit < p.B * p.heads; unit++)
      attend_back<E>(p, Unit(p, unit), in, d_out, grad, room);
  }
}

#if D2LBERT_AMX
#include "amx_attention.h"
#endif

struct Inputs : Numbered {
  const int QKV, offsets, lens, noise;
  explicit Inputs(const Attrs& attrs)
      : QKV(next()), offsets(next()), lens(next()),
        noise(next(drops(attrs))) {}
};

Parts parts(MXTensor& QKV, long H) {
  float* x = floats(QKV);
  return {x, x + H, x + 2 * H, 3 * H};
}

Problem problem(const Attrs& attrs, const Inputs& at, MXTensor* in) {
  const long R = in[at.QKV].shape[0], H = in[at.QKV].shape[1] / 3;
  const long heads = (long)number(attrs, "num_heads", 1);
  MXTensor &offsets = in[at.offsets], &lens = in[at.lens];
  return {R, H, (long)lens.size(), heads, H / heads, ints(offsets),
          ints(lens), (float)(1 / std::sqrt((double)H / heads)),
          Dropout(number(attrs, "p", 0),
                  at.noise >= 0 ? floats(in[at.noise]) : nullptr),
          number(attrs, "causal", 0) != 0};
}

MXReturnValue infer_shape(const Attrs& attrs, Shapes* in, Shapes* out) {
  const Inputs at(attrs);
  const Shape x = (*in)[at.QKV], lens = (*in)[at.lens];
  const unsigned heads = (unsigned)number(attrs, "num_heads", 1);
  if (x.size() != 2 || lens.size() != 1)
    return fail("attention needs rows (R, 3H) and lens (B,)");
  const unsigned H = x[1] / 3;
  if (!heads || H % heads || x[1] % 3)
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
  const Problem p = problem(attrs, at, in->data());
  if (!p.apart())
    return fail("attention needs offsets that rise");
  const bool bf16 = wants_bf16(attrs);
  if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
  pick(bf16, p.size, D2LBERT_PRODUCTS(forward))(
      p, parts((*in)[at.QKV], p.H), floats((*out)[0]));
  return MX_SUCCESS;
}

MXReturnValue run_backward(const Attrs& attrs, Tensors* in, Tensors* out,
                           const OpResource&) {
  const Inputs at(attrs);
  const Saved saved(*in, 1);
  const Problem p = problem(attrs, at, saved.inputs);
  const bool bf16 = wants_bf16(attrs);
  if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
  for (int k = at.offsets; k < at.count(); k++) clear((*out)[k]);
  if (floats((*out)[at.QKV]))
    pick(bf16, p.size, D2LBERT_PRODUCTS(backward))(
        p, parts(saved.inputs[at.QKV], p.H), floats(saved.gradients[0]),
        parts((*out)[at.QKV], p.H));
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(d2lbert_attention_qkv)
    .setForward(Caught<run_forward>::call, "cpu")
    .setBackward(Caught<run_backward>::call, "cpu")
    .setParseAttrs(Caught<numbered<Inputs>>::call)
    .setInferType(Caught<rows_and_floats<Inputs>>::call)
    .setInferShape(Caught<infer_shape>::call);

}  // namespace d2lbert
