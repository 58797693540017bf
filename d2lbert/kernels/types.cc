// Look-ups in tables that are indexed by the types of words, for the book's
// section "The Dataset for Pretraining BERT". It does not need MXNet.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "door.h"

namespace {

template <typename T>
void lower_firsts(const T* types, int64_t size, int64_t num_types,
                  int64_t num_paragraphs, const int64_t* lengths,
                  const int64_t* places, int64_t* first) {
  int64_t left = size;
  for (int64_t q = 0; q < num_paragraphs; ++q) {
    require(lengths[q] >= 0 && lengths[q] <= left);
    left -= lengths[q];
  }
  require_range(types, size, 0, num_types);
  for (int64_t q = 0; q < num_paragraphs; ++q) {
    for (int64_t i = 0; i < lengths[q]; ++i) {
      int64_t& found = first[*types++];
      found = std::min(found, places[q] + i);
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

// Entries copied at a time. Most words have one or two pieces, and the
// processor could not predict a branch on the number of pieces.
constexpr int64_t kAtATime = 4;

// For each of `types`, k, copy lengths[k] of `ids` from begins[k] on, one after
// the other, to `first`. `ends` become indices of the result. `ids` and `first`
// have kAtATime extra entries.
template <typename T>
void spread_in(const T* ids, const int64_t* begins, const int32_t* lengths,
               const int32_t* types, int64_t size, int64_t* ends,
               int64_t num_ends, T* const first) {
  T* to = first;
  for (int64_t i = 0, s = 0; s <= num_ends; ++s) {
    for (const int64_t end = s < num_ends ? ends[s] : size; i < end; ++i) {
      const T* from = ids + begins[types[i]];
      const int64_t count = lengths[types[i]];
      for (int64_t j = 0; j < count || j == 0; j += kAtATime) {
        std::memcpy(to + j, from + j, kAtATime * sizeof(T));
      }
      to += count;
    }
    if (s < num_ends) ends[s] = to - first;
  }
}

// Require that `spread` reads and writes within its arrays.
void require_spread(int64_t table_size, const int64_t* begins,
                    const int32_t* lengths, int64_t num_types,
                    const int32_t* types, int64_t size, const int64_t* ends,
                    int64_t num_ends, int64_t room) {
  for (int64_t k = 0; k < num_types; ++k) {
    require(begins[k] >= 0 && lengths[k] >= 0 &&
            begins[k] <= table_size - kAtATime - lengths[k]);
  }
  require_range(types, size, 0, num_types);
  require_rising(ends, num_ends, size);
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) count += lengths[types[i]];
  require(count <= room);
}

}  // namespace

// All return a Status.
extern "C" {

// Count the occurrences of each type. Unless the table (num_types) is null,
// replace types by table[types] after that.
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

// Gather table[type] of uint16 or int32; type -1 reads the last entry.
int look_up(const void* table, int64_t bytes, int64_t table_size,
            const int32_t* types, int64_t size, void* to) try {
  require(table_size > 0);
  require_range(types, size, -1, table_size);
  if (bytes == 2) {
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

// Gather several entries of a table of uint16 or int32 for each type:
// lengths[k] entries from begins[k] for type k (num_types). ends: increasing
// indices of types, which become indices of the result. The last four of the
// table_size entries belong to no type. `to` has room + 4 entries.
int spread(const void* table, int64_t bytes, int64_t table_size,
           const int64_t* begins, const int32_t* lengths, int64_t num_types,
           const int32_t* types, int64_t size, int64_t* ends,
           int64_t num_ends, void* to, int64_t room) try {
  require_spread(table_size, begins, lengths, num_types, types, size, ends,
                 num_ends, room);
  if (bytes == 2) {
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

// Lower first[type] to the smallest position of each type (num_types), if that
// is smaller. Paragraph q has lengths[q] words, from position places[q] on.
int first_places(const void* types, int64_t type_bytes, int64_t size,
                 int64_t num_types, int64_t num_paragraphs,
                 const int64_t* lengths, const int64_t* places,
                 int64_t* first) try {
  if (type_bytes == 2) {
    lower_firsts(static_cast<const uint16_t*>(types), size, num_types,
                 num_paragraphs, lengths, places, first);
  } else {
    lower_firsts(static_cast<const int32_t*>(types), size, num_types,
                 num_paragraphs, lengths, places, first);
  }
  return kDone;
} catch (...) {
  return failure();
}

}  // extern "C"
