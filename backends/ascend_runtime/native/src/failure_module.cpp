#include "failure.hpp"

#include "bindings.hpp"

namespace py = pybind11;

namespace cachecore::ascend {

py::str text_of(const std::string &text) {
    PyObject *decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
    if (decoded == nullptr) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::str>(decoded);
}

void register_failure(py::module_ & /*module*/) {
    py::register_local_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) {
                std::rethrow_exception(thrown);
            }
        } catch (const AclFailure &failure) {
            const py::object error = py::module_::import("cachecore_ascend_runtime.errors")
                                         .attr("from_code")(failure.function(), failure.code(), text_of(failure.detail()));
            PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
        } catch (const LoadFailure &failure) {
            PyErr_SetString(PyExc_OSError, failure.what());
        } catch (const Refusal &refusal) {
            PyErr_SetString(py::module_::import("cachecore.errors").attr("CacheValueError").ptr(), refusal.what());
        }
    });
}

}  // namespace cachecore::ascend
