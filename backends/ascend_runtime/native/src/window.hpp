// A plan piece by piece: neighbouring pieces between the same two places make a window, which is started as one and
// waited for as one. What is known after a failure is known window by window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "device.hpp"
#include "locate.hpp"
#include "plan.hpp"
#include "unsettled.hpp"

namespace cachecore::ascend {

struct CopyLimits {
    std::uint64_t streams;             // most streams of one copy between device addresses
    std::uint64_t window_items;        // pieces after which is waited
    std::uint64_t window_bytes;        // the same in bytes
    std::uint64_t plain_window_bytes;  // the same where the processor copies, or blocks until the runtime has
};

struct Places {
    Place destination;
    Place source;
    bool operator==(const Places &other) const { return destination == other.destination && source == other.source; }
};

bool on_host(const Place &place);

// acl::CopyKind between two places.
int kind_of(const Places &places);

// Where the tensors of every pair are, in the order of the plan. A tensor lies in one registered region, so that its
// first byte speaks for all.
std::vector<Places> find_places(const Device &device, const Plan &plan);

// A piece of one chunk.
struct Item {
    std::uint64_t destination;
    std::uint64_t source;
    std::uint64_t nbytes;
    std::uint64_t chunk;
    bool from_start;  // of the chunk
    bool to_end;
};

struct Window {
    Places places;
    std::vector<Item> items;
};

// The window that starts at the cursor, which moves behind it.
Window next_window(ChunkCursor &cursor, const std::vector<Places> &places, const CopyLimits &limits);

// What is known about a window that failed: of its items [0, done) landed, [touched, ...) were not started.
struct Progress {
    std::size_t done = 0;
    std::size_t touched = 0;
    std::optional<std::size_t> refused;  // an item below `touched` that was not started either
};

// Chunks of a plan by what is known about them. Half-open, ascending, disjoint; together they cover the plan.
struct Knowledge {
    Ranges landed;
    Ranges untouched;
    Ranges unknown;
};

// After `window`, which starts at `start` and failed, or an empty one; everything before `start` landed.
Knowledge known_after(const Plan &plan, const ChunkCursor &start, const Window &window, const Progress &progress);

}  // namespace cachecore::ascend
