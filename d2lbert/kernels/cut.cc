// This file cuts a text into sentences and words, and numbers the words: the
// steps of the book's section "The Dataset for Pretraining BERT" up to the
// vocabulary. cut.py calls these functions. They do not need MXNet.
//
// Equal words have the same number, which is called their type. Types begin
// at 0, in the order of the words' first occurrences.
//
// A text is bytes of UTF-8. To convert words to lower case, C++ converts the
// ASCII letters. Then Python converts each different non-ASCII word once
// (text_non_ascii, text_rename).

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bounds_check.h"
#include "cut.h"

namespace {

// The content of a line, with the values of PARAGRAPHS, WIKI and PARTS in
// cut.py, which describes them.
enum class LineKind { kParagraphs, kWiki, kParts };

// The number of words whose slots are prefetched before they are looked up.
constexpr size_t kBatch = 64;

// The lowest bit, and the highest bit, of each of eight bytes.
constexpr uint64_t kOnes = 0x0101010101010101u, kHigh = kOnes * 0x80;

bool is_blank(std::string_view line) { return strip(line).empty(); }

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.substr(text.size() - suffix.size()) == suffix;
}

// True for a heading of any level of WikiText, such as " = = History = = ".
bool is_heading(std::string_view line) {
  if (!starts_with(line, " = ") && !starts_with(line, "= ")) return false;
  line = strip(line);
  return ends_with(line, " =") && line.find_first_not_of("= ") != line.npos;
}

bool is_first_level_heading(std::string_view line) {
  if (!is_heading(line)) return false;
  line = strip(line);
  return !starts_with(line, "= = ") && !ends_with(line, " = =");
}

int64_t count_words(std::string_view line) {
  int64_t count = 0;
  bool in_word = false;
  const char *p = line.data(), *end = p + line.size();
  while (p < end) {
    const int space_bytes = num_space_bytes(p, end);
    count += !space_bytes && !in_word;
    in_word = !space_bytes;
    p += space_bytes ? space_bytes : 1;
  }
  return count;
}

// True if Python could decode the bytes as UTF-8.
bool is_utf8(const unsigned char* p, const unsigned char* end) {
  while (p < end) {
    // Skip eight bytes of ASCII at once
    if (end - p >= 8 && !(load(reinterpret_cast<const char*>(p), 8) & kHigh)) {
      p += 8;
      continue;
    }
    const unsigned c = *p++;
    if (c < 0x80) continue;
    if (c < 0xc2 || c > 0xf4) return false;
    const int num_following = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (end - p < num_following) return false;
    // These limits of the second byte exclude overlong forms, surrogates, and
    // numbers beyond Unicode
    const unsigned lowest = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    const unsigned highest = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (*p < lowest || *p > highest) return false;
    for (int k = 1; k < num_following; ++k) {
      if ((p[k] & 0xc0) != 0x80) return false;
    }
    p += num_following;
  }
  return true;
}

// True if a line has a ' . ', which ends a sentence.
bool has_full_stop(std::string_view line) {
  // Search for '.', which is rarer than a blank
  for (size_t k = line.find('.'); k != line.npos; k = line.find('.', k + 1)) {
    if (k > 0 && line[k - 1] == ' ' && k + 1 < line.size() &&
        line[k + 1] == ' ') {
      return true;
    }
  }
  return false;
}

