// The border between Python and C++. Each entry checks that no index points
// outside of an array, catches all exceptions and returns a Status.
#ifndef D2LBERT_DOOR_H_
#define D2LBERT_DOOR_H_

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace {

enum Status : int { kDone, kNoMemory, kOutside };

inline void require(bool holds) {
  if (!holds) throw std::out_of_range("a number points outside of an array");
}

// Require that all numbers are at least `least` and below `end`.
template <typename T>
void require_range(const T* numbers, int64_t size, int64_t least,
                   int64_t end) {
  if (size <= 0) return;
  T low = numbers[0], high = numbers[0];
  for (int64_t i = 1; i < size; ++i) {
    low = std::min(low, numbers[i]);
    high = std::max(high, numbers[i]);
  }
  require(low >= least && high < end);
}

// Require that the numbers never decrease, from at least 0 to at most `end`.
inline void require_rising(const int64_t* numbers, int64_t size,
                           int64_t end) {
  int64_t before = 0;
  for (int64_t i = 0; i < size; ++i) {
    require(numbers[i] >= before);
    before = numbers[i];
  }
  require(before <= end);
}

// The Status of the current exception.
inline int failure() {
  try {
    throw;
  } catch (const std::out_of_range&) {
    return kOutside;
  } catch (...) {
    return kNoMemory;   // or an impossible length
  }
}

}  // namespace

#endif  // D2LBERT_DOOR_H_
