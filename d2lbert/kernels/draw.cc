// The host side of "The Dataset for Pretraining BERT": cutting a text into
// numbered tokens, and drawing examples from them. No MXNet in here: a plain
// C interface for ctypes over caller-owned arrays.
//
// The draws repeat CPython's `random` (3.8 to 3.12) word for word on the
// caller's own Mersenne Twister state, in the book's order, so that the
// examples are the ones that the book's Python code would have drawn.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "draw.h"

namespace {

// Bytes taken by the white space that begins at p (what str.isspace() holds
// for), or 0. Needs valid UTF-8, in which no continuation byte can be
// mistaken for the first byte of a character.
inline int space_at(const char* p, const char* end) {
  const auto c = static_cast<unsigned char>(*p);
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
  if (c == 0xc2 && end - p >= 2) {
    const auto d = static_cast<unsigned char>(p[1]);
    return d == 0x85 || d == 0xa0 ? 2 : 0;
  }
  if ((c < 0xe1 || c > 0xe3) || end - p < 3) return 0;
  const auto d = static_cast<unsigned char>(p[1]);
  const auto e = static_cast<unsigned char>(p[2]);
  const bool space =
      (c == 0xe1 && d == 0x9a && e == 0x80) ||
      (c == 0xe2 && d == 0x80 && (e <= 0x8a || e == 0xa8 || e == 0xa9 ||
                                  e == 0xaf)) ||
      (c == 0xe2 && d == 0x81 && e == 0x9f) ||
      (c == 0xe3 && d == 0x80 && e == 0x80);
  return space ? 3 : 0;
}

std::string_view strip(std::string_view line) {
  const char *begin = line.data(), *end = begin + line.size();
  for (int n; begin < end && (n = space_at(begin, end)); begin += n) {}
  while (begin < end) {
    const char* last = end - 1;
    while (last > begin && (*last & 0xc0) == 0x80) --last;
    if (!space_at(last, end)) break;
    end = last;
  }
  return {begin, static_cast<size_t>(end - begin)};
}

// Words numbered in the order in which they first come: an open-addressing
// table, since 2 million look-ups are most of the work.
class Names {
 public:
  Names() : slots_(1 << 16, -1) {}

  int32_t number(std::string_view word) {
    uint64_t h = hash(word);
    size_t mask = slots_.size() - 1, slot = h & mask;
    for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
      const auto k = static_cast<size_t>(slots_[slot]);
      if (hashes_[k] == h && words_[k] == word) return slots_[slot];
    }
    const auto k = static_cast<int32_t>(words_.size());
    slots_[slot] = k;
    words_.push_back(word);
    hashes_.push_back(h);
    bytes_ += word.size() + 1;
    if (words_.size() * 2 > slots_.size()) grow();
    return k;
  }

  const std::vector<std::string_view>& words() const { return words_; }
  int64_t bytes() const { return bytes_; }

 private:
  static uint64_t hash(std::string_view word) {
    uint64_t h = 0xcbf29ce484222325u;
    for (unsigned char c : word) h = (h ^ c) * 0x100000001b3u;
    return h ^ h >> 29;
  }

  void grow() {
    slots_.assign(slots_.size() * 2, -1);
    const size_t mask = slots_.size() - 1;
    for (size_t k = 0; k < words_.size(); ++k) {
      size_t slot = hashes_[k] & mask;
      while (slots_[slot] >= 0) slot = (slot + 1) & mask;
      slots_[slot] = static_cast<int32_t>(k);
    }
  }

  std::vector<int32_t> slots_;
  std::vector<std::string_view> words_;
  std::vector<uint64_t> hashes_;
  int64_t bytes_ = 0;
};

struct Text {
  Names names;
  std::vector<int32_t> types;
  std::vector<int64_t> sentences{0}, paragraphs{0};

