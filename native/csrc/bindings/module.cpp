#include "bindings/bindings.h"

#include "cpu/error.h"

namespace py = pybind11;

PYBIND11_MODULE(_core, module) {
    module.doc() = "Kernels on plain memory: addresses, counts and dtype codes. Called through dsx_native.kernels.";
    py::register_local_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) std::rethrow_exception(thrown);
        } catch (const dsx::CallError& error) {
            py::set_error(py::module_::import("dsx.errors").attr("KernelError"), error.what());
        }
    });
    dsx::bind_dispatch(module);
    dsx::bind_adam_step(module);
}
