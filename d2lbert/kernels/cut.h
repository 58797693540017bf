// Common code of cut.cc and pieces.cc: white space in UTF-8, a hash function,
// and a hash table that numbers words.
#ifndef D2LBERT_CUT_H_
#define D2LBERT_CUT_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <vector>

// The base-2 logarithm of the number of slots in a new WordTable. A test can
// define a smaller one, so that a few words make a table grow.
#ifndef D2LBERT_TABLE_BITS
#define D2LBERT_TABLE_BITS 14
#endif

namespace {

// True for a byte of a UTF-8 character after the character's first byte.
inline bool is_continuation(char c) { return (c & 0xc0) == 0x80; }

// The number of bytes of the white space character (Python's str.isspace()) at
// p in valid UTF-8; 0 at another character or at a continuation byte.
inline int num_space_bytes(const char* p, const char* end) {
  const auto c = static_cast<unsigned char>(*p);
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
  if (c == 0xc2 && end - p >= 2) {  // U+0085, U+00A0
    const auto d = static_cast<unsigned char>(p[1]);
    return d == 0x85 || d == 0xa0 ? 2 : 0;
  }
  if ((c < 0xe1 || c > 0xe3) || end - p < 3) return 0;
  const auto d = static_cast<unsigned char>(p[1]);
  const auto e = static_cast<unsigned char>(p[2]);
  // U+1680; U+2000 to U+200A, U+2028, U+2029, U+202F; U+205F; U+3000
  const bool is_space =
      (c == 0xe1 && d == 0x9a && e == 0x80) ||
      (c == 0xe2 && d == 0x80 && (e <= 0x8a || e == 0xa8 || e == 0xa9 ||
                                  e == 0xaf)) ||
      (c == 0xe2 && d == 0x81 && e == 0x9f) ||
      (c == 0xe3 && d == 0x80 && e == 0x80);
  return is_space ? 3 : 0;
}

// Python's str.strip().
inline std::string_view strip(std::string_view line) {
  const char *begin = line.data(), *end = begin + line.size();
  for (int n; begin < end && (n = num_space_bytes(begin, end)); begin += n) {}
  while (begin < end) {
    const char* last_char = end - 1;
    while (last_char > begin && is_continuation(*last_char)) --last_char;
    if (!num_space_bytes(last_char, end)) break;
    end = last_char;
  }
  return {begin, static_cast<size_t>(end - begin)};
}

// `size` bytes, at most eight, as an integer. The missing bytes are zero.
inline uint64_t load(const char* p, size_t size) {
  uint64_t x = 0;
  std::memcpy(&x, p, size);
  return x;
}

// Compare two words of at least eight bytes. For the usual sizes of words this
// is faster than memcmp.
inline bool are_equal(const char* a, const char* b, size_t size) {
  for (size_t k = 0; k + 8 < size; k += 8) {
    if (load(a + k, 8) != load(b + k, 8)) return false;
  }
  // The last eight bytes; some may be compared twice
  return load(a + size - 8, 8) == load(b + size - 8, 8);
}

// Random constants of the hash, different in each process. With known constants
// an attacker could write a text whose words all have one hash, so that each
// look-up would compare all words. The numbers of words do not depend on them.
struct Secret {
  uint64_t seed, factor;