// A text that is cut into words, sentences, paragraphs and articles.
class Text {
 public:
  // lower: convert ASCII letters to lower case, and collect the non-ASCII words
  // for `rename`. Returns false if the bytes are not UTF-8, or if a paragraph
  // or line has more than max_bytes.
  bool cut(const char* bytes, size_t size, LineKind line_kind, bool lower,
           size_t max_bytes) {
    clear();
    buffer_.resize(size + kPadding);
    char *begin = &buffer_[0], *end = begin + size;
    unsigned char all_bits = 0;
    for (size_t i = 0; i < size; ++i) all_bits |= bytes[i];
    const bool is_ascii = !(all_bits & 0x80);
    const auto* first = reinterpret_cast<const unsigned char*>(bytes);
    if (!is_ascii && !is_utf8(first, first + size)) return false;
    if (lower) {
      for (size_t i = 0; i < size; ++i) {
        const char c = bytes[i];
        begin[i] = static_cast<char>(c | (c >= 'A' && c <= 'Z' ? 0x20 : 0));
      }
    } else {
      std::memcpy(begin, bytes, size);
    }
    std::fill(end, end + kPadding, '\n');
    lower_ = lower;
    const bool is_cut = line_kind == LineKind::kParts
                            ? cut_parts(begin, end, max_bytes)
                            : cut_lines(begin, end, line_kind, max_bytes);
    number_batch();
    names_ = words_.text();
    return is_cut;
  }

  // The different non-ASCII words, each followed by a line feed.
  std::string non_ascii_words() const {
    std::string lines;
    for (int32_t type : non_ascii_types_) {
      lines.append(words_[static_cast<size_t>(type)]).push_back('\n');
    }
    return lines;
  }

  // Replace the words of `non_ascii_words` by `lines`, a line for each word.
  // Words that become equal get one type, and all types are numbered again by
  // first occurrence. Returns false if the number of lines is wrong.
  bool rename(std::string_view lines) {
    std::vector<std::string_view> new_names(words_.size());
    for (size_t k = 0; k < new_names.size(); ++k) new_names[k] = words_[k];
    std::vector<size_t> changed_types;
    for (int32_t type : non_ascii_types_) {
      const size_t end = lines.find('\n');
      if (end == lines.npos) return false;
      const std::string_view new_name = lines.substr(0, end);
      const auto k = static_cast<size_t>(type);
      if (new_names[k] != new_name) changed_types.push_back(k);
      new_names[k] = new_name;
      lines.remove_prefix(end + 1);
    }
    non_ascii_types_.clear();
    if (!lines.empty()) return false;
    if (!changed_types.empty()) {
      renumber(new_names, representatives(new_names, changed_types));
    }
    return true;
  }

  // Store the lengths of the five arrays that `copy` fills.
  void store_sizes(int64_t* to) const {
    to[0] = static_cast<int64_t>(types_.size());
    to[1] = static_cast<int64_t>(sentence_begins_.size());
    to[2] = static_cast<int64_t>(paragraph_begins_.size());
    to[3] = static_cast<int64_t>(article_begins_.size());
    to[4] = static_cast<int64_t>(names_.size());
  }

  void store_left_out(int64_t* to) const {
    to[0] = paragraphs_left_out_;
    to[1] = words_left_out_;
  }

  // See text_copy.
  void copy(int32_t* types, int64_t* sentences, int64_t* paragraphs,
            int64_t* articles, char* names) const {
    std::copy(types_.begin(), types_.end(), types);
    std::copy(sentence_begins_.begin(), sentence_begins_.end(), sentences);
    std::copy(paragraph_begins_.begin(), paragraph_begins_.end(), paragraphs);
    std::copy(article_begins_.begin(), article_begins_.end(), articles);
    std::copy(names_.begin(), names_.end(), names);
  }

 private:
  // Line feeds after the text, so that 64 bytes can be read from any word on
  static constexpr size_t kPadding = 64;

  void clear() {
    words_.clear();
    types_.clear();
    non_ascii_types_.clear();
    sentence_begins_.assign(1, 0);
    paragraph_begins_.assign(1, 0);
    article_begins_.clear();
    batch_size_ = 0;
    non_ascii_in_batch_.clear();
    paragraphs_left_out_ = words_left_out_ = 0;
  }

