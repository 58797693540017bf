// The instructions of AMX, one by one, for test_amx.py.
#include "amx_instructions.h"

using namespace d2lbert::amx;

// Load c (m x n), a (m x k) and b (k x n), matrices of words, to tiles 0, 1 and
// 2; compute c += a b by an instruction, and store c.
template <class Instruction>
void multiply(int m, int k, int n, const uint32_t* a, const uint32_t* b,
              void* c, Instruction instruction) {
  d2lbert::tiles_permitted();
  Config config;
  config.rows[0] = config.rows[1] = m;
  config.rows[2] = k;
  config.row_bytes[0] = config.row_bytes[2] = 4 * n;
  config.row_bytes[1] = 4 * k;
  configure(config);
  load_tile<0>(c, 4 * n);
  load_tile<1>(a, 4 * k);
  load_tile<2>(b, 4 * n);
  instruction();
  save_tile<0>(c, 4 * n);
  release();
}

// A word is a pair of bfloat16.
extern "C" void dot(int m, int k, int n, const uint32_t* a, const uint32_t* b,
                    float* c) {
  multiply(m, k, n, a, b, c, d2lbert::amx::dot<0, 1, 2>);
}

// A word is four bytes, unsigned in a and signed in b.
extern "C" void dot_bytes(int m, int k, int n, const uint32_t* a,
                          const uint32_t* b, int32_t* c) {
  multiply(m, k, n, a, b, c, d2lbert::amx::dot_bytes<0, 1, 2>);
}

extern "C" void without_leave() { configure(Config()); }

extern "C" void without_configuration() {
  d2lbert::tiles_permitted();
  zero_tile<0>();
}

extern "C" void after_release() {
  d2lbert::tiles_permitted();
  { const ConfiguredTiles tiles; }
  zero_tile<0>();
}

extern "C" void after_fork() {
  d2lbert::tiles_permitted();
  configure(Config());
  release();
}
