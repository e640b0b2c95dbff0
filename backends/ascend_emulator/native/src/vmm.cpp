// Virtual addresses and physical memory apart: reserve, allocate, map.
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "address_space.hpp"
#include "call.hpp"
#include "context.hpp"
#include "memory.hpp"
#include "physical_page.hpp"

namespace emulator {

namespace {

struct Physical {
    std::shared_ptr<Backing> backing;
    std::uint64_t references =
        1;  // aclrtMallocPhysical and each aclrtMemRetainAllocationHandle; aclrtFreePhysical ends one
    std::uint64_t mappings = 0;
};

struct Reserved {
    std::shared_ptr<Reservation> addresses;
    std::size_t nbytes = 0;  // as asked for
    int owner = 0;  // device that was current
    std::map<std::uintptr_t, Physical *> mapped;
};

struct State {
    std::mutex mutex;
    std::map<void *, std::unique_ptr<Physical>> physical;
    std::map<std::uintptr_t, Reserved> reserved;
};

State &state() {
    static State &everything = *new State;
    return everything;
}

// Called with the mutex held. Nothing uses a physical memory whose references and mappings are all gone.
void drop_unused(Physical *physical) {
    if (physical->references == 0 && physical->mappings == 0) {
        state().physical.erase(physical);
    }
}

// Called with the mutex held.
std::map<std::uintptr_t, Reserved>::iterator reservation_of(std::uintptr_t address) {
    auto next = state().reserved.upper_bound(address);
    if (next == state().reserved.begin()) {
        return state().reserved.end();
    }
    --next;
    return address - next->first < next->second.nbytes ? next : state().reserved.end();
}

Physical *physical_of(const char *function, void *handle) {
    const auto found = state().physical.find(handle);
    if (found == state().physical.end() || found->second->references == 0) {
        fail(abi::kParameterInvalid, function, ": ", handle, " is no handle of physical memory");
    }
    return found->second.get();
}

void map(std::uintptr_t address, std::size_t size, void *handle) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    Physical *const physical = physical_of("aclrtMapMem", handle);
    const auto reserved = reservation_of(address);
    if (reserved == state().reserved.end() || size > reserved->second.nbytes - (address - reserved->first)) {
        fail(abi::kParameterInvalid, "aclrtMapMem: ", reinterpret_cast<void *>(address), " + ", size,
             " does not lie in one reserved range");
    }
    if (size != physical->backing->nbytes()) {
        fail(abi::kParameterInvalid, "aclrtMapMem: size is ", size, ", the physical memory has ",
             physical->backing->nbytes());
    }
    if (address % physical->backing->page() != 0) {
        fail(abi::kParameterInvalid, "aclrtMapMem: ", reinterpret_cast<void *>(address),
             " is not aligned to the pages of ", physical->backing->page(), " bytes");
    }
    auto &mapped = reserved->second.mapped;
    if (touches_device(address, size)) {
        fail(abi::kParameterInvalid, "aclrtMapMem: a part of ", reinterpret_cast<void *>(address), " + ", size,
             " is mapped already");
    }
    if (!mapped.empty() && mapped.begin()->second->backing->device() != physical->backing->device()) {
        fail(abi::kParameterInvalid, "aclrtMapMem: one reserved range cannot have memory of two devices");
    }
    Range range;
    range.start = range.block = address;
    range.nbytes = range.usable = range.block_nbytes = size;
    range.origin = Origin::mapped;
    range.backing = physical->backing;
    range.reservation = reserved->second.addresses;
    mapped.emplace(address, physical);
    ++physical->mappings;
    add_range(std::move(range));
}

void unmap(std::uintptr_t address) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const auto reserved = reservation_of(address);
    if (reserved == state().reserved.end() || reserved->second.mapped.count(address) == 0) {
        fail(abi::kParameterInvalid, "aclrtUnmapMem: nothing is mapped at ", reinterpret_cast<void *>(address));
    }
    const auto mapped = reserved->second.mapped.find(address);
    Physical *const physical = mapped->second;
    remove_range(address, Origin::mapped);
    reserved->second.mapped.erase(mapped);
    --physical->mappings;
    drop_unused(physical);
}

}  // namespace

void free_mappings(int device) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    auto &reserved = state().reserved;
    for (auto entry = reserved.begin(); entry != reserved.end();) {
        auto &mapped = entry->second.mapped;
        const bool of_device = !mapped.empty() && mapped.begin()->second->backing->device() == device;
        if (of_device) {
            for (const auto &[start, physical] : mapped) {
                remove_range(start, Origin::mapped);
                --physical->mappings;
            }
            mapped.clear();
        }
        entry = entry->second.owner == device && mapped.empty() ? reserved.erase(entry) : std::next(entry);
    }
    auto &physical = state().physical;
    for (auto entry = physical.begin(); entry != physical.end();) {
        entry = entry->second->backing->device() == device ? physical.erase(entry) : std::next(entry);
    }
}

}  // namespace emulator

using emulator::Fault;
using emulator::Needs;
using emulator::Physical;
using emulator::Reserved;
using emulator::state;
namespace abi = emulator::abi;

