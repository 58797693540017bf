// This file draws examples in which spans of neighbouring words are masked, as
// for SpanBERT and other models. Random numbers are drawn in the same order as
// by the Python code in corpus/masking.py, so both draw the same examples.
// draw.py calls draw_spans. This code does not need MXNet.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "draw.h"

namespace {

// A word of a row: a token, and the tokens after it that continue the word
// (kGoesOn in draw.h). If no token has this flag, each token is a word.
struct MaskableWord {
  int32_t begin, end;  // tokens [begin, end) of the row
  // The largest number of words of a span that begins with this word, without
  // regard to max_tokens_. 0: no span can begin with this word
  int32_t max_span_words;
};

// Tokens [begin, end) of a row.
struct Span {
  int32_t begin, end;
};

// The words of a row, from which spans to mask are taken.
class MaskableWords {
 public:
  // max_words, max_tokens: limits for a span. separate: spans must not touch.
  MaskableWords(int32_t max_words, int32_t max_tokens, bool separate)
      : max_words_(max_words), max_tokens_(max_tokens), separate_(separate) {}

  // Find the words of a row of `length` tokens. flags: the flags of each token
  // of the vocabulary (draw.h).
  void read(const int32_t* tokens, int32_t length, const uint8_t* flags) {
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

  // Take a span of `length` words at a random position, and store its range of
  // tokens in *span. If no span of this length is left, take a span of the next
  // smaller length that is left. Returns false if no span of any length is
  // left.
  bool take_span(int32_t length, Twister& random, Span* span) {
    for (; length > 0; --length) {
      uint32_t num_positions = 0;
      for (size_t k = 0; k < words_.size(); ++k) {
        num_positions += fits(k, length);
      }
      if (!num_positions) continue;
      uint32_t to_skip = random.below(num_positions);
      size_t k = 0;
      for (;; ++k) {
        if (fits(k, length) && to_skip-- == 0) break;
      }
      *span = {words_[k].begin, words_[k + length - 1].end};
      exclude(k, k + length - 1);
      return true;
    }
    return false;
  }

 private:
  // True if word k + 1 follows word k directly, without a token between them.
  bool touches_next(size_t k) const {
    return words_[k].end == words_[k + 1].begin;
  }

  // True if a span of `length` words can begin with word k.
  bool fits(size_t k, int32_t length) const {
    return words_[k].max_span_words >= length &&
           words_[k + length - 1].end - words_[k].begin <= max_tokens_;
  }

  // Exclude words `first` to `last` from further spans. If spans must not
  // touch, also exclude the neighbours of these words.
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

// A masked token: its position and label, and the positions before (left) and
// after (right) its span.
struct SpanToken {
  int32_t position, label, left, right;
};

}  // namespace

extern "C" {

// Fill padded rows with parts of a text, and mask spans of words. Writes tokens
// (N, T), valid_lens (N), and for each masked token its position, weight and
// label, and the positions before (left) and after (right) its span, (N, P). N:
// num_rows. T: tokens of a row. P: the largest number of masked tokens in a
// row.
//
// Row k is <cls> and the parts row_offsets[k] to row_offsets[k + 1] - 1, each
// followed by <sep>. Part i has tokens parts[2i] to parts[2i + 1] - 1 of the
// text (`Words` calls them words). There are num_parts parts. The arguments
// from types to num_choices are those of draw_masks (draw.cc), but flags and
// choices must not be null. length_cdf (max_words): length_cdf[i] is the
// probability that the drawn length of a span is at most i + 1 words.
// max_tokens: the limit for the tokens of a span. separate: spans must not
// touch. masked_per_million: the number of tokens to mask in a million. If a
// row masks more than that, later rows mask less. Returns a Status.
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
  // The number of tokens still to mask, in millionths. After a row with too
  // many masked tokens, the number is negative
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

    maskable.read(row, length, flags);
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
        owed = 0;  // the next rows do not mask more instead
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
      // Entries after the masked tokens are padding, with weight 0
      const bool is_real = i < preds.size();
      const SpanToken pred = is_real ? preds[i] : SpanToken{0, 0, 0, 0};
      const size_t index = static_cast<size_t>(k * P) + i;
      positions[index] = pred.position;
      labels[index] = pred.label;
      left[index] = pred.left;
      right[index] = pred.right;
      weights[index] = is_real ? 1.0f : 0.0f;
    }
  }
  return kDone;
} catch (...) {
  return failure();
}

}  // extern "C"
