// What the files that talk to Python share. Files without Python in them do not include this: parsing pybind11 takes
// longer than compiling them.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

namespace cachecore {

// Each adds the classes and functions of one file to the module.
void register_buffers(pybind11::module_ &module);
void register_copy_plan(pybind11::module_ &module);
void register_geometry(pybind11::module_ &module);
void register_mappings(pybind11::module_ &module);
void register_nonce(pybind11::module_ &module);
void register_planning(pybind11::module_ &module);
void register_planted_bug(pybind11::module_ &module);
void register_refusal(pybind11::module_ &module);
void register_regions(pybind11::module_ &module);
void register_report(pybind11::module_ &module);
void register_shared_block(pybind11::module_ &module);
void register_vm(pybind11::module_ &module);
void register_words(pybind11::module_ &module);

// repr() of an object cut to 80 characters, with its type; never raises.
std::string shown(pybind11::handle object);

// Makes a bound class look like any other Python class: its metaclass is type, as the stub file says.
inline pybind11::metaclass plain_class() {
    return pybind11::metaclass(reinterpret_cast<PyObject *>(&PyType_Type));
}

}  // namespace cachecore
