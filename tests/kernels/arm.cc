// The operators against loops in double precision, without MXNet around them:
// a program for processors that are only emulated. Prints a line an operator
// and exits with 1 if one of them is off.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>

#include "op.h"

using namespace d2lbert;
using mxnet::ext::CustomOp;
using mxnet::ext::MXContext;
using mxnet::ext::MXDType;
using mxnet::ext::Registry;

extern "C" const char* d2lbert_isa();

namespace {

struct Array {
  std::vector<int64_t> shape;
  std::vector<float> x;     // whole numbers, where the operator wants those
  bool whole = false;
  Array(std::vector<int64_t> s, float fill = 0) : shape(s) {
    long n = 1;
    for (long i : s) n *= i;
    x.assign(n, fill);
  }
  operator MXTensor() {
    if (whole) {
      held.assign(x.begin(), x.end());
      return MXTensor(held.data(), shape, mxnet::ext::kInt32, 0,
                      MXContext::CPU(0), mxnet::ext::kDefaultStorage);
    }
    return MXTensor(x.data(), shape, mxnet::ext::kFloat32, 0,
                    MXContext::CPU(0), mxnet::ext::kDefaultStorage);
  }

 private:
  std::vector<int32_t> held;
};

typedef std::vector<Array> Arrays;
std::mt19937 engine(1);

Array normal(std::vector<int64_t> shape) {
  Array a(shape);
  std::normal_distribution<float> draw;
  for (float& x : a.x) x = draw(engine);
  return a;
}

Array whole(std::vector<float> values) {
  Array a({(int64_t)values.size()});
  a.x = values;
  a.whole = true;
  return a;
}

using mxnet::ext::CustomStatefulOp;

// state: the state of an operator that saves results for its gradient.
void run(bool backward, const char* name, const Attrs& attrs, Arrays* in,
         Arrays* out, CustomStatefulOp** state) {
  auto* all = Registry<CustomOp>::get();
  for (int i = 0; i < all->size(); i++) {
    CustomOp& op = all->get(i);
    if (std::strcmp(op.name, name)) continue;
    if (op.forward_fp.empty() && op.create_op_fp.empty()) op.mapToVector();
    Tensors from(in->begin(), in->end()), to(out->begin(), out->end());
    const OpResource none(nullptr, nullptr, nullptr, nullptr, nullptr,
                          nullptr, nullptr, nullptr, nullptr);
    if (op.create_op_fp.empty()) {
      const auto run = (backward ? op.backward_fp : op.forward_fp)[0];
      if (run(attrs, &from, &to, none) == MX_SUCCESS) return;
    } else {
      if (!*state)
        op.create_op_fp[0](attrs, MXContext::CPU(0), {}, {}, state);
      if ((backward ? (*state)->Backward(&from, &to, none)
                    : (*state)->Forward(&from, &to, none)) == MX_SUCCESS)
        return;
    }
  }
  std::printf("%s did not run\n", name);
  std::exit(1);
}

bool all_near = true;

void near(const char* what, const std::vector<float>& got,
          const std::vector<double>& wanted, double tolerance = 2e-5) {
  double largest = 1e-2, off = 0;
  for (size_t i = 0; i < wanted.size(); i++) {
    largest = std::max(largest, std::abs(wanted[i]));
    const double d = std::abs(got[i] - wanted[i]);
    off = d <= off ? off : d;   // NaN stays
  }
  const bool ok = off <= tolerance * largest;
  std::printf("%s %s, off by %.1e of the largest\n", ok ? "ok " : "BAD", what,
              off / largest);
  all_near &= ok;
}

// The gradient of sum(d * f(arrays)) by array k, by differences of f, which
// is in double precision.
typedef std::vector<std::vector<double>> Doubles;
typedef std::function<std::vector<double>(const Doubles&)> Function;

Doubles in_double(const Arrays& arrays) {
  Doubles all;
  for (const Array& a : arrays) all.emplace_back(a.x.begin(), a.x.end());
  return all;
}

std::vector<double> gradient(const Function& f, const Arrays& arrays, int k,
                             const Array& d) {
  Doubles at = in_double(arrays);
  std::vector<double> slopes(at[k].size());
  const double step = 1e-5;
  for (size_t i = 0; i < slopes.size(); i++) {
    const double x = at[k][i];
    for (int sign : {1, -1}) {
      at[k][i] = x + sign * step;
      const auto y = f(at);
      for (size_t j = 0; j < y.size(); j++)
        slopes[i] += sign * d.x[j] * y[j] / (2 * step);
    }
    at[k][i] = x;
  }
  return slopes;
}

typedef std::vector<double> Doubled;

// x (R, K) times w (N, K), and a bias.
Doubled product(const Doubled& x, const Doubled& w, const Doubled& b, long R,
                long K, long N) {
  Doubled y(R * N);
  for (long r = 0; r < R; r++)
    for (long n = 0; n < N; n++) {
      y[r * N + n] = b[n];
      for (long k = 0; k < K; k++) y[r * N + n] += x[r * K + k] * w[n * K + k];
    }
  return y;
}

Doubled activated(Doubled y, const std::string& name) {
  for (double& z : y)
    z = name == "relu" ? std::max(z, 0.)
        : name == "tanh" ? std::tanh(z)
        : name == "gelu" ? z * .5 * (1 + std::erf(z * std::sqrt(.5)))
                         : z;
  return y;
}

// LayerNorm(x + y).
Doubled normalized(const Doubled& x, const Doubled& y, const Doubled& gamma,
                   const Doubled& beta, long R, long H) {
  Doubled z(R * H);
  for (long r = 0; r < R; r++) {
    double mean = 0, square = 0;
    for (long i = r * H; i < (r + 1) * H; i++) {
      z[i] = x[i] + y[i];
      mean += z[i] / H;
    }
    for (long i = r * H; i < (r + 1) * H; i++)
      square += std::pow(z[i] - mean, 2) / H;
    for (long h = 0; h < H; h++)
      z[r * H + h] = (z[r * H + h] - mean) / std::sqrt(square + 1e-5) *
                         gamma[h] + beta[h];
  }
  return z;
}

// Sequences of T rows, of which the first of each are keys.
Doubled attended(const Doubled& q, const Doubled& k, const Doubled& v,
                 const std::vector<float>& lens, long T, long D, long heads) {
  const long H = D * heads;
  Doubled y(lens.size() * T * H);
  for (long b = 0; b < (long)lens.size(); b++)
    for (long h = 0; h < heads; h++)
      for (long i = b * T; i < (b + 1) * T; i++) {
        Doubled w((long)lens[b]);
        double total = 0;
        for (long j = 0; j < (long)w.size(); j++) {
          double s = 0;
          for (long c = h * D; c < (h + 1) * D; c++)
            s += q[i * H + c] * k[(b * T + j) * H + c];
          total += w[j] = std::exp(s / std::sqrt((double)D));
        }
        for (long j = 0; j < (long)w.size(); j++)
          for (long c = h * D; c < (h + 1) * D; c++)
            y[i * H + c] += w[j] / total * v[(b * T + j) * H + c];
      }
  return y;
}

std::vector<float> starts(long B, long T) {
  std::vector<float> offsets;
  for (long b = 0; b <= B; b++) offsets.push_back(b * T);
  return offsets;
}

// Compare out[0] of an operator, and the gradients of its first inputs.
void check(const std::string& what, const char* name, const Attrs& attrs,
           Arrays in, Arrays out, const Function& f, int gradients) {
  CustomStatefulOp* state = nullptr;
  run(false, name, attrs, &in, &out, &state);
  near(what.c_str(), out[0].x, f(in_double(in)));
  const Array d = normal(out[0].shape);
  Arrays all(out.size(), d), grads = in;
  for (Array& grad : grads) grad.whole = false;
  for (const Arrays& more : {in, out})
    all.insert(all.end(), more.begin(), more.end());
  if (gradients) run(true, name, attrs, &all, &grads, &state);
  for (int k = 0; k < gradients; k++)
    near(("its gradient " + std::to_string(k)).c_str(), grads[k].x,
         gradient(f, in, k, d), 5e-5);
  delete state;
}

void dense(const std::string& act, long R, long K, long N) {
  check("dense, " + act, "d2lbert_dense", {{"act", act}, {"bias", "1"}},
        {normal({R, K}), normal({N, K}), normal({N})},
        Arrays(act == "gelu" ? 2 : 1, Array({R, N})),
        [=](const Doubles& a) {
          return activated(product(a[0], a[1], a[2], R, K, N), act);
        }, 3);
}

void norm(long R, long H) {
  check("add and normalize", "d2lbert_add_norm", {{"p", "0"}},
        {normal({R, H}), normal({R, H}), normal({H}), normal({H})},
        {Array({R, H}), Array({R, 2})},
        [=](const Doubles& a) {
          return normalized(a[0], a[1], a[2], a[3], R, H);
        }, 4);
}

void attention(long D, long heads, std::vector<float> lens) {
  const long B = lens.size(), T = 37, R = B * T, H = D * heads;
  check("attention", "d2lbert_attention_qkv",
        {{"num_heads", std::to_string(heads)}, {"p", "0"}},
        {normal({R, 3 * H}), whole(starts(B, T)), whole(lens)},
        {Array({R, H})},
        [=](const Doubles& a) {
          Doubled x[3];
          for (long r = 0; r < R; r++)
            for (int k = 0; k < 3; k++)
              x[k].insert(x[k].end(), a[0].begin() + (3 * r + k) * H,
                          a[0].begin() + (3 * r + k + 1) * H);
          return attended(x[0], x[1], x[2], lens, T, D, heads);
        }, 0);
}

void feed_forward(const std::string& act, long R, long H, long F) {
  check("feed forward, " + act, "d2lbert_feed_forward", {{"act", act}},
        {normal({R, H}), normal({F, H}), normal({F}), normal({H, F}),
         normal({H}), normal({H}), normal({H})},
        {Array({R, H})},
        [=](const Doubles& a) {
          const Doubled hidden =
              activated(product(a[0], a[1], a[2], R, H, F), act);
          return normalized(a[0], product(hidden, a[3], a[4], R, F, H), a[5],
                            a[6], R, H);
        }, 7);
}

void self_attention(long D, long heads, long T, std::vector<float> lens) {
  const long B = lens.size(), R = B * T, H = D * heads;
  Arrays in = {normal({R, H})};
  for (int k = 0; k < 4; k++) in.push_back(normal({H, H}));
  for (int k = 0; k < 6; k++) in.push_back(normal({H}));
  in.push_back(whole(starts(B, T)));
  in.push_back(whole(lens));
  check("self-attention", "d2lbert_self_attention",
        {{"num_heads", std::to_string(heads)}}, in, {Array({R, H})},
        [=](const Doubles& a) {
          Doubled x[3];
          for (int k = 0; k < 3; k++)
            x[k] = product(a[0], a[1 + k], a[5 + k], R, H, H);
          const Doubled y = attended(x[0], x[1], x[2], lens, T, D, heads);
          return normalized(a[0], product(y, a[4], a[8], R, H, H), a[9],
                            a[10], R, H);
        }, 6);
}

void vocabulary(long M, long H, long V) {
  std::vector<float> labels(M);
  for (long m = 0; m < M; m++) labels[m] = (m * 7) % V;
  const Function f = [=](const Doubles& a) {
    double loss = 0;
    for (long m = 0; m < M; m++) {
      double total = 0, right = 0;
      for (long v = 0; v < V; v++) {
        double z = a[2][v];
        for (long h = 0; h < H; h++) z += a[0][m * H + h] * a[1][v * H + h];
        total += std::exp(z);
        if (v == labels[m]) right = z;
      }
      loss += a[4][m] * (std::log(total) - right);
    }
    return std::vector<double>{loss};
  };
  Arrays in = {normal({M, H}), normal({V, H}), normal({V}), whole(labels),
               normal({M})};
  Arrays out = {Array({1}), Array({M}), in[0], in[1], in[2]};
  run(false, "d2lbert_vocab_ce", {{"grad", "1"}}, &in, &out, nullptr);
  near("cross-entropy over a vocabulary", out[0].x, f(in_double(in)));
  const Array one({1}, 1.f);
  for (int k = 0; k < 3; k++)
    near(("its gradient " + std::to_string(k)).c_str(), out[2 + k].x,
         gradient(f, in, k, one), 5e-5);
}

}  // namespace

int main() {
  std::printf("%s, %d floats a vector\n", d2lbert_isa(), VL);
  dense("none", 29, 13, 27);
  dense("relu", 9, 32, 24);
  dense("tanh", 17, 5, 3);
  dense("gelu", 11, 20, 12);
  norm(23, 37);
  attention(19, 2, {37, 1, 20});
  feed_forward("gelu", 13, 11, 21);
  feed_forward("tanh", 9, 8, 5);
  self_attention(5, 2, 7, {7, 1, 4});
  vocabulary(31, 9, 70);
  return !all_near;
}
