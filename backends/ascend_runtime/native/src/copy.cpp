#include "copy.hpp"

#include <errno.h>

#include <algorithm>
#include <utility>

#include "failure.hpp"
#include "host_copy.hpp"
#include "scope.hpp"
#include "streams.hpp"

namespace cachecore::ascend {

namespace {

// Seconds for which is waited that aborted streams end, before the copy is reported as perhaps still running.
constexpr double settle_seconds = 0.05;
// The same where nobody could be told.
constexpr double farewell_seconds = 10.0;

class Copier {
public:
    Copier(std::shared_ptr<Device> device, const Plan &plan, double deadline, const std::vector<acl::Event> &events,
           const CopyLimits &limits)
        : device_(std::move(device)),
          library_(device_->library()),
          plan_(plan),
          deadline_(deadline),
          events_(events),
          limits_(limits),
          lease_(device_->streams()),
          cursor_(plan) {}

    CopyReport run() {
        try {
            return move_all();
        } catch (...) {  // out of memory: nothing that was started may outlive this call unnoticed
            lease_.spoil();
            stop(library_, lease_.streams(), farewell_seconds);
            throw;
        }
    }

private:
    CopyReport move_all() {
        if (passed()) {
            report_.cause = CopyCause::deadline;
            return finish(cursor_, Window{}, Progress{});
        }
        places_ = find_places(*device_, plan_);
        if (events_.empty() && !places_.empty() && std::all_of(places_.begin(), places_.end(), plain_on_both_sides)) {
            report_.host_only = true;
            return std::move(report_);
        }
        while (!cursor_.at_end()) {
            if (passed()) {
                report_.cause = CopyCause::deadline;
                break;
            }
            const ChunkCursor start = cursor_;
            const Window window = next_window(cursor_, places_, limits_);
            Progress progress;
            const bool landed = kind_of(window.places) == acl::host_to_host ? move_on_host(window, progress)
                                                                            : move_by_runtime(window, progress);
            if (!landed) {
                return finish(start, window, progress);
            }
        }
        return finish(cursor_, Window{}, Progress{});
    }

    static bool plain_on_both_sides(const Places &places) {
        return places.destination.side == Side::plain_host && places.source.side == Side::plain_host;
    }

    bool passed() const { return monotonic_seconds() >= deadline_; }

    CopyReport finish(const ChunkCursor &start, const Window &window, const Progress &progress) {
        report_.known = known_after(plan_, start, window, progress);
        return std::move(report_);
    }

    // --- host -------------------------------------------------------------------------------------------------------

    bool move_on_host(const Window &window, Progress &progress) {
        if (!wait_for_events()) {
            return false;
        }
        for (const Item &item : window.items) {
            const HostCopied copied = host_copy(item.destination, window.places.destination.side, item.source,
                                                window.places.source.side, item.nbytes);
            progress.touched += copied.touched ? 1 : 0;
            if (copied.code != 0) {
                const bool fault = copied.code == EFAULT;
                report_.cause = !fault                  ? CopyCause::native
                                : copied.source_failed ? CopyCause::source_fault
                                                       : CopyCause::destination_fault;
                report_.function = copied.source_failed ? "process_vm_readv" : "process_vm_writev";
                report_.code = copied.code;
                return false;
            }
            ++progress.done;
            progress.touched = progress.done;
        }
        return true;
    }

    // The processor cannot be queued behind an event: wait for it here. False when the deadline passed.
    bool wait_for_events() {
        if (events_.empty() || waited_) {
            return true;
        }
        try {
            const acl::Error code = synchronize(library_, first_stream(), deadline_);
            waited_ = code == acl::success;
            if (!waited_) {
                fail(wait_name(), code);
            }
        } catch (const AclFailure &failure) {
            fail(failure.function().c_str(), failure.code(), failure.detail());
        }
        if (!waited_) {
            settle();
        }
        return waited_;
    }

    // --- runtime ----------------------------------------------------------------------------------------------------

    bool move_by_runtime(const Window &window, Progress &progress) {
        bool submitted = false;
        try {
            if (may_batch(window.places)) {
                submitted = submit_batch(window, progress);
            }
            if (!submitted && report_.cause == CopyCause::none) {
                submitted = submit_each(window, progress);
            }
        } catch (const AclFailure &failure) {  // no stream, or no wait for an event: nothing of the window was started
            fail(failure.function().c_str(), failure.code(), failure.detail());
        }
        if (submitted && wait()) {
            return true;
        }
        // Whatever was started before the failure may still run.
        const bool ran_to_its_end = !submitted && wait_quietly();
        const bool idle = ran_to_its_end || settle();
        if (idle && ran_to_its_end && !batch_failed_ && progress.touched > 0) {
            progress.done = progress.touched - 1;  // the last one started is the one that failed
        }
        return false;
    }

    bool may_batch(const Places &places) const {
        const int kind = kind_of(places);
        return (kind == acl::host_to_device || kind == acl::device_to_host) && !library_.batches_refused &&
               (library_.aclrtMemcpyBatchAsync != nullptr || library_.aclrtMemcpyBatch != nullptr);
    }

