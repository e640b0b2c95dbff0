// Moving a plan between addresses of this process: host, device, both ways.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include "acl.hpp"
#include "device.hpp"

namespace cachecore::ascend {

using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

// A copy that may still be running: its streams, and the memory that it may touch.
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

enum class CopyCause { none, deadline, source_fault, destination_fault, native };

struct CopyLimits {
    std::uint64_t streams;             // most streams of one copy between device addresses
    std::uint64_t window_items;        // pieces after which is waited
    std::uint64_t window_bytes;        // the same in bytes
    std::uint64_t plain_window_bytes;  // the same where ordinary host memory is a side, which blocks within the call
};

// Ranges of chunks are half-open, ascending, disjoint, and cover the plan.
struct CopyReport {
    CopyCause cause = CopyCause::none;
    std::string function;  // what failed
    int code = 0;          // its code: of the runtime, or an errno of a system call
    std::string detail;    // text of aclGetRecentErrMsg
    Ranges landed;
    Ranges untouched;
    Ranges unknown;
    bool host_only = false;         // ordinary memory on both sides of every pair: nothing was done, the core does it
    std::string restore_function;   // the thread's own state could not be put back, which changes nothing of the above
    int restore_code = 0;
    std::shared_ptr<Unsettled> unsettled;  // not null: something may still run
};

void register_copy(pybind11::module_ &module);

}  // namespace cachecore::ascend
