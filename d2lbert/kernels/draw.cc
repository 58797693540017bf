// This file draws the examples for pretraining, next sentence pairs and masked
// tokens, from a text of numbered words, as the book's section "The Dataset for
// Pretraining BERT" does. draw.py calls these functions.
//
// Random numbers are drawn as by CPython's `random` (3.8 to 3.14), in the order
// of the book's Python code. So the examples are equal to the book's.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "draw.h"

namespace {

// The sentences of a paragraph, or the words of a sentence.
struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// A masked token: its position in the row, and the token that was there.
struct MaskedToken {
  int32_t position, label;
};

}  // namespace

extern "C" {

// Do random.shuffle(order). state: as for Twister (draw.h).
void draw_order(uint32_t* state, int64_t num_paragraphs, int32_t* order) {
  Twister(state).shuffle(order, static_cast<size_t>(num_paragraphs));
}

// Draw pairs of sentences for next sentence prediction: a pair for each two
// neighbouring sentences in the paragraphs order[first] to order[last - 1]. In
// half of the cases, the second sentence is replaced by a random sentence of a
// random paragraph of `order` (num_order); with `swap`, the two sentences
// change places instead. Pairs of more than max_len tokens are left out.
// pair_spans (max_pairs, 4) receives the begin and end of the words of both
// sentences of each pair. is_next (max_pairs) receives 1 for an unchanged pair,
// else 0. num_pairs receives the number of pairs.
//
// Paragraph q holds the sentences from paragraph_offsets[q] to
// paragraph_offsets[q + 1] - 1. Sentence s holds the words from
// sentence_offsets[s] to sentence_offsets[s + 1] - 1. Returns a Status
// (bounds_check.h).
int draw_pairs(uint32_t* state, int64_t num_order, const int32_t* order,
               int64_t first, int64_t last, const int64_t* paragraph_offsets,
               int64_t num_paragraphs, const int64_t* sentence_offsets,
               int64_t num_sentences, int64_t max_len, int swap,
               int64_t* pair_spans, uint8_t* is_next, int64_t max_pairs,
               int64_t* num_pairs) try {
  require(0 <= first && last <= num_order);
  // The sentences of the paragraph order[k]
  const auto sentences_of = [&](int64_t k) {
    const int64_t q = order[k];
    require(0 <= q && q < num_paragraphs);
    const int64_t begin = paragraph_offsets[q], end = paragraph_offsets[q + 1];
    require(0 <= begin && begin < end && end <= num_sentences);
    return Range{begin, end};
  };
  const auto words_of = [&](int64_t s) {
    const int64_t begin = sentence_offsets[s], end = sentence_offsets[s + 1];
    // The limit keeps the sum of two lengths from overflowing
    require(0 <= begin && begin <= end && end < int64_t{1} << 60);
    return Range{begin, end};
  };
  Twister random(state);
  int64_t num_kept = 0;
  for (int64_t k = first; k < last; ++k) {
    const Range paragraph = sentences_of(k);
    for (int64_t s = paragraph.begin; s + 1 < paragraph.end; ++s) {
      int64_t a = s, b = s + 1;  // the first and second sentence of the pair
      const bool is_unchanged = random.uniform() < 0.5;
      if (!is_unchanged && swap) {
        std::swap(a, b);
      } else if (!is_unchanged) {
        const Range other =
            sentences_of(random.below(static_cast<uint32_t>(num_order)));
        b = other.begin + random.below(static_cast<uint32_t>(other.size()));
      }
      const Range a_words = words_of(a), b_words = words_of(b);
      // 3 special tokens: <cls> and two <sep>
      if (a_words.size() + b_words.size() + 3 > max_len) {
        continue;
      }
      require(num_kept < max_pairs);
      int64_t* spans = pair_spans + 4 * num_kept;
      spans[0] = a_words.begin;
      spans[1] = a_words.end;
      spans[2] = b_words.begin;
      spans[3] = b_words.end;
      is_next[num_kept++] = is_unchanged;
    }
  }
  *num_pairs = num_kept;
  return kDone;
} catch (...) {
  return failure();
}

// Write a padded row of T tokens for each pair of sentences, and mask at most P
// tokens of it. Fills tokens and segments (N, T), valid_lens (N), and
// positions, weights and labels (N, P) of the masked tokens. N: num_pairs.
// pair_spans (N, 4): as from draw_pairs. Arguments types to num_types: see
// `Words` (size: num_words). num_preds (T + 1): in a row of n tokens, at most
// num_preds[n] <= P are masked. flags (num_flags): the flags of each token of
// the vocabulary (draw.h), or null if only <cls> and <sep> are fixed. choices
// (num_choices): the tokens from which a random token is drawn, or null for the
// whole vocabulary. whole_words: mask all pieces of a word, or none of them.
// Returns a Status.
int draw_masks(uint32_t* state, int64_t num_pairs, const int64_t* pair_spans,
               const void* types, int64_t type_bytes, int64_t num_words,
               const int32_t* vocab_ids, int64_t num_types,
               const Specials* specials, const int32_t* num_preds, int64_t T,
               int64_t P,
               int32_t* tokens, int32_t* segments, float* valid_lens,
               int32_t* positions, float* weights, int32_t* labels,
               const uint8_t* flags, int64_t num_flags,
               const int32_t* choices, int64_t num_choices,
               int whole_words) try {
  const Words words{types, type_bytes, num_words, vocab_ids, num_types};
  specials->check(words, flags, num_flags, choices, num_choices);
  require_range(num_preds, T + 1, 0, P + 1);
  require(!num_pairs || T >= 3);
  require(flags || !whole_words);
  Twister random(state);
  const int64_t num_random_tokens =
      choices != nullptr ? num_choices : specials->vocab_size;
  const RandomTokens random_tokens{choices,
                                   static_cast<uint32_t>(num_random_tokens)};
  std::vector<int32_t> candidates;
  std::vector<MaskedToken> preds;
  candidates.reserve(static_cast<size_t>(T));
  preds.reserve(static_cast<size_t>(P));
  for (int64_t k = 0; k < num_pairs; ++k) {
    int32_t* row = tokens + k * T;
    int32_t* end = row;
    *end++ = specials->cls;
    const int64_t* spans = pair_spans + 4 * k;
    // The limits leave room for the <sep> tokens after the words
    end = words.copy(spans[0], spans[1], end, T - 3);
    *end++ = specials->sep;
    const int32_t* second = end;  // the begin of the second segment
    end = words.copy(spans[2], spans[3], end, row + T - 1 - end);
    *end++ = specials->sep;
    const auto length = end - row;
    std::fill(end, row + T, specials->pad);
    std::fill(segments + k * T, segments + (k + 1) * T, 0);
    std::fill(segments + k * T + (second - row), segments + k * T + length, 1);
    valid_lens[k] = static_cast<float>(length);

    // With whole_words, true for a piece after the first piece of its word. A
    // fixed token is not a piece, and a piece after a fixed token begins a word
    const auto continues_word = [&](int64_t i) {
      return whole_words && i > 0 && flags[row[i]] == kGoesOn &&
             !(flags[row[i - 1]] & kFixed);
    };
    // Positions of tokens that may be masked; with whole_words, of first pieces
    candidates.clear();
    for (int32_t i = 0; i < length; ++i) {
      const bool is_fixed = flags != nullptr
                                ? flags[row[i]] & kFixed
                                : row[i] == specials->cls ||
                                      row[i] == specials->sep;
      if (!is_fixed && !continues_word(i)) candidates.push_back(i);
    }
    random.shuffle(candidates.data(), candidates.size());
    preds.clear();
    const auto max_preds = static_cast<size_t>(num_preds[length]);
    for (const int32_t begin : candidates) {
      if (preds.size() >= max_preds) break;
      int32_t stop = begin + 1;
      while (stop < length && continues_word(stop)) ++stop;
      const auto num_pieces = static_cast<size_t>(stop - begin);
      if (preds.size() + num_pieces > max_preds) continue;
      for (int32_t i = begin; i < stop; ++i) preds.push_back({i, row[i]});
    }
    for (const MaskedToken& pred : preds) {
      replace_token(row + pred.position, draw_replacement(random),
                    specials->mask, random_tokens, random);
    }
    std::sort(preds.begin(), preds.end(),
              [](const MaskedToken& a, const MaskedToken& b) {
                return a.position < b.position;
              });
    for (int64_t i = 0; i < P; ++i) {
      const bool is_real = i < static_cast<int64_t>(preds.size());
      positions[k * P + i] = is_real ? preds[i].position : 0;
      labels[k * P + i] = is_real ? preds[i].label : 0;
      weights[k * P + i] = is_real ? 1.0f : 0.0f;
    }
  }
  return kDone;
} catch (...) {
  return failure();
}

}  // extern "C"
