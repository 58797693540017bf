// The eight-bit encoder without Python around it: reads a net and texts from
// a file, in the order of `write_net` in test_int8.py, and writes the vectors
// to standard output. A program for processors that are only emulated.
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" {
void int8_quantize(const float*, int64_t, int64_t, int8_t*, float*);
int int8_new(const int64_t*, double, const int8_t*, const float*, double,
             const float*, const float*, void**);
int int8_put_dense(void*, int64_t, int64_t, int64_t, const int8_t*,
                   const float*, const float*);
int int8_put_norm(void*, int64_t, const float*, const float*);
int int8_encode(const void*, int64_t, const int64_t*, const int32_t*,
                const int32_t*, int64_t, const int32_t*, double, int, float*);
}

namespace {

template <class T>
std::vector<T> read(std::FILE* file, size_t n) {
  std::vector<T> x(n);
  if (std::fread(x.data(), sizeof(T), n, file) != n) throw "short";
  return x;
}

}  // namespace

int main(int, char** argv) {
  std::FILE* file = std::fopen(argv[1], "rb");
  const auto sizes = read<int64_t>(file, 10);
  const int64_t V = sizes[0], S = sizes[1], positions = sizes[2],
                E = sizes[3], H = sizes[4], F = sizes[5], blocks = sizes[7],
                B = sizes[9];
  const auto offsets = read<int64_t>(file, B + 1);
  const int64_t R = offsets[B];
  const auto ids = read<int32_t>(file, R), segments = read<int32_t>(file, R);
  const double epsilon = read<double>(file, 1)[0];
  const auto words = read<int8_t>(file, V * E);
  const auto scales = read<float>(file, V), kinds = read<float>(file, S * E),
             places = read<float>(file, positions * E);
  void* encoder;
  int failed = int8_new(sizes.data(), epsilon, words.data(), scales.data(),
                        1, kinds.data(), places.data(), &encoder);
  auto norm = [&](int64_t which, int64_t n) {
    const auto gamma = read<float>(file, n), beta = read<float>(file, n);
    failed |= int8_put_norm(encoder, which, gamma.data(), beta.data());
  };
  norm(2 * blocks, E);
  std::vector<int32_t> order;
  for (int64_t b = 0; b < blocks; b++) {
    const int64_t shapes[][2] = {{3 * H, H}, {H, H}, {F, H}, {H, F}};
    for (int64_t i = 0; i < 4; i++) {
      const int64_t N = shapes[i][0], K = shapes[i][1];
      const auto W = read<float>(file, N * K), bias = read<float>(file, N);
      std::vector<int8_t> q(N * K);
      std::vector<float> scale(N);
      int8_quantize(W.data(), N, K, q.data(), scale.data());
      failed |= int8_put_dense(encoder, 4 * b + i, N, K, q.data(),
                               scale.data(), bias.data());
    }
    norm(2 * b, H);
    norm(2 * b + 1, H);
    order.push_back((int32_t)b);
  }
  std::vector<float> out(R * H);
  failed |= int8_encode(encoder, B, offsets.data(), ids.data(),
                        segments.data(), blocks, order.data(), 1e6, 0,
                        out.data());
  std::fwrite(out.data(), 4, out.size(), stdout);
  return failed != 0;
}
