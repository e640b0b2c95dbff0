// Device for Python.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "bindings.hpp"
#include "device.hpp"
#include "failure.hpp"
#include "query.hpp"

namespace py = pybind11;

namespace cachecore::ascend {

namespace {

// (address, bytes) pairs of a buffer of uint64.
std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_of(const py::buffer &ranges) {
    const py::buffer_info info = ranges.request();
    const auto nbytes = static_cast<std::size_t>(info.size * info.itemsize);
    if (nbytes % 16 != 0) {
        refuse("ranges has ", nbytes, " bytes; it must hold pairs of uint64");
    }
    const auto *values = static_cast<const std::uint64_t *>(info.ptr);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found(nbytes / 16);
    for (std::size_t index = 0; index < found.size(); ++index) {
        found[index] = {values[2 * index], values[2 * index + 1]};
    }
    return found;
}

std::vector<MemoryFacts> query(const Device &device, const py::buffer &ranges) {
    const auto asked = ranges_of(ranges);
    std::vector<MemoryFacts> answers;
    answers.reserve(asked.size());
    const py::gil_scoped_release release;
    device.run([&] {
        for (const auto &[base, nbytes] : asked) {
            answers.push_back(query_memory(device.library(), base, nbytes));
        }
    });
    return answers;
}

}  // namespace

void register_device(py::module_ &module) {
    using free_gil = py::call_guard<py::gil_scoped_release>;
    py::class_<Device, std::shared_ptr<Device>>(module, "Device", py::is_final(), plain_class())
        .def(py::init<std::shared_ptr<Library>, std::int32_t>(), py::arg("library"), py::arg("index"), free_gil())
        .def_property_readonly("index", &Device::index)
        .def("bind_thread", &Device::bind_thread, free_gil())
        .def("enter", &Device::enter, free_gil())
        .def("leave", &Device::leave, py::arg("former"), free_gil())
        .def("allocate", &Device::allocate, py::arg("nbytes"), py::arg("policy"), free_gil())
        .def("free", &Device::free, py::arg("address"), free_gil())
        .def("allocate_host", &Device::allocate_host, py::arg("nbytes"), free_gil())
        .def("free_host", &Device::free_host, py::arg("address"), free_gil())
        .def("memory_info", &Device::memory_info, free_gil())
        .def("query", &query, py::arg("ranges"))
        .def("trim", &Device::trim, free_gil());
}

}  // namespace cachecore::ascend
