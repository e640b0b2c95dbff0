#include "refusal.hpp"

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

}  // namespace

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
            // Imported here and not at start: cachecore.errors must not have to be importable before _core.
            py::object type = py::module_::import("cachecore.errors").attr(class_name(refusal.reason()));
            PyErr_SetString(type.ptr(), refusal.what());
        }
    });
}

}  // namespace cachecore
