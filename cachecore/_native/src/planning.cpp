#include "planning.hpp"

#include <algorithm>

#include "overlap.hpp"
#include "refusal.hpp"

namespace cachecore {

namespace {

using Ids = std::vector<std::uint64_t>;

void check_pairs(const Geometry &local, const Geometry &remote) {
    if (local.tensors() != remote.tensors()) {
        refuse(Reason::incompatible, "the local side has ", local.tensors(), " tensors and the remote side ",
               remote.tensors(), "; tensors are paired one to one, so choose layer ranges of equal length");
    }
}

void check_bounds(const PlanSide &side) {
    const std::uint64_t limit = side.geometry.blocks();
    for (std::size_t i = 0; i < side.blocks.size(); ++i) {
        if (side.blocks[i] >= limit) {
            refuse(Reason::value, side.name, "[", i, "] is ", side.blocks[i], "; the cache has ", limit,
                   " blocks, so ids are 0 to ", limit - 1, ": use the block table that belongs to this cache");
        }
    }
}

[[noreturn]] void refuse_duplicate(const PlanSide &side, std::uint64_t block) {
    const auto first = std::find(side.blocks.begin(), side.blocks.end(), block);
    const auto second = std::find(first + 1, side.blocks.end(), block);
    refuse(Reason::value, side.name, "[", second - side.blocks.begin(), "] is ", block, ", as ", side.name, "[",
           first - side.blocks.begin(), "] is already; a destination block can be written once: drop one of the two");
}

void check_duplicates(const PlanSide &side) {
    const Ids &ids = side.blocks;
    if (std::adjacent_find(ids.begin(), ids.end(), [](auto a, auto b) { return a >= b; }) == ids.end()) {
        return;  // ascending
    }
    const auto [low, high] = std::minmax_element(ids.begin(), ids.end());
    const std::uint64_t words = (*high - *low) / 64 + 1;
    if (words > 64 * static_cast<std::uint64_t>(ids.size())) {
        // A few ids far apart: sorting them is cheaper than clearing a bitmap of the whole span.
        Ids sorted = ids;
        std::sort(sorted.begin(), sorted.end());
        const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
        if (twice != sorted.end()) {
            refuse_duplicate(side, *twice);
        }
        return;
    }
    Ids seen(words, 0);
    for (const std::uint64_t id : ids) {
        const std::uint64_t bit = id - *low;
        const std::uint64_t mask = std::uint64_t{1} << (bit % 64);
        if ((seen[bit / 64] & mask) != 0) {
            refuse_duplicate(side, id);
        }
        seen[bit / 64] |= mask;
    }
}

Slice checked_slice(const PlanSide &side, const char *which) {
    const std::uint64_t block = side.geometry.block_bytes();
    if (!side.slice) {
        return {0, block};
    }
    const Slice slice = *side.slice;
    if (slice.length == 0 || slice.length > block || slice.offset > block - slice.length) {
        refuse(Reason::value, which, " is (", slice.offset, ", ", slice.length, "); a slice has at least 1 byte and ends"
               " within its block of ", block, " bytes");
    }
    return slice;
}

void check_overlap(const PlanGroup &group, const DestinationBlocks &source, const char *source_name,
                   const char *destination_name) {
    const Overlap overlap = find_overlap(group);
    if (!overlap.found) {
        return;
    }
    const bool to_local = group.destination.local;
    const Run &written = to_local ? overlap.local_run : overlap.remote_run;
    const Run &read = to_local ? overlap.remote_run : overlap.local_run;
    const std::uint64_t written_block =
        ((to_local ? written.local : written.remote) - group.destination.origin) / group.destination.stride;
    const std::uint64_t read_block = ((source.local ? read.local : read.remote) - source.origin) / source.stride;
    refuse(Reason::overlap, destination_name, " and ", source_name, " share bytes: the run at destination block ",
           written_block, " of tensor ", to_local ? overlap.local_pair : overlap.remote_pair,
           " overlaps the run at source block ", read_block, " of tensor ",
           to_local ? overlap.remote_pair : overlap.local_pair,
           "; what is read must not be written by the same transfer: go through other blocks");
}

std::vector<BasePair> paired(const Geometry &local, const Geometry &remote) {
    std::vector<BasePair> pairs(local.tensors());
    for (std::size_t tensor = 0; tensor < pairs.size(); ++tensor) {
        pairs[tensor] = {local.base(tensor), remote.base(tensor)};
    }
    return pairs;
}

void append(std::vector<Run> &runs, const Run &next) {
    if (!runs.empty()) {
        Run &last = runs.back();
        if (last.local + last.length == next.local && last.remote + last.length == next.remote) {
            last.length += next.length;
            return;
        }
    }
    runs.push_back(next);
}

std::shared_ptr<CopyPlan> make_plan(PlanGroup group) {
    std::vector<PlanGroup> groups;
    groups.push_back(std::move(group));
    return std::make_shared<CopyPlan>(std::move(groups));
}

void check_entry(const Geometry &geometry, std::uint64_t entry, const char *name) {
    if (entry >= geometry.blocks()) {
        refuse(Reason::value, name, " is ", entry, "; the cache has ", geometry.blocks(),
               " batch entries, so it must be from 0 to ", geometry.blocks() - 1);
    }
}

}  // namespace

std::shared_ptr<CopyPlan> plan_blocks(const PlanSide &local, const PlanSide &remote, bool destination_is_local,
                                      bool same_process) {
    check_pairs(local.geometry, remote.geometry);
    const std::size_t count = local.blocks.size();
    if (count != remote.blocks.size()) {
        refuse(Reason::value, remote.name, " has ", remote.blocks.size(), " ids and ", local.name, " has ", count,
               "; block i of the one goes with block i of the other, so give as many of each");
    }
    if (count == 0) {
        refuse(Reason::value, local.name, " and ", remote.name, " are empty; name at least one block");
    }
    const Slice local_slice = checked_slice(local, "local_slice");
    const Slice remote_slice = checked_slice(remote, "remote_slice");
    if (local_slice.length != remote_slice.length) {
        refuse(Reason::incompatible, "a block of the local cache gives ", local_slice.length,
               " bytes and one of the remote cache ", remote_slice.length,
               "; both sides of a transfer need equal sizes: compare shape and data type of the two descriptors");
    }
    check_bounds(local);
    check_bounds(remote);
    check_duplicates(destination_is_local ? local : remote);

    // No sum below can overflow: Geometry proved that every block ends below 2**64.
    const std::uint64_t local_origin = local.geometry.offset() + local_slice.offset;
    const std::uint64_t remote_origin = remote.geometry.offset() + remote_slice.offset;
    const std::uint64_t local_stride = local.geometry.block_stride();
    const std::uint64_t remote_stride = remote.geometry.block_stride();
    const std::uint64_t unit = local_slice.length;
    const DestinationBlocks on_local{true, local_origin, local_stride, unit};
    const DestinationBlocks on_remote{false, remote_origin, remote_stride, unit};
    PlanGroup group{paired(local.geometry, remote.geometry), {}, destination_is_local ? on_local : on_remote, count};
    group.runs.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        append(group.runs,
               {local_origin + local.blocks[i] * local_stride, remote_origin + remote.blocks[i] * remote_stride, unit});
    }
    if (same_process) {
        check_overlap(group, destination_is_local ? on_remote : on_local,
                      destination_is_local ? remote.name : local.name, destination_is_local ? local.name : remote.name);
    }
    return make_plan(std::move(group));
}

