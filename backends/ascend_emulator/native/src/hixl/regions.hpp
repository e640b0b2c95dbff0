// Registered memory, and what a protocol asks of it.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../address_space.hpp"
#include "status.hpp"

namespace emulator::hixl {

struct Region {
    std::uint64_t address = 0;
    std::uint64_t nbytes = 0;
    MemType type = kMemDevice;
    std::vector<Piece> pieces;  // of device memory
    std::vector<std::uint64_t> ends;  // of the pieces, counted from the start of the region
    std::uint64_t page = 0;  // of device memory
    bool from_malloc = false;  // the address is one that aclrtMalloc returned
    bool pinned = false;  // host memory of aclrtMallocHost, or registered with the runtime

    // Why a link over this protocol fails with this region registered; empty when it does not.
    std::string obstacle(std::uint32_t protocol, std::uint32_t flags) const;
};

// Regions by address; none overlap.
using Regions = std::map<std::uint64_t, Region>;

// Looks at the memory. Throws Failure 103900 when it is not of the type.
Region make_region(std::uint64_t address, std::uint64_t nbytes, int type);

// The region that all of [address, address + nbytes) lies in, or nullptr.
const Region *region_of(const Regions &regions, std::uint64_t address, std::uint64_t nbytes);

// Appends the library's view of a part of a region.
void append_view(const Region &region, std::uint64_t address, std::uint64_t nbytes, std::vector<iovec> &view);

// Memory that nobody registered, relayed as if it were the host's.
void append_relayed(std::uint64_t address, std::uint64_t nbytes, std::vector<iovec> &view);

}  // namespace emulator::hixl
