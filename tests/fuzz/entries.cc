// The C++ entries that work on texts, given arrays made from arbitrary bytes.
//
// Each array has exactly the size that its entry is told, so a sanitizer sees
// each access beside it. What an entry accepts must be sound: numbers of
// words that exist, places within a row, tokens of the vocabulary. native.py
// compiles this file with libFuzzer, or with the loop at its end.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

// Tables that a short text makes grow
#define D2LBERT_TABLE_BITS 3

#include "cut.cc"
#include "draw.cc"
#include "pieces.cc"
#include "spans.cc"
#include "types.cc"

namespace {

// What an entry accepted is not sound.
void demand(bool holds) {
  if (!holds) std::abort();
}

// Numbers, arrays and text made from the bytes of one input; zeros follow.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  uint8_t byte() { return at_ < end_ ? *at_++ : 0; }

  // A number from 0 to most.
  int64_t upto(int64_t most) { return byte() % (most + 1); }

  // Mostly a number from 0 to most (0 for less), sometimes any other.
  int64_t number(int64_t most) {
    most = std::min<int64_t>(std::max<int64_t>(0, most), INT32_MAX);
    const uint8_t kind = byte();
    if (kind < 250) return kind % (most + 1);
    if (kind == 250) return -1;
    if (kind == 251) return most + 1;
    uint64_t found = 0;
    for (int i = 0; i < 8; ++i) found = found << 8 | byte();
    return static_cast<int64_t>(kind == 252 ? found >> 33 : found);
  }

  template <typename T>
  std::vector<T> numbers(int64_t size, int64_t most) {
    std::vector<T> found(static_cast<size_t>(size));
    for (T& one : found) one = static_cast<T>(number(most));
    return found;
  }

  // Numbers that rise from 0, mostly.
  std::vector<int64_t> rising(int64_t size, int64_t step) {
    std::vector<int64_t> found(static_cast<size_t>(size));
    uint64_t before = 0;
    for (int64_t& one : found) {
      one = static_cast<int64_t>(before);
      before += static_cast<uint64_t>(number(step));
    }
    return found;
  }

  // Bytes up to the end, or only `most`.
  std::string text(size_t most = SIZE_MAX) {
    const size_t size = std::min(most, static_cast<size_t>(end_ - at_));
    std::string found(reinterpret_cast<const char*>(at_), size);
    at_ += size;
    return found;
  }

 private:
  const uint8_t *at_, *end_;
};

// Memory of exactly `size` numbers.
template <typename T>
class Array {
 public:
  explicit Array(int64_t size) : Array(std::vector<T>(
      static_cast<size_t>(size))) {}
  explicit Array(const std::vector<T>& from)
      : size_(static_cast<int64_t>(from.size())), data_(new T[from.size()]) {
    std::copy(from.begin(), from.end(), data_.get());
  }

  T* get() const { return data_.get(); }
  int64_t size() const { return size_; }
  T operator[](int64_t k) const { return data_[static_cast<size_t>(k)]; }
  bool is_within(int64_t least, int64_t end) const {
    return std::all_of(get(), get() + size_, [&](T one) {
      return static_cast<int64_t>(one) >= least &&
             static_cast<int64_t>(one) < end;
    });
  }

 private:
  int64_t size_;
  std::unique_ptr<T[]> data_;
};

Array<char> bytes_of(const std::string& text) {
  return Array<char>(std::vector<char>(text.begin(), text.end()));
}

// As many lines as memory names: a line feed ends each.
std::string lines_of(Input& input, size_t most) {
  std::string found = input.text(most);
  if (!found.empty() && input.byte() < 250) found.back() = '\n';
  return found;
}

void* made(int (*make)(void**)) {
  void* handle;
  demand(make(&handle) == kDone);
  return handle;
}