  // Return for each type a representative, one of the types with the same new
  // name. All these types get the same representative.
  std::vector<size_t> representatives(
      const std::vector<std::string_view>& new_names,
      const std::vector<size_t>& changed_types) const {
    std::vector<size_t> representative(new_names.size());
    // Names that did not change still differ from each other
    std::iota(representative.begin(), representative.end(), size_t{0});
    WordTable changed_names;  // without those that equal an unchanged name
    std::vector<size_t> first_types;  // the first type of each changed name
    for (size_t k : changed_types) {
      const Word new_name(new_names[k]);
      // The type that had this name before `rename`, and may have another now
      const int32_t old_owner = words_.find(new_name);
      if (old_owner >= 0 &&
          new_names[static_cast<size_t>(old_owner)] == new_names[k]) {
        representative[k] = static_cast<size_t>(old_owner);
        continue;
      }
      const auto index =
          static_cast<size_t>(changed_names.find_or_add(new_name));
      if (index == first_types.size()) first_types.push_back(k);
      representative[k] = first_types[index];
    }
    return representative;
  }

  // Number all types again by first occurrence, with one type for each name.
  void renumber(const std::vector<std::string_view>& new_names,
                const std::vector<size_t>& representative) {
    const size_t num_types = new_names.size();
    std::vector<int32_t> new_types(num_types, -1);
    std::string lines;
    lines.reserve(words_.text().size());
    int32_t count = 0;
    for (size_t k = 0; k < num_types; ++k) {
      int32_t& new_type = new_types[representative[k]];
      if (new_type < 0) {
        new_type = count++;
        lines.append(new_names[k]).push_back('\n');
      }
      new_types[k] = new_type;
    }
    // If no names became equal, all types are as before
    if (static_cast<size_t>(count) < num_types) {
      for (int32_t& type : types_) {
        type = new_types[static_cast<size_t>(type)];
      }
    }
    names_ = std::move(lines);
  }

  // For kParagraphs and kWiki. Returns false if a line has more than max_bytes.
  bool cut_lines(const char* p, const char* end, LineKind line_kind,
                 size_t max_bytes) {
    // The two lines before `next`, which is line k of the text
    std::string_view previous, line;
    for (int64_t k = 0;; ++k) {
      const char* stop = end_of_line(p, end);
      const std::string_view next(p, static_cast<size_t>(stop - p));
      if (next.size() > max_bytes) return false;
      if (line_kind == LineKind::kParagraphs) {
        add_paragraph(next, /*is_counted=*/true);
      } else if (k > 1) {  // so `line` is neither the first nor the last line
        // A title is a heading of the first level between blank lines
        if (is_first_level_heading(line) && is_blank(previous) &&
            is_blank(next)) {
          article_begins_.push_back(num_paragraphs());
        }
        add_paragraph(line, /*is_counted=*/!is_heading(line));
      }
      if (stop == end) return true;
      previous = line;
      line = next;
      p = stop + 1;
    }
  }

  // For kParts. Returns false if a paragraph has more than max_bytes.
  bool cut_parts(char* p, char* end, size_t max_bytes) {
    char* paragraph = nullptr;  // null between paragraphs
    for (;;) {
      char* stop = const_cast<char*>(end_of_line(p, end));
      const bool is_blank_line = is_blank({p, static_cast<size_t>(stop - p)});
      if (!is_blank_line && !paragraph) paragraph = p;
      if (paragraph) {
        // p - 1: the end of the line before the blank line
        const char* paragraph_end = is_blank_line ? p - 1 : stop;
        const auto size = static_cast<size_t>(paragraph_end - paragraph);
        if (size > max_bytes) return false;
        if (is_blank_line || stop == end) {
          add_paragraph({paragraph, size}, /*is_counted=*/true);
          paragraph = nullptr;
        }
      }
      if (stop == end) return true;
      if (paragraph) *stop = ' ';   // join its lines
      p = stop + 1;
    }
  }

  static const char* end_of_line(const char* p, const char* end) {
    const void* found = std::memchr(p, '\n', static_cast<size_t>(end - p));
    return found ? static_cast<const char*>(found) : end;
  }

