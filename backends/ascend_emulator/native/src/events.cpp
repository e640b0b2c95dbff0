// Events: marks in a stream that other streams and the host wait for.
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "call.hpp"
#include "context.hpp"
#include "streams.hpp"

namespace emulator {

namespace {

struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t recorded = 0;  // records asked for
    std::uint64_t reached = 0;  // the latest record that its stream has come to
};

struct Registry {
    std::mutex mutex;
    std::map<const void *, std::shared_ptr<Event>> events;
};

Registry &registry() {
    static Registry &all = *new Registry;
    return all;
}

std::shared_ptr<Event> event_of(const char *function, void *handle) {
    require(function, "event", handle);
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto found = registry().events.find(handle);
    if (found == registry().events.end()) {
        fail(abi::kParameterInvalid, function, ": ", handle, " is no event");
    }
    return found->second;
}

int reach(Event &event, std::uint64_t record) {
    const std::lock_guard<std::mutex> lock(event.mutex);
    event.reached = event.reached < record ? record : event.reached;
    event.changed.notify_all();
    return 0;
}

// An event whose record was dropped never comes: only aborting the waiting stream ends this.
int wait(Event &event, std::uint64_t record, const std::atomic<bool> &aborted) {
    std::unique_lock<std::mutex> lock(event.mutex);
    while (event.reached < record && !aborted.load()) {
        event.changed.wait_for(lock, std::chrono::milliseconds(5));
    }
    return 0;
}

}  // namespace

}  // namespace emulator

using emulator::Event;
using emulator::event_of;
using emulator::Fault;
using emulator::Needs;
namespace abi = emulator::abi;

EMULATOR_API int aclrtCreateEvent(void **event) {
    return emulator::call("aclrtCreateEvent", Needs::context, [&](const Fault &) {
        emulator::require("aclrtCreateEvent", "event", event);
        auto created = std::make_shared<Event>();
        *event = created.get();
        const std::lock_guard<std::mutex> lock(emulator::registry().mutex);
        emulator::registry().events.emplace(created.get(), std::move(created));
    });
}

EMULATOR_API int aclrtDestroyEvent(void *event) {
    return emulator::call("aclrtDestroyEvent", Needs::context, [&](const Fault &) {
        event_of("aclrtDestroyEvent", event);
        const std::lock_guard<std::mutex> lock(emulator::registry().mutex);
        emulator::registry().events.erase(event);
    });
}

EMULATOR_API int aclrtRecordEvent(void *event, void *stream) {
    return emulator::call("aclrtRecordEvent", Needs::context, emulator::Delay::in_task, [&](const Fault &fault) {
        const auto recorded = event_of("aclrtRecordEvent", event);
        const auto on = emulator::stream_of("aclrtRecordEvent", stream);
        std::uint64_t record = 0;
        {
            const std::lock_guard<std::mutex> lock(recorded->mutex);
            record = ++recorded->recorded;
        }
        on->submit([recorded, record, fault](const std::atomic<bool> &aborted) {
            if (!emulator::sleep_unless(aborted, fault.delay)) {
                return 0;
            }
            return fault.late_code != 0 ? fault.late_code : emulator::reach(*recorded, record);
        });
    });
}

// Waits for the latest record that was asked for before this call.
EMULATOR_API int aclrtStreamWaitEvent(void *stream, void *event) {
    return emulator::call("aclrtStreamWaitEvent", Needs::context, [&](const Fault &) {
        const auto awaited = event_of("aclrtStreamWaitEvent", event);
        const auto on = emulator::stream_of("aclrtStreamWaitEvent", stream);
        std::uint64_t record = 0;
        {
            const std::lock_guard<std::mutex> lock(awaited->mutex);
            record = awaited->recorded;
        }
        on->submit(
            [awaited, record](const std::atomic<bool> &aborted) { return emulator::wait(*awaited, record, aborted); });
    });
}

EMULATOR_API int aclrtQueryEventStatus(void *event, int *status) {
    return emulator::call("aclrtQueryEventStatus", Needs::context, [&](const Fault &) {
        emulator::require("aclrtQueryEventStatus", "status", status);
        const auto asked = event_of("aclrtQueryEventStatus", event);
        const std::lock_guard<std::mutex> lock(asked->mutex);
        *status = asked->reached >= asked->recorded ? abi::kEventComplete : abi::kEventNotReady;
    });
}