int cut_text(Input& input) {
  void* const handle = made(text_new);
  int status = kDone;
  for (int64_t left = 1 + input.upto(1); left-- > 0;) {
    const int lines = static_cast<int>(input.upto(2));
    const int lower = static_cast<int>(input.upto(1));
    const int64_t most = input.number(200);
    const Array<char> text = bytes_of(input.text(left ? input.byte()
                                                      : SIZE_MAX));
    Array<int64_t> sizes(9);
    demand(!text_cut(handle, text.get(), text.size(), lines, lower, most,
                     sizes.get()));
    if (sizes[6]) continue;
    if (sizes[5]) {
      Array<char> foreign(sizes[5]);
      demand(!text_non_ascii(handle, foreign.get(), foreign.size()));
      demand(text_non_ascii(handle, foreign.get(), foreign.size() - 1));
      // As Python may make them small: other words, as long as it likes
      std::string small(foreign.get(), static_cast<size_t>(foreign.size()));
      const char letter = static_cast<char>(input.byte());
      for (char& c : small) {
        if (c & 0x40 && c != '\n') c = letter == '\n' ? c : letter;
      }
      if (input.byte() > 250) small += "more\n";
      const Array<char> other = bytes_of(small);
      const int renamed = text_rename(handle, other.get(), other.size(),
                                      sizes.get());
      demand(!renamed || renamed == kOutside);
      if (renamed) {
        status = renamed;
        continue;
      }
    }
    Array<int32_t> types(sizes[0]);
    Array<int64_t> sentences(sizes[1]), paragraphs(sizes[2]),
        articles(sizes[3]);
    Array<char> names(sizes[4]);
    demand(!text_copy(handle, types.get(), sentences.get(), paragraphs.get(),
                      articles.get(), names.get(), sizes.get()));
    const auto count = std::count(names.get(), names.get() + names.size(),
                                  '\n');
    demand(types.is_within(0, count));
    demand(std::is_sorted(sentences.get(), sentences.get() + sizes[1]));
    demand(std::is_sorted(paragraphs.get(), paragraphs.get() + sizes[2]));
    demand(sentences.is_within(0, sizes[0] + 1));
    demand(paragraphs.is_within(0, sizes[1]));
    demand(articles.is_within(0, sizes[2]));
  }
  text_free(handle);
  return status;
}

int number_names(Input& input) {
  void* const handle = made(names_new);
  Array<int64_t> sizes(3);
  int status = kDone;
  for (int64_t left = 1 + input.upto(2); left-- > 0;) {
    const bool some = input.upto(1);
    const Array<uint8_t> kept(input.numbers<uint8_t>(some * input.byte(), 1));
    const std::string text = lines_of(input, left ? input.byte() : 4096);
    const Array<char> lines = bytes_of(text);
    Array<int32_t> numbers(input.byte() < 200
                               ? static_cast<int64_t>(text.size())
                               : input.byte());
    if (const int added = names_add(
            handle, lines.get(), lines.size(), some ? kept.get() : nullptr,
            kept.size(), numbers.get(), numbers.size(), sizes.get())) {
      status = added;
      continue;
    }
    for (int64_t k = 0; k < sizes[0]; ++k) {
      demand(numbers[k] >= -1 && numbers[k] < sizes[1]);
    }
  }
  const int64_t first = input.number(9);
  int64_t size = 0;
  const int copied = names_copy(handle, first, nullptr, &size);
  if (copied == kDone) {
    Array<char> names(size);
    demand(!names_copy(handle, first, names.get(), &size));
    const int64_t other = size + 1;
    size = other;
    demand(names_copy(handle, first, names.get(), &size));
  }
  names_free(handle);
  return std::max(status, copied);
}

int cut_pieces(Input& input) {
  std::vector<Array<char>> lines;
  std::vector<Array<int32_t>> ids;
  for (int k = 0; k < 2; ++k) {
    const std::string text = lines_of(input, input.byte());
    const auto count = std::count(text.begin(), text.end(), '\n');
    lines.push_back(bytes_of(text));
    ids.emplace_back(input.numbers<int32_t>(
        input.byte() < 250 ? count : input.byte(), 99));
  }
  void* handle;
  const int64_t most = input.number(100);
  const int lower = static_cast<int>(input.upto(1));
  if (const int status = pieces_new(
          lines[0].get(), lines[0].size(), ids[0].get(), ids[0].size(),
          lines[1].get(), lines[1].size(), ids[1].get(), ids[1].size(), 1,
          most, lower, &handle)) {
    return status;
  }
  const std::string text = lines_of(input, 4096);
  const Array<char> words = bytes_of(text);
  Array<int32_t> counts(input.byte() < 250
                            ? std::count(text.begin(), text.end(), '\n')
                            : input.byte());
  Array<int32_t> found(words.size());
  int64_t size = 0;
  const int status = pieces_cut(handle, words.get(), words.size(),
                                counts.get(), counts.size(), found.get(),
                                &size);
  if (!status) demand(0 <= size && size <= found.size());
  pieces_free(handle);
  return status;
}

