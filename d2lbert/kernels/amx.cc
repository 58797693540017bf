// The kernel of matrix products in use, and permission for AMX tiles.
#include "amx.h"

#include <unistd.h>

#include <atomic>

namespace d2lbert {
namespace {

std::atomic<int> chosen[2] = {{PLAIN}, {D2LBERT_BF16 ? PAIRS : PLAIN}};

#if D2LBERT_AMX
using amx::LEAST;
// The operating system denies tiles to a process until it asks. A child
// process has to ask again.
std::atomic<int> asked_by{0};
std::atomic<bool> granted{false};

}  // namespace

bool permitted() {
  const int me = getpid();
  if (asked_by.load(std::memory_order_acquire) != me) {
    granted = amx::ask();    // two threads at once get the same answer
    asked_by.store(me, std::memory_order_release);
  }
  return granted;
}
#else
constexpr long LEAST = 1;

}  // namespace

bool permitted() { return false; }
#endif

Product product(bool bf16, long least) {
  const Product wanted = (Product)chosen[bf16].load();
  if (wanted < TILES || (least >= LEAST && permitted())) return wanted;
  return bf16 && D2LBERT_BF16 ? PAIRS : PLAIN;
}

}  // namespace d2lbert

// For Python: 0 if tiles are not compiled in, 1 if the system denies them, 2 if
// they can be used.
extern "C" int d2lbert_tiles() {
#if D2LBERT_AMX
  return d2lbert::permitted() ? 2 : 1;
#else
  return 0;
#endif
}

// Use these kernels, a Product for each precision, from now on.
extern "C" void d2lbert_choose(int fp32, int bf16) {
  d2lbert::chosen[0] = fp32;
  d2lbert::chosen[1] = bf16;
}

extern "C" int d2lbert_chosen(int bf16) { return d2lbert::chosen[bf16]; }

// True if a product whose shorter length is `least` uses tiles.
extern "C" int d2lbert_goes_by_tiles(int bf16, long least) {
  return d2lbert::product(bf16 != 0, least) >= d2lbert::TILES;
}
