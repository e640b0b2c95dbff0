// A copy that may still be running.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "acl.hpp"
#include "device.hpp"

namespace cachecore::ascend {

using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

// Its streams, and the memory that it may touch. For many threads.
class Unsettled {
public:
    Unsettled(std::shared_ptr<Device> device, std::vector<acl::Stream> streams, Ranges extents)
        : device_(std::move(device)), streams_(std::move(streams)), extents_(std::move(extents)) {}
    Unsettled(const Unsettled &) = delete;
    Unsettled &operator=(const Unsettled &) = delete;

    // Asks the streams, for about a millisecond each. True when nothing runs any more, and from then on.
    bool settled();
    // (address, bytes) that must not be freed before.
    const Ranges &extents() const { return extents_; }

private:
    std::mutex mutex_;
    std::shared_ptr<Device> device_;
    std::vector<acl::Stream> streams_;
    const Ranges extents_;
};

}  // namespace cachecore::ascend
