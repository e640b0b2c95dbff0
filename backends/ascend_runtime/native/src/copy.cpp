#include "copy.hpp"

#include <errno.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include <pybind11/stl.h>

#include "failure.hpp"
#include "host_copy.hpp"
#include "plan.hpp"

namespace py = pybind11;

namespace cachecore::ascend {

namespace {

// Seconds for which is waited that aborted streams end, before the copy is reported as perhaps still running.
constexpr double settle_seconds = 0.05;

struct Places {
    Place destination;
    Place source;
    bool operator==(const Places &other) const { return destination == other.destination && source == other.source; }
};

bool on_host(const Place &place) { return place.side != Side::device; }

int kind_of(const Places &places) {
    if (on_host(places.source)) {
        return on_host(places.destination) ? acl::host_to_host : acl::host_to_device;
    }
    return on_host(places.destination) ? acl::device_to_host : acl::device_to_device;
}

// A piece of one chunk.
struct Item {
    std::uint64_t destination;
    std::uint64_t source;
    std::uint64_t nbytes;
    std::uint64_t chunk;
    bool from_start;  // of the chunk
    bool to_end;
};

// Neighbouring pieces between the same two places, started together and waited for together.
struct Window {
    Places places;
    std::vector<Item> items;
};

// What is known about a window that failed: of its items [0, done) landed, [touched, ...) were not started.
struct Progress {
    std::size_t done = 0;
    std::size_t touched = 0;
    std::optional<std::size_t> refused;  // an item below `touched` that was not started either
};

class Copier {
public:
    Copier(std::shared_ptr<Device> device, const PlanView &plan, double deadline, const std::vector<acl::Event> &events,
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
        if (passed()) {
            report_.cause = CopyCause::deadline;
            finish(Window{}, Progress{});
            return std::move(report_);
        }
        find_places();
        if (events_.empty() && !places_.empty() &&
            std::all_of(places_.begin(), places_.end(), [](const Places &places) {
                return places.destination.side == Side::plain_host && places.source.side == Side::plain_host;
            })) {
            report_.host_only = true;
            return std::move(report_);
        }
        while (!cursor_.at_end()) {
            if (passed()) {
                report_.cause = CopyCause::deadline;
                finish(Window{}, Progress{});
                return std::move(report_);
            }
            const ChunkCursor before = cursor_;
            const Window window = next_window();
            Progress progress;
            const bool landed = kind_of(window.places) == acl::host_to_host ? move_on_host(window, progress)
                                                                            : move_by_runtime(window, progress);
            if (!landed) {
                cursor_ = before;
                finish(window, progress);
                return std::move(report_);
            }
        }
        finish(Window{}, Progress{});
        return std::move(report_);
    }

private:
    bool passed() const { return monotonic_seconds() >= deadline_; }

    void find_places() {
        places_.reserve(plan_.pairs());
        for (const PlanGroup &group : plan_.groups()) {
            for (std::size_t index = 0; index < group.pair_count; ++index) {
                if (group.run_count == 0) {
                    places_.push_back({});  // no chunk will look at it
                    continue;
                }
                // A tensor lies in one registered region, so that its first byte speaks for all.
                const BasePair &pair = group.pairs[index];
                const auto number = static_cast<std::uint32_t>(device_->index());
                places_.push_back({locate(library_, device_->blocks(), number, pair.local + group.runs[0].local),
                                   locate(library_, device_->blocks(), number, pair.remote + group.runs[0].remote)});
            }
        }
    }

