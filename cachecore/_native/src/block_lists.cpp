#include "block_lists.hpp"

#include <algorithm>
#include <utility>

#include "refusal.hpp"

namespace cachecore {

namespace {

using Ids = std::vector<std::uint64_t>;

std::string item_name(const BlockList &list, std::size_t position) {
    std::string name = list.name;
    if (list.indexed) {
        name += "[" + std::to_string(position) + "]";
    }
    return name;
}

bool ascending(const Ids &ids) {
    return std::adjacent_find(ids.begin(), ids.end(), [](auto a, auto b) { return a >= b; }) == ids.end();
}

// Smallest and largest id. Without branches: std::minmax_element mispredicts half of them on scattered ids.
std::pair<std::uint64_t, std::uint64_t> span_of_ids(const Ids &ids) {
    std::uint64_t low = ids.front();
    std::uint64_t high = low;
    for (const std::uint64_t id : ids) {
        low = std::min(low, id);
        high = std::max(high, id);
    }
    return {low, high};
}

// Which ids of a span are present. A few ids far apart have none: sorting them is cheaper than clearing a bitmap of the
// whole span.
class Bitmap {
public:
    static bool fits(const Ids &ids, std::uint64_t low, std::uint64_t high) {
        return (high - low) / 64 < 64 * static_cast<std::uint64_t>(ids.size());
    }
    Bitmap(std::uint64_t low, std::uint64_t high) : low_(low), high_(high), words_((high - low) / 64 + 1, 0) {}

    // Adds an id of the span; false when it is there already.
    bool add(std::uint64_t id) {
        std::uint64_t &word = words_[(id - low_) / 64];
        const std::uint64_t before = word;
        word |= mask(id);
        return word != before;
    }
    bool has(std::uint64_t id) const {
        return low_ <= id && id <= high_ && (words_[(id - low_) / 64] & mask(id)) != 0;
    }

private:
    std::uint64_t mask(std::uint64_t id) const { return std::uint64_t{1} << ((id - low_) % 64); }

    std::uint64_t low_;
    std::uint64_t high_;
    Ids words_;
};

[[noreturn]] void refuse_duplicate(const BlockList &list, std::uint64_t block) {
    const auto first = std::find(list.ids.begin(), list.ids.end(), block);
    const auto second = std::find(first + 1, list.ids.end(), block);
    const auto position = [&](auto found) { return static_cast<std::size_t>(found - list.ids.begin()); };
    refuse(Reason::value, item_name(list, position(second)), " is ", block, ", as ",
           list.indexed ? item_name(list, position(first)) : std::string("another"),
           " is already; blocks that are written or leased are named once each: drop one of the two");
}

}  // namespace

void check_bounds(const BlockList &list, std::uint64_t blocks) {
    const auto outside = std::find_if(list.ids.begin(), list.ids.end(), [&](auto id) { return id >= blocks; });
    if (outside != list.ids.end()) {
        refuse(Reason::value, item_name(list, static_cast<std::size_t>(outside - list.ids.begin())), " is ", *outside,
               "; the cache has ", blocks, " blocks, so ids are 0 to ", blocks - 1,
               ": use the block table that belongs to this cache");
    }
}

void check_duplicates(const BlockList &list) {
    if (ascending(list.ids)) {
        return;
    }
    const auto [low, high] = span_of_ids(list.ids);
    if (!Bitmap::fits(list.ids, low, high)) {
        Ids sorted = list.ids;
        std::sort(sorted.begin(), sorted.end());
        const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
        if (twice != sorted.end()) {
            refuse_duplicate(list, *twice);
        }
        return;
    }
    Bitmap seen(low, high);
    for (const std::uint64_t id : list.ids) {
        if (!seen.add(id)) {
            refuse_duplicate(list, id);
        }
    }
}

std::size_t find_missing(const Ids &allowed, const Ids &ids) {
    const auto first_without = [&](const auto &has) {
        return static_cast<std::size_t>(std::find_if_not(ids.begin(), ids.end(), has) - ids.begin());
    };
    if (allowed.empty()) {
        return 0;
    }
    const auto [low, high] = span_of_ids(allowed);
    if (Bitmap::fits(allowed, low, high)) {
        Bitmap present(low, high);
        for (const std::uint64_t id : allowed) {
            present.add(id);
        }
        return first_without([&](auto id) { return present.has(id); });
    }
    Ids sorted = allowed;
    std::sort(sorted.begin(), sorted.end());
    return first_without([&](auto id) { return std::binary_search(sorted.begin(), sorted.end(), id); });
}

}  // namespace cachecore
