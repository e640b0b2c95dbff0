// A plan of the core: tensor base pairs times shared runs, group by group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cachecore::ascend {

// Start addresses of one tensor on both sides.
struct BasePair {
    std::uint64_t local;
    std::uint64_t remote;
};

// `length` bytes at these offsets from the bases of every pair of the group.
struct Run {
    std::uint64_t local;
    std::uint64_t remote;
    std::uint64_t length;
};

static_assert(sizeof(BasePair) == 16 && sizeof(Run) == 24, "tables of uint64");

struct PlanGroup {
    const BasePair *pairs;
    std::size_t pair_count;
    const Run *runs;
    std::size_t run_count;
};

// Points into tables that somebody else holds.
struct Plan {
    std::vector<PlanGroup> groups;
    std::uint64_t chunks = 0;
    std::uint64_t pairs = 0;

    // (address, bytes) on both sides of every pair, from the first to the last byte that is moved.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> extents() const;
};

// Walks the chunks of a plan in order: chunk = pair * runs + run within a group, group after group.
class ChunkCursor {
public:
    explicit ChunkCursor(const Plan &plan) : plan_(&plan) { skip_empty(); }
    bool at_end() const { return group_ == plan_->groups.size(); }
    std::uint64_t chunk() const { return chunk_; }
    // Counts pairs over all groups.
    std::uint64_t pair() const { return pairs_before_ + pair_; }
    std::uint64_t local() const { return base().local + run().local + offset_; }
    std::uint64_t remote() const { return base().remote + run().remote + offset_; }
    // Bytes from the cursor to the end of the chunk.
    std::uint64_t left() const { return run().length - offset_; }
    // Bytes of the chunk before the cursor.
    std::uint64_t offset() const { return offset_; }
    // Moves on by up to left() bytes.
    void advance(std::uint64_t nbytes) {
        offset_ += nbytes;
        if (offset_ == run().length) {
            next_chunk();
        }
    }

private:
    const PlanGroup &group() const { return plan_->groups[group_]; }
    const BasePair &base() const { return group().pairs[pair_]; }
    const Run &run() const { return group().runs[run_]; }
    void next_chunk() {
        offset_ = 0;
        ++chunk_;
        if (++run_ == group().run_count) {
            run_ = 0;
            if (++pair_ == group().pair_count) {
                pairs_before_ += pair_;
                pair_ = 0;
                ++group_;
                skip_empty();
            }
        }
    }
    void skip_empty() {
        while (!at_end() && (group().pair_count == 0 || group().run_count == 0)) {
            pairs_before_ += group().pair_count;
            ++group_;
        }
    }

    const Plan *plan_;
    std::uint64_t chunk_ = 0;
    std::uint64_t pairs_before_ = 0;
    std::uint64_t offset_ = 0;
    std::size_t group_ = 0;
    std::size_t pair_ = 0;
    std::size_t run_ = 0;
};

}  // namespace cachecore::ascend
