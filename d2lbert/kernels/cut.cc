// Cut a text into words and number them: the steps of the book's section "The
// Dataset for Pretraining BERT" up to the vocabulary. It does not need MXNet.
//
// A text comes as bytes. Python converts words with letters beyond ASCII to
// lower case, once for each different word.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cut.h"
#include "door.h"

namespace {

// The kinds of lines. kParagraphs: each line is a paragraph. kWiki: lines of
// WikiText with headings; the first and the last line are context, and not cut.
// kParts: lines are parts of paragraphs, and blank lines separate paragraphs.
enum class Lines { kParagraphs, kWiki, kParts };

constexpr std::string_view kStop = " . ";
constexpr uint64_t kOnes = 0x0101010101010101u, kHigh = kOnes * 0x80;

// True if a line is empty or blank.
bool is_blank(std::string_view line) {
  const char *p = line.data(), *end = p + line.size();
  while (p < end) {
    const int n = space_at(p, end);
    if (!n) return false;
    p += n;
  }
  return true;
}

bool begins(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool ends(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.substr(text.size() - suffix.size()) == suffix;
}

// True if a line looks like a heading of any level.
bool is_heading(std::string_view line) {
  if (!begins(line, " = ") && !begins(line, "= ")) return false;
  line = strip(line);
  return ends(line, " =") && line.find_first_not_of("= ") != line.npos;
}

// True if a line looks like a heading of the first level.
bool is_title(std::string_view line) {
  if (!is_heading(line)) return false;
  line = strip(line);
  return !begins(line, "= = ") && !ends(line, " = =");
}

// The number of words of a line.
int64_t count_words(std::string_view line) {
  int64_t count = 0;
  bool in_word = false;
  const char *p = line.data(), *end = p + line.size();
  while (p < end) {
    const int n = space_at(p, end);
    count += !n && !in_word;
    in_word = !n;
    p += n ? n : 1;
  }
  return count;
}

// True if Python could decode the bytes as UTF-8.
bool is_utf8(const unsigned char* p, const unsigned char* end) {
  while (p < end) {
    if (end - p >= 8) {
      if (!(load(reinterpret_cast<const char*>(p), 8) & kHigh)) {
        p += 8;
        continue;
      }
    }
    const unsigned c = *p++;
    if (c < 0x80) continue;
    if (c < 0xc2 || c > 0xf4) return false;
    const int more = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (end - p < more) return false;
    // Shortest form, no surrogate, within the range of Unicode
    const unsigned least = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    const unsigned most = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (*p < least || *p > most) return false;
    for (int k = 1; k < more; ++k) {
      if ((p[k] & 0xc0) != 0x80) return false;
    }
    p += more;
  }
  return true;
}

// The first ' . ' in a line, or null.
const char* find_stop(const char* p, const char* end) {
  const char* first = p;
  // Search for '.', which is rarer than a blank
  while (p < end && (p = static_cast<const char*>(
                         std::memchr(p, '.', static_cast<size_t>(end - p))))) {
    if (p > first && p[-1] == ' ' && p + 1 < end && p[1] == ' ') return p - 1;
    ++p;
  }
  return nullptr;
}

class Text {
 public:
  // Returns false for bytes that are not UTF-8, or a paragraph of more than
  // `most` bytes. Python then reports the error.
  bool cut(const char* bytes, size_t size, Lines lines, bool lower,
           size_t most) {
    clear();
    bytes_.resize(size + kPadding);
    const char* from = bytes;
    char* to = &bytes_[0];
    unsigned char all = 0;
    for (size_t i = 0; i < size; ++i) all |= from[i];
    if (all & 0x80 && !is_utf8(reinterpret_cast<const unsigned char*>(from),
                               reinterpret_cast<const unsigned char*>(from) +
                                   size)) {
      return false;
    }
    if (lower) {
      for (size_t i = 0; i < size; ++i) {
        const char c = from[i];
        to[i] = static_cast<char>(c | (c >= 'A' && c <= 'Z' ? 0x20 : 0));
      }
    } else {
      std::memcpy(to, from, size);
    }
    std::fill(to + size, to + size + kPadding, '\n');
    lower_ = lower;
    const bool done = lines == Lines::kParts
                          ? cut_parts(to, to + size, most)
                          : cut_lines(to, to + size, lines, most);
    number_words();
    text_ = names_.text();
    return done;
  }

  // The words with letters beyond ASCII, each followed by a line feed, if words
  // have to be in lower case.
  std::string foreign() const {
    std::string found;
    for (int32_t k : foreign_) {
      found.append(names_[static_cast<size_t>(k)]).push_back('\n');
    }
    return found;
  }

  // Replace the words of `foreign` by lines, one for each word. Words that
  // become equal get the number of the first of them. Returns false if the
  // number of lines is wrong.
  bool rename(std::string_view lines) {
    const size_t size = names_.size();
    std::vector<std::string_view> become(size);
    for (size_t k = 0; k < size; ++k) become[k] = names_[k];
    std::vector<size_t> changed;
    for (int32_t foreign : foreign_) {
      const size_t end = lines.find('\n');
      if (end == lines.npos) return false;
      const auto k = static_cast<size_t>(foreign);
      if (become[k] != lines.substr(0, end)) changed.push_back(k);
      become[k] = lines.substr(0, end);
      lines.remove_prefix(end + 1);
    }
    foreign_.clear();
    if (changed.empty()) return lines.empty();
    // same[k]: a word that is equal to word k now. Only a changed word can be
    // equal to another word.
    std::vector<size_t> same(size);
    std::iota(same.begin(), same.end(), size_t{0});
    Names fresh;
    std::vector<size_t> firsts;
    for (size_t k : changed) {
      const int32_t there = names_.at(Word(become[k]));
      if (there >= 0 && become[static_cast<size_t>(there)] == become[k]) {
        same[k] = static_cast<size_t>(there);
        continue;
      }
      const auto number = static_cast<size_t>(fresh.number(Word(become[k])));
      if (number == firsts.size()) firsts.push_back(k);
      same[k] = firsts[number];
    }
    std::vector<int32_t> numbers(size, -1);
    std::string text;
    text.reserve(names_.text().size());
    int32_t count = 0;
    for (size_t k = 0; k < size; ++k) {
      int32_t& number = numbers[same[k]];
      if (number < 0) {
        number = count++;
        text.append(become[k]).push_back('\n');
      }
      numbers[k] = number;
    }
    if (static_cast<size_t>(count) < size) {
      for (int32_t& type : types_) type = numbers[static_cast<size_t>(type)];
    }
    text_ = std::move(text);
    return lines.empty();
  }

  void sizes(int64_t* to) const {
    to[0] = static_cast<int64_t>(types_.size());
    to[1] = static_cast<int64_t>(sentences_.size());
    to[2] = static_cast<int64_t>(paragraphs_.size());
    to[3] = static_cast<int64_t>(articles_.size());
    to[4] = static_cast<int64_t>(text_.size());
  }

  // The number of paragraphs that were left out, and the number of their words.
  void passed(int64_t* to) const {
    to[0] = num_passed_;
    to[1] = words_passed_;
  }

  void copy(int32_t* types, int64_t* sentences, int64_t* paragraphs,
            int64_t* articles, char* names) const {
    std::copy(types_.begin(), types_.end(), types);
    std::copy(sentences_.begin(), sentences_.end(), sentences);
    std::copy(paragraphs_.begin(), paragraphs_.end(), paragraphs);
    std::copy(articles_.begin(), articles_.end(), articles);
    std::copy(text_.begin(), text_.end(), names);
  }

 private:
  // Bytes after the text: 64 bytes can be read from the begin of any word
  static constexpr size_t kPadding = 64;
  // Words that are looked up together
  static constexpr size_t kWords = 64;

  void clear() {
    names_.clear();
    for (auto* found : {&types_, &foreign_}) found->clear();
    for (auto* ends : {&sentences_, &paragraphs_}) ends->assign(1, 0);
    articles_.clear();
    num_words_ = 0;
    are_foreign_.clear();
    num_passed_ = words_passed_ = 0;
  }

  bool cut_lines(const char* p, const char* end, Lines lines, size_t most) {
    std::string_view before, line;
    for (int64_t k = 0;; ++k) {
      const char* stop = end_of_line(p, end);
      const std::string_view next(p, static_cast<size_t>(stop - p));
      if (next.size() > most) return false;
      if (lines == Lines::kParagraphs) {
        add_paragraph(next, false);
      } else if (k > 1) {
        // `line` has both neighbours. A title is a heading of the first level
        // between blank lines
        if (is_title(line) && is_blank(before) && is_blank(next)) {
          articles_.push_back(static_cast<int64_t>(paragraphs_.size()) - 1);
        }
        add_paragraph(line, is_heading(line));
      }
      if (stop == end) return true;
      before = line;
      line = next;
      p = stop + 1;
    }
  }

  bool cut_parts(char* p, char* end, size_t most) {
    char* begin = nullptr;      // of the paragraph
    for (;;) {
      char* stop = const_cast<char*>(end_of_line(p, end));
      const bool blank = is_blank({p, static_cast<size_t>(stop - p)});
      if (!blank && !begin) begin = p;
      if (begin && static_cast<size_t>(stop - begin) > most) return false;
      if (begin && (blank || stop == end)) {
        const char* last = blank ? p - 1 : stop;
        add_paragraph({begin, static_cast<size_t>(last - begin)}, false);
        begin = nullptr;
      }
      if (stop == end) return true;
      if (begin) *stop = ' ';   // one blank between the lines of a paragraph
      p = stop + 1;
    }
  }

  static const char* end_of_line(const char* p, const char* end) {
    const void* found = std::memchr(p, '\n', static_cast<size_t>(end - p));
    return found ? static_cast<const char*>(found) : end;
  }

  // A line with ' . ' is a paragraph. Its ends are stripped before it is
  // split, so the last full stop stays in the last sentence.
  void add_paragraph(std::string_view line, bool heading) {
    if (!find_stop(line.data(), line.data() + line.size())) {
      const int64_t count = heading ? 0 : count_words(line);
      num_passed_ += count > 0;
      words_passed_ += count;
      return;
    }
    line = strip(line);
    const char *p = line.data(), *end = p + line.size();
    const char* taken = p;      // after the last ' . ', whose blanks are used
    while (p < end) {
      // Up to 64 bytes of words and blanks; p is the begin of a word
      uint64_t separators = find_separators(p);
      const char* const block = p;
      for (; separators; separators &= separators - 1) {
        const char* stop = block + __builtin_ctzll(separators);
        if (*stop != ' ' && stop < end) break;
        if (stop > end) stop = end;
        const auto size = static_cast<size_t>(stop - p);
        if (size == 1 && *p == '.' && p > taken && p[-1] == ' ' &&
            stop < end) {
          end_sentence();
          taken = stop + 1;
        } else if (size) {
          add(size < 8 ? Word(p, size, first_bytes(p, size))
                       : Word({p, size}), false);
        }
        p = stop + 1;
        if (stop == end) break;
      }
      // A byte other than visible ASCII and blanks, or a long word
      if (p < end && (separators || p == block)) p = add_word(p, end);
    }
    end_sentence();
    paragraphs_.push_back(static_cast<int64_t>(sentences_.size()) - 1);
  }

  // 64 bits, one for each byte from p on: 1 if the byte is no visible ASCII, so
  // that it cannot be in a word of ASCII.
  static uint64_t find_separators(const char* p) {
    uint64_t found = 0;
    for (unsigned k = 0; k < 8; ++k) {
      const uint64_t x = load(p + 8 * k, 8);
      // No carry from a byte to the next
      const uint64_t letters = ((x & ~kHigh) + kOnes * 0x5f) & ~x & kHigh;
      found |= (((letters ^ kHigh) >> 7) * 0x0102040810204080u >> 56)
               << 8 * k;
    }
    return found;
  }

  // Fewer than eight bytes as a number, followed by zeros.
  static uint64_t first_bytes(const char* p, size_t size) {
    return load(p, 8) & ((uint64_t{1} << 8 * size) - 1);
  }

  // Add the word at p, if any. Returns the end of this word, or of the white
  // space at p.
  const char* add_word(const char* p, const char* end) {
    const char* stop = p;
    unsigned char all = 0;
    for (int n; stop < end; ++stop) {
      const auto c = static_cast<unsigned char>(*stop);
      if (c > 0x20 && c < 0x80) continue;
      if ((n = space_at(stop, end))) {
        if (stop == p) return p + n;
        break;
      }
      all |= c;
    }
    add(Word({p, static_cast<size_t>(stop - p)}), all & 0x80 && lower_);
    return stop;
  }

  void add(const Word& word, bool foreign) {
    names_.expect(word);
    if (foreign) are_foreign_.push_back(num_words_);
    words_[num_words_++] = word;
    if (num_words_ == kWords) number_words();
  }

  // Number the words in `words_`.
  void number_words() {
    const size_t first = types_.size();
    types_.resize(first + num_words_);
    auto foreign = are_foreign_.begin();
    for (size_t k = 0; k < num_words_; ++k) {
      const size_t known = names_.size();
      const int32_t type = types_[first + k] = names_.number(words_[k]);
      if (foreign != are_foreign_.end() && *foreign == k) {
        if (names_.size() > known) foreign_.push_back(type);
        ++foreign;
      }
    }
    num_words_ = 0;
    are_foreign_.clear();
  }

  void end_sentence() {
    sentences_.push_back(
        static_cast<int64_t>(types_.size() + num_words_));
  }

  bool lower_ = false;
  std::string bytes_, text_;
  Names names_;
  std::array<Word, kWords> words_;
  size_t num_words_ = 0;
  int64_t num_passed_ = 0, words_passed_ = 0;
  std::vector<size_t> are_foreign_;  // indices of foreign words in `words_`
  std::vector<int32_t> foreign_;     // numbers of foreign words in `names_`
  std::vector<int32_t> types_;
  std::vector<int64_t> sentences_, paragraphs_, articles_;
};

}  // namespace

// All functions except *_free return a Status.
extern "C" {

// Make memory for texts, which use it one after the other.
int text_new(void** made) try {
  *made = new Text;
  return kDone;
} catch (...) {
  return failure();
}

// Cut UTF-8 into words. lines: the kind of lines (`Lines`). most: the limit for
// the bytes of a paragraph. sizes (9) receives the lengths of the five arrays
// of text_copy; the length of text_foreign; 1 if the text cannot be cut, 0
// otherwise; the number of paragraphs that were left out; and the number of
// their words.
int text_cut(void* handle, const char* bytes, int64_t size, int lines,
             int lower, int64_t most, int64_t* sizes) try {
  auto* text = static_cast<Text*>(handle);
  const bool done =
      text->cut(bytes, static_cast<size_t>(size), static_cast<Lines>(lines),
                lower != 0, static_cast<size_t>(most));
  text->sizes(sizes);
  sizes[5] = static_cast<int64_t>(text->foreign().size());
  sizes[6] = !done;
  text->passed(sizes + 7);
  return kDone;
} catch (...) {
  return failure();
}

// The words that Python has to convert to lower case, a line for each.
int text_foreign(const void* handle, char* to, int64_t size) try {
  const std::string found = static_cast<const Text*>(handle)->foreign();
  require(static_cast<int64_t>(found.size()) == size);
  std::copy(found.begin(), found.end(), to);
  return kDone;
} catch (...) {
  return failure();
}

// Replace the words of text_foreign by their lower case, a line for each. sizes
// (5) receives the lengths of the arrays of text_copy.
int text_rename(void* handle, const char* lines, int64_t size,
                int64_t* sizes) try {
  auto* text = static_cast<Text*>(handle);
  require(text->rename({lines, static_cast<size_t>(size)}));
  text->sizes(sizes);
  return kDone;
} catch (...) {
  return failure();
}

// Copy the text to arrays of the lengths `sizes` (5). names receives the words
// in the order of their numbers, each followed by a line feed.
int text_copy(const void* handle, int32_t* types, int64_t* sentences,
              int64_t* paragraphs, int64_t* articles, char* names,
              const int64_t* sizes) try {
  auto* text = static_cast<const Text*>(handle);
  int64_t expected[5];
  text->sizes(expected);
  require(std::equal(expected, expected + 5, sizes));
  text->copy(types, sentences, paragraphs, articles, names);
  return kDone;
} catch (...) {
  return failure();
}

void text_free(void* handle) { delete static_cast<Text*>(handle); }

// Make a table of names.
int names_new(void** made) try {
  *made = new Names;
  return kDone;
} catch (...) {
  return failure();
}

// Number names, `size` bytes with a line feed after each name. numbers, with
// memory for `room` names, receives their numbers. kept (num_kept) may be null;
// a name with kept = 0 is left out and gets -1. sizes (3) receives the number
// of these names and the number of names in the table. The number of letters of
// new names is added to its last entry.
int names_add(void* handle, const char* lines, int64_t size,
              const uint8_t* kept, int64_t num_kept, int32_t* numbers,
              int64_t room, int64_t* sizes) try {
  auto* names = static_cast<Names*>(handle);
  const char* end = lines + size;
  require(!size || end[-1] == '\n');
  int64_t count = 0;
  std::vector<Word> words;
  while (lines < end) {
    words.clear();
    for (; lines < end && words.size() < 64; ++lines) {
      const char* begin = lines;
      lines = static_cast<const char*>(
          std::memchr(lines, '\n', static_cast<size_t>(end - lines)));
      words.emplace_back(
          std::string_view(begin, static_cast<size_t>(lines - begin)));
      names->expect(words.back());
    }
    const auto after = count + static_cast<int64_t>(words.size());
    require(after <= room && (!kept || after <= num_kept));
    for (const Word& word : words) names->expect_text(word);
    for (const Word& word : words) {
      const size_t known = names->size();
      numbers[count] =
          kept && !kept[count] ? -1 : names->number(word);
      ++count;
      if (names->size() > known) {
        // A UTF-8 continuation byte does not start a letter
        sizes[2] += std::count_if(word.begin, word.begin + word.size,
                                  [](char c) { return (c & 0xc0) != 0x80; });
      }
    }
  }
  sizes[0] = count;
  sizes[1] = static_cast<int64_t>(names->size());
  return kDone;
} catch (...) {
  return failure();
}

// Copy the words from number `first`, a line for each, to `to` (size). If `to`
// is null, only store the number of bytes in `size`.
int names_copy(const void* handle, int64_t first, char* to,
               int64_t* size) try {
  auto* names = static_cast<const Names*>(handle);
  require(first >= 0 && static_cast<size_t>(first) <= names->size());
  const std::string_view text = names->from(static_cast<size_t>(first));
  const auto found = static_cast<int64_t>(text.size());
  if (to) {
    require(found == *size);
    std::copy(text.begin(), text.end(), to);
  }
  *size = found;
  return kDone;
} catch (...) {
  return failure();
}

void names_free(void* handle) { delete static_cast<Names*>(handle); }

}  // extern "C"