template <typename T>
int read_tables(Input& input) {
  const int64_t which = input.upto(3);
  const int64_t num_types = input.upto(20), size = input.upto(40);
  const Array<T> short_types(input.numbers<T>(size, num_types - 1));
  const Array<int32_t> types(std::vector<int32_t>(
      short_types.get(), short_types.get() + size));
  if (which == 0) {
    const Array<T> table(input.numbers<T>(num_types + input.upto(3), 99));
    Array<T> found(size);
    return look_up(table.get(), sizeof(T), table.size(), types.get(), size,
                   found.get());
  }
  if (which == 1) {
    const int64_t places = input.upto(30);
    const Array<T> table(input.numbers<T>(places + kEntriesPerCopy, 99));
    const Array<int64_t> begins(input.numbers<int64_t>(num_types, places));
    const Array<int32_t> lengths(input.numbers<int32_t>(num_types, 4));
    Array<int64_t> ends(input.rising(input.upto(9), 6));
    const int64_t room = input.byte();
    Array<T> found(room + kEntriesPerCopy);
    const int status = spread(
        table.get(), sizeof(T), table.size(), begins.get(), lengths.get(),
        num_types, types.get(), size, ends.get(), ends.size(), found.get(),
        room);
    if (!status) demand(ends.is_within(0, room + 1));
    return status;
  }
  if (which == 2) {
    const int64_t paragraphs = input.upto(5);
    const Array<int64_t> lengths(input.numbers<int64_t>(
        paragraphs, size / std::max<int64_t>(1, paragraphs)));
    // Where paragraphs are in the text, which is of our own making
    std::vector<int64_t> places(static_cast<size_t>(paragraphs));
    for (int64_t& place : places) place = input.byte();
    Array<int64_t> firsts(num_types);
    return first_places(short_types.get(), sizeof(T), size, num_types,
                        paragraphs, lengths.get(), places.data(),
                        firsts.get());
  }
  const Array<int32_t> table(input.numbers<int32_t>(num_types, 99));
  Array<int64_t> counts(num_types);
  return count_types(types.get(), size, input.upto(1) ? table.get() : nullptr,
                     num_types, counts.get());
}

// A state of CPython's generator.
Array<uint32_t> generator(Input& input) {
  std::vector<uint32_t> state(625);
  uint32_t word = 1 + input.byte();
  for (uint32_t& one : state) one = word = word * 1664525u + 1013904223u;
  state[624] = static_cast<uint32_t>(input.number(624));
  return Array<uint32_t>(state);
}

int pair(Input& input) {
  const Array<uint32_t> state = generator(input);
  const Array<int64_t> sentences(input.rising(1 + input.upto(40), 9));
  const Array<int64_t> paragraphs(input.rising(1 + input.upto(12), 4));
  const int64_t count = paragraphs.size() - 1;
  const Array<int32_t> order(input.numbers<int32_t>(
      input.upto(12), count - 1));
  const int64_t first = input.number(2), last = input.number(order.size());
  const int64_t most = input.number(40), room = input.byte();
  const int swap = static_cast<int>(input.upto(1));
  Array<int64_t> spans(4 * room);
  Array<uint8_t> is_next(room);
  int64_t found = 0;
  const int status = draw_pairs(
      state.get(), order.size(), order.get(), first, last, paragraphs.get(),
      count, sentences.get(), sentences.size() - 1, most, swap, spans.get(),
      is_next.get(), room, &found);
  if (!status) {
    demand(0 <= found && found <= room);
    for (int64_t k = 0; k < found; ++k) {
      const int64_t* span = spans.get() + 4 * k;
      demand(span[0] <= span[1] && span[2] <= span[3]);
      demand(span[1] - span[0] + span[3] - span[2] + 3 <= most);
    }
  }
  return status;
}

