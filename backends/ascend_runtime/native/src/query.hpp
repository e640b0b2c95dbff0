// What the runtime says about ranges of memory. Facts only: what follows from them is decided in memory.py.
#pragma once

#include <cstdint>

#include "acl.hpp"
#include "library.hpp"

namespace cachecore::ascend {

constexpr int not_asked = -1;

enum class Mapping { unknown, no, yes, partly };

struct MemoryFacts {
    int attributes_code = not_asked;  // of aclrtPointerGetAttributes; -1: the runtime has no such function
    int location = -1;                // acl::LocationType of the first byte
    std::uint32_t device = 0;         // of the first byte, as the runtime numbers devices
    std::uint64_t page_bytes = 0;     // largest page behind the range, 0 = not known
    int range_code = not_asked;       // of aclrtMemGetAddressRange for the first block
    std::uint64_t block_base = 0;     // start of the first block
    std::uint64_t block_bytes = 0;    // bytes of all blocks that cover the range, from block_base on
    std::uint64_t blocks = 0;         // how many blocks were walked
    int handle_code = not_asked;      // of aclrtMemRetainAllocationHandle, the last one that was not plain yes or no
    Mapping mapped = Mapping::unknown;  // whether the blocks were mapped by aclrtMapMem
    std::uint64_t covered = 0;        // bytes from the start of the range on that are memory of this kind and device
};

// Asks about [base, base + nbytes), walking its blocks. The calling thread has a context.
MemoryFacts query_memory(const Library &library, std::uint64_t base, std::uint64_t nbytes);

}  // namespace cachecore::ascend
