// Lists of block ids as callers give them: bounds and repetitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cachecore {

// One side's blocks, shared by all tensors of a transfer.
struct BlockList {
    std::vector<std::uint64_t> ids;
    const char *name;     // of the argument, for messages
    bool indexed = true;  // whether messages can name an item by its position in the argument
};

// Refuses an id that is not below `blocks`.
void check_bounds(const BlockList &list, std::uint64_t blocks);

// Refuses an id that is there twice. Time grows with the ids, and not with the blocks of the cache.
void check_duplicates(const BlockList &list);

// Position of the first id that is not among `allowed`, or the number of ids when all are.
std::size_t find_missing(const std::vector<std::uint64_t> &allowed, const std::vector<std::uint64_t> &ids);

}  // namespace cachecore
