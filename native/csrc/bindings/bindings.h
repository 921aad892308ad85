// What the module is made of: one function per source in this folder.
#pragma once

#include <pybind11/pybind11.h>

namespace dsx {

void bind_dispatch(pybind11::module_& module);
void bind_adam_step(pybind11::module_& module);

}  // namespace dsx
