// aclrtMemcpy and aclrtMemcpyAsync.
#include "copy.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "call.hpp"
#include "capture.hpp"
#include "context.hpp"
#include "device_access.hpp"
#include "memory.hpp"
#include "streams.hpp"

namespace emulator {

namespace {

constexpr std::size_t chunk = std::size_t{1} << 20;  // between two looks at the abort flag

std::vector<Piece> pieces_of(const char *function, const char *which, std::uintptr_t address, std::size_t nbytes,
                             bool device) {
    std::vector<Piece> pieces;
    if (nbytes == 0) {
        return pieces;
    }
    if (address + nbytes < address) {
        fail(abi::kParameterInvalid, function, ": ", which, " ends behind the last address");
    }
    if (device) {
        if (!resolve(address, nbytes, pieces)) {
            fail(abi::kParameterInvalid, function, ": ", which, " ", reinterpret_cast<void *>(address), " + ", nbytes,
                 " is not all device memory");
        }
        return pieces;
    }
    if (touches_reservation(address, nbytes)) {
        fail(abi::kParameterInvalid, function, ": ", which, " ", reinterpret_cast<void *>(address),
             " is a device address, the kind says host");
    }
    pieces.push_back({reinterpret_cast<std::byte *>(address), nbytes, nullptr});
    return pieces;
}

}  // namespace

Copy prepare_copy(const char *function, void *destination, std::size_t room, const void *source, std::size_t nbytes,
                  int kind) {
    require(function, "dst", destination);
    require(function, "src", source);
    if (nbytes > room) {
        fail(abi::kParameterInvalid, function, ": count is ", nbytes, ", the destination has room for ", room);
    }
    const auto to = reinterpret_cast<std::uintptr_t>(destination);
    const auto from = reinterpret_cast<std::uintptr_t>(source);
    bool to_device = kind == abi::kHostToDevice || kind == abi::kDeviceToDevice;
    bool from_device = kind == abi::kDeviceToHost || kind == abi::kDeviceToDevice;
    if (kind == abi::kInferred) {
        to_device = touches_reservation(to, nbytes);
        from_device = touches_reservation(from, nbytes);
    } else if (kind < abi::kHostToHost || kind > abi::kInferred) {
        fail(abi::kParameterInvalid, function, ": kind is ", kind, "; it must be 0 to 4");
    }
    Copy copy;
    copy.to = pieces_of(function, "dst", to, nbytes, to_device);
    copy.from = pieces_of(function, "src", from, nbytes, from_device);
    return copy;
}

std::uint64_t carry_out(const Copy &copy, std::uint64_t limit, const std::atomic<bool> *aborted) {
    std::uint64_t done = 0;
    std::size_t to = 0;
    std::size_t from = 0;
    std::size_t into_to = 0;
    std::size_t into_from = 0;
    while (to < copy.to.size() && from < copy.from.size() && done < limit) {
        if (aborted != nullptr && aborted->load()) {
            return done;
        }
        const Piece &target = copy.to[to];
        const Piece &origin = copy.from[from];
        std::size_t part = std::min({target.nbytes - into_to, origin.nbytes - into_from, chunk});
        part = static_cast<std::size_t>(std::min<std::uint64_t>(part, limit - done));
        const DeviceAccess access;
        std::memmove(target.data + into_to, origin.data + into_from, part);
        done += part;
        into_to += part;
        into_from += part;
        if (into_to == target.nbytes) {
            ++to;
            into_to = 0;
        }
        if (into_from == origin.nbytes) {
            ++from;
            into_from = 0;
        }
    }
    return done;
}

}  // namespace emulator

using emulator::Fault;
using emulator::Needs;
namespace abi = emulator::abi;

EMULATOR_API int aclrtMemcpy(void *destination, std::size_t room, const void *source, std::size_t count, int kind) {
    return emulator::call("aclrtMemcpy", Needs::context, [&](const Fault &fault) {
        emulator::check_capture("aclrtMemcpy");
        const auto copy = emulator::prepare_copy("aclrtMemcpy", destination, room, source, count, kind);
        emulator::carry_out(copy, fault.truncate, nullptr);
    });
}

// Returns at once when the host's side is page-locked or both are on devices; else after the copy.
EMULATOR_API int aclrtMemcpyAsync(void *destination, std::size_t room, const void *source, std::size_t count, int kind,
                                  void *stream) {
    int result = abi::kSuccess;
    const int code =
        emulator::call("aclrtMemcpyAsync", Needs::context, emulator::Delay::in_task, [&](const Fault &fault) {
            const auto to = reinterpret_cast<std::uintptr_t>(destination);
            const auto from = reinterpret_cast<std::uintptr_t>(source);
            const bool to_host = !emulator::touches_reservation(to, count);
            const bool from_host = !emulator::touches_reservation(from, count);
            auto copy = std::make_shared<const emulator::Copy>(
                emulator::prepare_copy("aclrtMemcpyAsync", destination, room, source, count, kind));
            if (to_host && from_host) {
                emulator::fail(abi::kFeatureNotSupported, "aclrtMemcpyAsync: not from host to host");
            }
            const bool pageable =
                (to_host && !emulator::is_pinned(to, count)) || (from_host && !emulator::is_pinned(from, count));
            if (pageable) {
                emulator::check_capture("aclrtMemcpyAsync from or to memory that is not page-locked");
            }
            const auto on = emulator::stream_of("aclrtMemcpyAsync", stream);
            on->submit([copy, fault](const std::atomic<bool> &aborted) {
                if (!emulator::sleep_unless(aborted, fault.delay)) {
                    return 0;
                }
                emulator::carry_out(*copy, fault.truncate, &aborted);
                return fault.late_code;
            });
            if (pageable) {
                result = on->synchronize(std::chrono::milliseconds(-1));
            }
        });
    return code == abi::kSuccess ? result : code;
}
