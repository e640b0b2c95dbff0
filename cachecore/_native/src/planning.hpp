// Index arithmetic: block lists and entries of caches become a CopyPlan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "block_lists.hpp"
#include "copy_plan.hpp"
#include "geometry.hpp"
#include "slices.hpp"

namespace cachecore {

// Tensors of one geometry on each side, and which bytes of each block to move; without a slice the whole block.
struct PlanPart {
    Geometry local;
    Geometry remote;
    std::optional<Slice> local_slice = std::nullopt;
    std::optional<Slice> remote_slice = std::nullopt;
};

// What messages call the two sides of a plan.
struct SideNames {
    const char *local = "local";
    const char *remote = "remote";
    const char *local_slice = "local_slice";
    const char *remote_slice = "remote_slice";
};

// None of these functions needs the GIL. All refuse with a Refusal.

// Block local.ids[i] <-> block remote.ids[i] of every tensor of every part; one group a part.
std::shared_ptr<CopyPlan> plan_parts(const std::vector<PlanPart> &parts, const BlockList &local,
                                     const BlockList &remote, bool destination_is_local, bool same_process,
                                     const SideNames &names);

// One batch entry of a cache, from byte `offset` on.
struct EntryEnd {
    Geometry geometry;
    std::uint64_t entry;
    std::uint64_t offset;
    const char *entry_name;
    const char *offset_name;
};

// `size` bytes from one entry to the other, or all that the source has.
std::shared_ptr<CopyPlan> plan_entry(const EntryEnd &local, const EntryEnd &remote, std::optional<std::uint64_t> size,
                                     const char *size_name, bool destination_is_local, bool same_process);

// Block blocks.ids[i] takes bytes [i * block, (i + 1) * block) of the entry, the last one what is left of it. The
// blocks are the destination, on the local side or on the remote one.
std::shared_ptr<CopyPlan> plan_entry_to_blocks(const Geometry &paged, const BlockList &blocks, const EntryEnd &entry,
                                               bool destination_is_local, bool same_process);

// What all of them share.

// Refuses sides with different numbers of tensors; otherwise their bases one to one.
std::vector<BasePair> pair_tensors(const Geometry &local, const Geometry &remote, const SideNames &names);

// Refuses groups that read bytes which they also write. `sources` has the block index of each group's source side.
void check_overlap(const std::vector<PlanGroup> &groups, const std::vector<BlockIndex> &sources,
                   const char *source_name, const char *destination_name);

}  // namespace cachecore
