// This file has bounds checks for C++ functions that Python calls by ctypes.
// A function that can fail checks that no index points outside of an array,
// catches all exceptions, and returns a Status.
#ifndef D2LBERT_BOUNDS_CHECK_H_
#define D2LBERT_BOUNDS_CHECK_H_

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace {

// The result of a function that Python calls. kOutside: a `require` failed, so
// an index or a size does not fit the arrays. Python raises an exception for
// each Status except kDone (`_check_status` in draw.py, `_check` in int8.py).
enum Status : int { kDone, kNoMemory, kOutside };

// Throw std::out_of_range unless the condition is true. `failure` turns this
// exception into kOutside. The message is not passed to Python.
inline void require(bool condition) {
  if (!condition)
    throw std::out_of_range("an index points outside of an array");
}

// Require that all `size` numbers are in [begin, end).
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

// Require that the `size` offsets never decrease, and are in [0, end].
inline void require_sorted(const int64_t* offsets, int64_t size, int64_t end) {
  int64_t last = 0;
  for (int64_t i = 0; i < size; ++i) {
    require(offsets[i] >= last);
    last = offsets[i];
  }
  require(last <= end);
}

// Return the Status for the exception that is being handled. Call this function
// in `catch (...)`.
inline int failure() {
  try {
    throw;
  } catch (const std::out_of_range&) {
    return kOutside;
  } catch (...) {
    return kNoMemory;   // for std::bad_alloc or std::length_error
  }
}

}  // namespace

#endif  // D2LBERT_BOUNDS_CHECK_H_
