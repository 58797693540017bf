// The door from Python into C++: checks for functions that Python calls by
// ctypes. Such a function checks that no index points outside of its array,
// catches all exceptions, and returns a Status.
#ifndef D2LBERT_DOOR_H_
#define D2LBERT_DOOR_H_

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace {

// kOutside: an index points outside of an array. Python raises an exception for
// each Status except kDone (`_check_status` in draw.py, `_check` in int8.py).
enum Status : int { kDone, kNoMemory, kOutside };

// Throw std::out_of_range unless the condition is true.
inline void require(bool condition) {
  if (!condition)
    throw std::out_of_range("a number points outside of an array");
}

// Require that all `size` numbers are at least `begin` and below `end`.
template <typename T>
void require_range(const T* numbers, int64_t size, int64_t begin,
                   int64_t end) {
  if (size <= 0) return;
  T low = numbers[0], high = numbers[0];
  for (int64_t i = 1; i < size; ++i) {
    low = std::min(low, numbers[i]);
    high = std::max(high, numbers[i]);
  }
  require(low >= begin && high < end);
}

// Require that the `size` numbers never decrease, and are at least 0 and at
// most `end`.
inline void require_rising(const int64_t* numbers, int64_t size,
                           int64_t end) {
  int64_t before = 0;
  for (int64_t i = 0; i < size; ++i) {
    require(numbers[i] >= before);
    before = numbers[i];
  }
  require(before <= end);
}

// The Status for the exception that is being handled. Call it in `catch (...)`.
inline int failure() {
  try {
    throw;
  } catch (const std::out_of_range&) {
    return kOutside;
  } catch (...) {
    return kNoMemory;   // std::bad_alloc, or std::length_error
  }
}

}  // namespace

#endif  // D2LBERT_DOOR_H_
