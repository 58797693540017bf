// This file asks the operating system for permission to use AMX tiles.
#include "amx_instructions.h"

#if D2LBERT_HAS_TILES
#include <unistd.h>

#include <atomic>

namespace d2lbert {
namespace {

// The system denies tiles to a process until the process asks for them. After a
// fork the child process asks again, in case it has not inherited the
// permission.
std::atomic<int> asked_by{0};  // the id of the last process that asked
std::atomic<bool> granted{false};

}  // namespace

bool tiles_permitted() {
  const int process = getpid();
  if (asked_by.load(std::memory_order_acquire) != process) {
    // Two threads may ask at once: both get the same answer
    granted = amx::request_permission();
    asked_by.store(process, std::memory_order_release);
  }
  return granted;
}

}  // namespace d2lbert
#else
bool d2lbert::tiles_permitted() { return false; }
#endif
