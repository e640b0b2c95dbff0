// Where the tensors of a plan lie among registered or mapped regions, and the plan as seen through a mapping.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "copy_plan.hpp"
#include "integers.hpp"
#include "refusal.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

// `nbytes` bytes from `base`, seen at `mapped`.
struct MappedRegion {
    std::uint64_t base;
    std::uint64_t nbytes;
    std::uint64_t mapped;
};

std::vector<MappedRegion> to_regions(const py::object &table, std::size_t columns) {
    const std::vector<std::uint64_t> words = copy_addresses(table, "regions");
    if (words.size() % columns != 0) {
        refuse(Reason::value, "regions has ", words.size(), " words; each region has ", columns);
    }
    std::vector<MappedRegion> regions;
    regions.reserve(words.size() / columns);
    for (std::size_t i = 0; i < words.size(); i += columns) {
        regions.push_back({words[i], words[i + 1], columns == 3 ? words[i + 2] : words[i]});
    }
    return regions;
}

// From the first to the last byte that the runs of a group touch, as offsets from a base.
struct Span {
    std::uint64_t start;
    std::uint64_t end;
};

Span span_of(const PlanGroup &group, bool local) {
    Span span{UINT64_MAX, 0};
    for (const Run &run : group.runs) {
        const std::uint64_t offset = local ? run.local : run.remote;
        span.start = std::min(span.start, offset);
        span.end = std::max(span.end, offset + run.length);  // planning has checked that this is exact
    }
    return span;
}

// Finds the region that holds a whole span; tensors come in the order of regions more often than not.
class RegionFinder {
public:
    explicit RegionFinder(const std::vector<MappedRegion> &regions) : regions_(regions) {}

    const MappedRegion *find(std::uint64_t base, const Span &span) {
        std::uint64_t start = 0;
        std::uint64_t end = 0;
        if (__builtin_add_overflow(base, span.start, &start) || __builtin_add_overflow(base, span.end, &end)) {
            return nullptr;
        }
        for (std::size_t tried = 0; tried < regions_.size(); ++tried) {
            const MappedRegion &region = regions_[next_];
            if (region.base <= start && end - region.base <= region.nbytes) {
                return &region;
            }
            next_ = next_ + 1 == regions_.size() ? 0 : next_ + 1;
        }
        return nullptr;
    }

private:
    const std::vector<MappedRegion> &regions_;
    std::size_t next_ = 0;
};

bool plan_within(const CopyPlan &plan, const py::object &table, bool local) {
    const std::vector<MappedRegion> regions = to_regions(table, 2);
    const py::gil_scoped_release release;
    RegionFinder finder(regions);
    for (const PlanGroup &group : plan.groups()) {
        const Span span = span_of(group, local);
        for (const BasePair &pair : group.pairs) {
            if (finder.find(local ? pair.local : pair.remote, span) == nullptr) {
                return false;
            }
        }
    }
    return true;
}

std::shared_ptr<CopyPlan> map_plan(const CopyPlan &plan, const py::object &table, bool swap) {
    const std::vector<MappedRegion> regions = to_regions(table, 3);
    const py::gil_scoped_release release;
    RegionFinder finder(regions);
    std::vector<PlanGroup> groups = plan.groups();
    for (PlanGroup &group : groups) {
        const Span span = span_of(group, false);
        for (BasePair &pair : group.pairs) {
            const MappedRegion *const region = finder.find(pair.remote, span);
            if (region == nullptr) {
                return nullptr;
            }
            pair.remote = pair.remote - region->base + region->mapped;
            if (swap) {
                std::swap(pair.local, pair.remote);
            }
        }
        if (swap) {
            for (Run &run : group.runs) {
                std::swap(run.local, run.remote);
            }
            group.destination.local = !group.destination.local;
        }
    }
    return std::make_shared<CopyPlan>(std::move(groups));
}

}  // namespace

void register_regions(py::module_ &module) {
    module.def("plan_within", &plan_within, py::arg("plan"), py::arg("regions"), py::arg("local"),
               "Whether every tensor's part of a plan lies in one of the regions.");
    module.def("map_plan", &map_plan, py::arg("plan"), py::arg("regions"), py::arg("swap") = false,
               "The plan with remote addresses replaced by those where their regions are mapped.");
}

}  // namespace cachecore
