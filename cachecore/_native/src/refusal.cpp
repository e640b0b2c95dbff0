#include "refusal.hpp"

#include <system_error>

#include "bindings.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

const char *class_name(Reason reason) {
    switch (reason) {
        case Reason::type: return "CacheTypeError";
        case Reason::value: return "CacheValueError";
        case Reason::missing: return "MissingArgumentError";
        case Reason::incompatible: return "CacheIncompatibleError";
        case Reason::overlap: return "OverlapError";
        case Reason::out_of_memory: return "CacheOutOfMemoryError";
    }
    return "CacheError";
}

// Imported when needed and not at start: cachecore.errors must not have to be importable before _core.
py::object error_class(const char *name) { return py::module_::import("cachecore.errors").attr(name); }

}  // namespace

SystemFailure::SystemFailure(std::string operation, int code)
    : operation_(std::move(operation)),
      code_(code),
      message_(operation_ + " failed: " + std::generic_category().message(code) + " (errno " + std::to_string(code) +
               ")") {}

std::string shown(py::handle object) {
    try {
        // repr() of a very long integer raises ValueError on Python 3.11 and later.
        std::string text = py::repr(object);
        if (text.size() > 80) {
            text = text.substr(0, 77) + "...";
        }
        return text + " of type " + Py_TYPE(object.ptr())->tp_name;
    } catch (const std::exception &) {
        PyErr_Clear();
        return std::string("a value of type ") + Py_TYPE(object.ptr())->tp_name;
    }
}

void register_refusal(py::module_ & /*module*/) {
    py::register_local_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) {
                std::rethrow_exception(thrown);
            }
        } catch (const Refusal &refusal) {
            PyErr_SetString(error_class(class_name(refusal.reason())).ptr(), refusal.what());
        } catch (const SystemFailure &failure) {
            const py::object type = error_class("EngineError");
            const py::object error =
                type(failure.what(), py::arg("operation") = failure.operation(), py::arg("code") = failure.code());
            PyErr_SetObject(type.ptr(), error.ptr());
        }
    });
}

}  // namespace cachecore
