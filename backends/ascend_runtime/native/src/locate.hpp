// On which side of the bus an address lies, for choosing how to copy it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "acl.hpp"
#include "library.hpp"

namespace cachecore::ascend {

enum class Side : std::uint8_t {
    plain_host,   // ordinary memory: may be gone, so it is touched by system calls only
    pinned_host,  // page-locked by the runtime
    device,
};

struct Place {
    Side side;
    std::uint32_t device;  // as the runtime numbers it; 0 for the host
    bool operator==(const Place &other) const { return side == other.side && device == other.device; }
};

// What this process allocated through one device: known without asking the runtime, also an old one.
class BlockTable {
public:
    void add(std::uint64_t base, std::uint64_t nbytes, Place place);
    void remove(std::uint64_t base);
    std::optional<Place> find(std::uint64_t address) const;

private:
    struct Block {
        std::uint64_t nbytes;
        Place place;
    };
    mutable std::mutex mutex_;
    std::map<std::uint64_t, Block> blocks_;
};

// Whether the processor can read a byte, found out by a system call that does not crash.
bool readable_by_host(std::uint64_t address);

// Our own blocks first, then the runtime; where it cannot say, what the processor can read is ordinary memory and the
// rest is the device's.
Place locate(const Library &library, const BlockTable &blocks, std::uint32_t device, std::uint64_t address);

}  // namespace cachecore::ascend
