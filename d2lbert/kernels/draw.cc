// The host side of "The Dataset for Pretraining BERT": drawing examples from
// numbered tokens. No MXNet in here: a plain C interface for ctypes over
// caller-owned arrays.
//
// The draws repeat CPython's `random` (3.8 to 3.12) word for word on the
// caller's own Mersenne Twister state, in the book's order, so that the
// examples are the ones that the book's Python code would have drawn.

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "draw.h"

extern "C" {

// The order in which the paragraphs come: random.shuffle(order).
void draw_order(uint32_t* state, int64_t num_paragraphs, int32_t* order) {
  Twister(state).shuffle(order, static_cast<size_t>(num_paragraphs));
}

// Next sentence prediction: for each pair of neighbours in the paragraphs
// order[first] to order[last - 1], in half of the cases the second is replaced
// by a random sentence of all num_paragraphs; with swap both change places
// then. Writes where the words of both begin and end, for the pairs that fit,
// and returns how many those are.
//
// Paragraph q holds sentences paragraphs[q] to paragraphs[q + 1] - 1, and
// sentence s the words sentences[s] to sentences[s + 1] - 1.
int64_t draw_pairs(uint32_t* state, int64_t num_paragraphs,
                   const int32_t* order, int64_t first, int64_t last,
                   const int64_t* paragraphs, const int64_t* sentences,
                   int64_t max_len, int swap, int64_t* spans,
                   uint8_t* is_next) {
  Twister random(state);
  int64_t kept = 0;
  for (int64_t k = first; k < last; ++k) {
    const int64_t end = paragraphs[order[k] + 1];
    for (int64_t s = paragraphs[order[k]]; s + 1 < end; ++s) {
      int64_t a = s, b = s + 1;
      const bool next = random.uniform() < 0.5;
      if (!next && swap) {
        std::swap(a, b);
      } else if (!next) {
        const int64_t q =
            order[random.below(static_cast<uint32_t>(num_paragraphs))];
        b = paragraphs[q] + random.below(static_cast<uint32_t>(
                                paragraphs[q + 1] - paragraphs[q]));
      }
      const int64_t* from_a = sentences + a;
      const int64_t* from_b = sentences + b;
      if (from_a[1] - from_a[0] + from_b[1] - from_b[0] + 3 > max_len) {
        continue;
      }
      int64_t* span = spans + 4 * kept;
      span = std::copy(from_a, from_a + 2, span);
      std::copy(from_b, from_b + 2, span);
      is_next[kept++] = next;
    }
  }
  return kept;
}

// Masked language modelling for each pair of spans of words, written as padded
// rows: tokens and segments (N, T), valid_lens (N), positions, weights and
// labels (N, P). num_preds[n] says how many of n tokens are predicted (at most
// P); no pair has more than T tokens. kinds may be null, and says what each
// token is (above); choices may be null, and are the num_choices tokens by
// which others are replaced. whole_words hides words of which num_preds[n]
// holds all pieces, or none of them.
// Returns 0, or 1 when memory runs out.
int draw_masks(uint32_t* state, int64_t num_pairs, const int64_t* spans,
               const void* types, int64_t type_bytes, const int32_t* numbers,
               const Specials* specials, const int32_t* num_preds, int64_t T,
               int64_t P,
               int32_t* tokens, int32_t* segments, float* valid_lens,
               int32_t* positions, float* weights, int32_t* labels,
               const uint8_t* kinds, const int32_t* choices,
               int64_t num_choices, int whole_words) try {
  Twister random(state);
  const Words words{types, type_bytes, numbers};
  const Others others{choices, static_cast<uint32_t>(
      choices != nullptr ? num_choices : specials->vocab_size)};
  std::vector<int32_t> candidates;
  std::vector<std::pair<int32_t, int32_t>> preds;  // position, label
  candidates.reserve(static_cast<size_t>(T));
  preds.reserve(static_cast<size_t>(P));
  for (int64_t k = 0; k < num_pairs; ++k) {
    int32_t* row = tokens + k * T;
    int32_t* end = row;
    *end++ = specials->cls;
    const int64_t* span = spans + 4 * k;
    end = words.copy(span[0], span[1], end);
    *end++ = specials->sep;
    const int32_t* second = end;
    end = words.copy(span[2], span[3], end);
    *end++ = specials->sep;
    const auto length = end - row;
    std::fill(end, row + T, specials->pad);
    std::fill(segments + k * T, segments + (k + 1) * T, 0);
    std::fill(segments + k * T + (second - row), segments + k * T + length, 1);
    valid_lens[k] = static_cast<float>(length);

    // What is hidden together: where it begins. Its pieces follow
    candidates.clear();
    const auto goes_on = [&](int64_t i) {
      return whole_words && kinds[row[i]] == kGoesOn &&
             !(kinds[row[i - 1]] & kFixed);
    };
    for (int32_t i = 0; i < length; ++i) {
      const bool fixed = kinds != nullptr
                             ? kinds[row[i]] & kFixed
                             : row[i] == specials->cls ||
                                   row[i] == specials->sep;
      if (!fixed && !goes_on(i)) candidates.push_back(i);
    }
    random.shuffle(candidates.data(), candidates.size());
    preds.clear();
    const auto most = static_cast<size_t>(num_preds[length]);
    for (int32_t i : candidates) {
      if (preds.size() >= most) break;
      int32_t stop = i + 1;
      while (stop < length && goes_on(stop)) ++stop;
      if (preds.size() + static_cast<size_t>(stop - i) > most) continue;
      for (; i < stop; ++i) preds.emplace_back(i, row[i]);
    }
    for (const auto& pred : preds) {
      hide(row + pred.first, draw_fate(random), specials->mask, others,
           random);
    }
    std::sort(preds.begin(), preds.end());
    for (int64_t i = 0; i < P; ++i) {
      const bool real = i < static_cast<int64_t>(preds.size());
      positions[k * P + i] = real ? preds[i].first : 0;
      labels[k * P + i] = real ? preds[i].second : 0;
      weights[k * P + i] = real ? 1.0f : 0.0f;
    }
  }
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

}  // extern "C"
