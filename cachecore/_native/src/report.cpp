#include "report.hpp"

#include <algorithm>

#include "bindings.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

const char *cause_name(Cause cause) {
    switch (cause) {
        case Cause::none: return "none";
        case Cause::deadline: return "deadline";
        case Cause::cancelled: return "cancelled";
        case Cause::wrong_peer: return "wrong peer";
        case Cause::peer_gone: return "peer gone";
        case Cause::local_fault: return "local fault";
        case Cause::remote_fault: return "remote fault";
        case Cause::not_permitted: return "not permitted";
        case Cause::native: return "native";
    }
    return "native";
}

void extend(ChunkRanges &ranges, std::uint64_t chunk) {
    if (!ranges.empty() && ranges.back().second == chunk) {
        ++ranges.back().second;
    } else {
        ranges.emplace_back(chunk, chunk + 1);
    }
}

py::tuple as_tuple(const ChunkRanges &ranges) {
    py::tuple result(ranges.size());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        result[i] = py::make_tuple(ranges[i].first, ranges[i].second);
    }
    return result;
}

}  // namespace

void TransferReport::settle(const CopyPlan &plan, std::vector<Unfinished> unfinished) {
    nbytes = plan.nbytes();
    if (unfinished.empty()) {
        if (plan.chunks() > 0) {
            landed.emplace_back(0, plan.chunks());
        }
        return;
    }
    std::sort(unfinished.begin(), unfinished.end(),
              [](const Unfinished &a, const Unfinished &b) { return a.start < b.start; });
    for (const Unfinished &part : unfinished) {
        nbytes -= part.end - part.start;
    }
    std::size_t next = 0;
    std::uint64_t start = 0;
    for (ChunkCursor cursor(plan, 0); !cursor.at_end(); cursor.advance()) {
        const std::uint64_t end = start + cursor.get().length;
        while (next < unfinished.size() && unfinished[next].end <= start) {
            ++next;
        }
        std::uint64_t missing = 0;
        bool touched = false;
        for (std::size_t i = next; i < unfinished.size() && unfinished[i].start < end; ++i) {
            missing += std::min(end, unfinished[i].end) - std::max(start, unfinished[i].start);
            touched = touched || std::max(start, unfinished[i].start) < std::min(end, unfinished[i].touched);
        }
        if (missing == 0) {
            extend(landed, cursor.chunk());
        } else if (missing == end - start && !touched) {
            extend(untouched, cursor.chunk());
        } else {
            extend(unknown, cursor.chunk());
        }
        start = end;
    }
}

void register_report(py::module_ &module) {
    py::class_<TransferReport>(module, "TransferReport", "What is known after moving a plan.", plain_class(),
                               py::is_final())
        .def_property_readonly("done", &TransferReport::done)
        .def_property_readonly("cause", [](const TransferReport &self) { return cause_name(self.cause); })
        .def_readonly("code", &TransferReport::code)
        .def_readonly("fault_address", &TransferReport::fault_address)
        .def_readonly("nbytes", &TransferReport::nbytes)
        .def_readonly("system_calls", &TransferReport::system_calls)
        .def_property_readonly("landed", [](const TransferReport &self) { return as_tuple(self.landed); })
        .def_property_readonly("untouched", [](const TransferReport &self) { return as_tuple(self.untouched); })
        .def_property_readonly("unknown", [](const TransferReport &self) { return as_tuple(self.unknown); })
        .def("__repr__", [](const TransferReport &self) {
            return py::str("<TransferReport cause={} code={} nbytes={} landed={} untouched={} unknown={}>")
                .format(cause_name(self.cause), self.code, self.nbytes, as_tuple(self.landed),
                        as_tuple(self.untouched), as_tuple(self.unknown));
        });
}

}  // namespace cachecore
