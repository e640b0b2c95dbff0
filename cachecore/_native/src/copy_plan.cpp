#include "copy_plan.hpp"

#include <algorithm>
#include <cstring>

#include "bindings.hpp"
#include "integers.hpp"
#include "intervals.hpp"
#include "refusal.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

void add(std::uint64_t &total, std::uint64_t first, std::uint64_t second, const char *what) {
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(first, second, &product) || __builtin_add_overflow(total, product, &total)) {
        refuse(Reason::value, "the transfer has more than 2**64-1 ", what, "; split it");
    }
}

// Joins what follows on the last range or lies within it: a sliced block is many chunks.
void append_blocks(CopyPlan::BlockRanges &ranges, std::uint64_t tensor, std::uint64_t block, std::uint64_t count) {
    if (!ranges.empty()) {
        auto &[last_tensor, last_block, last_count] = ranges.back();
        if (tensor == last_tensor && block >= last_block && block - last_block <= last_count) {
            last_count = std::max(last_count, block - last_block + count);
            return;
        }
    }
    ranges.emplace_back(tensor, block, count);
}

}  // namespace

CopyPlan::CopyPlan(std::vector<PlanGroup> groups) : groups_(std::move(groups)) {
    for (const PlanGroup &group : groups_) {
        std::uint64_t bytes = 0;
        for (const Run &run : group.runs) {
            add(bytes, run.length, 1, "bytes");
        }
        add(pairs_, group.pairs.size(), 1, "tensors");
        add(runs_, group.runs.size(), 1, "runs");
        add(chunks_, group.pairs.size(), group.runs.size(), "chunks");
        add(blocks_, group.pairs.size(), group.blocks_per_pair, "blocks");
        add(nbytes_, group.pairs.size(), bytes, "bytes");
    }
}

void CopyPlan::check_range(std::uint64_t start, std::uint64_t stop) const {
    if (start > stop || stop > chunks_) {
        refuse(Reason::value, "chunk range ", start, " to ", stop, " was asked for; the plan has ", chunks_, " chunks");
    }
}

CopyPlan::BlockRanges CopyPlan::block_ranges(
    const std::vector<std::pair<std::uint64_t, std::uint64_t>> &chunk_ranges) const {
    BlockRanges found;
    for (const auto &[start, stop] : chunk_ranges) {
        check_range(start, stop);
        std::uint64_t first_chunk = 0;
        std::uint64_t first_pair = 0;
        for (const PlanGroup &group : groups_) {
            const std::uint64_t runs = group.runs.size();
            const std::uint64_t end = first_chunk + runs * group.pairs.size();
            for (std::uint64_t chunk = std::max(start, first_chunk); chunk < std::min(stop, end); ++chunk) {
                const Run &run = group.runs[(chunk - first_chunk) % runs];
                const std::uint64_t first = group.destination.first(run);
                append_blocks(found, first_pair + (chunk - first_chunk) / runs, first,
                              group.destination.last(run) - first + 1);
            }
            first_chunk = end;
            first_pair += group.pairs.size();
        }
    }
    // Neighbours need not be neighbours in the plan: blocks are listed in any order.
    std::sort(found.begin(), found.end());
    BlockRanges joined;
    for (const auto &[tensor, block, count] : found) {
        append_blocks(joined, tensor, block, count);
    }
    return joined;
}

ChunkCursor::ChunkCursor(const CopyPlan &plan, std::uint64_t chunk) : plan_(&plan), chunk_(chunk) {
    for (const PlanGroup &group : plan.groups()) {
        const std::uint64_t runs = group.runs.size();
        if (chunk < runs * group.pairs.size()) {
            pair_ = chunk / runs;
            run_ = chunk % runs;
            return;
        }
        chunk -= runs * group.pairs.size();
        ++group_;
    }
}

namespace {

// A read-only table of uint64 inside a plan, which it keeps alive.
struct PlanTable {
    std::shared_ptr<const CopyPlan> plan;
    const void *data;
    std::size_t rows;
    std::size_t columns;
};

py::memoryview table(const std::shared_ptr<const CopyPlan> &plan, const void *data, std::size_t rows,
                     std::size_t columns) {
    return py::memoryview(py::cast(PlanTable{plan, data, rows, columns}));
}

py::list group_tables(const std::shared_ptr<const CopyPlan> &plan) {
    py::list tables;
    for (const PlanGroup &group : plan->groups()) {
        tables.append(py::make_tuple(table(plan, group.pairs.data(), group.pairs.size(), 2),
                                     table(plan, group.runs.data(), group.runs.size(), 3)));
    }
    return tables;
}

py::bytes flat(const CopyPlan &plan, const py::object &start, const py::object &count) {
    const std::uint64_t first = to_uint64(start, "start");
    const std::uint64_t wanted = to_uint64(count, "count");
    if (first > plan.chunks() || wanted > plan.chunks() - first) {
        refuse(Reason::value, "chunks ", first, " to ", first, " + ", wanted, " were asked for; the plan has ",
               plan.chunks());
    }
    const std::size_t nbytes = static_cast<std::size_t>(wanted) * sizeof(Chunk);
    PyObject *result = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes));
    if (result == nullptr) {
        throw py::error_already_set();
    }
    char *out = PyBytes_AS_STRING(result);
    {
        const py::gil_scoped_release release;
        ChunkCursor cursor(plan, first);
        for (std::uint64_t i = 0; i < wanted; ++i, cursor.advance(), out += sizeof(Chunk)) {
            const Chunk chunk = cursor.get();
            std::memcpy(out, &chunk, sizeof chunk);
        }
    }
    return py::reinterpret_steal<py::bytes>(result);
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> to_chunk_ranges(const py::iterable &ranges) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> chunk_ranges;
    for (const py::handle item : ranges) {
        const std::vector<std::uint64_t> range = copy_integers(item, "range");
        if (range.size() != 2) {
            refuse(Reason::value, "ranges holds ", shown(item), "; each item is (start, stop)");
        }
        chunk_ranges.emplace_back(range[0], range[1]);
    }
    return chunk_ranges;
}

