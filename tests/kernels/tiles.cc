// The emulated instructions of AMX, one by one, for test_amx.py.
#include "amx.h"

using namespace d2lbert::amx;

// c (m x n) += a b, with a (m x 2k) and b (2k x n) as pairs of bfloat16.
extern "C" void dot(int m, int k, int n, const uint32_t* a,
                    const uint32_t* b, float* c) {
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
  d2lbert::amx::dot<0, 1, 2>();
  save_tile<0>(c, 4 * n);
  release();
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
