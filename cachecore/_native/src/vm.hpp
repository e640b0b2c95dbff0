// Copies of plans by process_vm_readv, process_vm_writev and memcpy.
#pragma once

#include <pybind11/pybind11.h>

namespace cachecore {

void register_vm(pybind11::module_ &module);

}  // namespace cachecore
