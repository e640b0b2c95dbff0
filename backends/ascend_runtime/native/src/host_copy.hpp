// Copies between addresses of the host, where a bad address is a result and not a crash.
#pragma once

#include <cstdint>

#include "locate.hpp"

namespace cachecore::ascend {

struct HostCopied {
    std::uint64_t moved = 0;       // bytes written for certain, from the start on
    bool touched = false;          // whether any byte was written
    bool source_failed = false;    // else the destination, when code is not 0
    int code = 0;                  // errno, 0 when everything moved
};

// Ordinary memory is read and written by system calls. What the runtime page-locked is touched directly: it vouches for
// it, and the pages of a device driver are closed to those calls.
HostCopied host_copy(std::uint64_t destination, Side destination_side, std::uint64_t source, Side source_side,
                     std::uint64_t nbytes);

}  // namespace cachecore::ascend
