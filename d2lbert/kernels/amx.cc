// This file remembers which kernels products.py has chosen for matrix products.
#include "amx.h"

#include <atomic>

namespace d2lbert {
namespace {

// The kernels for fp32 and for bf16, of the enum `Kernel`. The initial values
// hold until products.py chooses.
std::atomic<int> chosen[2] = {{PLAIN}, {D2LBERT_BF16 ? PAIRS : PLAIN}};

#if D2LBERT_AMX
using amx::MIN_TILE_DIM;
#else
constexpr long MIN_TILE_DIM = 1;  // any number: tiles are never chosen
#endif

}  // namespace

Kernel kernel_in_use(bool bf16, long min_dim) {
  const Kernel wanted = (Kernel)chosen[bf16].load();
  const bool wants_tiles = wanted >= TILES;  // the last kernels of the enum
  if (!wants_tiles || (min_dim >= MIN_TILE_DIM && tiles_permitted()))
    return wanted;
  return bf16 && D2LBERT_BF16 ? PAIRS : PLAIN;
}

}  // namespace d2lbert

// For Python: 0 if this library has no code for tiles, 1 if the operating
// system denies tiles, 2 if they can be used.
extern "C" int d2lbert_tiles() {
#if D2LBERT_AMX
  return d2lbert::tiles_permitted() ? 2 : 1;
#else
  return 0;
#endif
}

// For Python: use these kernels from now on, a `Kernel` for each precision.
extern "C" void d2lbert_choose(int fp32, int bf16) {
  d2lbert::chosen[0] = fp32;
  d2lbert::chosen[1] = bf16;
}

// For Python: the `Kernel` chosen for a precision. bf16: 1 for 'bf16', else 0.
extern "C" int d2lbert_chosen(int bf16) { return d2lbert::chosen[bf16]; }

// For Python: 1 if tiles compute a matrix product, else 0. The arguments are as
// for `kernel_in_use`.
extern "C" int d2lbert_goes_by_tiles(int bf16, long min_dim) {
  return d2lbert::kernel_in_use(bf16 != 0, min_dim) >= d2lbert::TILES;
}
