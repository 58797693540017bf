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

void run(bool backward, const char* name, const Attrs& attrs, Arrays* in,
         Arrays* out) {
  auto* all = Registry<CustomOp>::get();
  for (int i = 0; i < all->size(); i++) {
    CustomOp& op = all->get(i);
    if (std::strcmp(op.name, name)) continue;
    if (op.forward_fp.empty()) op.mapToVector();
    const auto run = (backward ? op.backward_fp : op.forward_fp)[0];
    Tensors from(in->begin(), in->end()), to(out->begin(), out->end());
    const OpResource none(nullptr, nullptr, nullptr, nullptr, nullptr,
                          nullptr, nullptr, nullptr, nullptr);
    if (run(attrs, &from, &to, none) == MX_SUCCESS) return;
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

void dense(const char* act, long R, long K, long N) {
  const std::string name = act;
  const Function f = [=](const Doubles& a) {
    std::vector<double> y(R * N);
    for (long r = 0; r < R; r++)
      for (long n = 0; n < N; n++) {
        double z = a[2][n];
        for (long k = 0; k < K; k++) z += a[0][r * K + k] * a[1][n * K + k];
        y[r * N + n] =
            name == "relu" ? std::max(z, 0.)
            : name == "tanh" ? std::tanh(z)
            : name == "gelu" ? z * .5 * (1 + std::erf(z * std::sqrt(.5)))
                             : z;
      }
    return y;
  };
  Arrays in = {normal({R, K}), normal({N, K}), normal({N})};
  const Attrs attrs = {{"act", act}, {"bias", "1"}};
  const bool two = name == "gelu";
  Arrays out(two ? 2 : 1, Array({R, N}));
  run(false, "d2lbert_dense", attrs, &in, &out);
  near(("dense, " + name).c_str(), out[0].x, f(in_double(in)));
  const Array d = normal({R, N});
  Arrays given(two ? 2 : 1, d), grads = {in[0], in[1], in[2]};
  for (const Arrays& more : {in, out})
    given.insert(given.end(), more.begin(), more.end());
  run(true, "d2lbert_dense", attrs, &given, &grads);
  for (int k = 0; k < 3; k++)
    near(("its gradient " + std::to_string(k)).c_str(), grads[k].x,
         gradient(f, in, k, d));
}

void norm(long R, long H) {
  const Function f = [=](const Doubles& a) {
    std::vector<double> y(R * H);
    for (long r = 0; r < R; r++) {
      double mean = 0, square = 0;
      std::vector<double> x(H);
      for (long h = 0; h < H; h++) {
        x[h] = a[0][r * H + h] + a[1][r * H + h];
        mean += x[h] / H;
      }
      for (long h = 0; h < H; h++) square += std::pow(x[h] - mean, 2) / H;
      for (long h = 0; h < H; h++)
        y[r * H + h] =
            (x[h] - mean) / std::sqrt(square + 1e-5) * a[2][h] + a[3][h];
    }
    return y;
  };
  Arrays in = {normal({R, H}), normal({R, H}), normal({H}), normal({H})};
  const Attrs attrs = {{"p", "0"}, {"eps", "1e-5"}};
  Arrays out = {Array({R, H}), Array({R, 2})};
  run(false, "d2lbert_add_norm", attrs, &in, &out);
  near("add and normalize", out[0].x, f(in_double(in)));
}

void attention(long D, long heads, std::vector<float> lens) {
  const long B = lens.size(), T = 37, R = B * T, H = D * heads;
  std::vector<float> offsets;
  for (long b = 0; b <= B; b++) offsets.push_back(b * T);
  const Function f = [=](const Doubles& a) {
    std::vector<double> y(R * H);
    for (long b = 0; b < B; b++)
      for (long h = 0; h < heads; h++)
        for (long i = b * T; i < (b + 1) * T; i++) {
          std::vector<double> w((long)lens[b]);
          double total = 0;
          for (long j = 0; j < (long)w.size(); j++) {
            double s = 0;
            for (long c = h * D; c < (h + 1) * D; c++)
              s += a[0][i * 3 * H + c] * a[0][(b * T + j) * 3 * H + H + c];
            total += w[j] = std::exp(s / std::sqrt((double)D));
          }
          for (long j = 0; j < (long)w.size(); j++)
            for (long c = h * D; c < (h + 1) * D; c++)
              y[i * H + c] += w[j] / total *
                              a[0][(b * T + j) * 3 * H + 2 * H + c];
        }
    return y;
  };
  Arrays in = {normal({R, 3 * H}), whole(offsets), whole(lens)};
  const Attrs attrs = {{"num_heads", std::to_string(heads)}, {"p", "0"}};
  Arrays out = {Array({R, H}), Array({R, heads})};
  run(false, "d2lbert_attention_qkv", attrs, &in, &out);
  near("attention", out[0].x, f(in_double(in)));
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
  run(false, "d2lbert_vocab_ce", {{"grad", "1"}}, &in, &out);
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
  vocabulary(31, 9, 70);
  return !all_near;
}
