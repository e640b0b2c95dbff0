// aclrtMemcpyBatch and aclrtMemcpyBatchAsync: many copies of one direction, between host and device only.
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "call.hpp"
#include "capture.hpp"
#include "context.hpp"
#include "copy.hpp"
#include "memory.hpp"
#include "streams.hpp"

namespace emulator {

namespace {

constexpr std::size_t no_index = std::numeric_limits<std::size_t>::max();

struct Arguments {
    void **destinations;
    std::size_t *rooms;
    void **sources;
    std::size_t *sizes;
    std::size_t count;
    abi::MemcpyBatchAttributes *attributes;
    std::size_t *indexes;
    std::size_t attribute_count;
    std::size_t *fail_index;
};

struct Batch {
    std::vector<Copy> copies;
    bool pageable = false;  // a host side that is not page-locked
};

[[noreturn]] void fail_at(const Arguments &arguments, std::size_t index, const char *function,
                          const std::string &reason) {
    *arguments.fail_index = index;
    fail(abi::kParameterInvalid, function, ": copy ", index, " ", reason);
}

void check_indexes(const char *function, const Arguments &arguments) {
    const std::size_t entries = arguments.attribute_count;
    if (entries == 0 || entries > arguments.count || arguments.indexes[0] != 0) {
        fail(abi::kParameterInvalid, function, ": there are ", entries, " attributes for ", arguments.count,
             " copies; it takes at least one, not more than copies, and the first index must be 0");
    }
    for (std::size_t entry = 1; entry < entries; ++entry) {
        if (arguments.indexes[entry] <= arguments.indexes[entry - 1] || arguments.indexes[entry] >= arguments.count) {
            fail(abi::kParameterInvalid, function, ": index ", entry, " of the attributes is ",
                 arguments.indexes[entry], "; indexes must rise and stay below the number of copies");
        }
    }
}

// The one direction of the batch, from its first attribute.
int direction_of(const char *function, const Arguments &arguments, std::size_t index,
                 const abi::MemcpyBatchAttributes &attributes) {
    if (attributes.source.type == abi::kHost && attributes.destination.type == abi::kDevice) {
        return abi::kHostToDevice;
    }
    if (attributes.source.type == abi::kDevice && attributes.destination.type == abi::kHost) {
        return abi::kDeviceToHost;
    }
    fail_at(arguments, index, function, "is neither from host to device nor from device to host by its attributes");
}

// The device's side must be where the attributes say.
void check_location(const char *function, const Arguments &arguments, std::size_t index, const void *address,
                    std::uint32_t device) {
    const auto range = find_range(reinterpret_cast<std::uintptr_t>(address));
    if (!range || static_cast<std::uint32_t>(range->backing->device()) != device) {
        fail_at(arguments, index, function, "is not in memory of the device that its attributes name");
    }
}

Batch prepare(const char *function, const Arguments &arguments) {
    require(function, "dsts", arguments.destinations);
    require(function, "destMaxs", arguments.rooms);
    require(function, "srcs", arguments.sources);
    require(function, "sizes", arguments.sizes);
    require(function, "attrs", arguments.attributes);
    require(function, "attrsIndexes", arguments.indexes);
    require(function, "failIndex", arguments.fail_index);
    *arguments.fail_index = no_index;
    if (arguments.count == 0) {
        fail(abi::kInvalidParameter, function, ": numBatches is 0");
    }
    check_indexes(function, arguments);
    Batch batch;
    batch.copies.reserve(arguments.count);
    const int direction = direction_of(function, arguments, 0, arguments.attributes[0]);
    std::size_t entry = 0;
    for (std::size_t index = 0; index < arguments.count; ++index) {
        if (entry + 1 < arguments.attribute_count && arguments.indexes[entry + 1] == index) {
            ++entry;
        }
        const auto &attributes = arguments.attributes[entry];
        if (direction_of(function, arguments, index, attributes) != direction) {
            fail_at(arguments, index, function, "goes the other way than the first; a batch has one direction");
        }
        const bool to_device = direction == abi::kHostToDevice;
        void *const destination = arguments.destinations[index];
        void *const source = arguments.sources[index];
        try {
            batch.copies.push_back(
                prepare_copy(function, destination, arguments.rooms[index], source, arguments.sizes[index], direction));
        } catch (const Failure &) {
            *arguments.fail_index = index;
            throw;
        }
        check_location(function, arguments, index, to_device ? destination : source,
                       to_device ? attributes.destination.id : attributes.source.id);
        const auto host = reinterpret_cast<std::uintptr_t>(to_device ? source : destination);
        batch.pageable = batch.pageable || !is_pinned(host, arguments.sizes[index]);
    }
    return batch;
}

void carry_out_all(const Batch &batch, std::uint64_t limit, const std::atomic<bool> *aborted) {
    for (const Copy &copy : batch.copies) {
        limit -= carry_out(copy, limit, aborted);
    }
}

}  // namespace

}  // namespace emulator

using emulator::Fault;
using emulator::Needs;
namespace abi = emulator::abi;

EMULATOR_API int aclrtMemcpyBatch(void **destinations, std::size_t *rooms, void **sources, std::size_t *sizes,
                                  std::size_t count, abi::MemcpyBatchAttributes *attributes, std::size_t *indexes,
                                  std::size_t attribute_count, std::size_t *fail_index) {
    return emulator::call("aclrtMemcpyBatch", Needs::context, [&](const Fault &fault) {
        emulator::check_capture("aclrtMemcpyBatch");
        const auto batch = emulator::prepare("aclrtMemcpyBatch", {destinations, rooms, sources, sizes, count,
                                                                  attributes, indexes, attribute_count, fail_index});
        emulator::carry_out_all(batch, fault.truncate, nullptr);
    });
}

EMULATOR_API int aclrtMemcpyBatchAsync(void **destinations, std::size_t *rooms, void **sources, std::size_t *sizes,
                                       std::size_t count, abi::MemcpyBatchAttributes *attributes, std::size_t *indexes,
                                       std::size_t attribute_count, std::size_t *fail_index, void *stream) {
    int result = abi::kSuccess;
    const int code =
        emulator::call("aclrtMemcpyBatchAsync", Needs::context, emulator::Delay::in_task, [&](const Fault &fault) {
            auto batch = std::make_shared<const emulator::Batch>(emulator::prepare(
                "aclrtMemcpyBatchAsync",
                {destinations, rooms, sources, sizes, count, attributes, indexes, attribute_count, fail_index}));
            if (batch->pageable) {
                emulator::check_capture("aclrtMemcpyBatchAsync from or to memory that is not page-locked");
            }
            const auto on = emulator::stream_of("aclrtMemcpyBatchAsync", stream);
            on->submit([batch, fault](const std::atomic<bool> &aborted) {
                if (!emulator::sleep_unless(aborted, fault.delay)) {
                    return 0;
                }
                emulator::carry_out_all(*batch, fault.truncate, &aborted);
                return fault.late_code;
            });
            if (batch->pageable) {
                result = on->synchronize(std::chrono::milliseconds(-1));
            }
        });
    return code == abi::kSuccess ? result : code;
}
