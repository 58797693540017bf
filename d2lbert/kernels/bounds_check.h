// Bounds checks for the C++ functions that Python calls by ctypes. An exception
// must not reach ctypes, so these functions catch it and return a Status.
#ifndef D2LBERT_BOUNDS_CHECK_H_
#define D2LBERT_BOUNDS_CHECK_H_

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace {

// kOutside: a `require` failed, so an index or a size does not fit the arrays.
// `_check_status` in draw.py and `_check` in int8.py use the same numbers.
enum Status : int { kDone, kNoMemory, kOutside };

// Unless the condition is true, throw the exception that becomes kOutside.
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

// The Status for the exception that is being handled; for use in catch (...).
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
