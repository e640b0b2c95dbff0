#include "streams.hpp"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace cachecore::ascend {

double monotonic_seconds() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

acl::Error synchronize(const Library &library, acl::Stream stream, double deadline) {
    if (library.aclrtSynchronizeStreamWithTimeout == nullptr) {
        return library.aclrtSynchronizeStream(stream);
    }
    constexpr double longest = std::numeric_limits<std::int32_t>::max();
    const double left = std::ceil((deadline - monotonic_seconds()) * 1000.0);
    // -1 waits for ever.
    const std::int32_t milliseconds = left >= longest ? -1 : static_cast<std::int32_t>(std::max(1.0, left));
    return library.aclrtSynchronizeStreamWithTimeout(stream, milliseconds);
}

acl::Stream StreamPool::take() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!idle_.empty()) {
            const acl::Stream stream = idle_.back();
            idle_.pop_back();
            return stream;
        }
    }
    acl::Stream stream = nullptr;
    library_.check("aclrtCreateStream", library_.aclrtCreateStream(&stream));
    return stream;
}

void StreamPool::give(acl::Stream stream) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (idle_.size() < most_idle) {
            idle_.push_back(stream);
            return;
        }
    }
    discard(stream);
}

void StreamPool::discard(acl::Stream stream) {
    library_.check("aclrtDestroyStream", library_.aclrtDestroyStream(stream));
}

void StreamPool::trim() {
    std::vector<acl::Stream> idle;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        idle.swap(idle_);
    }
    while (!idle.empty()) {
        const acl::Stream stream = idle.back();
        idle.pop_back();
        try {
            discard(stream);
        } catch (...) {
            const std::lock_guard<std::mutex> lock(mutex_);
            idle_.insert(idle_.end(), idle.begin(), idle.end());
            throw;
        }
    }
}

acl::Stream StreamLease::add() {
    streams_.reserve(streams_.size() + 1);
    streams_.push_back(pool_.take());
    return streams_.back();
}

StreamLease::~StreamLease() {
    for (const acl::Stream stream : streams_) {
        try {
            if (spoilt_) {
                pool_.discard(stream);
            } else {
                pool_.give(stream);
            }
        } catch (const std::exception &) {
            // An idle stream that cannot be destroyed harms nobody but itself; the copy's own result stands.
        }
    }
}

bool stop(const Library &library, const std::vector<acl::Stream> &streams, double seconds) {
    const double deadline = monotonic_seconds() + seconds;
    bool idle = true;
    for (const acl::Stream stream : streams) {
        if (library.aclrtStreamAbort != nullptr && library.aclrtStreamAbort(stream) != acl::success) {
            library.recent_message();
        }
        // Only a wait that succeeded proves that nothing runs: an abort says that it was asked for.
        if (synchronize(library, stream, deadline) != acl::success) {
            library.recent_message();
            idle = false;
        }
    }
    return idle;
}

}  // namespace cachecore::ascend
