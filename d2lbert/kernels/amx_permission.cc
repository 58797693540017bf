// The operating system denies AMX tiles to a process until the process asks for
// them. A child process asks again after a fork, in case it has not inherited
// the permission.
#include "amx_instructions.h"

#if D2LBERT_HAS_TILES
#include <unistd.h>

#include <atomic>

namespace d2lbert {
namespace {

std::atomic<int> pid_that_asked{0};
std::atomic<bool> granted{false};

}  // namespace

bool tiles_permitted() {
  const int pid = getpid();
  if (pid_that_asked.load(std::memory_order_acquire) != pid) {
    // Two threads may ask at once: both get the same answer
    granted = amx::request_permission();
    pid_that_asked.store(pid, std::memory_order_release);
  }
  return granted;
}

}  // namespace d2lbert
#else
bool d2lbert::tiles_permitted() { return false; }
#endif
