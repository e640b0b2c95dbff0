// Parts of blocks, and how those of two sides fit together.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copy_plan.hpp"

namespace cachecore {

// Bytes of every block: `count` pieces of `length` bytes, piece i from offset + i * stride on.
struct Slice {
    std::uint64_t offset;
    std::uint64_t length;
    std::uint64_t count = 1;
    std::uint64_t stride = 0;

    std::uint64_t total() const { return length * count; }  // exact once the slice lies within a block
};

// The bytes that a slice names, in the fewest pieces; without a slice the whole block. Refuses a slice that leaves its
// block of `block_bytes` bytes or whose pieces would overlap.
Slice within_block(const std::optional<Slice> &slice, std::uint64_t block_bytes, const char *name);

// The bytes of two slices of equal total, paired in order: offsets from the starts of two blocks. There are as many
// pieces as the finer side has, or up to the sum of both where their cuts differ.
std::vector<Run> pair_pieces(const Slice &local, const Slice &remote);

// Adds a run at the end, joined with the last one where it follows on both sides.
inline void append_run(std::vector<Run> &runs, const Run &next) {
    if (!runs.empty()) {
        Run &last = runs.back();
        if (last.local + last.length == next.local && last.remote + last.length == next.remote) {
            last.length += next.length;
            return;
        }
    }
    runs.push_back(next);
}

}  // namespace cachecore
