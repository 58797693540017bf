// This file cuts texts into word pieces, as the library `tokenizers` does. Each
// piece is the longest one that the rest of the word begins with (Wu et al.
// 2016, section 4.1). Texts with other characters than printable ASCII are left
// to the library.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bounds_check.h"
#include "cut.h"

namespace {

// A trie of pieces, with their ids. Its branches are in a hash table with open
// addressing.
class Trie {
 public:
  // Read pieces, one in each line, and their ids. Equal pieces all get the id
  // of the first one.
  void read(std::string_view lines, const int32_t* ids, int64_t num_pieces) {
    require(std::count(lines.begin(), lines.end(), '\n') == num_pieces &&
            (lines.empty() || lines.back() == '\n'));
    size_t num_slots = 64;
    // A line feed adds no branch, so there are fewer branches than slots. The
    // loop in `find_slot` needs a free slot to end
    while (num_slots < lines.size()) num_slots *= 2;
    branches_.assign(num_slots, Branch());
    ids_.assign(1, -1);
    uint32_t node = kRoot;
    for (const char byte : lines) {
      if (byte != '\n') {
        node = find_or_add_child(node, byte);
        continue;
      }
      if (ids_[node] < 0) ids_[node] = *ids;
      ++ids;
      node = kRoot;
    }
  }

  // Return the id of the longest piece that `rest` begins with, and store the
  // size of the piece. If there is no such piece, the id is -1 and the size 0.
  int32_t longest_piece(std::string_view rest, size_t* size) const {
    int32_t id = -1;
    *size = 0;
    uint32_t node = kRoot;
    for (size_t k = 0; k < rest.size(); ++k) {
      node = branches_[find_slot(node, rest[k])].child;
      if (node == kRoot) break;
      if (ids_[node] < 0) continue;
      id = ids_[node];
      *size = k + 1;
    }
    return id;
  }

 private:
  static constexpr uint32_t kRoot = 0;

  struct Branch {
    uint64_t key = 0;
    uint32_t child = kRoot;  // kRoot: the slot is free
  };

  static uint64_t key_of(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
  }

  // The index of the slot of a branch, or of the free slot for a new branch.
  size_t find_slot(uint32_t node, char byte) const {
    const uint64_t key = key_of(node, byte);
    size_t k = (mix(key ^ kSecret.seed) >> 32) & (branches_.size() - 1);
    while (branches_[k].child != kRoot && branches_[k].key != key) {
      k = (k + 1) & (branches_.size() - 1);
    }
    return k;
  }

  uint32_t find_or_add_child(uint32_t node, char byte) {
    Branch& branch = branches_[find_slot(node, byte)];
    if (branch.child == kRoot) {
      branch = {key_of(node, byte), static_cast<uint32_t>(ids_.size())};
      ids_.push_back(-1);
    }
    return branch.child;
  }

  std::vector<Branch> branches_;
  std::vector<int32_t> ids_;  // for each node the id of its piece, or -1
};

// For the arguments see pieces_new.
class Cutter {
 public:
  Cutter(int32_t unknown_id, size_t max_letters, bool lower)
      : unknown_id_(unknown_id), max_letters_(max_letters), lower_(lower) {}

  Trie initial, continuation;

  // Write the ids of the pieces of a text, and return the address after the
  // last id. If a character is not printable ASCII, return null.
  int32_t* cut(std::string_view text, int32_t* ids, std::string* buffer) const {
    buffer->assign(text.data(), text.size());
    for (char& c : *buffer) {
      if (c < ' ' || c > '~') return nullptr;
      if (lower_ && c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
    }
    text = *buffer;
    for (size_t begin = 0, end; begin < text.size(); begin = end) {
      end = begin + 1;
      if (text[begin] == ' ') continue;
      // A word is a run of letters and digits, or one punctuation mark
      if (is_letter_or_digit(text[begin])) {
        while (end < text.size() && is_letter_or_digit(text[end])) ++end;
      }
      ids = cut_word(text.substr(begin, end - begin), ids);
    }
    return ids;
  }

 private:
  static bool is_letter_or_digit(char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
  }

  // Write the ids of the pieces of a word, or `unknown_id_` if the word is too
  // long or cannot be cut. Return the address after the last id.
  int32_t* cut_word(std::string_view word, int32_t* const ids) const {
    int32_t* ids_end = ids;
    const Trie* pieces = &initial;
    bool is_known = word.size() <= max_letters_;
    while (is_known && !word.empty()) {
      size_t size = 0;
      *ids_end++ = pieces->longest_piece(word, &size);
      is_known = size > 0;
      word.remove_prefix(size);
      pieces = &continuation;
    }
    if (is_known) return ids_end;
    *ids = unknown_id_;
    return ids + 1;
  }

  const int32_t unknown_id_;
  const size_t max_letters_;
  const bool lower_;
};

}  // namespace

extern "C" {

// Make a cutter from initial pieces, and from continuation pieces without "##",
// one piece in each line. unknown_id: the id of a word that cannot be cut, or
// has more than max_letters characters. lower: convert texts to lower case.
// Returns a Status.
int pieces_new(const char* initial, int64_t initial_size,
               const int32_t* initial_ids, int64_t num_initial,
               const char* continuation, int64_t continuation_size,
               const int32_t* continuation_ids, int64_t num_continuation,
               int32_t unknown_id, int64_t max_letters, int lower,
               void** handle) try {
  auto cutter = std::make_unique<Cutter>(
      unknown_id, static_cast<size_t>(max_letters), lower != 0);
  cutter->initial.read({initial, static_cast<size_t>(initial_size)},
                       initial_ids, num_initial);
  cutter->continuation.read(
      {continuation, static_cast<size_t>(continuation_size)}, continuation_ids,
      num_continuation);
  *handle = cutter.release();
  return kDone;
} catch (...) {
  return failure();
}

// Cut the texts in `lines` (size), one in each line. counts (num_texts) gets
// the number of pieces of each text, or -1 if a character is not printable
// ASCII. ids (size) gets the ids of the other texts, and num_ids their number.
// Returns a Status.
int pieces_cut(const void* handle, const char* lines, int64_t size,
               int32_t* counts, int64_t num_texts, int32_t* ids,
               int64_t* num_ids) try {
  auto* cutter = static_cast<const Cutter*>(handle);
  std::string buffer;
  int32_t* ids_end = ids;  // within `ids`: each id stands for at least one byte
  const char* lines_end = lines + size;
  for (int64_t k = 0; lines < lines_end; ++k) {
    const auto* text_end = static_cast<const char*>(
        std::memchr(lines, '\n', static_cast<size_t>(lines_end - lines)));
    require(text_end && k < num_texts);
    int32_t* new_ids_end = cutter->cut(
        {lines, static_cast<size_t>(text_end - lines)}, ids_end, &buffer);
    counts[k] = new_ids_end ? static_cast<int32_t>(new_ids_end - ids_end) : -1;
    if (new_ids_end) ids_end = new_ids_end;
    lines = text_end + 1;
  }
  *num_ids = ids_end - ids;
  return kDone;
} catch (...) {
  return failure();
}

void pieces_free(void* handle) { delete static_cast<Cutter*>(handle); }

}  // extern "C"