  Secret() {
    std::random_device::result_type random[4] = {};
    try {
      std::random_device device;
      for (auto& part : random) part = device();
    } catch (const std::exception&) {   // there is no source of randomness
      random[0] = static_cast<unsigned>(
          std::chrono::steady_clock::now().time_since_epoch().count());
    }
    seed = uint64_t{random[0]} << 32 | random[1];
    // Without randomness the factor is this constant, which is a good factor
    factor = (uint64_t{random[2]} << 32 | random[3]) ^ 0x9e3779b97f4a7c15u;
    factor |= 1;  // an odd factor loses no bits
  }
};

inline const Secret kSecret;

// Scramble x. The factor is secret, so that the author of a text does not know
// which bits of the result depend on which byte.
inline uint64_t mix(uint64_t x) {
  __extension__ typedef unsigned __int128 Product;
  const Product product = Product{x} * kSecret.factor;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash(std::string_view word) {
  const char* p = word.data();
  size_t left = word.size();
  uint64_t h = kSecret.seed ^ left;
  for (; left > 8; p += 8, left -= 8) h = mix(h ^ load(p, 8));
  return mix(h ^ load(p, left));
}

// A word and its key in a WordTable. The key of a short word is its bytes and
// its size, so equal keys mean equal words. The key of a long word is its hash
// with bit 59 set, which no short word has.
struct Word {
  const char* begin;
  size_t size;
  uint64_t key;

  Word() = default;

  explicit Word(std::string_view word)
      : begin(word.data()), size(word.size()),
        key(is_short() ? short_key(load(begin, size), size)
                       : hash(word) | uint64_t{8} << 56) {}

  // A short word, for which `load` returned `bytes`.
  Word(const char* begin, size_t size, uint64_t bytes)
      : begin(begin), size(size), key(short_key(bytes, size)) {}

  bool is_short() const { return size < 8; }

  static uint64_t short_key(uint64_t bytes, size_t size) {
    return bytes | uint64_t{size} << 56;
  }
};

// A hash table with open addressing, which numbers different words in the order
// of their first occurrence. No word may have a line feed. A look-up mostly
// waits for memory: call `prefetch_slot` for several words, then look them up.
class WordTable {
 public:
  WordTable() : slots_(size_t{1} << (64 - shift_)) {}

  // Remove all words, but keep the memory.
  void clear() {
    std::fill(slots_.begin(), slots_.end(), Slot());
    starts_.assign(1, 0);
    text_.clear();
  }

  void prefetch_slot(const Word& word) const {
    __builtin_prefetch(&slots_[first_slot(word.key)]);
  }

  // Prefetch the bytes that `find_or_add` compares with a long word. Call this
  // when the slot has been prefetched.
  void prefetch_text(const Word& word) const {
    const Slot& slot = slots_[first_slot(word.key)];
    if (slot.number >= 0 && !word.is_short()) {
      __builtin_prefetch(text_.data() + slot.start);
    }
  }

  int32_t find_or_add(const Word& word) {
    Slot& slot = slots_[find_slot(word)];
    if (slot.number >= 0) return slot.number;
    const auto number = static_cast<int32_t>(size());
    const size_t start = text_.size(), end = start + word.size + 1;
    // Slot::start has 32 bits, and Slot::number 31 bits besides its sign
    if (end >> 32 || size() >> 31) throw std::bad_alloc();
    starts_.push_back(static_cast<uint32_t>(end));
    text_.append(word.begin, word.size).push_back('\n');
    slot = {word.key, number, static_cast<uint32_t>(start)};
    if (size() * 5 > slots_.size() * 3) double_slots();
    return number;
  }

  // The number of a word, or -1 if it is missing.
  int32_t find(const Word& word) const {
    return slots_[find_slot(word)].number;
  }

  std::string_view operator[](size_t number) const {
    const uint32_t start = starts_[number], end = starts_[number + 1];
    return std::string_view(text_).substr(start, end - start - 1);
  }

  // The number of words.
  size_t size() const { return starts_.size() - 1; }

  // The words from a number on, each followed by a line feed.
  std::string_view text_from(size_t number) const {
    return std::string_view(text_).substr(starts_[number]);
  }

  const std::string& text() const { return text_; }

 private:
  struct Slot {
    uint64_t key = 0;
    int32_t number = -1;  // -1: the slot is free
    uint32_t start = 0;   // the index of the word's first byte in text_
  };

  // The index of the first slot to try for a key.
  size_t first_slot(uint64_t key) const {
    return mix(key ^ kSecret.seed) >> shift_;
  }

  // The index of the slot of a word, or of the free slot for a new word.
  size_t find_slot(const Word& word) const {
    const size_t mask = slots_.size() - 1;
    for (size_t i = first_slot(word.key);; i = (i + 1) & mask) {
      const Slot& slot = slots_[i];
      if (slot.number < 0 || (slot.key == word.key && has_word(slot, word))) {
        return i;
      }
    }
  }

  // True if a slot with the key of a word has this word.
  bool has_word(const Slot& slot, const Word& word) const {
    if (word.is_short()) return true;
    const char* stored = text_.data() + slot.start;
    // Some shorter stored words pass, but `are_equal` finds their line feed
    const bool may_end_there = text_.size() - slot.start > word.size &&
                               stored[word.size] == '\n';
    return may_end_there && are_equal(stored, word.begin, word.size);
  }

  void double_slots() {
    std::vector<Slot> new_slots(slots_.size() * 2);
    --shift_;
    const size_t mask = new_slots.size() - 1;
    for (const Slot& slot : slots_) {
      if (slot.number < 0) continue;
      size_t i = first_slot(slot.key);
      while (new_slots[i].number >= 0) i = (i + 1) & mask;
      new_slots[i] = slot;
    }
    slots_.swap(new_slots);
  }

  int shift_ = 64 - D2LBERT_TABLE_BITS;  // there are 2^(64 - shift_) slots
  std::vector<Slot> slots_;
  // The index of each word's first byte in text_, then the size of text_
  std::vector<uint32_t> starts_{0};
  std::string text_;  // all words, each followed by a line feed
};

}  // namespace

#endif  // D2LBERT_CUT_H_
