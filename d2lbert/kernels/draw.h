// Code that draw.cc and spans.cc share to draw examples for pretraining: a
// generator of CPython's random numbers, the conversion of words to vocabulary
// indices, and the replacement of masked tokens.
#ifndef D2LBERT_DRAW_H_
#define D2LBERT_DRAW_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "bounds_check.h"

namespace {

// CPython's random.Random, the Mersenne Twister MT19937. state:
// random.getstate()[1], 624 numbers of 32 bits and a position. The destructor
// writes the new position.
class Twister {
 public:
  explicit Twister(uint32_t* state)
      : state_(state), position_(state[kStateSize]) {}
  ~Twister() { state_[kStateSize] = position_; }

  // random.random()
  double uniform() {
    const uint32_t high = next() >> 5, low = next() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }

  // random.randrange(n) for n > 0. random.choice draws its index in this way
  uint32_t below(uint32_t n) {
    int shift = 0;  // leaves as many bits as n has
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
  static constexpr uint32_t kStateSize = 624, kMiddle = 397;

  static uint32_t twist(uint32_t current, uint32_t following,
                        uint32_t middle) {
    const uint32_t y = (current & 0x80000000u) | (following & 0x7fffffffu);
    return middle ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
  }

  void refill() {
    uint32_t* s = state_;
    for (uint32_t k = 0; k < kStateSize; ++k) {
      s[k] = twist(s[k], s[(k + 1) % kStateSize],
                   s[(k + kMiddle) % kStateSize]);
    }
    position_ = 0;
  }

  uint32_t next() {
    if (position_ >= kStateSize) refill();
    uint32_t y = state_[position_++];
    // Tempering
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
  }

  uint32_t* state_;
  uint32_t position_;  // the index of the next number to use
};

// A text of `size` words. Equal words share a number, their type. types
// (size): integers of type_bytes bytes, 2 or 4. vocab_ids (num_types): the
// vocabulary index of each type.
struct Words {
  const void* types;
  int64_t type_bytes, size;
  const int32_t* vocab_ids;
  int64_t num_types;

  // Write the vocabulary indices of words [begin, end) to `to`, which has room
  // for max_words indices. Returns the address after the last index.
  int32_t* copy(int64_t begin, int64_t end, int32_t* to,
                int64_t max_words) const {
    require(0 <= begin && begin <= end && end <= size &&
            end - begin <= max_words);
    return type_bytes == 2
               ? convert(static_cast<const uint16_t*>(types), begin, end, to)
               : convert(static_cast<const int32_t*>(types), begin, end, to);
  }

 private:
  template <typename T>
  int32_t* convert(const T* from, int64_t begin, int64_t end,
                   int32_t* to) const {
    require_range(from + begin, end - begin, 0, num_types);
    return std::transform(from + begin, from + end, to,
                          [this](T type) { return vocab_ids[type]; });
  }
};

// The vocabulary indices of the special tokens, and the size of the vocabulary.
// draw.py passes this struct as an int32 array, in the order of the members.
struct Specials {
  int32_t pad, mask, cls, sep, vocab_size;

  // Require that all tokens that may be written are in the vocabulary and have
  // flags. flags, choices: as for draw_masks (draw.cc).
  void check(const Words& words, const uint8_t* flags, int64_t num_flags,
             const int32_t* choices, int64_t num_choices) const {
    const int32_t special[] = {pad, mask, cls, sep};
    require_range(special, 4, 0, vocab_size);
    require_range(words.vocab_ids, words.num_types, 0, vocab_size);
    require(!flags || num_flags >= vocab_size);
    if (!choices) return;
    require(num_choices > 0);
    require_range(choices, num_choices, 0, vocab_size);
  }
};

// Flags of a token: FIXED and GOES_ON in draw.py
constexpr uint8_t kFixed = 1;   // the token is never masked
constexpr uint8_t kGoesOn = 2;  // it continues the word of the token before it

// The replacement of a token that is to be predicted: <mask> with probability
// 0.8, a random token with 0.1, the token itself with 0.1.
enum class Replacement { kMask, kRandom, kSame };

inline Replacement draw_replacement(Twister& random) {
  if (random.uniform() < 0.8) return Replacement::kMask;
  // As in the book's Python code, a number below 0.5 keeps the token
  return random.uniform() >= 0.5 ? Replacement::kRandom : Replacement::kSame;
}

// The tokens from which a random token is drawn: `count` choices, or all
// `count` tokens of the vocabulary if choices is null.
struct RandomTokens {
  const int32_t* choices;
  uint32_t count;

  int32_t draw(Twister& random) const {
    const uint32_t k = random.below(count);
    return choices != nullptr ? choices[k] : static_cast<int32_t>(k);
  }
};

inline void replace_token(int32_t* token, Replacement replacement,
                          int32_t mask_id, const RandomTokens& random_tokens,
                          Twister& random) {
  if (replacement == Replacement::kMask) *token = mask_id;
  if (replacement == Replacement::kRandom) *token = random_tokens.draw(random);
}

}  // namespace

#endif  // D2LBERT_DRAW_H_
