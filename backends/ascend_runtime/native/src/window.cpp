#include "window.hpp"

#include <algorithm>

#include "acl.hpp"

namespace cachecore::ascend {

bool on_host(const Place &place) { return place.side != Side::device; }

int kind_of(const Places &places) {
    if (on_host(places.source)) {
        return on_host(places.destination) ? acl::host_to_host : acl::host_to_device;
    }
    return on_host(places.destination) ? acl::device_to_host : acl::device_to_device;
}

std::vector<Places> find_places(const Device &device, const Plan &plan) {
    const auto number = static_cast<std::uint32_t>(device.index());
    std::vector<Places> found;
    found.reserve(plan.pairs);
    for (const PlanGroup &group : plan.groups) {
        for (std::size_t index = 0; index < group.pair_count; ++index) {
            if (group.run_count == 0) {
                found.push_back({});  // no chunk will look at it
                continue;
            }
            const BasePair &pair = group.pairs[index];
            const Run &first = group.runs[0];
            found.push_back({locate(device.library(), device.blocks(), number, pair.local + first.local),
                             locate(device.library(), device.blocks(), number, pair.remote + first.remote)});
        }
    }
    return found;
}

Window next_window(ChunkCursor &cursor, const std::vector<Places> &places, const CopyLimits &limits) {
    Window window{places[cursor.pair()], {}};
    const bool blocks = window.places.destination.side == Side::plain_host ||
                        window.places.source.side == Side::plain_host || kind_of(window.places) == acl::host_to_host;
    std::uint64_t room = blocks ? limits.plain_window_bytes : limits.window_bytes;
    while (room > 0 && window.items.size() < limits.window_items && !cursor.at_end() &&
           places[cursor.pair()] == window.places) {
        const std::uint64_t nbytes = std::min(room, cursor.left());
        window.items.push_back({cursor.local(), cursor.remote(), nbytes, cursor.chunk(), cursor.offset() == 0,
                                nbytes == cursor.left()});
        cursor.advance(nbytes);
        room -= nbytes;
    }
    return window;
}

namespace {

void add(Ranges &ranges, std::uint64_t start, std::uint64_t end) {
    if (start >= end) {
        return;
    }
    if (!ranges.empty() && ranges.back().second == start) {
        ranges.back().second = end;
    } else {
        ranges.emplace_back(start, end);
    }
}

}  // namespace

Knowledge known_after(const Plan &plan, const ChunkCursor &start, const Window &window, const Progress &progress) {
    std::uint64_t landed = start.chunk();
    bool torn = !start.at_end() && start.offset() > 0;  // a part of the next chunk landed
    if (progress.done > 0) {
        const Item &last = window.items[progress.done - 1];
        landed = last.to_end ? last.chunk + 1 : last.chunk;
        torn = !last.to_end;
    }
    std::uint64_t touched = torn ? landed + 1 : landed;
    if (progress.touched > progress.done) {
        touched = window.items[progress.touched - 1].chunk + 1;
    }
    std::uint64_t refused = touched;
    if (progress.refused) {
        const Item &item = window.items[*progress.refused];
        if (item.from_start && item.to_end && item.chunk >= landed) {
            refused = item.chunk;
        }
    }
    Knowledge known;
    add(known.landed, 0, landed);
    add(known.unknown, landed, refused);
    if (refused < touched) {
        add(known.untouched, refused, refused + 1);
        add(known.unknown, refused + 1, touched);
    }
    add(known.untouched, touched, plan.chunks);
    return known;
}

}  // namespace cachecore::ascend
