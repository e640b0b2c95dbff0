#include "context.hpp"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "call.hpp"
#include "memory.hpp"
#include "settings.hpp"
#include "streams.hpp"

namespace emulator {

namespace {

std::atomic<bool> forked{false};

struct Entry {
    std::shared_ptr<Context> context;
    std::uint64_t uses = 0;  // aclrtSetDevice counts up, aclrtResetDevice down
};

struct State {
    std::mutex mutex;
    bool initialised = false;
    std::map<int, Entry> devices;
};

State &state() {
    static State &everything = *new State;
    return everything;
}

// A weak reference: a reset of the device takes the context away from every thread.
std::weak_ptr<Context> &current() {
    thread_local std::weak_ptr<Context> context;
    return context;
}

bool initialised() {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return state().initialised;
}

// Ends what a context had. Called without the mutex: queued work is waited for.
void end_context(const std::shared_ptr<Context> &context) {
    destroy_streams(context.get());
    free_device(context->device);
}

}  // namespace

std::shared_ptr<Context> current_context() {
    auto context = current().lock();
    if (context == nullptr) {
        fail(abi::kNoContext,
             "this thread has no current context; call aclrtSetDevice or aclrtSetCurrentContext in it");
    }
    return context;
}

int device_count() { return static_cast<int>(settings().visible.size()); }

void check_device(int device) {
    if (device < 0 || device >= device_count()) {
        fail(abi::kInvalidDeviceId, "device ", device, " is not one of the ", device_count(), " visible devices");
    }
}

void check_needs(const char *function, Needs needs) {
    if (forked.load()) {
        fail(abi::kInternalError, function,
             ": this process was forked from one that used the runtime; a device does not "
             "survive fork, start a new process instead");
    }
    if (needs == Needs::nothing) {
        return;
    }
    if (!initialised()) {
        fail(abi::kNotInitialised, function, ": aclInit was not called");
    }
    if (needs == Needs::context) {
        current_context();
    }
}

}  // namespace emulator

using emulator::Entry;
using emulator::Fault;
using emulator::Needs;
using emulator::state;
namespace abi = emulator::abi;

EMULATOR_API int aclInit(const char * /*config*/) {
    return emulator::call("aclInit", Needs::nothing, [](const Fault &) {
        if (!emulator::settings().problem.empty()) {
            emulator::fail(abi::kInvalidParameter, "aclInit: ", emulator::settings().problem);
        }
        if (const std::string problem = emulator::fault_plan_problem(); !problem.empty()) {
            emulator::fail(abi::kInvalidParameter, "aclInit: ", problem);
        }
        static const int watched = pthread_atfork(nullptr, nullptr, [] { emulator::forked.store(true); });
        if (watched != 0) {
            emulator::fail(abi::kInternalError, "aclInit: a fork could not be watched for");
        }
        const std::lock_guard<std::mutex> lock(state().mutex);
        if (state().initialised) {
            emulator::fail(abi::kRepeatInitialise, "aclInit: the runtime is initialised already");
        }
        state().initialised = true;
    });
}

EMULATOR_API int aclFinalize() {
    return emulator::call("aclFinalize", Needs::nothing, [](const Fault &) {
        std::map<int, Entry> devices;
        {
            const std::lock_guard<std::mutex> lock(state().mutex);
            if (!state().initialised) {
                emulator::fail(abi::kRepeatFinalise, "aclFinalize: the runtime is not initialised");
            }
            state().initialised = false;
            devices.swap(state().devices);
        }
        for (const auto &[device, entry] : devices) {
            emulator::end_context(entry.context);
        }
    });
}

// Answers before aclInit too: who looks for the product needs no device for it.
EMULATOR_API const char *aclrtGetSocName() {
    const int code = emulator::call("aclrtGetSocName", Needs::nothing, [](const Fault &) {
        if (emulator::settings().soc.empty()) {
            emulator::fail(abi::kInvalidParameter, "aclrtGetSocName: ", emulator::settings().problem);
        }
    });
    return code == abi::kSuccess ? emulator::settings().soc.c_str() : nullptr;
}

EMULATOR_API int aclrtGetDeviceCount(std::uint32_t *count) {
    return emulator::call("aclrtGetDeviceCount", Needs::nothing, [&](const Fault &) {
        emulator::require("aclrtGetDeviceCount", "count", count);
        *count = static_cast<std::uint32_t>(emulator::device_count());
        if (*count == 0) {
            emulator::fail(abi::kNoDevice,
                           "aclrtGetDeviceCount: no device is visible; look at CACHECORE_EMULATE and "
                           "ASCEND_RT_VISIBLE_DEVICES");
        }
    });
}

EMULATOR_API int aclrtSetDevice(std::int32_t device) {
    return emulator::call("aclrtSetDevice", Needs::initialised, [&](const Fault &) {
        emulator::check_device(device);
        const std::lock_guard<std::mutex> lock(state().mutex);
        Entry &entry = state().devices[device];
        if (entry.context == nullptr) {
            entry.context = std::make_shared<emulator::Context>();
            entry.context->device = device;
            entry.context->default_stream = emulator::make_stream(entry.context.get());
        }
        ++entry.uses;
        emulator::current() = entry.context;
    });
}

EMULATOR_API int aclrtGetDevice(std::int32_t *device) {
    return emulator::call("aclrtGetDevice", Needs::context, [&](const Fault &) {
        emulator::require("aclrtGetDevice", "device", device);
        *device = emulator::current_context()->device;
    });
}

EMULATOR_API int aclrtResetDevice(std::int32_t device) {
    return emulator::call("aclrtResetDevice", Needs::initialised, [&](const Fault &) {
        emulator::check_device(device);
        std::shared_ptr<emulator::Context> ended;
        {
            const std::lock_guard<std::mutex> lock(state().mutex);
            const auto found = state().devices.find(device);
            if (found == state().devices.end()) {
                emulator::fail(abi::kNoContext, "aclrtResetDevice: device ", device, " is not set");
            }
            if (--found->second.uses == 0) {
                ended = found->second.context;
                state().devices.erase(found);
            }
        }
        if (ended != nullptr) {
            emulator::end_context(ended);
        }
    });
}

EMULATOR_API int aclrtGetCurrentContext(void **context) {
    return emulator::call("aclrtGetCurrentContext", Needs::context, [&](const Fault &) {
        emulator::require("aclrtGetCurrentContext", "context", context);
        *context = emulator::current_context().get();
    });
}

EMULATOR_API int aclrtSetCurrentContext(void *context) {
    return emulator::call("aclrtSetCurrentContext", Needs::initialised, [&](const Fault &) {
        emulator::require("aclrtSetCurrentContext", "context", context);
        const std::lock_guard<std::mutex> lock(state().mutex);
        for (const auto &[device, entry] : state().devices) {
            if (entry.context.get() == context) {
                emulator::current() = entry.context;
                return;
            }
        }
        emulator::fail(abi::kParameterInvalid, "aclrtSetCurrentContext: no context is at ", context);
    });
}
