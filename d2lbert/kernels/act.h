// Activation functions and their gradients, for vectors of floats.
#pragma once
#include "op.h"

namespace d2lbert {

// The activations, in the order of the names in `parse_act`. GELU: Hendrycks
// and Gimpel 2016. GELU_NEW: its approximation by tanh in the same paper.
enum Act { NONE, RELU, TANH, GELU, GELU_NEW };

// Fail for an unknown name in the attribute `act`. MXNet calls the attribute
// parsers first, and they return the failure. Later callers need not check it.
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

// The density of the standard normal distribution, times sqrt(2 pi).
inline vf gaussian(vf z) { return exp(-0.5f * z * z); }

// The cumulative distribution function of the standard normal distribution, for
// e = gaussian(z). The probability beyond |z|, the tail, is about e times a
// polynomial in u (the form of Abramowitz and Stegun 7.1.26). The coefficients
// are fitted so that z times the tail has an error of at most 7e-9.
inline vf normal_cdf(vf z, vf e) {
  const vf u = 1.f / (1.f + 0.27731144f * absolute(z));
  vf p = splat(-0.11110299f);
  p = p * u + 0.42442581f;
  p = p * u - 0.28891068f;
  p = p * u + 0.30483399f;
  p = p * u + 0.05348177f;
  p = p * u + 0.1172721f;
  const vf tail = e * (p * u);
  return z > 0.f ? 1.f - tail : tail;
}

// The argument of tanh in GELU_NEW: sqrt(2 / pi) (z + 0.044715 z³).
inline vf tanh_argument(vf z) {
  return 0.79788456f * z * (1.f + 0.044715f * z * z);
}

inline vf apply(Act act, vf z) {
  switch (act) {
    case RELU: return z < 0.f ? splat(0.f) : z;  // NaN stays NaN
    case TANH: return tanh(z);
    case GELU: return z * normal_cdf(z, gaussian(z));
    case GELU_NEW: return 0.5f * z * (1.f + tanh(tanh_argument(z)));
    default: return z;
  }
}

// True if `gradient` needs the argument of the activation, not the output.
inline bool needs_argument(Act act) { return act == GELU || act == GELU_NEW; }

// The gradient of the argument, from the gradient dy of the output. saved: the
// argument or the output, see `needs_argument`.
inline vf gradient(Act act, vf dy, vf saved) {
  switch (act) {
    case RELU: return saved > 0.f ? dy : splat(0.f);
    case TANH: return dy * (1.f - saved * saved);
    case GELU: {
      const vf e = gaussian(saved);
      // 0.3989 is 1 / sqrt(2 pi)
      return dy * (normal_cdf(saved, e) + saved * 0.39894228f * e);
    }
    case GELU_NEW: {
      // 0.79788456 (1 + 0.134145 z²) is the derivative of tanh_argument(z)
      const vf t = tanh(tanh_argument(saved));
      return dy * 0.5f * (1.f + t + (1.f - t * t) * saved * 0.79788456f *
                                        (1.f + 0.134145f * saved * saved));
    }
    default: return dy;
  }
}

}  // namespace d2lbert
