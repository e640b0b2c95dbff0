// The state of a thread while it calls the runtime: the context of our device, and a capture mode in which copies are
// allowed. Both belong to the thread's owner and are put back.
#pragma once

#include <exception>
#include <type_traits>
#include <utility>

#include "acl.hpp"
#include "library.hpp"

namespace cachecore::ascend {

// Makes a context current and puts back what was there. A thread that had none keeps ours: it cannot be taken away.
class BoundContext {
public:
    BoundContext(const Library &library, acl::Context context);
    ~BoundContext();
    BoundContext(const BoundContext &) = delete;
    BoundContext &operator=(const BoundContext &) = delete;
    // Puts the former context back now. Throws AclFailure.
    void leave();

private:
    const Library &library_;
    acl::Context former_ = nullptr;  // not null only while there is something to put back
};

// While any thread captures a graph in mode GLOBAL, synchronous calls are forbidden in all threads that are not RELAXED.
class RelaxedCapture {
public:
    explicit RelaxedCapture(const Library &library);
    ~RelaxedCapture();
    RelaxedCapture(const RelaxedCapture &) = delete;
    RelaxedCapture &operator=(const RelaxedCapture &) = delete;
    // Puts the former mode back now. Throws AclFailure.
    void leave();

private:
    const Library &library_;
    int mode_ = acl::capture_mode_relaxed;
    bool exchanged_ = false;
};

// Runs `action` with the thread prepared. A failure to put its state back is reported unless `action` failed itself.
template <class Action>
auto within(const Library &library, acl::Context context, Action &&action) {
    BoundContext bound(library, context);
    RelaxedCapture relaxed(library);
    if constexpr (std::is_void_v<decltype(action())>) {
        action();
        relaxed.leave();
        bound.leave();
    } else {
        auto result = action();
        relaxed.leave();
        bound.leave();
        return result;
    }
}

// The calling thread's context, null when it has none. Throws AclFailure.
acl::Context current_context(const Library &library);

// Makes a context the calling thread's for good, unless somebody else gave the thread another one: then false.
bool bind_thread(const Library &library, acl::Context context);

// The calling thread had no context and has this one now, by us.
void note_bound(acl::Context context);

}  // namespace cachecore::ascend
