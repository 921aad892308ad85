#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "cpu/dispatch.h"

namespace dsx {
namespace {

std::vector<std::string> names(const std::vector<Isa>& isas) {
    std::vector<std::string> text;
    for (Isa isa : isas) text.emplace_back(name_of(isa));
    return text;
}

}  // namespace

void bind_dispatch(pybind11::module_& module) {
    module.attr("compiler") = DSX_COMPILER;
    module.def("built", [] { return names(built()); }, "Instruction sets that this library has a body for.");
    module.def("available", [] { return names(available()); }, "Those that this processor can run, plainest first.");
    module.def("chosen", [] { return std::string(name_of(choose())); },
               "The one that is used: the widest, or what DSX_NATIVE_ISA says.");
}

}  // namespace dsx