  // Add a line as a paragraph if it has a ' . ', else leave it out. is_counted:
  // count it if it is left out and not blank.
  void add_paragraph(std::string_view line, bool is_counted) {
    if (has_full_stop(line)) {
      // After `strip`, a full stop at the end is a word of the last sentence
      add_sentences(strip(line));
      paragraph_begins_.push_back(num_sentences());
    } else if (is_counted) {
      const int64_t num_words = count_words(line);
      paragraphs_left_out_ += num_words > 0;
      words_left_out_ += num_words;
    }
  }

  void add_sentences(std::string_view line) {
    const char *p = line.data(), *end = p + line.size();
    // The end of the latest ' . ', whose last blank cannot begin another ' . '
    const char* full_stop_end = p;
    while (p < end) {
      // Cut words in a block of 64 bytes, up to a byte that is neither visible
      // ASCII nor a blank. p is the beginning of a word or of white space
      uint64_t non_visible = find_non_visible(p);
      const char* const block = p;
      for (; non_visible; non_visible &= non_visible - 1) {
        const char* word_end = block + __builtin_ctzll(non_visible);
        if (*word_end != ' ' && word_end < end) break;
        if (word_end > end) word_end = end;
        const auto size = static_cast<size_t>(word_end - p);
        const bool is_full_stop =
            size == 1 && *p == '.' && p > full_stop_end && p[-1] == ' ' &&
            word_end < end;
        if (is_full_stop) {
          end_sentence();
          full_stop_end = word_end + 1;
        } else if (size) {
          add_to_batch(size < 8 ? Word(p, size, load_short(p, size))
                                : Word({p, size}), /*needs_python=*/false);
        }
        p = word_end + 1;
        if (word_end == end) break;
      }
      // The loop ended at a byte that is neither visible ASCII nor a blank, or
      // the word at p fills the block
      if (p < end && (non_visible || p == block)) {
        p = add_word_or_skip_space(p, end);
      }
    }
    end_sentence();
  }

  // Return 64 bits: bit k is 0 if p[k] is visible ASCII (here 0x21 to 0x7f),
  // else 1.
  static uint64_t find_non_visible(const char* p) {
    uint64_t found = 0;
    for (unsigned k = 0; k < 8; ++k) {
      const uint64_t x = load(p + 8 * k, 8);
      // The highest bit of each byte from 0x21 to 0x7f. The sum has no carry
      // from one byte to the next
      const uint64_t visible = ((x & ~kHigh) + kOnes * 0x5f) & ~x & kHigh;
      // The product collects the inverted bits in its highest byte
      found |= (((visible ^ kHigh) >> 7) * 0x0102040810204080u >> 56)
               << 8 * k;
    }
    return found;
  }

  // `load` for fewer than eight bytes. Reads eight bytes, which is faster.
  static uint64_t load_short(const char* p, size_t size) {
    return load(p, 8) & ((uint64_t{1} << 8 * size) - 1);
  }

  // Add the word at p, or skip the white space character at p. Returns its end.
  const char* add_word_or_skip_space(const char* p, const char* end) {
    const char* stop = p;
    bool is_ascii = true;
    for (; stop < end; ++stop) {
      const auto c = static_cast<unsigned char>(*stop);
      if (c > 0x20 && c < 0x80) continue;
      const int space_bytes = num_space_bytes(stop, end);
      if (space_bytes && stop == p) return p + space_bytes;
      if (space_bytes) break;
      if (c >= 0x80) is_ascii = false;
    }
    add_to_batch(Word({p, static_cast<size_t>(stop - p)}), lower_ && !is_ascii);
    return stop;
  }

  // needs_python: Python must convert the word to lower case.
  void add_to_batch(const Word& word, bool needs_python) {
    words_.prefetch_slot(word);
    if (needs_python) non_ascii_in_batch_.push_back(batch_size_);
    batch_[batch_size_++] = word;
    if (batch_size_ == kBatch) number_batch();
  }

