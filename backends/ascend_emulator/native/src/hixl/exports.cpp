// The transfer engine as C functions. The Python module that looks like the vendor's is built on them.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "../call.hpp"
#include "../context.hpp"
#include "../settings.hpp"
#include "engine.hpp"

namespace emulator::hixl {

namespace {

struct Registry {
    std::mutex mutex;
    std::map<std::uint64_t, std::shared_ptr<Engine>> engines;
    std::map<std::uint64_t, int> devices;
    std::uint64_t last = 0;
};

Registry &registry() {
    static Registry &all = *new Registry;
    return all;
}

std::shared_ptr<Engine> engine_of(std::uint64_t engine) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto found = registry().engines.find(engine);
    if (found == registry().engines.end()) {
        fail(kFailed, "the engine is not initialised");
    }
    return found->second;
}

// The runtime's own codes mean nothing to callers of the transfer module.
int translated(int code) {
    static const std::set<int> runtime{abi::kNotInitialised, abi::kNoContext, abi::kInternalError, abi::kBadAllocation};
    return runtime.count(code) != 0 ? static_cast<int>(kFailed) : code;
}

template <typename Body>
int call_engine(const char *function, std::uint64_t engine, Body &&body) {
    return translated(call(function, Needs::initialised, [&](const Fault &) { body(*engine_of(engine)); }));
}

// For transfers and notifications, which carry out the planned fault themselves: it belongs to the link's thread.
template <typename Body>
int call_link(const char *function, std::uint64_t engine, Body &&body) noexcept {
    try {
        const Fault fault = next_fault(function);
        check_needs(function, Needs::initialised);
        body(*engine_of(engine), fault);
        return kOk;
    } catch (const Failure &failure) {
        return translated(report(failure.code(), failure.what()));
    } catch (const std::exception &error) {
        return report(kFailed, error.what());
    }
}

}  // namespace

}  // namespace emulator::hixl

using emulator::Needs;
using emulator::hixl::call_engine;
using emulator::hixl::call_link;
using emulator::hixl::Element;
using emulator::hixl::Engine;
using emulator::hixl::registry;
namespace hixl = emulator::hixl;

static_assert(sizeof(Element) == 24);

// 0 for Atlas A2, 1 for A3, 2 for 950, 3 for what is in none of the tables.
EMULATOR_API int cachecore_emulator_product_line() { return static_cast<int>(emulator::settings().line); }

// `protocols` and `flags` are bits as in status.hpp. The engine is of the calling thread's device.
EMULATOR_API int cachecore_emulator_hixl_initialize(const char *local_engine, std::uint32_t protocols,
                                                    std::uint32_t flags, std::uint64_t *engine) {
    return hixl::translated(emulator::call("hixl_initialize", Needs::context, [&](const emulator::Fault &) {
        emulator::require("hixl_initialize", "local_engine", local_engine);
        emulator::require("hixl_initialize", "engine", engine);
        const int device = emulator::current_context()->device;
        std::uint64_t id = 0;
        {
            const std::lock_guard<std::mutex> lock(registry().mutex);
            for (const auto &[other, taken] : registry().devices) {
                if (taken == device) {
                    emulator::fail(hixl::kFailed, "device ", device, " has an engine in this process already");
                }
            }
            id = ++registry().last;
            registry().devices.emplace(id, device);
        }
        try {
            auto created = std::make_shared<Engine>(local_engine, protocols, flags);
            const std::lock_guard<std::mutex> lock(registry().mutex);
            registry().engines.emplace(id, std::move(created));
        } catch (...) {
            const std::lock_guard<std::mutex> lock(registry().mutex);
            registry().devices.erase(id);
            throw;
        }
        *engine = id;
    }));
}

// Ends every link, in both directions.
EMULATOR_API int cachecore_emulator_hixl_finalize(std::uint64_t engine) {
    return hixl::translated(emulator::call("hixl_finalize", Needs::nothing, [&](const emulator::Fault &) {
        std::shared_ptr<Engine> ended = hixl::engine_of(engine);
        {
            const std::lock_guard<std::mutex> lock(registry().mutex);
            registry().engines.erase(engine);
        }
        ended.reset();
        const std::lock_guard<std::mutex> lock(registry().mutex);
        registry().devices.erase(engine);
    }));
}