// A vocabulary, a text of its words, and what hides them.
template <typename T>
struct Hiding {
  explicit Hiding(Input& input)
      : state(generator(input)),
        vocab(static_cast<int32_t>(input.number(20))),
        specials(input.numbers<int32_t>(4, last())),
        types(input.numbers<T>(input.upto(60), 5)),
        numbers(input.numbers<int32_t>(6, last())),
        kinds(input.numbers<uint8_t>(
            input.upto(1) ? 0 : std::max(0, std::min(vocab, 99)), 3)),
        choices(input.numbers<int32_t>(input.upto(9), last())) {
    special = {specials[0], specials[1], specials[2], specials[3], vocab};
  }

  int64_t last() const { return std::min<int64_t>(vocab, 20) - 1; }

  Array<uint32_t> state;
  int32_t vocab;
  Array<int32_t> specials;
  Specials special;
  Array<T> types;
  Array<int32_t> numbers;
  Array<uint8_t> kinds;
  Array<int32_t> choices;
};

template <typename T>
int mask(Input& input) {
  const Hiding<T> with(input);
  const int64_t rows = input.upto(5), T_ = input.upto(30), P = input.upto(8);
  const Array<int64_t> spans([&] {
    std::vector<int64_t> found;
    for (int64_t k = 0; k < 2 * rows; ++k) {
      const int64_t begin = input.number(50);
      found.push_back(begin);
      found.push_back(static_cast<int64_t>(
          static_cast<uint64_t>(begin) +
          static_cast<uint64_t>(input.number(12))));
    }
    return found;
  }());
  const Array<int32_t> num_preds(input.numbers<int32_t>(T_ + 1, P));
  Array<int32_t> tokens(rows * T_), segments(rows * T_), positions(rows * P),
      labels(rows * P);
  Array<float> lens(rows), weights(rows * P);
  const bool has_kinds = with.kinds.size(), has_choices = input.upto(1);
  const int whole = static_cast<int>(input.upto(1));
  const int status = draw_masks(
      with.state.get(), rows, spans.get(), with.types.get(), sizeof(T),
      with.types.size(), with.numbers.get(), with.numbers.size(),
      &with.special, num_preds.get(), T_, P, tokens.get(), segments.get(),
      lens.get(), positions.get(), weights.get(), labels.get(),
      has_kinds ? with.kinds.get() : nullptr, with.kinds.size(),
      has_choices ? with.choices.get() : nullptr, with.choices.size(), whole);
  if (!status) {
    demand(tokens.is_within(0, with.vocab));
    demand(labels.is_within(0, with.vocab));
    demand(positions.is_within(0, std::max<int64_t>(1, T_)));
    demand(lens.is_within(0, T_ + 1));
  }
  return status;
}

template <typename T>
int hide_spans(Input& input) {
  const Hiding<T> with(input);
  const int64_t rows = input.upto(5), T_ = input.upto(30), P = input.upto(30);
  const Array<int64_t> firsts(input.rising(rows + 1, 2));
  const int64_t num_parts = input.upto(10);
  const Array<int64_t> parts([&] {
    std::vector<int64_t> found;
    for (int64_t k = 0; k < num_parts; ++k) {
      const int64_t begin = input.number(50);
      found.push_back(begin);
      found.push_back(static_cast<int64_t>(
          static_cast<uint64_t>(begin) +
          static_cast<uint64_t>(input.number(12))));
    }
    return found;
  }());
  const Array<double> law([&] {
    std::vector<double> found;
    for (double one : input.numbers<double>(1 + input.upto(9), 99)) {
      found.push_back(one / 99);
    }
    return found;
  }());
  Array<int32_t> tokens(rows * T_), positions(rows * P), labels(rows * P),
      left(rows * P), right(rows * P);
  Array<float> lens(rows), weights(rows * P);
  const int64_t most = input.number(20), share = input.upto(200) * 5000;
  const int status = draw_spans(
      with.state.get(), rows, firsts.get(), parts.get(), num_parts,
      with.types.get(), sizeof(T), with.types.size(), with.numbers.get(),
      with.numbers.size(), &with.special, with.kinds.get(),
      with.kinds.size(), with.choices.get(), with.choices.size(), law.get(),
      law.size(), most, input.upto(1), share, T_, P, tokens.get(), lens.get(),
      positions.get(), weights.get(), labels.get(), left.get(), right.get());
  if (!status) {
    demand(tokens.is_within(0, with.vocab));
    demand(labels.is_within(0, with.vocab));
    demand(positions.is_within(0, std::max<int64_t>(1, T_)));
    demand(left.is_within(-1, T_ + 1) && right.is_within(0, T_ + 1));
  }
  return status;
}