std::shared_ptr<CopyPlan> plan_entry(const Geometry &local, const Geometry &remote, std::uint64_t local_entry,
                                     std::uint64_t remote_entry, std::optional<std::uint64_t> size,
                                     bool destination_is_local, const EntryNames &names, bool same_process) {
    check_pairs(local, remote);
    check_entry(local, local_entry, names.local);
    check_entry(remote, remote_entry, names.remote);
    const Geometry &source = destination_is_local ? remote : local;
    const Geometry &destination = destination_is_local ? local : remote;
    if (size && (*size == 0 || *size > source.block_bytes())) {
        refuse(Reason::value, names.size, " is ", *size, " bytes; the source entry has ", source.block_bytes(),
               ", so it must be from 1 to that, or -1 for the whole entry");
    }
    const std::uint64_t length = size.value_or(source.block_bytes());
    if (length > destination.block_bytes()) {
        refuse(Reason::incompatible, length, " bytes of the source entry do not fit into the destination entry of ",
               destination.block_bytes(), " bytes; give ", names.size, " or a cache with larger entries");
    }
    const Run run{local.offset() + local_entry * local.block_stride(),
                  remote.offset() + remote_entry * remote.block_stride(), length};
    const DestinationBlocks on_local{true, local.offset(), local.block_stride(), length};
    const DestinationBlocks on_remote{false, remote.offset(), remote.block_stride(), length};
    PlanGroup group{paired(local, remote), {run}, destination_is_local ? on_local : on_remote, 1};
    if (same_process) {
        check_overlap(group, destination_is_local ? on_remote : on_local,
                      destination_is_local ? names.remote : names.local,
                      destination_is_local ? names.local : names.remote);
    }
    return make_plan(std::move(group));
}

std::shared_ptr<CopyPlan> plan_entry_to_blocks(const PlanSide &local, const Geometry &remote,
                                               std::uint64_t remote_entry, const char *entry_name,
                                               bool same_process) {
    check_pairs(local.geometry, remote);
    check_entry(remote, remote_entry, entry_name);
    const std::size_t count = local.blocks.size();
    const std::uint64_t block = local.geometry.block_bytes();
    const std::uint64_t entry = remote.block_bytes();
    if (count == 0) {
        refuse(Reason::value, local.name, " is empty; name at least one block");
    }
    const std::uint64_t most = (entry - 1) / block + 1;
    if (count > most) {
        refuse(Reason::value, local.name, " has ", count, " blocks of ", block, " bytes; the remote entry has ", entry,
               " bytes, which is ", most, " blocks: name no block that would stay empty");
    }
    check_bounds(local);
    check_duplicates(local);

    const std::uint64_t local_origin = local.geometry.offset();
    const std::uint64_t remote_origin = remote.offset() + remote_entry * remote.block_stride();
    const std::uint64_t stride = local.geometry.block_stride();
    PlanGroup group{paired(local.geometry, remote), {}, {true, local_origin, stride, block}, count};
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t taken = i * block;
        append(group.runs,
               {local_origin + local.blocks[i] * stride, remote_origin + taken, std::min(block, entry - taken)});
    }
    if (same_process) {
        check_overlap(group, {false, remote.offset(), remote.block_stride(), block}, entry_name, local.name);
    }
    return make_plan(std::move(group));
}

}  // namespace cachecore
