// What the files that talk to Python share. The others do not include pybind11.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

namespace cachecore::ascend {

// Makes a bound class look like any other Python class: its metaclass is type, as the stub file says.
inline pybind11::metaclass plain_class() {
    return pybind11::metaclass(reinterpret_cast<PyObject *>(&PyType_Type));
}

// Text of a library in whatever encoding, as a str; what is not UTF-8 is replaced. Needs the GIL.
pybind11::str text_of(const std::string &text);

void register_failure(pybind11::module_ &module);
void register_library(pybind11::module_ &module);
void register_query(pybind11::module_ &module);
void register_device(pybind11::module_ &module);
void register_copy(pybind11::module_ &module);
void register_planted_bug(pybind11::module_ &module);

}  // namespace cachecore::ascend