struct Entry {
  const char* name;
  int (*run)(Input&);
  uint64_t inputs, refused, failed;
};

Entry entries[] = {
    {"text", cut_text, 0, 0, 0},
    {"names", number_names, 0, 0, 0},
    {"pieces", cut_pieces, 0, 0, 0},
    {"tables-16", read_tables<uint16_t>, 0, 0, 0},
    {"tables-32", read_tables<int32_t>, 0, 0, 0},
    {"pairs", pair, 0, 0, 0},
    {"masks-16", mask<uint16_t>, 0, 0, 0},
    {"masks-32", mask<int32_t>, 0, 0, 0},
    {"spans-16", hide_spans<uint16_t>, 0, 0, 0},
    {"spans-32", hide_spans<int32_t>, 0, 0, 0},
};
constexpr size_t kEntries = sizeof(entries) / sizeof(*entries);

void print_counts() {
  for (const Entry& entry : entries) {
    std::printf("ENTRY %s %llu %llu %llu\n", entry.name,
                static_cast<unsigned long long>(entry.inputs),
                static_cast<unsigned long long>(entry.refused),
                static_cast<unsigned long long>(entry.failed));
  }
  std::fflush(stdout);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  std::atexit(print_counts);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!size) return 0;
  Entry& entry = entries[data[0] % kEntries];
  Input input(data + 1, size - 1);
  const int status = entry.run(input);
  ++entry.inputs;
  entry.refused += status == kOutside;
  entry.failed += status == kNoMemory;
  return 0;
}

#ifdef D2LBERT_PLAIN_LOOP
// Without libFuzzer: PROGRAM RUNS SECONDS SEED. Inputs are those before them
// with a few changes, or new ones.
#include <chrono>
#include <random>

int main(int, char** argv) {
  LLVMFuzzerInitialize(nullptr, nullptr);
  const uint64_t runs = std::strtoull(argv[1], nullptr, 10);
  const double seconds = std::strtod(argv[2], nullptr);
  std::mt19937_64 random(std::strtoull(argv[3], nullptr, 10));
  const std::string words[] = {" . ", " = ", "\n", "a", "b\n", "\xc3\x89 ",
                               "\xff", std::string(1, '\0')};
  std::vector<std::string> pool(64);
  const auto begun = std::chrono::steady_clock::now();
  for (uint64_t k = 0; k < runs; ++k) {
    if (k % 1024 == 0 && std::chrono::duration<double>(
            std::chrono::steady_clock::now() - begun).count() > seconds) {
      break;
    }
    std::string& input = pool[random() % pool.size()];
    if (input.size() < 2 || random() % 16 == 0) {
      input.resize(2 + random() % 400);
      // Small numbers are more often valid
      const uint64_t most = random() % 4 ? 16 : 256;
      for (char& c : input) c = static_cast<char>(random() % most);
      input[0] = static_cast<char>(random());
    }
    for (uint64_t left = 1 + random() % 4; left-- > 0;) {
      const size_t place = 1 + random() % input.size();
      switch (random() % 4) {
        case 0:
          input[place % input.size()] = static_cast<char>(random());
          break;
        case 1:
          input.insert(place, words[random() % 8]);
          break;
        case 2:
          input.erase(place, random() % 8);
          break;
        default:
          if (place < input.size()) {
            input.insert(place, input.substr(place, random() % 30));
          }
      }
    }
    if (input.size() > 4096) input.resize(4096);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()),
                           input.size());
  }
  return 0;
}
#endif