  void number_batch() {
    const size_t first = types_.size();
    types_.resize(first + batch_size_);
    auto next_non_ascii = non_ascii_in_batch_.begin();
    for (size_t k = 0; k < batch_size_; ++k) {
      const size_t num_known = words_.size();
      const int32_t type = types_[first + k] = words_.find_or_add(batch_[k]);
      if (next_non_ascii != non_ascii_in_batch_.end() &&
          *next_non_ascii == k) {
        const bool is_new = words_.size() > num_known;
        if (is_new) non_ascii_types_.push_back(type);
        ++next_non_ascii;
      }
    }
    batch_size_ = 0;
    non_ascii_in_batch_.clear();
  }

  void end_sentence() {
    sentence_begins_.push_back(
        static_cast<int64_t>(types_.size() + batch_size_));
  }

  int64_t num_sentences() const {
    return static_cast<int64_t>(sentence_begins_.size()) - 1;
  }

  int64_t num_paragraphs() const {
    return static_cast<int64_t>(paragraph_begins_.size()) - 1;
  }

  bool lower_ = false;
  std::string buffer_;  // the text; if lower_, its ASCII is in lower case
  WordTable words_;  // the different words before `rename`
  std::array<Word, kBatch> batch_;  // words that are not numbered yet
  size_t batch_size_ = 0;
  int64_t paragraphs_left_out_ = 0, words_left_out_ = 0;
  // The indices in batch_ of the non-ASCII words. Empty unless lower_
  std::vector<size_t> non_ascii_in_batch_;
  // The types of the different non-ASCII words. Empty unless lower_
  std::vector<int32_t> non_ascii_types_;
  // The arrays that text_copy describes
  std::vector<int32_t> types_;
  std::vector<int64_t> sentence_begins_, paragraph_begins_, article_begins_;
  std::string names_;
};

}  // namespace

