// Library for Python.
#include <memory>

#include <pybind11/stl.h>

#include "bindings.hpp"
#include "library.hpp"

namespace py = pybind11;

namespace cachecore::ascend {

void register_library(py::module_ &module) {
    using free_gil = py::call_guard<py::gil_scoped_release>;
    py::class_<Library, std::shared_ptr<Library>>(module, "Library", py::is_final(), plain_class())
        .def(py::init<const std::string &>(), py::arg("name"), free_gil())
        .def_property_readonly("path", &Library::path)
        .def_property_readonly("missing", &Library::missing)
        .def("initialise", &Library::initialise, free_gil())
        .def("soc_name", &Library::soc_name, free_gil())
        .def("device_count", &Library::device_count, free_gil())
        .def("current_device", &Library::current_device, free_gil())
        .def("package_version", &Library::package_version, py::arg("package"), free_gil())
        .def("interface_version", &Library::interface_version, free_gil())
        .def_property_readonly("batches_refused", [](const Library &library) { return library.batches_refused.load(); })
        .def_property_readonly("capture_mode_refused",
                               [](const Library &library) { return library.capture_mode_refused.load(); });
    module.def("loaded_library", &loaded_library, py::arg("name"), free_gil());
}

}  // namespace cachecore::ascend
