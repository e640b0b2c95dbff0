// One device of the runtime: its context, memory, streams.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "acl.hpp"
#include "library.hpp"
#include "locate.hpp"
#include "scope.hpp"
#include "streams.hpp"

namespace cachecore::ascend {

// Used by many threads at once. Every function prepares the calling thread and puts its context back.
class Device {
public:
    // Makes the default context of the device on first use, and leaves the calling thread's context as it was where it
    // had one. The context is shared with everybody in the process who sets the device, and is never reset here.
    Device(std::shared_ptr<Library> library, std::int32_t index);
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    const Library &library() const { return *library_; }
    std::int32_t index() const { return index_; }
    acl::Context context() const { return context_; }
    const BlockTable &blocks() const { return blocks_; }
    StreamPool &streams() { return streams_; }

    // See scope.hpp.
    bool bind_thread() const { return ascend::bind_thread(*library_, context_); }
    // Makes the context current; returns the former one for `leave`, 0 when there was none or it was this one.
    std::uint64_t enter() const;
    void leave(std::uint64_t former) const;

    std::uint64_t allocate(std::uint64_t nbytes, int policy);
    void free(std::uint64_t address);
    std::uint64_t allocate_host(std::uint64_t nbytes);
    void free_host(std::uint64_t address);
    // (free, total) bytes.
    std::pair<std::uint64_t, std::uint64_t> memory_info() const;
    // Destroys streams that nobody uses.
    void trim();

    template <class Action>
    auto run(Action &&action) const {
        return within(*library_, context_, std::forward<Action>(action));
    }

private:
    std::shared_ptr<Library> library_;
    std::int32_t index_;
    acl::Context context_ = nullptr;
    BlockTable blocks_;
    StreamPool streams_;
};

}  // namespace cachecore::ascend
