// Products of matrices of bytes by AMX tiles, for the dense layers of int8.h.
#pragma once
#include <algorithm>

#include "amx_instructions.h"

#if defined(__AVX512VNNI__) && \
    (defined(D2LBERT_AMX_EMULATED) || defined(__AMX_INT8__))
#define D2LBERT_INT8_TILES 1
#else
#define D2LBERT_INT8_TILES 0
#endif

#if D2LBERT_INT8_TILES
namespace d2lbert {
namespace int8 {

using amx::SIDE;

// The rows, and the outputs, of a block of sums: 2 x 2 tiles.
constexpr long BLOCK = 2 * SIDE;

// A product of inputs and weights. A word has four bytes.
template <long PANEL>
struct ByteProduct {
  // (rows, words), with `ld` bytes from row to row. Whole tiles are read, so
  // there must be memory for a multiple of SIDE rows
  const uint8_t* inputs;
  long ld, rows, words;         // words: a multiple of SIDE
  const int8_t* weights;        // panels of PANEL outputs, each (words, PANEL)
  const int32_t* initial_sums;  // for each output

  // Compute the sums of outputs [first, last), both multiples of BLOCK. Each
  // call finish(sums, row, n, output) gets the sums (n, BLOCK) of up to GROUP
  // rows [row, row + n), and of outputs [output, output + BLOCK).
  template <long GROUP, class Finish>
  void compute(long first, long last, Finish finish) const {
    const amx::ConfiguredTiles tiles;
    alignas(64) int32_t sums[BLOCK * BLOCK];
    for (long output = first; output < last; output += BLOCK)
      for (long row = 0; row < rows; row += BLOCK) {
        if (rows - row > SIDE)
          compute_block<true>(row, output, sums);
        else
          compute_block<false>(row, output, sums);
        const long end = std::min(row + BLOCK, rows);
        for (long r = row; r < end; r += GROUP)
          finish(sums + (r - row) * BLOCK, r, std::min(GROUP, end - r),
                 output);
      }
  }

 private:
  const char* weights_of(long output) const {
    return (const char*)weights +
           4 * (output / PANEL * PANEL * words + output % PANEL);
  }

  // HAS_LOWER: the block has more than SIDE rows. Tiles 0 to 3: sums. Tiles 4,
  // 5: inputs of the upper and lower rows. Tiles 6, 7: weights of the left and
  // right outputs.
  template <bool HAS_LOWER>
  void compute_block(long row, long output, int32_t* sums) const {
    const char* upper_inputs = (const char*)inputs + row * ld;
    const char* left_weights = weights_of(output);
    // 0 bytes from row to row: all rows of a tile get the same numbers
    const char* initial = (const char*)(initial_sums + output);
    amx::load_tile<0>(initial, 0);
    amx::load_tile<1>(initial + 64, 0);
    if (HAS_LOWER) amx::load_tile<2>(initial, 0);
    if (HAS_LOWER) amx::load_tile<3>(initial + 64, 0);
    const NextWeights next(*this, row, output);
    for (long w = 0; w < words; w += SIDE) {
      next.prefetch(w);
      amx::load_tile<6>(left_weights, 4 * PANEL);
      amx::load_tile<4>(upper_inputs, ld);
      amx::load_tile<7>(left_weights + 64, 4 * PANEL);
      if (HAS_LOWER) amx::load_tile<5>(upper_inputs + SIDE * ld, ld);
      amx::dot_bytes<0, 4, 6>();
      amx::dot_bytes<1, 4, 7>();
      if (HAS_LOWER) amx::dot_bytes<2, 5, 6>();
      if (HAS_LOWER) amx::dot_bytes<3, 5, 7>();
      upper_inputs += 64;
      left_weights += SIDE * 4 * PANEL;
    }
    const long ld_sums = 4 * BLOCK;
    char* to = (char*)sums;
    amx::save_tile<0>(to, ld_sums);
    amx::save_tile<1>(to + 64, ld_sums);
    if (HAS_LOWER) amx::save_tile<2>(to + SIDE * ld_sums, ld_sums);
    if (HAS_LOWER) amx::save_tile<3>(to + SIDE * ld_sums + 64, ld_sums);
  }

  // The weights of the next BLOCK outputs. SIDE words of them fill 2 * SIDE
  // cache lines. Each block of rows prefetches num_lines of these lines.
  struct NextWeights {
    const char* weights;
    long first_line, num_lines;
    NextWeights(const ByteProduct& product, long row, long output) {
      const long blocks = (product.rows + BLOCK - 1) / BLOCK;
      weights = product.weights_of(output + BLOCK);
      num_lines = (2 * SIDE + blocks - 1) / blocks;
      first_line = row / BLOCK * num_lines;
    }
    void prefetch(long word) const {
      for (long i = first_line; i < first_line + num_lines; i++)
        __builtin_prefetch(weights + (word + i / 2) * 4 * PANEL + i % 2 * 64);
    }
  };
};

}  // namespace int8
}  // namespace d2lbert
#endif
