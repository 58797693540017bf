// d2lbert_attention, d2lbert_attention_qkv: scaled dot-product attention of
// several heads over sequences that lie one after the other in the rows of
// one matrix. Nothing is computed for keys beyond a sequence's length, and
// no score leaves the cache.
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

// Inputs: Q, K, V or QKV together; offsets, lens[, noise].
template <bool TOGETHER>
struct Op {
  static constexpr int PARTS = TOGETHER ? 1 : 3;

  static bool drops(const Attrs& attrs) { return number(attrs, "p", 0) > 0; }

  static Parts parts(Tensors* t, int at, long H) {
    if (TOGETHER) {
      float* x = floats((*t)[at]);
      return {x, x + H, x + 2 * H, 3 * H};
    }
    return {floats((*t)[at]), floats((*t)[at + 1]), floats((*t)[at + 2]), H};
  }

  static Problem problem(const Attrs& attrs, Tensors* in, int at) {
    const long R = (*in)[at].shape[0];
    const long H = (*in)[at].shape[1] / (TOGETHER ? 3 : 1);
    const long heads = (long)number(attrs, "num_heads", 1);
    MXTensor &offsets = (*in)[at + PARTS], &lens = (*in)[at + PARTS + 1];
    return {R, H, (long)lens.size(), heads, H / heads, ints(offsets),
            ints(lens), (float)(1 / std::sqrt((double)H / heads)),
            Dropout(number(attrs, "p", 0),
                    drops(attrs) ? floats((*in)[at + PARTS + 2]) : nullptr),
            number(attrs, "causal", 0) != 0};
  }

  static MXReturnValue parse(const Attrs& attrs, int* inputs, int* outputs) {
    *inputs = PARTS + 2 + (drops(attrs) ? 1 : 0);
    *outputs = 1;  // heads joined
    return MX_SUCCESS;
  }

  static MXReturnValue infer_type(const Attrs&, std::vector<int>* in,
                                  std::vector<int>* out) {
    std::fill(in->begin(), in->end(), kFloat32);
    (*in)[PARTS] = (*in)[PARTS + 1] = kInt32;
    std::fill(out->begin(), out->end(), kFloat32);
    return MX_SUCCESS;
  }

  static MXReturnValue infer_shape(const Attrs& attrs, Shapes* in,
                                   Shapes* out) {
    const Shape x = (*in)[0], lens = (*in)[PARTS + 1];
    const unsigned heads = (unsigned)number(attrs, "num_heads", 1);
    if (x.size() != 2 || lens.size() != 1)
      return fail("attention needs rows (R, H) and lens (B,)");
    const unsigned H = x[1] / (TOGETHER ? 3 : 1);
    if (!heads || H % heads || (TOGETHER && x[1] % 3))
      return fail(std::to_string(heads) + " heads do not divide " +
                  std::to_string(H) + " hiddens");
    for (int i = 1; i < PARTS; i++) (*in)[i] = x;
    (*in)[PARTS] = {lens[0] + 1};
    if (drops(attrs)) (*in)[PARTS + 2] = {64};
    *out = {{x[0], H}};
    return MX_SUCCESS;
  }

  static MXReturnValue run_forward(const Attrs& attrs, Tensors* in,
                                   Tensors* out, const OpResource&) {
    const Problem p = problem(attrs, in, 0);
    if (!p.apart())
      return fail("attention needs offsets that rise");
    const bool bf16 = wants_bf16(attrs);
    if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
    const auto run = pick(bf16, p.size, D2LBERT_PRODUCTS(forward));
    run(p, parts(in, 0, p.H), floats((*out)[0]));
    return MX_SUCCESS;
  }

  static MXReturnValue run_backward(const Attrs& attrs, Tensors* in,
                                    Tensors* out, const OpResource&) {
    // in: gradient of the outcome, inputs, outcome
    const Problem p = problem(attrs, in, 1);
    const bool bf16 = wants_bf16(attrs);
    if (bf16 && !D2LBERT_BF16) return fail(no_bf16());
    const auto run = pick(bf16, p.size, D2LBERT_PRODUCTS(backward));
    Parts grad = parts(out, 0, p.H);
    // The framework leaves out what no one asked for; it is computed anyway.
    std::vector<float> unwanted;
    if (!TOGETHER && !(grad.q && grad.k && grad.v)) {
      unwanted.resize(p.R * p.H);
      for (float** g : {&grad.q, &grad.k, &grad.v})
        if (!*g) *g = unwanted.data();
    }
    run(p, parts(in, 1, p.H), floats((*in)[0]), grad);
    for (size_t i = PARTS; i < out->size(); i++) clear((*out)[i]);
    return MX_SUCCESS;
  }
};

}  // namespace

REGISTER_OP(d2lbert_attention)
    .setForward(Caught<Op<false>::run_forward>::call, "cpu")
    .setBackward(Caught<Op<false>::run_backward>::call, "cpu")
    .setParseAttrs(Caught<Op<false>::parse>::call)
    .setInferType(Caught<Op<false>::infer_type>::call)
    .setInferShape(Caught<Op<false>::infer_shape>::call);

REGISTER_OP(d2lbert_attention_qkv)
    .setForward(Caught<Op<true>::run_forward>::call, "cpu")
    .setBackward(Caught<Op<true>::run_backward>::call, "cpu")
    .setParseAttrs(Caught<Op<true>::parse>::call)
    .setInferType(Caught<Op<true>::infer_type>::call)
    .setInferShape(Caught<Op<true>::infer_shape>::call);

}  // namespace d2lbert
