// Streams for copies. One copy uses a stream alone, so that waiting for it waits for nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "acl.hpp"
#include "library.hpp"

namespace cachecore::ascend {

// Seconds on CLOCK_MONOTONIC, the clock of deadlines.
double monotonic_seconds();

// Waits for a stream until a deadline; the code of the wait, see acl::timed_out. Waits at least one millisecond. A runtime
// without a wait that ends waits until the stream is done.
acl::Error synchronize(const Library &library, acl::Stream stream, double deadline);

// All functions need a thread that has the context of the pool's device.
class StreamPool {
public:
    explicit StreamPool(const Library &library) : library_(library) {}
    StreamPool(const StreamPool &) = delete;
    StreamPool &operator=(const StreamPool &) = delete;

    // An idle stream, made if there is none. Throws AclFailure.
    acl::Stream take();
    // Gives back a stream on which nothing runs.
    void give(acl::Stream stream);
    // Gives up a stream on which something failed, and which is idle. Throws AclFailure.
    void discard(acl::Stream stream);
    // Destroys what is idle. Throws AclFailure.
    void trim();

private:
    static constexpr std::size_t most_idle = 16;
    const Library &library_;
    std::mutex mutex_;
    std::vector<acl::Stream> idle_;
};

// The streams of one copy.
class StreamLease {
public:
    explicit StreamLease(StreamPool &pool) : pool_(pool) {}
    ~StreamLease();
    StreamLease(const StreamLease &) = delete;
    StreamLease &operator=(const StreamLease &) = delete;

    const std::vector<acl::Stream> &streams() const { return streams_; }
    acl::Stream add();
    // Takes the streams out of the lease: something may still run on them.
    std::vector<acl::Stream> abandon() { return std::exchange(streams_, {}); }
    // Streams on which something failed are not used again.
    void spoil() { spoilt_ = true; }

private:
    StreamPool &pool_;
    std::vector<acl::Stream> streams_;
    bool spoilt_ = false;
};

// Stops what runs on streams and waits until nothing does, for a moment. True when nothing runs any more.
bool stop(const Library &library, const std::vector<acl::Stream> &streams, double seconds);

}  // namespace cachecore::ascend
