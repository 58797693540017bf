// Common code to draw examples: CPython's random numbers, and numbered words.
#ifndef D2LBERT_DRAW_H_
#define D2LBERT_DRAW_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "door.h"

namespace {

// CPython's random.Random on the state of random.getstate()[1]: 624 words and a
// position.
class Twister {
 public:
  explicit Twister(uint32_t* state)
      : words_(state), position_(state[kWords]) {}
  ~Twister() { words_[kWords] = position_; }

  // random.random()
  double uniform() {
    const uint32_t high = next() >> 5, low = next() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }

  // random.randrange(n), which random.choice uses, too. If n has b bits, draws
  // the top b bits of a word until they are below n
  uint32_t below(uint32_t n) {
    int shift = 0;
    while (!(n << shift & 0x80000000u)) ++shift;
    uint32_t r;
    do {
      r = next() >> shift;
    } while (r >= n);
    return r;
  }

  // random.shuffle(items)
  template <typename T>
  void shuffle(T* items, size_t size) {
    for (size_t i = size; i-- > 1;) {
      std::swap(items[i], items[below(static_cast<uint32_t>(i + 1))]);
    }
  }

 private:
  static constexpr uint32_t kWords = 624, kHalf = 397;

  static uint32_t twist(uint32_t upper, uint32_t lower, uint32_t far) {
    const uint32_t y = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return far ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
  }

  void refill() {
    uint32_t* w = words_;
    for (uint32_t k = 0; k < kWords; ++k) {
      w[k] = twist(w[k], w[(k + 1) % kWords], w[(k + kHalf) % kWords]);
    }
    position_ = 0;
  }

  uint32_t next() {
    if (position_ >= kWords) refill();
    uint32_t y = words_[position_++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
  }

  uint32_t* words_;
  uint32_t position_;
};

// The `size` words of a text, as types: integers of two or four `bytes`.
// `numbers` (num_types) has the vocabulary index of each type.
struct Words {
  const void* types;
  int64_t bytes, size;
  const int32_t* numbers;
  int64_t num_types;

  // Write the numbers of words begin to end - 1, at most `room`. Returns the
  // end of what was written.
  int32_t* copy(int64_t begin, int64_t end, int32_t* to, int64_t room) const {
    require(0 <= begin && begin <= end && end <= size && end - begin <= room);
    return bytes == 2 ? copy(static_cast<const uint16_t*>(types), begin, end,
                             to)
                      : copy(static_cast<const int32_t*>(types), begin, end,
                             to);
  }

 private:
  template <typename T>
  int32_t* copy(const T* from, int64_t begin, int64_t end, int32_t* to) const {
    require_range(from + begin, end - begin, 0, num_types);
    return std::transform(from + begin, from + end, to,
                          [this](T type) { return numbers[type]; });
  }
};

// The numbers of the special tokens, and the size of the vocabulary.
struct Specials {
  int32_t pad, mask, cls, sep, vocab_size;

  // Require that all tokens that may be written are in the vocabulary.
  void check(const Words& words, const uint8_t* kinds, int64_t num_kinds,
             const int32_t* choices, int64_t num_choices) const {
    const int32_t special[] = {pad, mask, cls, sep};
    require_range(special, 4, 0, vocab_size);
    require_range(words.numbers, words.num_types, 0, vocab_size);
    require(!kinds || num_kinds >= vocab_size);
    if (!choices) return;
    require(num_choices > 0);
    require_range(choices, num_choices, 0, vocab_size);
  }
};

// Bits of a token: never masked, or a continuation of the word before it.
constexpr uint8_t kFixed = 1, kGoesOn = 2;

// The replacement of a predicted token: in 8 of 10 cases <mask>, in one a
// random token, in one the token itself.
enum class Fate { kMasked, kReplaced, kKept };

inline Fate draw_fate(Twister& random) {
  if (random.uniform() < 0.8) return Fate::kMasked;
  return random.uniform() >= 0.5 ? Fate::kReplaced : Fate::kKept;
}

// The tokens that may replace others: `count` choices, or, if these are null,
// all `count` tokens of the vocabulary.
struct Others {
  const int32_t* choices;
  uint32_t count;

  int32_t draw(Twister& random) const {
    const uint32_t k = random.below(count);
    return choices != nullptr ? choices[k] : static_cast<int32_t>(k);
  }
};

// Replace a predicted token by its fate.
inline void hide(int32_t* token, Fate fate, int32_t mask,
                 const Others& others, Twister& random) {
  if (fate == Fate::kMasked) *token = mask;
  if (fate == Fate::kReplaced) *token = others.draw(random);
}

}  // namespace

#endif  // D2LBERT_DRAW_H_
