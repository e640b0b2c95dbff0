// What to move: groups of tensor base pairs times shared runs. Immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace cachecore {

// Start addresses of one tensor on both sides.
struct BasePair {
    std::uint64_t local;
    std::uint64_t remote;
};

// `length` bytes at these offsets from the bases of every pair.
struct Run {
    std::uint64_t local;
    std::uint64_t remote;
    std::uint64_t length;
};

// One flat piece with absolute addresses.
struct Chunk {
    std::uint64_t local;
    std::uint64_t remote;
    std::uint64_t length;
};

static_assert(sizeof(BasePair) == 16 && sizeof(Run) == 24 && sizeof(Chunk) == 24, "handed out as uint64 tables");

// How offsets of one side turn back into block ids: block b starts at origin + b * stride.
struct BlockIndex {
    bool local;
    std::uint64_t origin;
    std::uint64_t stride;

    std::uint64_t offset(const Run &run) const { return local ? run.local : run.remote; }
    // First block of which a run has bytes, and the last one.
    std::uint64_t first(const Run &run) const { return (offset(run) - origin) / stride; }
    std::uint64_t last(const Run &run) const { return (offset(run) + run.length - 1 - origin) / stride; }
};

struct PlanGroup {
    std::vector<BasePair> pairs;
    std::vector<Run> runs;
    BlockIndex destination;
    std::uint64_t blocks_per_pair;
};

// Chunks are numbered group by group; within a group chunk = pair * runs + run.
class CopyPlan {
public:
    explicit CopyPlan(std::vector<PlanGroup> groups);

    const std::vector<PlanGroup> &groups() const { return groups_; }
    std::uint64_t pairs() const { return pairs_; }
    std::uint64_t runs() const { return runs_; }
    std::uint64_t chunks() const { return chunks_; }
    std::uint64_t blocks() const { return blocks_; }
    std::uint64_t nbytes() const { return nbytes_; }

    // Refuses a half-open range of chunks that the plan does not have.
    void check_range(std::uint64_t start, std::uint64_t stop) const;

    // Half-open ranges of destination blocks of which the chunks write at least a byte: (position of the tensor pair in
    // the plan, first block, count).
    using BlockRanges = std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>;
    BlockRanges block_ranges(const std::vector<std::pair<std::uint64_t, std::uint64_t>> &chunk_ranges) const;

private:
    std::vector<PlanGroup> groups_;
    std::uint64_t pairs_ = 0;
    std::uint64_t runs_ = 0;
    std::uint64_t chunks_ = 0;
    std::uint64_t blocks_ = 0;
    std::uint64_t nbytes_ = 0;
};

// Walks the chunks of a plan in order without making them all.
class ChunkCursor {
public:
    ChunkCursor(const CopyPlan &plan, std::uint64_t chunk);
    bool at_end() const { return group_ == plan_->groups().size(); }
    std::uint64_t chunk() const { return chunk_; }
    Chunk get() const {
        const PlanGroup &group = plan_->groups()[group_];
        const BasePair &pair = group.pairs[pair_];
        const Run &run = group.runs[run_];
        return {pair.local + run.local, pair.remote + run.remote, run.length};
    }
    void advance() {
        const PlanGroup &group = plan_->groups()[group_];
        ++chunk_;
        if (++run_ == group.runs.size()) {
            run_ = 0;
            if (++pair_ == group.pairs.size()) {
                pair_ = 0;
                ++group_;
            }
        }
    }

private:
    const CopyPlan *plan_;
    std::uint64_t chunk_;
    std::size_t group_ = 0;
    std::size_t pair_ = 0;
    std::size_t run_ = 0;
};

}  // namespace cachecore