    // False without a cause: the driver below the runtime has no batches, and nothing happened.
    bool submit_batch(const Window &window, Progress &progress) {
        const std::size_t count = window.items.size();
        std::vector<void *> destinations(count);
        std::vector<void *> sources(count);
        std::vector<std::size_t> sizes(count);
        for (std::size_t index = 0; index < count; ++index) {
            destinations[index] = reinterpret_cast<void *>(window.items[index].destination);
            sources[index] = reinterpret_cast<void *>(window.items[index].source);
            sizes[index] = window.items[index].nbytes;
        }
        acl::MemcpyBatchAttr attributes{};
        attributes.destination = location_of(window.places.destination);
        attributes.source = location_of(window.places.source);
        std::size_t first = 0;
        std::size_t refused = acl::no_item;
        const acl::Stream stream = first_stream();
        const char *function = "aclrtMemcpyBatchAsync";
        acl::Error code = acl::success;
        if (library_.aclrtMemcpyBatchAsync != nullptr) {
            code = library_.aclrtMemcpyBatchAsync(destinations.data(), sizes.data(), sources.data(), sizes.data(),
                                                  count, &attributes, &first, 1, &refused, stream);
        } else {
            if (!events_.empty() && !wait_for_events()) {  // this form knows no stream
                return false;
            }
            function = "aclrtMemcpyBatch";
            code = library_.aclrtMemcpyBatch(destinations.data(), sizes.data(), sources.data(), sizes.data(), count,
                                             &attributes, &first, 1, &refused);
        }
        if (code == acl::success) {
            progress.touched = count;
            return true;
        }
        if (acl::not_supported(code)) {
            library_.recent_message();
            library_.batches_refused = true;
            return false;
        }
        // Unordered: any item may have landed, but for the one whose places or direction were found wrong.
        fail(function, code);
        batch_failed_ = true;
        progress.touched = count;
        if (refused < count) {
            progress.refused = refused;
        }
        return false;
    }

    bool submit_each(const Window &window, Progress &progress) {
        const int kind = kind_of(window.places);
        std::size_t wanted = 1;
        if (kind == acl::device_to_device) {
            wanted = std::min<std::size_t>(limits_.streams, window.items.size());
        }
        first_stream();
        while (lease_.streams().size() < wanted) {
            add_stream();
        }
        for (const Item &item : window.items) {
            const acl::Stream stream = lease_.streams()[progress.touched % wanted];
            ++progress.touched;
            const acl::Error code = library_.aclrtMemcpyAsync(reinterpret_cast<void *>(item.destination), item.nbytes,
                                                              reinterpret_cast<const void *>(item.source), item.nbytes,
                                                              kind, stream);
            if (code != acl::success) {
                fail("aclrtMemcpyAsync", code);
                return false;
            }
        }
        return true;
    }

    static acl::MemLocation location_of(const Place &place) {
        return on_host(place) ? acl::MemLocation{0, acl::location_host}
                              : acl::MemLocation{place.device, acl::location_device};
    }

    // --- streams ----------------------------------------------------------------------------------------------------

    acl::Stream first_stream() { return lease_.streams().empty() ? add_stream() : lease_.streams().front(); }

    acl::Stream add_stream() {
        const acl::Stream stream = lease_.add();
        for (const acl::Event event : events_) {
            if (library_.aclrtStreamWaitEvent == nullptr) {
                throw AclFailure("aclrtStreamWaitEvent", acl::api_not_supported, "the runtime has no such function");
            }
            library_.check("aclrtStreamWaitEvent", library_.aclrtStreamWaitEvent(stream, event));
        }
        return stream;
    }

    const char *wait_name() const {
        return library_.aclrtSynchronizeStreamWithTimeout != nullptr ? "aclrtSynchronizeStreamWithTimeout"
                                                                     : "aclrtSynchronizeStream";
    }

    // Waits for what was submitted; false after noting why not.
    bool wait() {
        for (const acl::Stream stream : lease_.streams()) {
            const acl::Error code = synchronize(library_, stream, deadline_);
            if (code != acl::success) {
                fail(wait_name(), code);
                return false;
            }
        }
        return true;
    }

    // The same after a failure that was noted already.
    bool wait_quietly() {
        bool ended = true;
        for (const acl::Stream stream : lease_.streams()) {
            if (synchronize(library_, stream, deadline_) != acl::success) {
                library_.recent_message();
                ended = false;
            }
        }
        lease_.spoil();
        return ended;
    }

    // Stops what may still run; where that cannot be proven, the streams go to whoever asks later.
    bool settle() {
        lease_.spoil();
        if (stop(library_, lease_.streams(), settle_seconds)) {
            return true;
        }
        report_.unsettled = std::make_shared<Unsettled>(device_, lease_.abandon(), plan_.extents());
        return false;
    }

    void fail(const char *function, acl::Error code) { fail(function, code, library_.recent_message()); }

    void fail(const char *function, acl::Error code, const std::string &detail) {
        if (report_.cause == CopyCause::none) {
            report_.cause = acl::timed_out(code) ? CopyCause::deadline : CopyCause::native;
            report_.function = function;
            report_.code = code;
            report_.detail = detail;
        }
    }

    std::shared_ptr<Device> device_;
    const Library &library_;
    const Plan &plan_;
    double deadline_;
    const std::vector<acl::Event> &events_;
    const CopyLimits &limits_;
    StreamLease lease_;
    ChunkCursor cursor_;
    std::vector<Places> places_;
    CopyReport report_;
    bool waited_ = false;
    bool batch_failed_ = false;
};

}  // namespace

CopyReport copy_plan(const std::shared_ptr<Device> &device, const Plan &plan, double deadline,
                     const std::vector<acl::Event> &events, const CopyLimits &limits) {
    const Library &library = device->library();
    BoundContext bound(library, device->context());
    RelaxedCapture relaxed(library);
    CopyReport report = Copier(device, plan, deadline, events, limits).run();
    try {
        relaxed.leave();
        bound.leave();
    } catch (const AclFailure &failure) {  // must not hide what became of the copy
        report.restore_function = failure.function();
        report.restore_code = failure.code();
    }
    return report;
}

}  // namespace cachecore::ascend
