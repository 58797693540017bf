// Masks spans of neighbouring words, as for SpanBERT. Random numbers are drawn
// in the order of `_mask_spans` in corpus/masking.py, so both draw the same
// examples.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "draw.h"

namespace {

// A word of a row: a token, and the tokens after it that continue the word
// (kGoesOn in draw.h). If no token has this flag, each token is a word.
struct MaskableWord {
  int32_t begin, end;  // tokens [begin, end) of the row
  // Words of the longest span that can begin here, if max_tokens_ is ignored
  int32_t max_span_words;
};

// Tokens [begin, end) of a row.
struct Span {
  int32_t begin, end;
};

class MaskableWords {
 public:
  // max_words, max_tokens: limits for a span. separate: spans must not touch.
  MaskableWords(int32_t max_words, int32_t max_tokens, bool separate)
      : max_words_(max_words), max_tokens_(max_tokens), separate_(separate) {}

  // flags: of each token of the vocabulary (draw.h).
  void find_words(const int32_t* tokens, int32_t length, const uint8_t* flags) {
    words_.clear();
    for (int32_t i = 0; i < length; ++i) {
      const uint8_t token_flags = flags[tokens[i]];
      if (token_flags & kFixed) continue;
      const bool follows_word = !words_.empty() && words_.back().end == i;
      if (token_flags & kGoesOn && follows_word) {
        ++words_.back().end;
      } else {
        words_.push_back({i, i + 1, 0});
      }
    }
    for (size_t k = words_.size(); k-- > 0;) {
      const bool can_continue = k + 1 < words_.size() && touches_next(k);
      const int32_t rest = can_continue ? words_[k + 1].max_span_words : 0;
      words_[k].max_span_words = std::min(max_words_, 1 + rest);
    }
  }

  // Take a span of num_words words at a random position. If none is left, take
  // a span of the next smaller length that is left. Returns false if no span is
  // left.
  bool take_span(int32_t num_words, Twister& random, Span* span) {
    for (; num_words > 0; --num_words) {
      uint32_t num_positions = 0;
      for (size_t k = 0; k < words_.size(); ++k) {
        num_positions += can_begin_span(k, num_words);
      }
      if (!num_positions) continue;
      uint32_t to_skip = random.below(num_positions);
      size_t k = 0;
      for (;; ++k) {
        if (can_begin_span(k, num_words) && to_skip-- == 0) break;
      }
      *span = {words_[k].begin, words_[k + num_words - 1].end};
      exclude(k, k + num_words - 1);
      return true;
    }
    return false;
  }

 private:
  bool touches_next(size_t k) const {
    return words_[k].end == words_[k + 1].begin;
  }

  bool can_begin_span(size_t k, int32_t num_words) const {
    return words_[k].max_span_words >= num_words &&
           words_[k + num_words - 1].end - words_[k].begin <= max_tokens_;
  }

  // Exclude words `first` to `last` from further spans and, if separate_, the
  // words that touch them.
  void exclude(size_t first, size_t last) {
    if (separate_) {
      if (first > 0 && touches_next(first - 1)) --first;
      if (last + 1 < words_.size() && touches_next(last)) ++last;
    }
    for (size_t k = first; k <= last; ++k) words_[k].max_span_words = 0;
    // Spans that begin before word `first` must also end before word `first`
    for (size_t k = first; k-- > 0;) {
      const auto words_to_first = static_cast<int32_t>(first - k);
      if (words_[k].max_span_words <= words_to_first) break;
      words_[k].max_span_words = words_to_first;
    }
  }

  const int32_t max_words_, max_tokens_;
  const bool separate_;
  std::vector<MaskableWord> words_;
};

// left, right: the positions before and after the span of the token.
struct SpanToken {
  int32_t position, label, left, right;
};

}  // namespace

