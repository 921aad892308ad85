#include "cpu/adam_step/adam_step.h"

#include <cmath>

#include "cpu/adam_step/bodies.h"
#include "cpu/error.h"
#include "cpu/thread_pool.h"

namespace dsx {

AdamFactors::AdamFactors(const AdamSettings& s) {
    const double step = static_cast<double>(s.step);
    const double correction1 = s.bias_correction ? 1.0 - std::pow(s.beta1, step) : 1.0;
    const double correction2 = s.bias_correction ? 1.0 - std::pow(s.beta2, step) : 1.0;
    const double weight = 1.0 - s.beta1;
    grad_factor = static_cast<float>(s.grad_factor);
    decay_grad = static_cast<float>(s.decoupled ? 0.0 : s.weight_decay);
    keep = static_cast<float>(s.decoupled ? 1.0 - s.lr * s.weight_decay : 1.0);
    beta2 = static_cast<float>(s.beta2);
    rest2 = static_cast<float>(1.0 - s.beta2);
    root_scale = static_cast<float>(1.0 / std::sqrt(correction2));
    eps = static_cast<float>(s.eps);
    minus_rate = static_cast<float>(-s.lr / correction1);
    lerp_from_mean = weight < 0.5;
    lerp_weight = static_cast<float>(lerp_from_mean ? weight : weight - 1.0);
}

AdamRange adam_range(Isa isa, const AdamTensors& tensors) {
    switch (isa) {
#ifdef DSX_BUILT_AVX512
        case Isa::avx512: return adam_range_avx512(tensors);
#endif
#ifdef DSX_BUILT_AVX2
        case Isa::avx2: return adam_range_avx2(tensors);
#endif
#ifdef DSX_BUILT_NEON
        case Isa::neon: return adam_range_neon(tensors);
#endif
        default: return adam_range_scalar(tensors);
    }
}

void adam_step(const AdamTensors& tensors, const AdamSettings& settings, std::size_t n, int threads, Isa isa) {
    const AdamRange range = adam_range(isa, tensors);
    if (!range) throw CallError("adam_step takes fp32, bf16 or fp16 weights and gradients, and fp32 or bf16 states");
    const AdamFactors factors(settings);
    for_each_range(n, threads, [&](std::size_t begin, std::size_t end) { range(tensors, factors, begin, end); });
}

}  // namespace dsx
