// Words cut into word pieces: the longest that fits, from the left (Wu et al.
// 2016, section 4.1), as the library `tokenizers` does. No MXNet in here.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cut.h"

namespace {

// Pieces that words begin with, or go on with, and their numbers.
struct Pieces {
  Names names;
  std::vector<int32_t> ids;
  size_t longest = 0;

  void read(std::string_view lines, const int32_t* from) {
    while (!lines.empty()) {
      const std::string_view piece = lines.substr(0, lines.find('\n'));
      lines.remove_prefix(std::min(piece.size() + 1, lines.size()));
      const auto k = static_cast<size_t>(names.number(Word(piece)));
      if (k == ids.size()) ids.push_back(*from);
      ++from;
      longest = std::max(longest, piece.size());
    }
  }

  // The number of the longest piece at the begin of `word`, and its bytes;
  // none: 0 bytes.
  int32_t longest_of(std::string_view word, size_t* size) const {
    for (*size = std::min(word.size(), longest); *size; --*size) {
      const int32_t k = names.at(Word(word.substr(0, *size)));
      if (k >= 0) return ids[static_cast<size_t>(k)];
    }
    return 0;
  }
};

class Cutter {
 public:
  Cutter(int32_t unknown, size_t most, bool lower)
      : unknown_(unknown), most_(most), lower_(lower) {}

  Pieces begin, more;

  // Write the pieces of a word; null where a letter is none of ASCII that can
  // be seen. room: for the word in small letters.
  int32_t* cut(std::string_view word, int32_t* to, std::string* room) const {
    room->assign(word.data(), word.size());
    for (char& c : *room) {
      if (c <= ' ' || c > '~') return nullptr;
      if (lower_ && c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
    }
    const std::string_view rest(*room);
    for (size_t i = 0, j; i < rest.size(); i = j) {
      j = i + 1;
      // Punctuation stands by itself
      if (is_letter(rest[i])) while (j < rest.size() && is_letter(rest[j])) ++j;
      to = cut_part(rest.substr(i, j - i), to);
    }
    return to;
  }

 private:
  static bool is_letter(char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
  }

  int32_t* cut_part(std::string_view part, int32_t* const to) const {
    int32_t* end = to;
    const Pieces* pieces = &begin;
    if (part.size() > most_) part = {};
    size_t size = 0;
    while (!part.empty()) {
      *end++ = pieces->longest_of(part, &size);
      if (!size) break;
      part.remove_prefix(size);
      pieces = &more;
    }
    if (size) return end;
    *to = unknown_;
    return to + 1;
  }

  const int32_t unknown_;
  const size_t most_;
  const bool lower_;
};

}  // namespace

extern "C" {

// Pieces that words begin with and those that words go on with, a line and a
// number for each; most: letters of a word that is not unknown; lower:
// whether words are made small. Null when memory runs out.
void* pieces_new(const char* begin, int64_t begin_size,
                 const int32_t* begin_ids, const char* more,
                 int64_t more_size, const int32_t* more_ids, int32_t unknown,
                 int64_t most, int lower) try {
  auto* cutter = new Cutter(unknown, static_cast<size_t>(most), lower != 0);
  try {
    cutter->begin.read({begin, static_cast<size_t>(begin_size)}, begin_ids);
    cutter->more.read({more, static_cast<size_t>(more_size)}, more_ids);
  } catch (...) {
    delete cutter;
    throw;
  }
  return cutter;
} catch (const std::bad_alloc&) {
  return nullptr;
}

// Cut words, a line each: counts receives how many pieces each has, or -1 for
// one that is left to the library; ids, with room for `size`, these. Returns
// how many there are in all, or -1 when memory runs out.
int64_t pieces_cut(const void* handle, const char* lines, int64_t size,
                   int32_t* counts, int32_t* ids) try {
  auto* cutter = static_cast<const Cutter*>(handle);
  std::string room;
  const int32_t* const first = ids;
  const char* end = lines + size;
  while (lines < end) {
    const auto* stop = static_cast<const char*>(
        std::memchr(lines, '\n', static_cast<size_t>(end - lines)));
    if (!stop) stop = end;
    int32_t* to = cutter->cut({lines, static_cast<size_t>(stop - lines)}, ids,
                              &room);
    *counts++ = to ? static_cast<int32_t>(to - ids) : -1;
    if (to) ids = to;
    lines = stop + 1;
  }
  return ids - first;
} catch (const std::bad_alloc&) {
  return -1;
}

void pieces_free(void* handle) { delete static_cast<Cutter*>(handle); }

}  // extern "C"