EMULATOR_API int cachecore_emulator_hixl_register_mem(std::uint64_t engine, std::uint64_t address, std::uint64_t nbytes,
                                                      int type, std::uint64_t *handle) {
    return call_engine("hixl_register_mem", engine, [&](Engine &on) {
        emulator::require("hixl_register_mem", "handle", handle);
        *handle = on.register_memory(address, nbytes, type);
    });
}

EMULATOR_API int cachecore_emulator_hixl_deregister_mem(std::uint64_t engine, std::uint64_t handle) {
    return call_engine("hixl_deregister_mem", engine, [&](Engine &on) { on.deregister_memory(handle); });
}

EMULATOR_API int cachecore_emulator_hixl_connect(std::uint64_t engine, const char *remote, std::int32_t timeout_ms) {
    return call_engine("hixl_connect", engine, [&](Engine &on) {
        emulator::require("hixl_connect", "remote", remote);
        on.connect(remote, timeout_ms);
    });
}

EMULATOR_API int cachecore_emulator_hixl_disconnect(std::uint64_t engine, const char *remote, std::int32_t timeout_ms) {
    return call_engine("hixl_disconnect", engine, [&](Engine &on) {
        emulator::require("hixl_disconnect", "remote", remote);
        on.disconnect(remote, timeout_ms);
    });
}

// `elements` are triples of local address, remote address and bytes.
EMULATOR_API int cachecore_emulator_hixl_transfer_sync(std::uint64_t engine, const char *remote, int operation,
                                                       const Element *elements, std::size_t count,
                                                       std::int32_t timeout_ms) {
    return call_link("hixl_transfer_sync", engine, [&](Engine &on, const emulator::Fault &fault) {
        emulator::require("hixl_transfer_sync", "remote", remote);
        on.transfer(remote, operation, elements, count, timeout_ms, fault);
    });
}

EMULATOR_API int cachecore_emulator_hixl_transfer_async(std::uint64_t engine, const char *remote, int operation,
                                                        const Element *elements, std::size_t count,
                                                        std::uint64_t *request) {
    return call_link("hixl_transfer_async", engine, [&](Engine &on, const emulator::Fault &fault) {
        emulator::require("hixl_transfer_async", "remote", remote);
        emulator::require("hixl_transfer_async", "request", request);
        *request = on.transfer_later(remote, operation, elements, count, fault);
    });
}

EMULATOR_API int cachecore_emulator_hixl_get_transfer_status(std::uint64_t engine, std::uint64_t request, int *status) {
    return call_engine("hixl_get_transfer_status", engine, [&](Engine &on) {
        emulator::require("hixl_get_transfer_status", "status", status);
        *status = on.status_of(request);
    });
}

EMULATOR_API int cachecore_emulator_hixl_send_notify(std::uint64_t engine, const char *remote, const char *name,
                                                     const char *text, std::int32_t timeout_ms) {
    return call_link("hixl_send_notify", engine, [&](Engine &on, const emulator::Fault &fault) {
        emulator::require("hixl_send_notify", "remote", remote);
        emulator::require("hixl_send_notify", "name", name);
        emulator::require("hixl_send_notify", "text", text);
        on.notify(remote, name, text, timeout_ms, fault);
    });
}

// Takes the oldest notification. `name` and `text` have room for 4097 bytes each; `found` is 0 when none waits.
EMULATOR_API int cachecore_emulator_hixl_take_notify(std::uint64_t engine, char *name, char *text, int *found) {
    return call_engine("hixl_get_notifies", engine, [&](Engine &on) {
        hixl::Notification notification;
        *found = on.take_notification(notification) ? 1 : 0;
        std::memcpy(name, notification.name.c_str(), notification.name.size() + 1);
        std::memcpy(text, notification.text.c_str(), notification.text.size() + 1);
    });
}
