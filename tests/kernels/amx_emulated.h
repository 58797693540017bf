// AMX tile instructions, emulated for tests on machines without them.
//
// amx_instructions.h includes this file in place of the instructions when a
// test compiles with -DD2LBERT_AMX_EMULATED=<amx_emulated.h>. The functions
// follow the Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 2 (LDTILECFG to TILEZERO, TDPBF16PS, TDPBUSD). They abort where a
// thread without permission or configuration would fault.
#pragma once
#include <immintrin.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace d2lbert {
namespace amx {

// Every size goes by tiles, so that tests of any size test them.
constexpr long MIN_TILE_DIM = 1;

namespace emulated {

struct State {
  Config config;
  bool on = false;
  alignas(64) uint8_t tiles[8][16][64];
};
inline thread_local State state;
inline std::atomic<long> threads_on{0}, dots{0};
// The process that has asked for tiles and may use them, or 0.
inline std::atomic<int> allowed{0};

inline void fault(const char* what) {
  std::fprintf(stderr, "emulated AMX: %s\n", what);
  std::abort();
}

inline void check(std::initializer_list<int> tiles) {
  if (!state.on) fault("tiles without a configuration in this thread");
  for (int tile : tiles)
    if (tile < 0 || tile > 7 || !state.config.rows[tile] ||
        !state.config.row_bytes[tile])
      fault("a tile that is not configured");
}

inline void clear_rest(int tile) {
  const int rows = state.config.rows[tile];
  const int bytes = state.config.row_bytes[tile];
  for (int r = 0; r < 16; r++)
    for (int c = r < rows ? bytes : 0; c < 64; c++)
      state.tiles[tile][r][c] = 0;
}

inline float number(const uint8_t* half) {  // a bfloat16
  const uint32_t bits = (uint32_t)half[1] << 24 | (uint32_t)half[0] << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline void configure(const Config& config) {
  if (allowed != getpid()) fault("tiles in a process without permission");
  if (config.palette != 1 || config.start_row) fault("an unknown palette");
  for (int i = 0; i < 16; i++)
    if (config.rows[i] > (i < 8 ? 16 : 0) ||
        config.row_bytes[i] > (i < 8 ? 64 : 0) ||
        !config.rows[i] != !config.row_bytes[i])
      fault("a shape that tiles cannot have");
  for (uint8_t byte : config.reserved)
    if (byte) fault("reserved bytes are not zero");
  if (!state.on) threads_on++;
  state.config = config;
  state.on = true;
  std::memset(state.tiles, 0, sizeof state.tiles);
}

inline void release() {
  if (state.on) threads_on--;
  state.on = false;
}

inline void zero(int tile) {
  check({tile});
  std::memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
}

inline void load(int tile, const void* from, long ld) {
  check({tile});
  for (int r = 0; r < state.config.rows[tile]; r++)
    std::memcpy(state.tiles[tile][r], (const char*)from + r * ld,
                state.config.row_bytes[tile]);
  clear_rest(tile);
}

inline void save(int tile, void* to, long ld) {
  check({tile});
  for (int r = 0; r < state.config.rows[tile]; r++)
    std::memcpy((char*)to + r * ld, state.tiles[tile][r],
                state.config.row_bytes[tile]);
}

inline void check_product(int to, int a, int b) {
  check({to, a, b});
  const Config& c = state.config;
  if (to == a || to == b || a == b) fault("one tile as two operands");
  if (c.row_bytes[to] % 4 || c.row_bytes[a] % 4 || c.row_bytes[b] % 4 ||
      c.rows[to] != c.rows[a] || c.rows[b] != c.row_bytes[a] / 4 ||
      c.row_bytes[to] != c.row_bytes[b])
    fault("tiles of shapes that do not fit");
  dots++;
}

// Sum even and odd numbers separately, by fused operations from zero; then
// add both sums, and add the result to the tile.
inline void multiply(int to, int a, int b) {
  check_product(to, a, b);
  const Config& c = state.config;
  // Round to nearest even, read and write denormals as zeros, no exceptions
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x9fc0);
  for (int m = 0; m < c.rows[to]; m++) {
    alignas(64) float sums[2][16] = {}, other[2][16];
    for (int k = 0; k < c.row_bytes[a] / 4; k++) {
      for (int n = 0; n < 16; n++)
        for (int odd = 0; odd < 2; odd++)
          other[odd][n] = number(&state.tiles[b][k][4 * n + 2 * odd]);
      for (int odd = 0; odd < 2; odd++) {
        const __m512 one =
            _mm512_set1_ps(number(&state.tiles[a][m][4 * k + 2 * odd]));
        _mm512_store_ps(sums[odd],
                        _mm512_fmadd_ps(one, _mm512_load_ps(other[odd]),
                                        _mm512_load_ps(sums[odd])));
      }
    }
    const __m512 both =
        _mm512_add_ps(_mm512_load_ps(sums[0]), _mm512_load_ps(sums[1]));
    uint8_t* row = state.tiles[to][m];
    _mm512_storeu_ps(row, _mm512_add_ps(_mm512_loadu_ps(row), both));
  }
  _mm_setcsr(before);
  clear_rest(to);
}

// Multiply unsigned bytes of a by signed bytes of b, and add four products at a
// time to an integer of the tile.
inline void multiply_bytes(int to, int a, int b) {
  check_product(to, a, b);
  const Config& c = state.config;
  for (int m = 0; m < c.rows[to]; m++) {
    int32_t sums[16];
    std::memcpy(sums, state.tiles[to][m], sizeof sums);
    for (int k = 0; k < c.row_bytes[a]; k += 4) {
      const uint8_t* one = &state.tiles[a][m][k];
      const int8_t* other = (const int8_t*)state.tiles[b][k / 4];
      for (int n = 0; n < 16; n++)
        for (int q = 0; q < 4; q++) sums[n] += one[q] * other[4 * n + q];
    }
    std::memcpy(state.tiles[to][m], sums, sizeof sums);
  }
  clear_rest(to);
}

}  // namespace emulated

inline bool request_permission() {
  if (std::getenv("D2LBERT_AMX_REFUSED")) return false;
  emulated::allowed = getpid();
  return true;
}
inline void configure(const Config& config) { emulated::configure(config); }
inline void release() { emulated::release(); }
template <int T>
inline void zero_tile() { emulated::zero(T); }
template <int T>
inline void load_tile(const void* p, long ld) { emulated::load(T, p, ld); }
template <int T>
inline void save_tile(void* p, long ld) { emulated::save(T, p, ld); }
template <int C, int A, int B>
inline void dot() { emulated::multiply(C, A, B); }
template <int C, int A, int B>
inline void dot_bytes() { emulated::multiply_bytes(C, A, B); }

}  // namespace amx
}  // namespace d2lbert

// The number of threads that hold tiles; none does between operators.
extern "C" inline __attribute__((used)) long d2lbert_threads_on() {
  return d2lbert::amx::emulated::threads_on;
}

// The number of products of tiles so far.
extern "C" inline __attribute__((used)) long d2lbert_dots() {
  return d2lbert::amx::emulated::dots;
}
