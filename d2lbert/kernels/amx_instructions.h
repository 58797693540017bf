// The instructions of AMX, which multiply tiles: registers of 16 rows of 64
// bytes. amx.h multiplies bfloat16 numbers, and amx_int8.h multiplies bytes.
#pragma once
#include <cstdint>

#if defined(D2LBERT_AMX_EMULATED) || defined(__AMX_TILE__)
#define D2LBERT_HAS_TILES 1
#else
#define D2LBERT_HAS_TILES 0
#endif

#if D2LBERT_HAS_TILES
namespace d2lbert {
namespace amx {

constexpr long TILE_BYTES = 1024;
constexpr long SIDE = 16;   // rows of a tile, and 32-bit words of a row

// The operand of LDTILECFG, for eight tiles of full size.
struct Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Config) == 64, "LDTILECFG reads 64 bytes");

}  // namespace amx
}  // namespace d2lbert

// A test may define D2LBERT_AMX_EMULATED as the name of a header. That header
// must define everything that the #else branch defines.
#ifdef D2LBERT_AMX_EMULATED
#include D2LBERT_AMX_EMULATED
#else
#include <sys/syscall.h>
#include <unistd.h>

namespace d2lbert {
namespace amx {

// The smallest `min_dim` for which `kernel_in_use` (amx.h) selects tiles.
constexpr long MIN_TILE_DIM = 16;

inline bool request_permission() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM,
                 XFEATURE_XTILEDATA) == 0;
}

// These functions are assembly, because GCC's intrinsics do not declare that
// they access memory: GCC 12 drops or moves stores before an intrinsic. T, C, A
// and B: tile registers, 0 to 7. ld: bytes from one row to the next.
inline void configure(const Config& config) {
  asm volatile("ldtilecfg %0" : : "m"(config));
}
inline void release() { asm volatile("tilerelease" : : : "memory"); }
template <int T>
inline void zero_tile() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }
template <int T>
inline void load_tile(const void* p, long ld) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               : : "r"(p), "r"(ld), "i"(T) : "memory");
}
template <int T>
inline void save_tile(void* p, long ld) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               : : "r"(p), "r"(ld), "i"(T) : "memory");
}
// C += A B, for bfloat16 in A and B, and floats in C.
template <int C, int A, int B>
inline void dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
               : : "i"(C), "i"(A), "i"(B));
}
// C += A B, for unsigned bytes in A, signed bytes in B, and int32 in C.
template <int C, int A, int B>
inline void dot_bytes() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0"
               : : "i"(C), "i"(A), "i"(B));
}

}  // namespace amx
}  // namespace d2lbert
#endif

namespace d2lbert {
namespace amx {

// Configures the tiles of the calling thread, so each thread of a parallel
// region needs an object. The destructor releases them, since the system takes
// longer to switch between threads with tiles.
struct ConfiguredTiles {
  ConfiguredTiles() { configure(Config()); }
  ~ConfiguredTiles() { release(); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
};

}  // namespace amx
}  // namespace d2lbert
#endif

namespace d2lbert {

// True if this library has code for tiles, and the operating system lets this
// process use them.
bool tiles_permitted();

}  // namespace d2lbert