  void add_sentence(std::string_view sentence) {
    const char *p = sentence.data(), *end = p + sentence.size();
    while (p < end) {
      if (const int n = space_at(p, end)) {
        p += n;
        continue;
      }
      const char* word = p;
      while (p < end && !space_at(p, end)) ++p;
      types.push_back(names.number({word, static_cast<size_t>(p - word)}));
    }
    sentences.push_back(static_cast<int64_t>(types.size()));
  }

  // A line with ' . ' in it is a paragraph; its ends are stripped before it
  // is split, so the full stop that closes it stays with the last sentence
  void add_line(std::string_view line) {
    constexpr std::string_view kStop = " . ";
    if (line.find(kStop) == line.npos) return;
    line = strip(line);
    for (size_t stop; (stop = line.find(kStop)) != line.npos;) {
      add_sentence(line.substr(0, stop));
      line.remove_prefix(stop + kStop.size());
    }
    add_sentence(line);
    paragraphs.push_back(static_cast<int64_t>(sentences.size()) - 1);
  }
};

template <typename T>
void copy(const std::vector<T>& from, T* to) {
  std::copy(from.begin(), from.end(), to);
}

}  // namespace

extern "C" {

// Cut a lower-cased UTF-8 text; sizes receives the lengths of the arrays that
// text_copy fills. Null when memory runs out.
void* text_new(const char* bytes, int64_t size, int64_t* sizes) try {
  auto* text = new Text;
  try {
    std::string_view rest(bytes, static_cast<size_t>(size));
    while (!rest.empty()) {
      const size_t line = std::min(rest.find('\n'), rest.size());
      text->add_line(rest.substr(0, line));
      rest.remove_prefix(std::min(line + 1, rest.size()));
    }
  } catch (...) {
    delete text;
    throw;
  }
  sizes[0] = static_cast<int64_t>(text->types.size());
  sizes[1] = static_cast<int64_t>(text->sentences.size());
  sizes[2] = static_cast<int64_t>(text->paragraphs.size());
  sizes[3] = text->names.bytes();
  return text;
} catch (const std::bad_alloc&) {
  return nullptr;
}

// names receives the words in the order of their numbers, a line feed after
// each; `bytes` given to text_new must still be there.
void text_copy(const void* handle, int32_t* types, int64_t* sentences,
               int64_t* paragraphs, char* names) {
  const auto* text = static_cast<const Text*>(handle);
  copy(text->types, types);
  copy(text->sentences, sentences);
  copy(text->paragraphs, paragraphs);
  for (std::string_view word : text->names.words()) {
    names = std::copy(word.begin(), word.end(), names);
    *names++ = '\n';
  }
}

void text_free(void* handle) { delete static_cast<Text*>(handle); }

// The order in which the paragraphs come: random.shuffle(order).
void draw_order(uint32_t* state, int64_t num_paragraphs, int32_t* order) {
  Twister(state).shuffle(order, static_cast<size_t>(num_paragraphs));
}

// Next sentence prediction: for each pair of neighbours in the paragraphs
// order[first] to order[last - 1], in half of the cases the second is replaced
// by a random sentence of all num_paragraphs. Writes where the words of both
// begin and end, for the pairs that fit, and returns how many those are.
//
// Paragraph q holds sentences paragraphs[q] to paragraphs[q + 1] - 1, and
// sentence s the words sentences[s] to sentences[s + 1] - 1.
int64_t draw_pairs(uint32_t* state, int64_t num_paragraphs,
                   const int32_t* order, int64_t first, int64_t last,
                   const int64_t* paragraphs, const int64_t* sentences,
                   int64_t max_len, int64_t* spans, uint8_t* is_next) {
  Twister random(state);
  int64_t kept = 0;
  for (int64_t k = first; k < last; ++k) {
    const int64_t end = paragraphs[order[k] + 1];
    for (int64_t a = paragraphs[order[k]]; a + 1 < end; ++a) {
      int64_t b = a + 1;
      const bool next = random.uniform() < 0.5;
      if (!next) {
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