    Window next_window() {
        Window window{places_[cursor_.pair()], {}};
        const bool plain = window.places.destination.side == Side::plain_host ||
                           window.places.source.side == Side::plain_host ||
                           kind_of(window.places) == acl::host_to_host;
        std::uint64_t room = plain ? limits_.plain_window_bytes : limits_.window_bytes;
        while (room > 0 && window.items.size() < limits_.window_items && !cursor_.at_end() &&
               places_[cursor_.pair()] == window.places) {
            const std::uint64_t nbytes = std::min(room, cursor_.left());
            window.items.push_back({cursor_.local(), cursor_.remote(), nbytes, cursor_.chunk(), cursor_.offset() == 0,
                                    nbytes == cursor_.left()});
            cursor_.advance(nbytes);
            room -= nbytes;
        }
        return window;
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
        if (idle && ran_to_its_end && !batch_failed_) {
            progress.done = progress.touched == 0 ? 0 : progress.touched - 1;  // the last one started is the one that failed
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

    // --- what is known ----------------------------------------------------------------------------------------------

    // The cursor stands at the start of `window`, everything before it landed.
    void finish(const Window &window, const Progress &progress) {
        std::uint64_t landed = cursor_.chunk();
        bool torn = !cursor_.at_end() && cursor_.offset() > 0;  // a part of the next chunk landed
        if (progress.done > 0) {
            const Item &last = window.items[progress.done - 1];
            landed = last.to_end ? last.chunk + 1 : last.chunk;
            torn = !last.to_end;
        }
        std::uint64_t touched = torn ? landed + 1 : landed;
        if (progress.touched > progress.done) {
            touched = window.items[progress.touched - 1].chunk + 1;
        }
        std::uint64_t refused = touched;
        if (progress.refused) {
            const Item &item = window.items[*progress.refused];
            if (item.from_start && item.to_end && item.chunk >= landed) {
                refused = item.chunk;
            }
        }
        add(report_.landed, 0, landed);
        add(report_.unknown, landed, refused);
        if (refused < touched) {
            add(report_.untouched, refused, refused + 1);
            add(report_.unknown, refused + 1, touched);
        }
        add(report_.untouched, touched, plan_.chunks());
    }

    static void add(Ranges &ranges, std::uint64_t start, std::uint64_t end) {
        if (start >= end) {
            return;
        }
        if (!ranges.empty() && ranges.back().second == start) {
            ranges.back().second = end;
        } else {
            ranges.emplace_back(start, end);
        }
    }

    std::shared_ptr<Device> device_;
    const Library &library_;
    const PlanView &plan_;
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

CopyReport copy(const std::shared_ptr<Device> &device, const py::sequence &groups, double deadline,
                const std::vector<std::uint64_t> &events, std::uint64_t streams, std::uint64_t window_items,
                std::uint64_t window_bytes, std::uint64_t plain_window_bytes) {
    if (std::isnan(deadline)) {
        refuse("deadline is not a number; give seconds on time.monotonic()");
    }
    if (streams == 0 || window_items == 0 || window_bytes == 0 || plain_window_bytes == 0) {
        refuse("streams, window_items, window_bytes and plain_window_bytes must be at least 1");
    }
    std::vector<acl::Event> handles;
    for (const std::uint64_t event : events) {
        handles.push_back(reinterpret_cast<acl::Event>(event));
    }
    const CopyLimits limits{streams, window_items, window_bytes, plain_window_bytes};
    const PlanView plan(groups);
    const py::gil_scoped_release release;
    const Library &library = device->library();
    BoundContext bound(library, device->context());
    RelaxedCapture relaxed(library);
    CopyReport report = Copier(device, plan, deadline, handles, limits).run();
    try {
        relaxed.leave();
        bound.leave();
    } catch (const AclFailure &failure) {  // must not hide what became of the copy
        report.restore_function = failure.function();
        report.restore_code = failure.code();
    }
    return report;
}

const char *cause_name(CopyCause cause) {
    switch (cause) {
        case CopyCause::none: return "none";
        case CopyCause::deadline: return "deadline";
        case CopyCause::source_fault: return "source fault";
        case CopyCause::destination_fault: return "destination fault";
        case CopyCause::native: return "native";
    }
    return "native";
}

py::tuple tuple_of(const Ranges &ranges) {
    py::tuple result(ranges.size());
    for (std::size_t index = 0; index < ranges.size(); ++index) {
        result[index] = py::make_tuple(ranges[index].first, ranges[index].second);
    }
    return result;
}

}  // namespace

bool Unsettled::settled() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (streams_.empty()) {
        return true;
    }
    return device_->run([&] {
        if (!stop(device_->library(), streams_, 0.001 * static_cast<double>(streams_.size()))) {
            return false;
        }
        while (!streams_.empty()) {
            const acl::Stream stream = streams_.back();
            streams_.pop_back();  // first: a stream that cannot be destroyed is idle all the same
            device_->streams().discard(stream);
        }
        return true;
    });
}

void register_copy(py::module_ &module) {
    using free_gil = py::call_guard<py::gil_scoped_release>;
    py::class_<Unsettled, std::shared_ptr<Unsettled>>(module, "Unsettled", py::is_final())
        .def("settled", &Unsettled::settled, free_gil())
        .def_property_readonly("extents", [](const Unsettled &copy_) { return tuple_of(copy_.extents()); });
    py::class_<CopyReport>(module, "CopyReport", py::is_final())
        .def_property_readonly("cause", [](const CopyReport &report) { return cause_name(report.cause); })
        .def_readonly("function", &CopyReport::function)
        .def_readonly("code", &CopyReport::code)
        .def_property_readonly("detail", [](const CopyReport &report) { return text_of(report.detail); })
        .def_property_readonly("landed", [](const CopyReport &report) { return tuple_of(report.landed); })
        .def_property_readonly("untouched", [](const CopyReport &report) { return tuple_of(report.untouched); })
        .def_property_readonly("unknown", [](const CopyReport &report) { return tuple_of(report.unknown); })
        .def_readonly("host_only", &CopyReport::host_only)
        .def_readonly("restore_function", &CopyReport::restore_function)
        .def_readonly("restore_code", &CopyReport::restore_code)
        .def_readonly("unsettled", &CopyReport::unsettled);
    module.def("copy", &copy, py::arg("device"), py::arg("groups"), py::arg("deadline"),
               py::arg("events") = std::vector<std::uint64_t>(), py::arg("streams") = 2,
               py::arg("window_items") = 1024, py::arg("window_bytes") = std::uint64_t{256} << 20,
               py::arg("plain_window_bytes") = std::uint64_t{32} << 20);
}

}  // namespace cachecore::ascend
