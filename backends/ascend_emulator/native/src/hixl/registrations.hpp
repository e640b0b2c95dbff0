// The registrations of one engine: which ranges, and under which handles.
#pragma once

#include <cstdint>
#include <map>

#include "regions.hpp"

namespace emulator::hixl {

class Registrations {
public:
    // The handle of the region; of the one there is when it is the very same range and type. Throws Failure 103900 for
    // a range that partly overlaps another, 203900 when there are too many registrations or bytes.
    std::uint64_t add(Region region);

    bool has(std::uint64_t handle) const { return handles_.count(handle) != 0; }

    // Takes a handle that there is.
    void remove(std::uint64_t handle);

    const Regions &regions() const { return regions_; }

private:
    Regions regions_;
    std::map<std::uint64_t, std::uint64_t> handles_;  // handle -> address
    std::uint64_t device_bytes_ = 0;
    std::uint64_t last_handle_ = 0;
};

}  // namespace emulator::hixl
