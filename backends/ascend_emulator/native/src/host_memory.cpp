// Page-locked host memory, and registration of the caller's own.
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "address_space.hpp"
#include "call.hpp"
#include "context.hpp"
#include "memory.hpp"
#include "settings.hpp"

namespace emulator {

namespace {

struct Pinned {
    std::size_t nbytes = 0;
    bool allocated = false;  // by aclrtMallocHost; else the caller's
    std::shared_ptr<Reservation> device_address;  // what aclrtHostRegister hands out: no memory behind it for the host
};

struct State {
    std::mutex mutex;
    std::map<std::uintptr_t, Pinned> ranges;
};

State &state() {
    static State &everything = *new State;
    return everything;
}

// Called with the mutex held.
bool overlaps(std::uintptr_t start, std::size_t nbytes) {
    auto next = state().ranges.lower_bound(start);
    if (next != state().ranges.end() && next->first - start < nbytes) {
        return true;
    }
    return next != state().ranges.begin() && start - std::prev(next)->first < std::prev(next)->second.nbytes;
}

// The kernel knows whether the addresses exist; on Linux this kind of msync does nothing else.
bool is_mapped(std::uintptr_t start, std::size_t nbytes) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::uintptr_t first = start / page * page;
    return msync(reinterpret_cast<void *>(first), start + nbytes - first, MS_ASYNC) == 0;
}

Pinned take(const char *function, void *pointer, bool allocated) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const auto found = state().ranges.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == state().ranges.end() || found->second.allocated != allocated) {
        fail(
            abi::kParameterInvalid, function, ": ", pointer,
            allocated ? " did not come from aclrtMallocHost, or was freed" : " is not the start of a registered range");
    }
    Pinned pinned = std::move(found->second);
    state().ranges.erase(found);
    return pinned;
}

}  // namespace

bool find_pinned(std::uintptr_t address, PinnedRange &found) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const auto next = state().ranges.upper_bound(address);
    if (next == state().ranges.begin()) {
        return false;
    }
    const auto &[start, pinned] = *std::prev(next);
    if (address - start >= pinned.nbytes) {
        return false;
    }
    found = {start, pinned.nbytes};
    return true;
}

bool is_pinned(std::uintptr_t address, std::size_t nbytes) {
    PinnedRange range;
    return find_pinned(address, range) && nbytes <= range.start + range.nbytes - address;
}

}  // namespace emulator

using emulator::Fault;
using emulator::Needs;
namespace abi = emulator::abi;

EMULATOR_API int aclrtMallocHost(void **pointer, std::size_t size) {
    return emulator::call("aclrtMallocHost", Needs::context, [&](const Fault &) {
        emulator::require("aclrtMallocHost", "pointer", pointer);
        if (size == 0) {
            emulator::fail(abi::kInvalidParameter, "aclrtMallocHost: size is 0");
        }
        void *address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (address == MAP_FAILED) {
            emulator::fail(abi::kOutOfMemory, "aclrtMallocHost: the host has no ", size, " bytes");
        }
        emulator::Pinned pinned;
        pinned.nbytes = size;
        pinned.allocated = true;
        const std::lock_guard<std::mutex> lock(emulator::state().mutex);
        emulator::state().ranges.emplace(reinterpret_cast<std::uintptr_t>(address), std::move(pinned));
        *pointer = address;
    });
}

EMULATOR_API int aclrtFreeHost(void *pointer) {
    return emulator::call("aclrtFreeHost", Needs::context, [&](const Fault &) {
        emulator::require("aclrtFreeHost", "pointer", pointer);
        munmap(pointer, emulator::take("aclrtFreeHost", pointer, true).nbytes);
    });
}

EMULATOR_API int aclrtHostRegister(void *pointer, std::uint64_t size, int type, void **device_pointer) {
    return emulator::call("aclrtHostRegister", Needs::context, [&](const Fault &) {
        emulator::require("aclrtHostRegister", "pointer", pointer);
        emulator::require("aclrtHostRegister", "device_pointer", device_pointer);
        if (emulator::settings().line == emulator::Line::ascend950) {
            emulator::fail(abi::kFeatureNotSupported, "aclrtHostRegister: not supported on ", emulator::settings().soc);
        }
        const auto start = reinterpret_cast<std::uintptr_t>(pointer);
        const bool known = type == abi::kHostMapped || type == abi::kHostIo || type == abi::kHostReadOnly;
        if (size == 0 || !known) {
            emulator::fail(abi::kParameterInvalid, "aclrtHostRegister: size is ", size, ", type is ", type,
                           "; size must be above 0, type 0, 4 or 8");
        }
        if (start % emulator::normal_page != 0) {
            emulator::fail(abi::kParameterInvalid, "aclrtHostRegister: ", pointer, " is not aligned to 4096 bytes");
        }
        if (emulator::touches_reservation(start, size)) {
            emulator::fail(abi::kParameterInvalid, "aclrtHostRegister: ", pointer, " is an address of a device");
        }
        if (!emulator::is_mapped(start, size)) {
            emulator::fail(abi::kParameterInvalid, "aclrtHostRegister: not all of ", pointer, " + ", size,
                           " is mapped");
        }
        emulator::Pinned pinned;
        pinned.nbytes = size;
        pinned.device_address = std::make_shared<emulator::Reservation>(size, emulator::huge_page);
        void *const result = reinterpret_cast<void *>(pinned.device_address->start());
        const std::lock_guard<std::mutex> lock(emulator::state().mutex);
        if (emulator::overlaps(start, size)) {
            emulator::fail(abi::kParameterInvalid, "aclrtHostRegister: ", pointer, " + ", size,
                           " overlaps memory that is page-locked already");
        }
        emulator::state().ranges.emplace(start, std::move(pinned));
        *device_pointer = result;
    });
}

EMULATOR_API int aclrtHostUnregister(void *pointer) {
    return emulator::call("aclrtHostUnregister", Needs::context, [&](const Fault &) {
        emulator::require("aclrtHostUnregister", "pointer", pointer);
        emulator::take("aclrtHostUnregister", pointer, false);
    });
}
