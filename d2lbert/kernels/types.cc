// What tables say of the numbers of words: "The Dataset for Pretraining BERT".
// No MXNet in here, as in draw.cc.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

template <typename T>
void lower_firsts(const T* types, int64_t num_paragraphs,
                  const int64_t* lengths, const int64_t* places,
                  int64_t* first) {
  for (int64_t q = 0; q < num_paragraphs; ++q) {
    for (int64_t i = 0; i < lengths[q]; ++i) {
      int64_t& found = first[*types++];
      found = std::min(found, places[q] + i);
    }
  }
}

template <typename T>
void look_up_in(const T* table, int64_t num_types, const int32_t* types,
                int64_t size, T* to) {
  for (int64_t i = 0; i < size; ++i) {
    to[i] = table[types[i] < 0 ? num_types : types[i]];
  }
}

// So many numbers are copied at a time: how many there are for the next word,
// mostly one or two, no processor can foresee.
constexpr int64_t kAtATime = 4;

// lengths[k] of `ids` from begins[k] on, for each type k; `ends` are told among
// these. Behind `ids` and `to` there is room for kAtATime more.
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

}  // namespace

extern "C" {

// How often each type occurs is added to counts; types become what a table
// says of them, unless it is null.
void count_types(int32_t* types, int64_t size, const int32_t* table,
                 int64_t* counts) {
  for (int64_t i = 0; i < size; ++i) {
    ++counts[types[i]];
    if (table) types[i] = table[types[i]];
  }
}

// What a table of uint16 or int32 says of types; of -1, behind all others.
void look_up(const void* table, int64_t bytes, int64_t num_types,
             const int32_t* types, int64_t size, void* to) {
  if (bytes == 2) {
    look_up_in(static_cast<const uint16_t*>(table), num_types, types, size,
               static_cast<uint16_t*>(to));
  } else {
    look_up_in(static_cast<const int32_t*>(table), num_types, types, size,
               static_cast<int32_t*>(to));
  }
}

// What a table of uint16 or int32 says of types, some numbers for each:
// lengths[k] from begins[k] on for k. ends: how many types there are up to some
// places, which rise; they become how many numbers there are. The table, and
// `to`, have room for four more.
void spread(const void* table, int64_t bytes, const int64_t* begins,
            const int32_t* lengths, const int32_t* types, int64_t size,
            int64_t* ends, int64_t num_ends, void* to) {
  if (bytes == 2) {
    spread_in(static_cast<const uint16_t*>(table), begins, lengths, types,
              size, ends, num_ends, static_cast<uint16_t*>(to));
  } else {
    spread_in(static_cast<const int32_t*>(table), begins, lengths, types, size,
              ends, num_ends, static_cast<int32_t*>(to));
  }
}

// Where the words of paragraphs, of lengths[q] words each, first stand when
// paragraph q is put at places[q]: first[type] becomes that if it is less.
void first_places(const void* types, int64_t type_bytes,
                  int64_t num_paragraphs, const int64_t* lengths,
                  const int64_t* places, int64_t* first) {
  if (type_bytes == 2) {
    lower_firsts(static_cast<const uint16_t*>(types), num_paragraphs, lengths,
                 places, first);
  } else {
    lower_firsts(static_cast<const int32_t*>(types), num_paragraphs, lengths,
                 places, first);
  }
}

}  // extern "C"
