// A text is stored as the types of its words: equal words have the same type, a
// number from 0 on. cut.py calls these functions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bounds_check.h"

namespace {

template <typename T>
void first_places_in(const T* types, int64_t size, int64_t num_types,
                     int64_t num_paragraphs, const int64_t* lengths,
                     const int64_t* places, int64_t* first) {
  int64_t words_left = size;  // after the paragraphs checked so far
  for (int64_t q = 0; q < num_paragraphs; ++q) {
    require(lengths[q] >= 0 && lengths[q] <= words_left);
    words_left -= lengths[q];
  }
  require_range(types, size, 0, num_types);
  for (int64_t q = 0; q < num_paragraphs; ++q) {
    for (int64_t i = 0; i < lengths[q]; ++i) {
      int64_t& first_place = first[*types++];
      first_place = std::min(first_place, places[q] + i);
    }
  }
}

template <typename T>
void look_up_in(const T* table, int64_t table_size, const int32_t* types,
                int64_t size, T* to) {
  for (int64_t i = 0; i < size; ++i) {
    to[i] = table[types[i] < 0 ? table_size - 1 : types[i]];
  }
}

// The number of entries (pieces of a word) that `spread` copies at a time. Most
// words have one or two, but the processor could not predict a branch on their
// number. So each word copies at least kEntriesPerCopy, and the next word
// overwrites the surplus.
constexpr int64_t kEntriesPerCopy = 4;

template <typename T>
void spread_in(const T* table, const int64_t* begins, const int32_t* lengths,
               const int32_t* types, int64_t size, int64_t* ends,
               int64_t num_ends, T* const to) {
  T* next = to;
  int64_t i = 0;
  for (int64_t s = 0; s <= num_ends; ++s) {
    // The last pass copies the words after all ends
    const int64_t end = s < num_ends ? ends[s] : size;
    for (; i < end; ++i) {
      const T* from = table + begins[types[i]];
      const int64_t count = lengths[types[i]];
      int64_t copied = 0;
      do {
        std::memcpy(next + copied, from + copied, kEntriesPerCopy * sizeof(T));
        copied += kEntriesPerCopy;
      } while (copied < count);
      next += count;
    }
    if (s < num_ends) ends[s] = next - to;
  }
}

// Require that `spread` reads and writes only within its arrays.
void require_spread(int64_t table_size, const int64_t* begins,
                    const int32_t* lengths, int64_t num_types,
                    const int32_t* types, int64_t size, const int64_t* ends,
                    int64_t num_ends, int64_t to_size) {
  for (int64_t k = 0; k < num_types; ++k) {
    require(begins[k] >= 0 && lengths[k] >= 0 &&
            begins[k] <= table_size - kEntriesPerCopy - lengths[k]);
  }
  require_range(types, size, 0, num_types);
  require_sorted(ends, num_ends, size);
  int64_t num_entries = 0;
  for (int64_t i = 0; i < size; ++i) num_entries += lengths[types[i]];
  require(num_entries <= to_size);
}

}  // namespace

// All functions return a Status (bounds_check.h). types (size): the type of
// each word.
extern "C" {

// Add the occurrences of each type to counts (num_types). If table (num_types)
// is not null, replace each type by table[type].
int count_types(int32_t* types, int64_t size, const int32_t* table,
                int64_t num_types, int64_t* counts) try {
  require_range(types, size, 0, num_types);
  for (int64_t i = 0; i < size; ++i) {
    ++counts[types[i]];
    if (table) types[i] = table[types[i]];
  }
  return kDone;
} catch (...) {
  return failure();
}

// Write table[type] of each word to `to` (size). Type -1, a pruned word, reads
// the last entry. table (table_size) and `to` have integers of entry_bytes, 2
// or 4.
int look_up(const void* table, int64_t entry_bytes, int64_t table_size,
            const int32_t* types, int64_t size, void* to) try {
  require(table_size > 0);
  require_range(types, size, -1, table_size);
  if (entry_bytes == 2) {
    look_up_in(static_cast<const uint16_t*>(table), table_size, types, size,
               static_cast<uint16_t*>(to));
  } else {
    look_up_in(static_cast<const int32_t*>(table), table_size, types, size,
               static_cast<int32_t*>(to));
  }
  return kDone;
} catch (...) {
  return failure();
}

// Copy the entries of each word's type from `table` to `to`, one word after
// another. Type k has the lengths[k] entries from table[begins[k]] on. table
// (table_size) and `to` have integers of entry_bytes, 2 or 4. The last
// kEntriesPerCopy entries of the table belong to no type, and `to` has memory
// for to_size + kEntriesPerCopy entries. ends (num_ends): sorted indices of
// words, each replaced by the number of entries of all words before it.
int spread(const void* table, int64_t entry_bytes, int64_t table_size,
           const int64_t* begins, const int32_t* lengths, int64_t num_types,
           const int32_t* types, int64_t size, int64_t* ends,
           int64_t num_ends, void* to, int64_t to_size) try {
  require_spread(table_size, begins, lengths, num_types, types, size, ends,
                 num_ends, to_size);
  if (entry_bytes == 2) {
    spread_in(static_cast<const uint16_t*>(table), begins, lengths, types,
              size, ends, num_ends, static_cast<uint16_t*>(to));
  } else {
    spread_in(static_cast<const int32_t*>(table), begins, lengths, types,
              size, ends, num_ends, static_cast<int32_t*>(to));
  }
  return kDone;
} catch (...) {
  return failure();
}

// Lower first[type] (num_types) to the place of the first word of this type,
// its index in a larger text. The words come from num_paragraphs paragraphs of
// the larger text, one after the other. Paragraph q has lengths[q] words, and
// begins at places[q]. types: integers of type_bytes, 2 or 4.
int first_places(const void* types, int64_t type_bytes, int64_t size,
                 int64_t num_types, int64_t num_paragraphs,
                 const int64_t* lengths, const int64_t* places,
                 int64_t* first) try {
  if (type_bytes == 2) {
    first_places_in(static_cast<const uint16_t*>(types), size, num_types,
                    num_paragraphs, lengths, places, first);
  } else {
    first_places_in(static_cast<const int32_t*>(types), size, num_types,
                    num_paragraphs, lengths, places, first);
  }
  return kDone;
} catch (...) {
  return failure();
}

}  // extern "C"
