// Copies for Python.
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <pybind11/stl.h>

#include "bindings.hpp"
#include "copy.hpp"
#include "failure.hpp"
#include "plan_buffers.hpp"

namespace py = pybind11;

namespace cachecore::ascend {

namespace {

CopyReport copy(const std::shared_ptr<Device> &device, const py::sequence &groups, double deadline,
                const std::vector<std::uint64_t> &events, std::uint64_t streams, std::uint64_t window_items,
                std::uint64_t window_bytes, std::uint64_t plain_window_bytes) {
    if (std::isnan(deadline)) {
        refuse("deadline is not a number; give seconds on time.monotonic()");
    }
    if (streams == 0 || window_items == 0 || window_bytes == 0 || plain_window_bytes == 0) {
        refuse("streams, window_items, window_bytes and plain_window_bytes must be at least 1");
    }
    std::vector<acl::Event> handles;
    for (const std::uint64_t event : events) {
        handles.push_back(reinterpret_cast<acl::Event>(event));
    }
    const CopyLimits limits{streams, window_items, window_bytes, plain_window_bytes};
    const PlanBuffers buffers(groups);
    const py::gil_scoped_release release;
    return copy_plan(device, buffers.plan(), deadline, handles, limits);
}

const char *cause_name(CopyCause cause) {
    switch (cause) {
        case CopyCause::none: return "none";
        case CopyCause::deadline: return "deadline";
        case CopyCause::source_fault: return "source fault";
        case CopyCause::destination_fault: return "destination fault";
        case CopyCause::native: return "native";
    }
    return "native";
}

py::tuple tuple_of(const Ranges &ranges) {
    py::tuple result(ranges.size());
    for (std::size_t index = 0; index < ranges.size(); ++index) {
        result[index] = py::make_tuple(ranges[index].first, ranges[index].second);
    }
    return result;
}

}  // namespace

void register_copy(py::module_ &module) {
    using free_gil = py::call_guard<py::gil_scoped_release>;
    py::class_<Unsettled, std::shared_ptr<Unsettled>>(module, "Unsettled", py::is_final(), plain_class())
        .def("settled", &Unsettled::settled, free_gil())
        .def_property_readonly("extents", [](const Unsettled &copy_) { return tuple_of(copy_.extents()); });
    py::class_<CopyReport>(module, "CopyReport", py::is_final(), plain_class())
        .def_property_readonly("cause", [](const CopyReport &report) { return cause_name(report.cause); })
        .def_readonly("function", &CopyReport::function)
        .def_readonly("code", &CopyReport::code)
        .def_property_readonly("detail", [](const CopyReport &report) { return text_of(report.detail); })
        .def_property_readonly("landed", [](const CopyReport &report) { return tuple_of(report.known.landed); })
        .def_property_readonly("untouched", [](const CopyReport &report) { return tuple_of(report.known.untouched); })
        .def_property_readonly("unknown", [](const CopyReport &report) { return tuple_of(report.known.unknown); })
        .def_readonly("host_only", &CopyReport::host_only)
        .def_readonly("restore_function", &CopyReport::restore_function)
        .def_readonly("restore_code", &CopyReport::restore_code)
        .def_readonly("unsettled", &CopyReport::unsettled);
    module.def("copy", &copy, py::arg("device"), py::arg("groups"), py::arg("deadline"),
               py::arg("events") = std::vector<std::uint64_t>(), py::arg("streams") = 2,
               py::arg("window_items") = 1024, py::arg("window_bytes") = std::uint64_t{256} << 20,
               py::arg("plain_window_bytes") = std::uint64_t{32} << 20);
}

}  // namespace cachecore::ascend
