#include "cpu/adam_step/adam_step.h"

#include <array>
#include <cmath>
#include <string>

#include "bindings/bindings.h"
#include "cpu/dispatch.h"
#include "cpu/error.h"

namespace dsx {
namespace {

namespace py = pybind11;

// One tensor as it crosses the boundary.
struct Memory {
    const char* name;
    std::uintptr_t address;
    Dtype dtype;

    std::uintptr_t end(std::size_t n) const { return address + n * size_of(dtype); }
};

Memory memory_from(const char* name, const py::tuple& pair) {
    if (pair.size() != 2) throw CallError(std::string(name) + ": wanted (address, dtype code)");
    const int code = pair[1].cast<int>();
    if (code < 0 || code > static_cast<int>(Dtype::fp16))
        throw CallError(std::string(name) + ": " + std::to_string(code) + " is no dtype code");
    return {name, pair[0].cast<std::uintptr_t>(), static_cast<Dtype>(code)};
}

void check_memory(const std::array<Memory, 5>& columns, std::size_t n) {
    for (const Memory& a : columns) {
        if (a.dtype == Dtype::none) continue;
        if (!a.address) throw CallError(std::string(a.name) + " has no memory; give it a tensor with storage");
        if (a.address % size_of(a.dtype))
            throw CallError(std::string(a.name) + " starts within an element; align it to its dtype");
        for (const Memory& b : columns) {
            if (&a == &b || b.dtype == Dtype::none) continue;
            if (a.address < b.end(n) && b.address < a.end(n))
                throw CallError(std::string(a.name) + " and " + b.name +
                                " share memory; each is read and written on its own, so give them separate tensors");
        }
    }
}

void check_settings(const AdamSettings& s) {
    const auto refuse = [](const char* name, double found, const char* wanted) {
        throw CallError(std::string(name) + " is " + std::to_string(found) + "; wanted " + wanted);
    };
    if (s.step < 1) refuse("step", static_cast<double>(s.step), "the index of this update, from 1");
    if (!(s.lr >= 0.0 && std::isfinite(s.lr))) refuse("lr", s.lr, "a finite number, 0 or more");
    if (!(s.beta1 >= 0.0 && s.beta1 < 1.0)) refuse("betas[0]", s.beta1, "0 or more and below 1");
    if (!(s.beta2 >= 0.0 && s.beta2 < 1.0)) refuse("betas[1]", s.beta2, "0 or more and below 1");
    if (!(s.eps >= 0.0 && std::isfinite(s.eps))) refuse("eps", s.eps, "a finite number, 0 or more");
    if (!(s.weight_decay >= 0.0 && std::isfinite(s.weight_decay)))
        refuse("weight_decay", s.weight_decay, "a finite number, 0 or more");
    if (!std::isfinite(s.grad_factor))
        refuse("grad_factor", s.grad_factor, "a finite number; skip the update where the gradients are not finite");
}

void call(std::size_t n, const py::tuple& shard, const py::tuple& grad, const py::tuple& exp_avg,
          const py::tuple& exp_avg_sq, const py::tuple& copy_out, std::int64_t step, double lr, double beta1,
          double beta2, double eps, double weight_decay, double grad_factor, bool decoupled, bool bias_correction,
          int threads, const std::string& isa) {
    const std::array<Memory, 5> columns = {
        memory_from("shard", shard), memory_from("grad", grad), memory_from("exp_avg", exp_avg),
        memory_from("exp_avg_sq", exp_avg_sq), memory_from("copy_out", copy_out)};
    const AdamSettings settings{step, lr, beta1, beta2, eps, weight_decay, grad_factor, decoupled, bias_correction};
    check_settings(settings);
    if (n) check_memory(columns, n);
    const auto at = [&](std::size_t k) { return reinterpret_cast<void*>(columns[k].address); };
    const AdamTensors tensors{at(0),            at(1),            at(2),            at(3),            at(4),
                              columns[0].dtype, columns[1].dtype, columns[2].dtype, columns[3].dtype, columns[4].dtype};
    const Isa body = choose(isa);
    const py::gil_scoped_release others_may_run;
    adam_step(tensors, settings, n, threads, body);
}

}  // namespace

void bind_adam_step(pybind11::module_& module) {
    module.def("adam_step", &call, "One Adam or AdamW update; tensors are (address, dtype code), code 0 for none.",
               py::arg("n"), py::kw_only(), py::arg("shard"), py::arg("grad"), py::arg("exp_avg"),
               py::arg("exp_avg_sq"), py::arg("copy_out"), py::arg("step"), py::arg("lr"), py::arg("beta1"),
               py::arg("beta2"), py::arg("eps"), py::arg("weight_decay"), py::arg("grad_factor"),
               py::arg("decoupled"), py::arg("bias_correction"), py::arg("threads"), py::arg("isa") = "");
}

}  // namespace dsx