EMULATOR_API int aclrtReserveMemAddress(void **address, std::size_t size, std::size_t alignment, void *expected,
                                        std::uint64_t flags) {
    return emulator::call("aclrtReserveMemAddress", Needs::context, [&](const Fault &) {
        emulator::require("aclrtReserveMemAddress", "address", address);
        if (size == 0) {
            emulator::fail(abi::kInvalidParameter, "aclrtReserveMemAddress: size is 0");
        }
        if (alignment != 0 || flags > 1) {
            emulator::fail(abi::kParameterInvalid, "aclrtReserveMemAddress: alignment is ", alignment,
                           " and must be 0, flags are ", flags, " and must be 0 or 1");
        }
        if (expected != nullptr) {
            emulator::fail(abi::kFeatureNotSupported,
                           "aclrtReserveMemAddress: the emulator chooses the addresses itself");
        }
        Reserved reserved;
        const std::size_t unit = size >= emulator::huge_1g_page ? emulator::huge_1g_page : emulator::huge_page;
        reserved.addresses = std::make_shared<emulator::Reservation>(size, unit);
        reserved.nbytes = size;
        reserved.owner = emulator::current_context()->device;
        const std::uintptr_t start = reserved.addresses->start();
        const std::lock_guard<std::mutex> lock(state().mutex);
        state().reserved.emplace(start, std::move(reserved));
        *address = reinterpret_cast<void *>(start);
    });
}

EMULATOR_API int aclrtReleaseMemAddress(void *address) {
    return emulator::call("aclrtReleaseMemAddress", Needs::context, [&](const Fault &) {
        emulator::require("aclrtReleaseMemAddress", "address", address);
        const std::lock_guard<std::mutex> lock(state().mutex);
        const auto found = state().reserved.find(reinterpret_cast<std::uintptr_t>(address));
        if (found == state().reserved.end()) {
            emulator::fail(abi::kParameterInvalid, "aclrtReleaseMemAddress: ", address,
                           " is not the start of a reserved range");
        }
        if (!found->second.mapped.empty()) {
            emulator::fail(abi::kParameterInvalid, "aclrtReleaseMemAddress: ", found->second.mapped.size(),
                           " blocks are still mapped in the range; unmap them first");
        }
        state().reserved.erase(found);
    });
}

EMULATOR_API int aclrtMallocPhysical(void **handle, std::size_t size, const abi::PhysicalMemoryProperties *properties,
                                     std::uint64_t flags) {
    return emulator::call("aclrtMallocPhysical", Needs::context, [&](const Fault &) {
        emulator::require("aclrtMallocPhysical", "handle", handle);
        emulator::require("aclrtMallocPhysical", "properties", properties);
        if (size == 0) {
            emulator::fail(abi::kInvalidParameter, "aclrtMallocPhysical: size is 0");
        }
        if (flags != 0) {
            emulator::fail(abi::kParameterInvalid, "aclrtMallocPhysical: flags are ", flags, " and must be 0");
        }
        const std::size_t page = emulator::physical_page("aclrtMallocPhysical", *properties);
        if (size % page != 0) {
            emulator::fail(abi::kParameterInvalid, "aclrtMallocPhysical: size is ", size, "; it must be a multiple of ",
                           page);
        }
        auto physical = std::make_unique<Physical>();
        physical->backing = std::make_shared<emulator::Backing>(static_cast<int>(properties->location.id), size, page);
        *handle = physical.get();
        const std::lock_guard<std::mutex> lock(state().mutex);
        state().physical.emplace(physical.get(), std::move(physical));
    });
}

EMULATOR_API int aclrtFreePhysical(void *handle) {
    return emulator::call("aclrtFreePhysical", Needs::context, [&](const Fault &) {
        emulator::require("aclrtFreePhysical", "handle", handle);
        const std::lock_guard<std::mutex> lock(state().mutex);
        Physical *const physical = emulator::physical_of("aclrtFreePhysical", handle);
        --physical->references;
        emulator::drop_unused(physical);
    });
}

EMULATOR_API int aclrtMapMem(void *address, std::size_t size, std::size_t offset, void *handle, std::uint64_t flags) {
    return emulator::call("aclrtMapMem", Needs::context, [&](const Fault &) {
        emulator::require("aclrtMapMem", "address", address);
        emulator::require("aclrtMapMem", "handle", handle);
        if (offset != 0 || flags != 0) {
            emulator::fail(abi::kParameterInvalid, "aclrtMapMem: offset is ", offset, " and flags are ", flags,
                           "; both must be 0");
        }
        emulator::map(reinterpret_cast<std::uintptr_t>(address), size, handle);
    });
}

EMULATOR_API int aclrtUnmapMem(void *address) {
    return emulator::call("aclrtUnmapMem", Needs::context, [&](const Fault &) {
        emulator::require("aclrtUnmapMem", "address", address);
        emulator::unmap(reinterpret_cast<std::uintptr_t>(address));
    });
}

// Only the start of a mapping has a handle: memory from aclrtMalloc has none. Each success needs one aclrtFreePhysical.
EMULATOR_API int aclrtMemRetainAllocationHandle(void *address, void **handle) {
    return emulator::call("aclrtMemRetainAllocationHandle", Needs::context, [&](const Fault &) {
        emulator::require("aclrtMemRetainAllocationHandle", "address", address);
        emulator::require("aclrtMemRetainAllocationHandle", "handle", handle);
        const auto start = reinterpret_cast<std::uintptr_t>(address);
        const std::lock_guard<std::mutex> lock(state().mutex);
        const auto reserved = emulator::reservation_of(start);
        if (reserved == state().reserved.end() || reserved->second.mapped.count(start) == 0) {
            emulator::fail(abi::kParameterInvalid, "aclrtMemRetainAllocationHandle: ", address,
                           " is not where aclrtMapMem mapped memory");
        }
        Physical *const physical = reserved->second.mapped.at(start);
        ++physical->references;
        *handle = physical;
    });
}