// All functions except *_free return a Status (bounds_check.h).
extern "C" {

// A Text can cut one text after the other.
int text_new(void** new_handle) try {
  *new_handle = new Text;
  return kDone;
} catch (...) {
  return failure();
}

// Cut a text, `size` bytes of UTF-8, into words. line_kind: a `LineKind`.
// lower: convert words to lower case. max_bytes: the limit for the bytes of a
// paragraph or line. sizes (9) receives:
// 0 to 4: the lengths of the five arrays of text_copy
// 5: the length of the array of text_non_ascii
// 6: 1 if the text cannot be cut, else 0
// 7: the number of paragraphs that were left out
// 8: the number of words in these paragraphs
int text_cut(void* handle, const char* bytes, int64_t size, int line_kind,
             int lower, int64_t max_bytes, int64_t* sizes) try {
  auto* text = static_cast<Text*>(handle);
  const bool is_cut =
      text->cut(bytes, static_cast<size_t>(size),
                static_cast<LineKind>(line_kind), lower != 0,
                static_cast<size_t>(max_bytes));
  text->store_sizes(sizes);
  sizes[5] = static_cast<int64_t>(text->non_ascii_words().size());
  sizes[6] = !is_cut;
  text->store_left_out(sizes + 7);
  return kDone;
} catch (...) {
  return failure();
}

// Write to the array `to` the words that Python must convert to lower case:
// `size` bytes, with a line feed after each word.
int text_non_ascii(const void* handle, char* to, int64_t size) try {
  const std::string words = static_cast<const Text*>(handle)->non_ascii_words();
  require(static_cast<int64_t>(words.size()) == size);
  std::copy(words.begin(), words.end(), to);
  return kDone;
} catch (...) {
  return failure();
}

// Replace the words of text_non_ascii by `lines`, `size` bytes with a line for
// each word in the same order. sizes (5) receives the new lengths of the
// arrays of text_copy.
int text_rename(void* handle, const char* lines, int64_t size,
                int64_t* sizes) try {
  auto* text = static_cast<Text*>(handle);
  require(text->rename({lines, static_cast<size_t>(size)}));
  text->store_sizes(sizes);
  return kDone;
} catch (...) {
  return failure();
}

// Copy the text to five arrays, whose lengths are `sizes` (5). types: the
// type of each word of the text. sentences: the index of the first word of
// each sentence, and at the end the number of all words. paragraphs: the index
// of the first sentence of each paragraph, and at the end the number of all
// sentences. articles: the number of paragraphs before the title of each
// article. names: the different words in the order of their types, each
// followed by a line feed.
int text_copy(const void* handle, int32_t* types, int64_t* sentences,
              int64_t* paragraphs, int64_t* articles, char* names,
              const int64_t* sizes) try {
  auto* text = static_cast<const Text*>(handle);
  int64_t expected[5];
  text->store_sizes(expected);
  require(std::equal(expected, expected + 5, sizes));
  text->copy(types, sentences, paragraphs, articles, names);
  return kDone;
} catch (...) {
  return failure();
}

void text_free(void* handle) { delete static_cast<Text*>(handle); }

// The functions for `Names` in cut.py. The handle points to a WordTable.
int names_new(void** new_handle) try {
  *new_handle = new WordTable;
  return kDone;
} catch (...) {
  return failure();
}

// Find or add the words of `lines`, `size` bytes with a line feed after each
// word. numbers (max_words) receives the number of each word. kept (num_kept),
// or null: a word with kept = 0 is not added, and its number is -1. sizes (3):
// entry 0 receives the count of words in `lines`, entry 1 the count of words in
// the table. The count of letters of new words is added to entry 2.
int names_add(void* handle, const char* lines, int64_t size,
              const uint8_t* kept, int64_t num_kept, int32_t* numbers,
              int64_t max_words, int64_t* sizes) try {
  auto* table = static_cast<WordTable*>(handle);
  const char* end = lines + size;
  require(!size || end[-1] == '\n');  // so memchr below finds a line feed
  int64_t count = 0;
  std::vector<Word> words;
  while (lines < end) {
    words.clear();
    for (; lines < end && words.size() < kBatch; ++lines) {
      const char* begin = lines;
      lines = static_cast<const char*>(
          std::memchr(lines, '\n', static_cast<size_t>(end - lines)));
      words.emplace_back(
          std::string_view(begin, static_cast<size_t>(lines - begin)));
      table->prefetch_slot(words.back());
    }
    const auto count_after = count + static_cast<int64_t>(words.size());
    require(count_after <= max_words && (!kept || count_after <= num_kept));
    for (const Word& word : words) table->prefetch_text(word);
    for (const Word& word : words) {
      const size_t num_known = table->size();
      numbers[count] =
          kept && !kept[count] ? -1 : table->find_or_add(word);
      ++count;
      if (table->size() > num_known) {
        sizes[2] += std::count_if(word.begin, word.begin + word.size,
                                  [](char c) { return !is_continuation(c); });
      }
    }
  }
  sizes[0] = count;
  sizes[1] = static_cast<int64_t>(table->size());
  return kDone;
} catch (...) {
  return failure();
}

// Copy the words from number `first` on, a line for each, to `to`, which has
// *size bytes. If `to` is null, only store the needed number of bytes in *size.
int names_copy(const void* handle, int64_t first, char* to,
               int64_t* size) try {
  auto* table = static_cast<const WordTable*>(handle);
  require(first >= 0 && static_cast<size_t>(first) <= table->size());
  const std::string_view text = table->text_from(static_cast<size_t>(first));
  const auto text_size = static_cast<int64_t>(text.size());
  if (to) {
    require(text_size == *size);
    std::copy(text.begin(), text.end(), to);
  }
  *size = text_size;
  return kDone;
} catch (...) {
  return failure();
}

void names_free(void* handle) { delete static_cast<WordTable*>(handle); }

}  // extern "C"