py::list block_ranges(const CopyPlan &plan, const py::iterable &ranges) {
    const auto chunk_ranges = to_chunk_ranges(ranges);
    CopyPlan::BlockRanges found;
    {
        const py::gil_scoped_release release;
        found = plan.block_ranges(chunk_ranges);
    }
    py::list result;
    for (const auto &[tensor, block, count] : found) {
        result.append(py::make_tuple(tensor, block, count));
    }
    return result;
}

// Packed (start, end) of the addresses that some chunks touch.
py::bytes touched(const CopyPlan &plan, const py::iterable &ranges, bool local) {
    const auto chunk_ranges = to_chunk_ranges(ranges);
    static_assert(sizeof(Intervals::Interval) == 16, "handed out as uint64 pairs");
    const Intervals found = [&] {
        const py::gil_scoped_release release;
        return Intervals::of(plan, chunk_ranges, local);
    }();
    return {reinterpret_cast<const char *>(found.items().data()), found.items().size() * sizeof(Intervals::Interval)};
}

// (start, end) of the first interval that the plan touches, or None.
py::object overlapped(const CopyPlan &plan, const py::object &intervals, bool local) {
    const Intervals held(copy_addresses(intervals, "intervals"));
    const Intervals::Interval *found = nullptr;
    {
        const py::gil_scoped_release release;
        found = held.find(plan, local);
    }
    if (found == nullptr) {
        return py::none();
    }
    return py::make_tuple(found->first, found->second);
}

}  // namespace

void register_copy_plan(py::module_ &module) {
    py::class_<PlanTable>(module, "_PlanTable", py::buffer_protocol(), py::module_local())
        .def_buffer([](PlanTable &self) {
            constexpr auto item = static_cast<py::ssize_t>(sizeof(std::uint64_t));
            const auto columns = static_cast<py::ssize_t>(self.columns);
            return py::buffer_info(const_cast<void *>(self.data), item, "Q", 2,
                                   {static_cast<py::ssize_t>(self.rows), columns}, {columns * item, item}, true);
        });
    py::class_<CopyPlan, std::shared_ptr<CopyPlan>>(
        module, "CopyPlan",
        "What to move, as groups of tensor base pairs times shared runs. Immutable, made by cachecore.planning.",
        plain_class(), py::is_final())
        .def_property_readonly("pairs", &CopyPlan::pairs, "Tensor pairs, over all groups.")
        .def_property_readonly("runs", &CopyPlan::runs, "Runs, over all groups; each is moved for every pair.")
        .def_property_readonly("chunks", &CopyPlan::chunks, "Flat pieces: pairs times runs, summed over the groups.")
        .def_property_readonly("blocks", &CopyPlan::blocks, "Blocks moved, over all tensors.")
        .def_property_readonly("nbytes", &CopyPlan::nbytes, "Bytes moved, over all tensors.")
        .def(
            "groups",
            [](const std::shared_ptr<CopyPlan> &self) { return group_tables(self); },
            "A list of (bases, runs): read-only uint64 memoryviews of shape (pairs, 2) and (runs, 3), not copied.")
        .def("flat", &flat, py::arg("start"), py::arg("count"),
             "Native uint64 triples (local address, remote address, bytes) of `count` chunks from `start` on.")
        .def("intervals", &touched, py::arg("ranges"), py::kw_only(), py::arg("local"),
             "Packed uint64 (start, end) of the addresses that chunk ranges touch on one side, sorted and joined.")
        .def("overlaps", &overlapped, py::arg("intervals"), py::kw_only(), py::arg("local"),
             "The first of some address intervals that one side of the plan shares a byte with, or None.")
        .def("block_ranges", &block_ranges, py::arg("ranges"),
             "Destination blocks of half-open chunk ranges, as (tensor position, first block, count), joined.")
        .def("__repr__", [](const CopyPlan &self) {
            std::ostringstream text;
            text << "<CopyPlan " << self.pairs() << " tensor pairs, " << self.runs() << " runs, " << self.blocks()
                 << " blocks, " << self.nbytes() << " bytes>";
            return text.str();
        });
}

}  // namespace cachecore
