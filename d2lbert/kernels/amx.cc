// Whether this process may use AMX tiles, by what it multiplies, and their
// emulation.
#include "amx.h"

#include <unistd.h>

#include <atomic>
#ifdef D2LBERT_AMX_EMULATED
#include <cstdio>
#elif D2LBERT_AMX
#include <sys/syscall.h>
#endif

namespace d2lbert {
namespace {

// Below this many numbers a tile is mostly empty. The emulation takes all,
// so that tests of any size are tests of it.
#ifdef D2LBERT_AMX_EMULATED
constexpr long LEAST = 1;
#else
constexpr long LEAST = 16;
#endif

std::atomic<int> chosen[2] = {{PLAIN}, {D2LBERT_BF16 ? PAIRS : PLAIN}};

#if D2LBERT_AMX
// The kernel keeps tiles from a process until it asks, and the answer is
// that process's own.
std::atomic<int> asked_by{0};
std::atomic<bool> granted{false};

#ifdef D2LBERT_AMX_EMULATED
bool ask() { return !std::getenv("D2LBERT_AMX_REFUSED"); }
#else
bool ask() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM,
                 XFEATURE_XTILEDATA) == 0;
}
#endif

}  // namespace

bool permitted() {
  const int me = getpid();
  if (asked_by.load(std::memory_order_acquire) != me) {
    granted = ask();    // two threads at once get the same answer
    asked_by.store(me, std::memory_order_release);
  }
  return granted;
}
#else
}  // namespace

bool permitted() { return false; }
#endif

Product product(bool bf16, long least) {
  const Product wanted = (Product)chosen[bf16].load();
  if (wanted < TILES || (least >= LEAST && permitted())) return wanted;
  return bf16 && D2LBERT_BF16 ? PAIRS : PLAIN;
}

}  // namespace d2lbert

// For callers outside. Tiles are not compiled in (0), refused by the system
// (1) or there (2).
extern "C" int d2lbert_tiles() {
#if D2LBERT_AMX
  return d2lbert::permitted() ? 2 : 1;
#else
  return 0;
#endif
}

// By what each precision multiplies from now on; a Product of each.
extern "C" void d2lbert_choose(int fp32, int bf16) {
  d2lbert::chosen[0] = fp32;
  d2lbert::chosen[1] = bf16;
}

extern "C" int d2lbert_chosen(int bf16) { return d2lbert::chosen[bf16]; }

#ifdef D2LBERT_AMX_EMULATED
#if D2LBERT_AMX
// What the instructions do (Intel 64 and IA-32 Architectures Software
// Developer's Manual, volume 2: LDTILECFG to TILEZERO, TDPBF16PS), and the
// faults that a thread takes which has no leave or no configuration.
namespace d2lbert {
namespace amx {
namespace emulated {
namespace {

struct State {
  Config config;
  bool on = false;
  alignas(64) uint8_t tiles[8][16][64];
};
thread_local State state;
std::atomic<long> threads_on{0}, dots{0};

void fault(const char* what) {
  std::fprintf(stderr, "emulated AMX: %s\n", what);
  std::abort();
}

void check(std::initializer_list<int> tiles) {
  if (!state.on) fault("tiles without a configuration in this thread");
  for (int tile : tiles)
    if (tile < 0 || tile > 7 || !state.config.rows[tile] ||
        !state.config.row_bytes[tile])
      fault("a tile that is not configured");
}

void clear_rest(int tile) {
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

}  // namespace

void configure(const Config& config) {
  if (asked_by != getpid() || !granted)
    fault("tiles in a process that has no leave");
  if (config.palette != 1 || config.start) fault("an unknown palette");
  for (int i = 0; i < 16; i++)
    if (config.rows[i] > (i < 8 ? 16 : 0) ||
        config.row_bytes[i] > (i < 8 ? 64 : 0) ||
        !config.rows[i] != !config.row_bytes[i])
      fault("a shape that no tile has");
  for (uint8_t byte : config.reserved)
    if (byte) fault("reserved bytes that are set");
  if (!state.on) threads_on++;
  state.config = config;
  state.on = true;
  std::memset(state.tiles, 0, sizeof state.tiles);
}

void release() {
  if (state.on) threads_on--;
  state.on = false;
}

void zero(int tile) {
  check({tile});
  std::memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
}

void load(int tile, const void* from, long ld) {
  check({tile});
  for (int r = 0; r < state.config.rows[tile]; r++)
    std::memcpy(state.tiles[tile][r], (const char*)from + r * ld,
                state.config.row_bytes[tile]);
  clear_rest(tile);
}

void save(int tile, void* to, long ld) {
  check({tile});
  for (int r = 0; r < state.config.rows[tile]; r++)
    std::memcpy((char*)to + r * ld, state.tiles[tile][r],
                state.config.row_bytes[tile]);
}

// Even and odd numbers are summed apart, by fused operations from zero, then
// together, then onto the tile.
void multiply(int to, int a, int b) {
  check({to, a, b});
  const Config& c = state.config;
  if (to == a || to == b || a == b) fault("one tile in two places");
  if (c.row_bytes[to] % 4 || c.row_bytes[a] % 4 || c.row_bytes[b] % 4 ||
      c.rows[to] != c.rows[a] || c.rows[b] != c.row_bytes[a] / 4 ||
      c.row_bytes[to] != c.row_bytes[b])
    fault("tiles of shapes that do not fit");
  dots++;
  // Nearest even, denormals taken for zero and made zero, no exceptions
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

}  // namespace emulated
}  // namespace amx
}  // namespace d2lbert

// How many threads hold tiles now: none between operators.
extern "C" long d2lbert_threads_on() {
  return d2lbert::amx::emulated::threads_on;
}

// How many products of tiles there were.
extern "C" long d2lbert_dots() { return d2lbert::amx::emulated::dots; }
#else
#error "the emulation of AMX needs AVX-512 with bfloat16 all the same"
#endif
#endif

// Whether a product whose shorter length is `least` goes by tiles.
extern "C" int d2lbert_goes_by_tiles(int bf16, long least) {
  return d2lbert::product(bf16 != 0, least) >= d2lbert::TILES;
}
