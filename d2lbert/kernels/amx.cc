// The kernels that products.py has chosen for matrix products.
#include "amx.h"

#include <atomic>

namespace d2lbert {
namespace {

// For fp32 and for bf16. The initial values hold until products.py chooses.
std::atomic<int> chosen_kernels[2] = {{PLAIN}, {D2LBERT_BF16 ? PAIRS : PLAIN}};

#if D2LBERT_AMX
using amx::MIN_TILE_DIM;
#else
constexpr long MIN_TILE_DIM = 1;  // any value: tiles are never chosen
#endif

bool uses_tiles(Kernel kernel) { return kernel >= TILES; }

}  // namespace

Kernel kernel_in_use(bool bf16, long min_dim) {
  const Kernel wanted = (Kernel)chosen_kernels[bf16].load();
  if (!uses_tiles(wanted) || (min_dim >= MIN_TILE_DIM && tiles_permitted()))
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

extern "C" void d2lbert_choose(int fp32_kernel, int bf16_kernel) {
  d2lbert::chosen_kernels[0] = fp32_kernel;
  d2lbert::chosen_kernels[1] = bf16_kernel;
}

extern "C" int d2lbert_goes_by_tiles(int bf16, long min_dim) {
  return d2lbert::uses_tiles(d2lbert::kernel_in_use(bf16 != 0, min_dim));
}
