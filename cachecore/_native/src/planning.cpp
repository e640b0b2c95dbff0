#include "planning.hpp"

#include <algorithm>

#include "overlap.hpp"
#include "refusal.hpp"

namespace cachecore {

namespace {

// 1.5 GiB of runs, and twice that where the cuts of both sides differ. A slice of tiny pieces in huge blocks names more
// of them than memory can hold with a few numbers.
constexpr std::uint64_t most_sliced_runs = std::uint64_t{1} << 26;

// The slices of one part, checked and of equal total.
struct PartCut {
    Slice local;
    Slice remote;
};

PartCut cut_of(const PlanPart &part, const SideNames &names) {
    const PartCut cut{within_block(part.local_slice, part.local.block_bytes(), names.local_slice),
                      within_block(part.remote_slice, part.remote.block_bytes(), names.remote_slice)};
    if (cut.local.total() != cut.remote.total()) {
        refuse(Reason::incompatible, "a block of the ", names.local, " cache gives ", cut.local.total(),
               " bytes and one of the ", names.remote, " cache ", cut.remote.total(),
               "; both sides of a transfer need equal sizes: compare shape and data type of the two caches, or name "
               "slices of equal size");
    }
    return cut;
}

// How many runs a part can have at most; one a block unless it is cut into pieces.
void count_runs(std::uint64_t &total, std::uint64_t blocks, const PartCut &cut, const SideNames &names) {
    const std::uint64_t pieces = std::max(cut.local.count, cut.remote.count);
    if (pieces == 1) {
        return;
    }
    std::uint64_t runs = 0;
    if (__builtin_mul_overflow(blocks, pieces, &runs) || __builtin_add_overflow(total, runs, &total) ||
        total > most_sliced_runs) {
        refuse(Reason::value, names.local_slice, " and ", names.remote_slice, " cut each of ", blocks,
               " blocks into ", pieces, " pieces; a transfer has at most ", most_sliced_runs,
               " pieces a tensor: move fewer blocks at a time");
    }
}

std::vector<Run> runs_of(const PlanPart &part, const PartCut &cut, const BlockList &local, const BlockList &remote) {
    // No sum below can overflow: Geometry proved that every block ends below 2**64.
    const Geometry &here = part.local;
    const Geometry &there = part.remote;
    const std::size_t count = local.ids.size();
    std::vector<Run> runs;
    if (cut.local.count == 1 && cut.remote.count == 1) {
        const Run first{here.offset() + cut.local.offset, there.offset() + cut.remote.offset, cut.local.length};
        const std::uint64_t here_stride = here.block_stride();
        const std::uint64_t there_stride = there.block_stride();
        runs.reserve(count);
        for (std::size_t i = 0; i < count; ++i) {
            append_run(runs, {first.local + local.ids[i] * here_stride, first.remote + remote.ids[i] * there_stride,
                              first.length});
        }
        return runs;
    }
    const std::vector<Run> pieces = pair_pieces(cut.local, cut.remote);
    runs.reserve(count * pieces.size());
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t local_start = here.offset() + local.ids[i] * here.block_stride();
        const std::uint64_t remote_start = there.offset() + remote.ids[i] * there.block_stride();
        for (const Run &piece : pieces) {
            append_run(runs, {local_start + piece.local, remote_start + piece.remote, piece.length});
        }
    }
    return runs;
}

}  // namespace

std::vector<BasePair> pair_tensors(const Geometry &local, const Geometry &remote, const SideNames &names) {
    if (local.tensors() != remote.tensors()) {
        refuse(Reason::incompatible, "the ", names.local, " side has ", local.tensors(), " tensors and the ",
               names.remote, " side ", remote.tensors(),
               "; tensors are paired one to one, so choose layer ranges of equal length");
    }
    std::vector<BasePair> pairs(local.tensors());
    for (std::size_t tensor = 0; tensor < pairs.size(); ++tensor) {
        pairs[tensor] = {local.base(tensor), remote.base(tensor)};
    }
    return pairs;
}

void check_overlap(const std::vector<PlanGroup> &groups, const std::vector<BlockIndex> &sources,
                   const char *source_name, const char *destination_name) {
    const Overlap overlap = find_overlap(groups);
    if (!overlap.found) {
        return;
    }
    const auto position = [&](std::size_t group, std::size_t pair) {
        for (std::size_t i = 0; i < group; ++i) {
            pair += groups[i].pairs.size();
        }
        return pair;
    };
    const std::size_t local = position(overlap.local_group, overlap.local_pair);
    const std::size_t remote = position(overlap.remote_group, overlap.remote_pair);
    const bool to_local = groups.front().destination.local;
    const BlockIndex &destination = groups[to_local ? overlap.local_group : overlap.remote_group].destination;
    const BlockIndex &source = sources[to_local ? overlap.remote_group : overlap.local_group];
    refuse(Reason::overlap, destination_name, " and ", source_name, " share bytes: the run at destination block ",
           destination.first(to_local ? overlap.local_run : overlap.remote_run), " of tensor ",
           to_local ? local : remote, " overlaps the run at source block ",
           source.first(to_local ? overlap.remote_run : overlap.local_run), " of tensor ", to_local ? remote : local,
           "; what is read must not be written by the same transfer: go through other blocks");
}

std::shared_ptr<CopyPlan> plan_parts(const std::vector<PlanPart> &parts, const BlockList &local,
                                     const BlockList &remote, bool destination_is_local, bool same_process,
                                     const SideNames &names) {
    const std::size_t count = local.ids.size();
    if (parts.empty()) {
        refuse(Reason::value, "parts is empty; name at least one tensor");
    }
    if (count != remote.ids.size()) {
        refuse(Reason::value, remote.name, " has ", remote.ids.size(), " ids and ", local.name, " has ", count,
               "; block i of the one goes with block i of the other, so give as many of each");
    }
    if (count == 0) {
        refuse(Reason::value, local.name, " and ", remote.name, " are empty; name at least one block");
    }
    std::vector<PlanGroup> groups;
    std::vector<BlockIndex> sources;
    std::vector<PartCut> cuts;
    groups.reserve(parts.size());
    std::uint64_t sliced_runs = 0;
    std::uint64_t local_blocks = UINT64_MAX;
    std::uint64_t remote_blocks = UINT64_MAX;
    for (const PlanPart &part : parts) {
        const BlockIndex on_local{true, part.local.offset(), part.local.block_stride()};
        const BlockIndex on_remote{false, part.remote.offset(), part.remote.block_stride()};
        groups.push_back({pair_tensors(part.local, part.remote, names), {},
                          destination_is_local ? on_local : on_remote, count});
        if (same_process) {
            sources.push_back(destination_is_local ? on_remote : on_local);
        }
        cuts.push_back(cut_of(part, names));
        count_runs(sliced_runs, count, cuts.back(), names);
        local_blocks = std::min(local_blocks, part.local.blocks());
        remote_blocks = std::min(remote_blocks, part.remote.blocks());
    }
    check_bounds(local, local_blocks);
    check_bounds(remote, remote_blocks);
    check_duplicates(destination_is_local ? local : remote);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        groups[i].runs = runs_of(parts[i], cuts[i], local, remote);
    }
    if (same_process) {
        check_overlap(groups, sources, destination_is_local ? remote.name : local.name,
                      destination_is_local ? local.name : remote.name);
    }
    return std::make_shared<CopyPlan>(std::move(groups));
}

}  // namespace cachecore
