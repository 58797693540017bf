// Cut texts into word pieces: again and again the longest piece that fits, from
// the left of a word (Wu et al. 2016, section 4.1), as the library `tokenizers`
// does. It does not need MXNet.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cut.h"
#include "door.h"

namespace {

// A table of pieces, either initial or continuation pieces, and their numbers.
// It is a trie, whose branches are in an open-addressing table.
class Pieces {
 public:
  // Read pieces, a line for each, and their numbers.
  void read(std::string_view lines, const int32_t* from, int64_t count) {
    require(std::count(lines.begin(), lines.end(), '\n') == count &&
            (lines.empty() || lines.back() == '\n'));
    size_t size = 64;
    // A letter adds one branch at most, a line feed none: some slots stay free
    while (size < lines.size()) size *= 2;
    branches_.assign(size, Branch());
    ids_.assign(1, -1);
    uint32_t node = 0;
    for (const char letter : lines) {
      if (letter != '\n') {
        node = child(node, letter);
        continue;
      }
      if (ids_[node] < 0) ids_[node] = *from;
      ++from;
      node = 0;
    }
  }

  // The number of the longest piece at the begin of `word`, and its size in
  // bytes, which is 0 if no piece fits.
  int32_t longest_of(std::string_view word, size_t* size) const {
    int32_t found = -1;
    *size = 0;
    uint32_t node = 0;
    for (size_t k = 0; k < word.size();) {
      node = branches_[slot(node, word[k])].to;
      if (!node) break;
      ++k;
      if (ids_[node] < 0) continue;
      found = ids_[node];
      *size = k;
    }
    return found;
  }

 private:
  struct Branch {
    uint64_t key = 0;
    uint32_t to = 0;    // 0 is a free slot, since no branch leads to the root
  };

  static uint64_t key_of(uint32_t node, char letter) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(letter);
  }

  // The slot of the branch from a node by a letter, or the free slot for it.
  size_t slot(uint32_t node, char letter) const {
    const uint64_t key = key_of(node, letter);
    size_t k = (mix(key ^ kSecret.start) >> 32) & (branches_.size() - 1);
    while (branches_[k].to && branches_[k].key != key) {
      k = (k + 1) & (branches_.size() - 1);
    }
    return k;
  }

  // The node after this letter, which is added if it is new.
  uint32_t child(uint32_t node, char letter) {
    Branch& branch = branches_[slot(node, letter)];
    if (!branch.to) {
      branch = {key_of(node, letter), static_cast<uint32_t>(ids_.size())};
      ids_.push_back(-1);
    }
    return branch.to;
  }

  std::vector<Branch> branches_;
  std::vector<int32_t> ids_;    // of nodes; -1 if no piece ends there
};

class Cutter {
 public:
  Cutter(int32_t unknown, size_t most, bool lower)
      : unknown_(unknown), most_(most), lower_(lower) {}

  Pieces begin, more;

  // Write the pieces of a text. Returns null if it has a character other than
  // printable ASCII. room: memory for the text in lower case.
  int32_t* cut(std::string_view text, int32_t* to, std::string* room) const {
    room->assign(text.data(), text.size());
    for (char& c : *room) {
      if (c < ' ' || c > '~') return nullptr;
      if (lower_ && c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
    }
    const std::string_view rest(*room);
    for (size_t i = 0, j; i < rest.size(); i = j) {
      j = i + 1;
      if (rest[i] == ' ') continue;
      // Letters and digits stay together, each punctuation mark is a part
      if (is_letter(rest[i])) while (j < rest.size() && is_letter(rest[j])) ++j;
      to = cut_part(rest.substr(i, j - i), to);
    }
    return to;
  }

 private:
  // True for ASCII letters and digits.
  static bool is_letter(char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
  }

  // Write the pieces of a part; `unknown` if it is too long or cannot be cut.
  int32_t* cut_part(std::string_view part, int32_t* const to) const {
    int32_t* end = to;
    const Pieces* pieces = &begin;
    if (part.size() > most_) part = {};
    size_t size = 0;    // of the last piece
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

// Make a cutter from initial pieces (begin) and continuation pieces (more), a
// line and a number for each. A word of more than `most` letters, or one that
// cannot be cut, becomes `unknown`. lower: convert texts to lower case. `made`
// receives the cutter. Returns a Status.
int pieces_new(const char* begin, int64_t begin_size,
               const int32_t* begin_ids, int64_t num_begin, const char* more,
               int64_t more_size, const int32_t* more_ids, int64_t num_more,
               int32_t unknown, int64_t most, int lower, void** made) try {
  auto cutter = std::make_unique<Cutter>(
      unknown, static_cast<size_t>(most), lower != 0);
  cutter->begin.read({begin, static_cast<size_t>(begin_size)}, begin_ids,
                     num_begin);
  cutter->more.read({more, static_cast<size_t>(more_size)}, more_ids,
                    num_more);
  *made = cutter.release();
  return kDone;
} catch (...) {
  return failure();
}

// Cut texts, `size` bytes with a line for each. counts (num_texts) receives the
// number of pieces of each text, or -1 for a text that Python has to cut. ids
// (size) receives the pieces, and num_ids their number. Returns a Status.
int pieces_cut(const void* handle, const char* lines, int64_t size,
               int32_t* counts, int64_t num_texts, int32_t* ids,
               int64_t* num_ids) try {
  auto* cutter = static_cast<const Cutter*>(handle);
  std::string room;
  // Each id covers at least one letter
  int32_t* end_of_ids = ids;
  const char* end = lines + size;
  for (int64_t k = 0; lines < end; ++k) {
    const auto* stop = static_cast<const char*>(
        std::memchr(lines, '\n', static_cast<size_t>(end - lines)));
    require(stop && k < num_texts);
    int32_t* to = cutter->cut({lines, static_cast<size_t>(stop - lines)},
                              end_of_ids, &room);
    counts[k] = to ? static_cast<int32_t>(to - end_of_ids) : -1;
    if (to) end_of_ids = to;
    lines = stop + 1;
  }
  *num_ids = end_of_ids - ids;
  return kDone;
} catch (...) {
  return failure();
}

void pieces_free(void* handle) { delete static_cast<Cutter*>(handle); }

}  // extern "C"
