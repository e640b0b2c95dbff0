// Makes a bound class look like any other Python class: its metaclass is type, as the stub file says.
#pragma once

#include <pybind11/pybind11.h>

namespace cachecore {

inline pybind11::metaclass plain_class() {
    return pybind11::metaclass(reinterpret_cast<PyObject *>(&PyType_Type));
}

}  // namespace cachecore
