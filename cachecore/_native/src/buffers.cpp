// Where the memory of a Python buffer is. Python itself offers no way to ask.
#include <cstdint>
#include <utility>

#include "bindings.hpp"

namespace py = pybind11;

namespace cachecore {
namespace {

std::pair<std::uintptr_t, py::ssize_t> buffer_extent(const py::object &exporter) {
    Py_buffer view{};
    if (PyObject_GetBuffer(exporter.ptr(), &view, PyBUF_FULL_RO) != 0) {
        throw py::error_already_set();
    }
    const std::pair<std::uintptr_t, py::ssize_t> extent{reinterpret_cast<std::uintptr_t>(view.buf), view.len};
    PyBuffer_Release(&view);
    return extent;
}

std::uintptr_t buffer_address(const py::object &exporter) { return buffer_extent(exporter).first; }

}  // namespace

void register_buffers(py::module_ &module) {
    module.def("buffer_address", &buffer_address, py::arg("exporter"),
               "Address of the first element of an object with a buffer.");
    module.def("buffer_extent", &buffer_extent, py::arg("exporter"),
               "Address of the first element of an object with a buffer, and the bytes of all its elements.");
}

}  // namespace cachecore
