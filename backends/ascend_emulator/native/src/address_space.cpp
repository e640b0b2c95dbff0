#include "address_space.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace emulator {

namespace {

std::shared_mutex &mutex() {
    static std::shared_mutex &guard = *new std::shared_mutex;
    return guard;
}

std::map<std::uintptr_t, Range> &ranges() {
    static std::map<std::uintptr_t, Range> &all = *new std::map<std::uintptr_t, Range>;
    return all;
}

// Called with the mutex held.
const Range *locate(std::uintptr_t address) {
    auto next = ranges().upper_bound(address);
    if (next == ranges().begin()) {
        return nullptr;
    }
    const Range &range = std::prev(next)->second;
    return address - range.start < range.nbytes ? &range : nullptr;
}

}  // namespace

void add_range(Range range) {
    const std::unique_lock<std::shared_mutex> lock(mutex());
    ranges().emplace(range.start, std::move(range));
}

std::optional<Range> remove_range(std::uintptr_t start, Origin origin) {
    const std::unique_lock<std::shared_mutex> lock(mutex());
    const auto found = ranges().find(start);
    if (found == ranges().end() || found->second.origin != origin) {
        return std::nullopt;
    }
    Range range = std::move(found->second);
    ranges().erase(found);
    return range;
}

std::optional<Range> find_range(std::uintptr_t address) {
    const std::shared_lock<std::shared_mutex> lock(mutex());
    const Range *range = locate(address);
    return range == nullptr ? std::nullopt : std::optional<Range>(*range);
}

std::vector<Range> ranges_of(int device) {
    const std::shared_lock<std::shared_mutex> lock(mutex());
    std::vector<Range> found;
    for (const auto &[start, range] : ranges()) {
        if (range.backing->device() == device) {
            found.push_back(range);
        }
    }
    return found;
}

bool resolve(std::uintptr_t address, std::size_t nbytes, std::vector<Piece> &pieces) {
    const std::shared_lock<std::shared_mutex> lock(mutex());
    const std::size_t before = pieces.size();
    while (nbytes > 0) {
        const Range *range = locate(address);
        const std::size_t into = range == nullptr ? 0 : address - range->start;
        if (range == nullptr || into >= range->usable) {
            pieces.resize(before);
            return false;
        }
        const std::size_t part = std::min(nbytes, range->usable - into);
        pieces.push_back({range->backing->alias() + range->offset + into, part, range->backing});
        address += part;
        nbytes -= part;
    }
    return true;
}

bool touches_device(std::uintptr_t address, std::size_t nbytes) {
    const std::shared_lock<std::shared_mutex> lock(mutex());
    if (locate(address) != nullptr) {
        return true;
    }
    const auto next = ranges().lower_bound(address);
    return next != ranges().end() && next->first - address < nbytes;
}

}  // namespace emulator
