// aclrtMalloc: policy and size choose the pages; small allocations are cut out of a bigger block.
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "address_space.hpp"
#include "call.hpp"
#include "context.hpp"
#include "memory.hpp"
#include "settings.hpp"

namespace emulator {

namespace {

constexpr std::size_t start_alignment = 64;
constexpr std::size_t small_limit = std::size_t{1} << 20;  // up to here HUGE_FIRST takes ordinary pages
constexpr std::size_t small_block = std::size_t{2} << 20;
constexpr std::size_t out_of_range_huge = std::size_t{2} << 20;

// Ordinary pages from which small allocations are cut.
struct SmallBlock {
    std::shared_ptr<Backing> backing;
    std::shared_ptr<Reservation> reservation;
    std::map<std::size_t, std::size_t> free;  // offset -> bytes, neighbours merged
};

struct SmallBlocks {
    std::mutex mutex;
    std::map<int, std::vector<std::unique_ptr<SmallBlock>>> of_device;
};

SmallBlocks &small_blocks() {
    static SmallBlocks &all = *new SmallBlocks;
    return all;
}

enum class Pages { normal, huge, huge_first, huge_1g };

Pages pages_for(int policy, std::size_t size) {
    switch (policy) {
        case abi::kHugeFirst:
        case abi::kHugeFirstP2p:
        case abi::kLowBandwidth:
        case abi::kHighBandwidth:
            return size <= small_limit ? Pages::normal : Pages::huge_first;
        case abi::kHugeOnly:
        case abi::kHugeOnlyP2p:
            return Pages::huge;
        case abi::kNormalOnly:
        case abi::kNormalOnlyP2p:
            return Pages::normal;
        case abi::kHuge1gOnly:
        case abi::kHuge1gOnlyP2p:
            return Pages::huge_1g;
        default:  // out of range, and so is more than one enumerator or-ed together
            return size >= out_of_range_huge ? Pages::huge_first : Pages::normal;
    }
}

std::size_t rounded(std::size_t size, Pages pages) {
    const bool longer = settings().line != Line::ascend950 && pages != Pages::huge_1g;
    const std::size_t result = round_up(size, 32) + (longer ? 32 : 0);
    if (result < size || result > (std::size_t{1} << 46)) {
        fail(abi::kOutOfMemory, "aclrtMalloc: no device has ", size, " bytes");
    }
    return result;
}

std::uintptr_t whole_block(int device, std::size_t usable, std::size_t page) {
    const std::size_t nbytes = round_up(usable, page);
    Range range;
    range.backing = std::make_shared<Backing>(device, nbytes, page);
    range.reservation = std::make_shared<Reservation>(nbytes, page);
    range.start = range.block = range.reservation->start();
    range.nbytes = range.block_nbytes = nbytes;
    range.usable = usable;
    const std::uintptr_t start = range.start;
    add_range(std::move(range));
    return start;
}

// Called with the mutex held. The offset in the block, or false when no gap is long enough.
bool cut(SmallBlock &block, std::size_t taken, std::size_t &offset) {
    for (auto gap = block.free.begin(); gap != block.free.end(); ++gap) {
        if (gap->second < taken) {
            continue;
        }
        offset = gap->first;
        const std::size_t left = gap->second - taken;
        block.free.erase(gap);
        if (left > 0) {
            block.free.emplace(offset + taken, left);
        }
        return true;
    }
    return false;
}

std::uintptr_t cut_from_block(int device, std::size_t usable) {
    const std::size_t taken = round_up(usable, start_alignment);
    const std::lock_guard<std::mutex> lock(small_blocks().mutex);
    auto &blocks = small_blocks().of_device[device];
    SmallBlock *chosen = nullptr;
    std::size_t offset = 0;
    for (const auto &block : blocks) {
        if (cut(*block, taken, offset)) {
            chosen = block.get();
            break;
        }
    }
    if (chosen == nullptr) {
        auto block = std::make_unique<SmallBlock>();
        block->backing = std::make_shared<Backing>(device, small_block, normal_page);
        block->reservation = std::make_shared<Reservation>(small_block, huge_page);
        block->free.emplace(0, small_block);
        cut(*block, taken, offset);
        chosen = block.get();
        blocks.push_back(std::move(block));
    }
    Range range;
    range.backing = chosen->backing;
    range.reservation = chosen->reservation;
    range.block = chosen->reservation->start();
    range.block_nbytes = small_block;
    range.start = range.block + offset;
    range.offset = offset;
    range.nbytes = taken;
    range.usable = usable;
    const std::uintptr_t start = range.start;
    add_range(std::move(range));
    return start;
}

// Gives a small allocation back to its block; a block that is all free goes back to the device.
void return_to_block(const Range &range) {
    const std::lock_guard<std::mutex> lock(small_blocks().mutex);
    auto &blocks = small_blocks().of_device[range.backing->device()];
    for (auto block = blocks.begin(); block != blocks.end(); ++block) {
        if ((*block)->backing != range.backing) {
            continue;
        }
        auto &free = (*block)->free;
        auto gap = free.emplace(range.offset, range.nbytes).first;
        if (const auto next = std::next(gap); next != free.end() && gap->first + gap->second == next->first) {
            gap->second += next->second;
            free.erase(next);
        }
        if (gap != free.begin()) {
            const auto before = std::prev(gap);
            if (before->first + before->second == gap->first) {
                before->second += gap->second;
                free.erase(gap);
            }
        }
        if (free.begin()->second == small_block) {
            blocks.erase(block);
        }
        return;
    }
}

std::uintptr_t allocate(int device, std::size_t size, int policy) {
    const Pages pages = pages_for(policy, size);
    const std::size_t usable = rounded(size, pages);
    if (pages == Pages::huge_1g) {
        if (settings().line == Line::ascend950) {
            fail(abi::kFeatureNotSupported, "aclrtMalloc: pages of 1 GiB are not supported on ", settings().soc);
        }
        return whole_block(device, usable, huge_1g_page);
    }
    if (pages == Pages::huge) {
        return whole_block(device, usable, huge_page);
    }
    if (pages == Pages::huge_first) {
        try {
            return whole_block(device, usable, huge_page);
        } catch (const Failure &failure) {
            if (failure.code() != abi::kOutOfMemory) {
                throw;
            }
            return whole_block(device, usable, normal_page);  // huge pages first, ordinary ones where they ran out
        }
    }
    return size <= small_limit ? cut_from_block(device, usable) : whole_block(device, usable, normal_page);
}

}  // namespace

void free_small_blocks(int device) {
    const std::lock_guard<std::mutex> lock(small_blocks().mutex);
    small_blocks().of_device.erase(device);
}

void free_device(int device) {
    for (const Range &range : ranges_of(device)) {
        remove_range(range.start, range.origin);
    }
    free_small_blocks(device);
    free_mappings(device);
}

}  // namespace emulator

using emulator::Fault;
using emulator::Needs;
namespace abi = emulator::abi;

EMULATOR_API int aclrtMalloc(void **pointer, std::size_t size, int policy) {
    return emulator::call("aclrtMalloc", Needs::context, [&](const Fault &) {
        emulator::require("aclrtMalloc", "pointer", pointer);
        if (size == 0) {
            emulator::fail(abi::kInvalidParameter, "aclrtMalloc: size is 0");
        }
        const int device = emulator::current_context()->device;
        *pointer = reinterpret_cast<void *>(emulator::allocate(device, size, policy));
    });
}

EMULATOR_API int aclrtFree(void *pointer) {
    return emulator::call("aclrtFree", Needs::context, [&](const Fault &) {
        emulator::require("aclrtFree", "pointer", pointer);
        const auto start = reinterpret_cast<std::uintptr_t>(pointer);
        const auto range = emulator::remove_range(start, emulator::Origin::malloc);
        if (!range) {
            emulator::fail(abi::kParameterInvalid, "aclrtFree: ", pointer,
                           " did not come from aclrtMalloc, or was freed");
        }
        if (range->nbytes != range->block_nbytes) {
            emulator::return_to_block(*range);
        }
    });
}
