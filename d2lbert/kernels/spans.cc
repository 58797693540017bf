// Mask spans of words in rows of a text, with the same random numbers as the
// Python code in corpus/masking.py. It does not need MXNet.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "draw.h"

namespace {

// A word: one token, or all its pieces.
struct Unit {
  int32_t begin, end;  // tokens of the row
  int32_t free;        // words of the longest span from here; 0 if taken
};

// The words of a row that can still be masked.
class Units {
 public:
  // longest: words of the longest span. most: tokens of the longest span.
  // apart: spans must not touch.
  Units(int32_t longest, int32_t most, bool apart)
      : longest_(longest), most_(most), apart_(apart) {}

  // Read the words of a row. kinds: bits of each token of the vocabulary.
  void read(const int32_t* tokens, int32_t length, const uint8_t* kinds) {
    units_.clear();
    for (int32_t i = 0; i < length; ++i) {
      const uint8_t kind = kinds[tokens[i]];
      if (kind & kFixed) continue;
      if (kind & kGoesOn && !units_.empty() && units_.back().end == i) {
        ++units_.back().end;
      } else {
        units_.push_back({i, i + 1, 0});
      }
    }
    for (size_t k = units_.size(); k-- > 0;) {
      const bool goes_on = k + 1 < units_.size() && touches(k);
      units_[k].free =
          std::min(longest_, 1 + (goes_on ? units_[k + 1].free : 0));
    }
  }

  // Take a span of `length` words at a random place. If there is none, take the
  // longest shorter span. Returns false if no word is left.
  bool take(int32_t length, Twister& random, Unit* span) {
    for (; length > 0; --length) {
      uint32_t count = 0;
      for (size_t k = 0; k < units_.size(); ++k) count += fits(k, length);
      if (!count) continue;
      uint32_t which = random.below(count);
      size_t k = 0;
      while (!fits(k, length) || which--) ++k;
      *span = {units_[k].begin, units_[k + length - 1].end, length};
      close(k, k + length - 1);
      return true;
    }
    return false;
  }

 private:
  bool touches(size_t k) const {
    return units_[k].end == units_[k + 1].begin;
  }

  bool fits(size_t k, int32_t length) const {
    return units_[k].free >= length &&
           units_[k + length - 1].end - units_[k].begin <= most_;
  }

  // Mark words `first` to `last` as masked. If spans must not touch, exclude
  // their neighbours, too.
  void close(size_t first, size_t last) {
    if (apart_) {
      if (first > 0 && touches(first - 1)) --first;
      if (last + 1 < units_.size() && touches(last)) ++last;
    }
    for (size_t k = first; k <= last; ++k) units_[k].free = 0;
    // Spans from the words before must end here
    for (size_t k = first; k-- > 0;) {
      const auto left = static_cast<int32_t>(first - k);
      if (units_[k].free <= left) break;
      units_[k].free = left;
    }
  }

  const int32_t longest_, most_;
  const bool apart_;
  std::vector<Unit> units_;
};

struct Pred {
  int32_t position, label, left, right;
};

}  // namespace

extern "C" {

// Fill rows with parts of a text, and mask spans of words. Writes tokens
// (N, T), valid_lens (N), and for each prediction its position, weight and
// label, and the positions left and right of its span, (N, P). N is num_rows.
//
// Row k is <cls> and parts rows[k] to rows[k + 1] - 1, each followed by <sep>.
// Part i has words parts[2i] to parts[2i + 1] - 1 of the text. There are
// num_parts parts and num_words words. types, numbers, specials, kinds and
// choices: as for draw_masks. law (longest): law[i] is the probability that a
// span has at most i + 1 words. most: the maximal number of tokens of a span.
// apart: spans must not touch. share: masked tokens in a million. If a row
// masks more than its share, the next row masks less. Returns a Status.
int draw_spans(uint32_t* state, int64_t num_rows, const int64_t* rows,
               const int64_t* parts, int64_t num_parts, const void* types,
               int64_t type_bytes, int64_t num_words, const int32_t* numbers,
               int64_t num_types, const Specials* specials,
               const uint8_t* kinds, int64_t num_kinds,
               const int32_t* choices, int64_t num_choices,
               const double* law, int64_t longest,
               int64_t most, int64_t apart, int64_t share, int64_t T,
               int64_t P, int32_t* tokens, float* valid_lens,
               int32_t* positions, float* weights, int32_t* labels,
               int32_t* left, int32_t* right) try {
  constexpr int64_t kWhole = 1000000;
  const Words words{types, type_bytes, num_words, numbers, num_types};
  specials->check(words, kinds, num_kinds, choices, num_choices);
  require_rising(rows, num_rows + 1, num_parts);
  require(!num_rows || T >= 1);
  Twister random(state);
  Units units(static_cast<int32_t>(longest), static_cast<int32_t>(most),
              apart != 0);
  const Others others{choices, static_cast<uint32_t>(num_choices)};
  std::vector<Pred> preds;
  preds.reserve(static_cast<size_t>(P));
  int64_t owed = 0;   // tokens to mask, in millionths of a token
  for (int64_t k = 0; k < num_rows; ++k) {
    int32_t *row = tokens + k * T, *end = row;
    *end++ = specials->cls;
    for (int64_t i = rows[k]; i < rows[k + 1]; ++i) {
      end = words.copy(parts[2 * i], parts[2 * i + 1], end,
                       row + T - 1 - end);
      *end++ = specials->sep;
    }
    const auto length = static_cast<int32_t>(end - row);
    std::fill(end, row + T, specials->pad);
    valid_lens[k] = static_cast<float>(length);

    units.read(row, length, kinds);
    preds.clear();
    owed += share * length;
    while (owed > 0) {
      int32_t wanted = 1;
      if (longest > 1) {
        const double u = random.uniform();
        while (wanted < longest && law[wanted - 1] <= u) ++wanted;
      }
      Unit span;
      if (!units.take(wanted, random, &span)) {
        owed = 0;
        break;
      }
      owed -= kWhole * (span.end - span.begin);
      const Fate fate = draw_fate(random);
      for (int32_t i = span.begin; i < span.end; ++i) {
        preds.push_back({i, row[i], span.begin - 1, span.end});
        hide(row + i, fate, specials->mask, others, random);
      }
    }
    std::sort(preds.begin(), preds.end(), [](const Pred& a, const Pred& b) {
      return a.position < b.position;
    });
    for (size_t i = 0; i < static_cast<size_t>(P); ++i) {
      const bool real = i < preds.size();
      const Pred pred = real ? preds[i] : Pred{0, 0, 0, 0};
      const size_t place = static_cast<size_t>(k * P) + i;
      positions[place] = pred.position;
      labels[place] = pred.label;
      left[place] = pred.left;
      right[place] = pred.right;
      weights[place] = real ? 1.0f : 0.0f;
    }
  }
  return kDone;
} catch (...) {
  return failure();
}

}  // extern "C"