extern "C" {

// Fill padded rows with parts of a text, and mask spans of words. Writes tokens
// (N, T), valid_lens (N), and for the masked tokens (N, P): positions, weights,
// labels, and the positions before (left) and after (right) their spans. N:
// num_rows. P: the largest number of masked tokens in a row.
//
// Row k is <cls> and the parts row_offsets[k] to row_offsets[k + 1] - 1, each
// followed by <sep>. Part i has tokens parts[2i] to parts[2i + 1] - 1 of the
// text (`Words` calls them words). The arguments from types to num_choices are
// those of draw_masks (draw.cc), but flags and choices must not be null.
// length_cdf (max_words): entry i is the probability that a span is drawn with
// at most i + 1 words. max_tokens: the limit for a span. separate: spans must
// not touch. masked_per_million: the share of tokens to mask; if a row masks
// more, later rows mask less. Returns a Status.
int draw_spans(uint32_t* state, int64_t num_rows, const int64_t* row_offsets,
               const int64_t* parts, int64_t num_parts, const void* types,
               int64_t type_bytes, int64_t num_words, const int32_t* vocab_ids,
               int64_t num_types, const Specials* specials,
               const uint8_t* flags, int64_t num_flags,
               const int32_t* choices, int64_t num_choices,
               const double* length_cdf, int64_t max_words,
               int64_t max_tokens, int64_t separate,
               int64_t masked_per_million, int64_t T, int64_t P,
               int32_t* tokens, float* valid_lens, int32_t* positions,
               float* weights, int32_t* labels, int32_t* left,
               int32_t* right) try {
  constexpr int64_t kMillion = 1000000;
  const Words text{types, type_bytes, num_words, vocab_ids, num_types};
  specials->check(text, flags, num_flags, choices, num_choices);
  require_sorted(row_offsets, num_rows + 1, num_parts);
  require(!num_rows || T >= 1);
  Twister random(state);
  MaskableWords maskable(static_cast<int32_t>(max_words),
                         static_cast<int32_t>(max_tokens), separate != 0);
  const RandomTokens random_tokens{choices, static_cast<uint32_t>(num_choices)};
  std::vector<SpanToken> preds;
  preds.reserve(static_cast<size_t>(P));
  // Millionths of tokens still to mask; negative after a row with too many
  int64_t owed = 0;
  for (int64_t k = 0; k < num_rows; ++k) {
    int32_t *row = tokens + k * T, *end = row;
    *end++ = specials->cls;
    for (int64_t i = row_offsets[k]; i < row_offsets[k + 1]; ++i) {
      end = text.copy(parts[2 * i], parts[2 * i + 1], end,
                      row + T - 1 - end);
      *end++ = specials->sep;
    }
    const auto length = static_cast<int32_t>(end - row);
    std::fill(end, row + T, specials->pad);
    valid_lens[k] = static_cast<float>(length);

    maskable.find_words(row, length, flags);
    preds.clear();
    owed += masked_per_million * length;
    while (owed > 0) {
      int32_t span_words = 1;
      if (max_words > 1) {  // the Python code draws no number for max_words 1
        const double u = random.uniform();
        while (span_words < max_words && length_cdf[span_words - 1] <= u) {
          ++span_words;
        }
      }
      Span span;
      if (!maskable.take_span(span_words, random, &span)) {
        owed = 0;  // the next row does not make up for this row
        break;
      }
      owed -= kMillion * (span.end - span.begin);
      const Replacement replacement = draw_replacement(random);
      for (int32_t i = span.begin; i < span.end; ++i) {
        preds.push_back({i, row[i], span.begin - 1, span.end});
        replace_token(row + i, replacement, specials->mask, random_tokens,
                      random);
      }
    }
    std::sort(preds.begin(), preds.end(),
              [](const SpanToken& a, const SpanToken& b) {
                return a.position < b.position;
              });
    for (size_t i = 0; i < static_cast<size_t>(P); ++i) {
      const bool is_padding = i >= preds.size();
      const SpanToken pred = is_padding ? SpanToken{} : preds[i];
      const size_t index = static_cast<size_t>(k * P) + i;
      positions[index] = pred.position;
      labels[index] = pred.label;
      left[index] = pred.left;
      right[index] = pred.right;
      weights[index] = is_padding ? 0.0f : 1.0f;
    }
  }
  return kDone;
} catch (...) {
  return failure();
}

}  // extern "C"
