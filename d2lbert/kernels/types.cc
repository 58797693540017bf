// What tables say of the numbers of words: "The Dataset for Pretraining BERT".
// No MXNet in here, as in draw.cc.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

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

// How many numbers there are from begins[k] up to begins[k + 1], for the types
// k together.
int64_t spread_size(const int64_t* begins, int64_t num_types,
                    const int32_t* types, int64_t size) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t k = types[i] < 0 ? num_types : types[i];
    count += begins[k + 1] - begins[k];
  }
  return count;
}

// So many numbers are copied at a time: how many there are for the next word,
// mostly one or two, no processor can foresee.
constexpr int64_t kAtATime = 4;

// ids[begins[k]] up to ids[begins[k + 1]] for each type k. Behind `ids` and
// `to` there is room for kAtATime more.
template <typename T>
void spread_in(const T* ids, const int64_t* begins, int64_t num_types,
               const int32_t* types, int64_t size, T* to) {
  for (int64_t i = 0; i < size; ++i) {
    const int64_t k = types[i] < 0 ? num_types : types[i];
    const T* from = ids + begins[k];
    const int64_t count = begins[k + 1] - begins[k];
    for (int64_t j = 0; j < count || j == 0; j += kAtATime) {
      std::memcpy(to + j, from + j, kAtATime * sizeof(T));
    }
    to += count;
  }
}

}  // namespace

extern "C" {

// types become what a table of num_types numbers says of them, and are
// counted as that. Returns 1 when memory runs out.
int count_names(int32_t* types, int64_t size, const int32_t* table,
                int64_t num_types, int64_t* counts) try {
  // There are fewer types than numbers, so that these are near at hand
  std::vector<int64_t> count(static_cast<size_t>(num_types));
  for (int64_t i = 0; i < size; ++i) {
    ++count[static_cast<size_t>(types[i])];
    types[i] = table[types[i]];
  }
  for (int64_t k = 0; k < num_types; ++k) {
    counts[table[k]] += count[static_cast<size_t>(k)];
  }
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
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

// What a table of uint16 or int32 says of types, some numbers for each: those
// from begins[k] up to begins[k + 1] for k; for -1, those behind all others.
// The table, and `to`, have room for four more. If `to` is null, only returns
// how many these are.
int64_t spread(const void* table, int64_t bytes, const int64_t* begins,
               int64_t num_types, const int32_t* types, int64_t size,
               void* to) {
  if (!to) return spread_size(begins, num_types, types, size);
  if (bytes == 2) {
    spread_in(static_cast<const uint16_t*>(table), begins, num_types, types,
              size, static_cast<uint16_t*>(to));
  } else {
    spread_in(static_cast<const int32_t*>(table), begins, num_types, types,
              size, static_cast<int32_t*>(to));
  }
  return 0;
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
