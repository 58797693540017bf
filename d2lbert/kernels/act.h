// Activations of layers, and their gradients.
#pragma once
#include "op.h"

namespace d2lbert {

enum Act { NONE, RELU, TANH, GELU, GELU_NEW };

inline MXReturnValue parse_act(const Attrs& attrs, Act* act) {
  const std::string name = text(attrs, "act", "none");
  const char* names[] = {"none", "relu", "tanh", "gelu", "gelu_new"};
  for (int i = 0; i < 5; i++)
    if (name == names[i]) {
      *act = (Act)i;
      return MX_SUCCESS;
    }
  return fail("act must be none, relu, tanh, gelu or gelu_new, not " + name);
}

// GELU's normal distribution (Hendrycks and Gimpel 2016, section 2): e^(-z²/2),
inline vf bell(vf z) { return exp(-0.5f * z * z); }

// and its cumulative distribution at z. The tail above |z| is the bell times a
// polynomial without constant in 1 / (1 + k |z|) (Abramowitz and Stegun
// 7.1.26). It is fitted so that the error of z times the tail is at most 7e-9.
inline vf share_below(vf z, vf bell) {
  const vf u = 1.f / (1.f + 0.27731144f * absolute(z));
  vf p = splat(-0.11110299f);
  p = p * u + 0.42442581f;
  p = p * u - 0.28891068f;
  p = p * u + 0.30483399f;
  p = p * u + 0.05348177f;
  p = p * u + 0.1172721f;
  const vf above = bell * (p * u);
  return z > 0.f ? 1.f - above : above;
}

// The argument of tanh in the tanh form of GELU, of the same section:
// z / 2 (1 + tanh(this)).
inline vf bent(vf z) {
  return 0.79788456f * z * (1.f + 0.044715f * z * z);
}

inline vf apply(Act act, vf z) {
  switch (act) {
    case RELU: return z < 0.f ? splat(0.f) : z;  // NaN stays NaN
    case TANH: return tanh(z);
    case GELU: return z * share_below(z, bell(z));
    case GELU_NEW: return 0.5f * z * (1.f + tanh(bent(z)));
    default: return z;
  }
}

// Both kinds of GELU need their argument for the gradient.
inline bool needs_argument(Act act) { return act == GELU || act == GELU_NEW; }

// Gradient by z; `saved` is z itself for GELU, the output otherwise.
inline vf slope(Act act, vf dy, vf saved) {
  switch (act) {
    case RELU: return saved > 0.f ? dy : splat(0.f);
    case TANH: return dy * (1.f - saved * saved);
    case GELU: {
      const vf e = bell(saved);
      return dy * (share_below(saved, e) + saved * 0.39894228f * e);
    }
    case GELU_NEW: {
      const vf t = tanh(bent(saved));
      return dy * 0.5f * (1.f + t + (1.f - t * t) * saved * 0.79788456f *
                                        (1.f + 0.134145f * saved * saved));
    }
    default: return dy;
  }
}

}  // namespace d2lbert
