// Where the memory of a Python buffer is. Python itself offers no way to ask.
#include <cstdint>

#include "bindings.hpp"

namespace py = pybind11;

namespace cachecore {
namespace {

std::uintptr_t buffer_address(const py::object &exporter) {
    Py_buffer view{};
    if (PyObject_GetBuffer(exporter.ptr(), &view, PyBUF_FULL_RO) != 0) {
        throw py::error_already_set();
    }
    const auto address = reinterpret_cast<std::uintptr_t>(view.buf);
    PyBuffer_Release(&view);
    return address;
}

}  // namespace

void register_buffers(py::module_ &module) {
    module.def("buffer_address", &buffer_address, py::arg("exporter"),
               "Address of the first element of an object with a buffer.");
}

}  // namespace cachecore
