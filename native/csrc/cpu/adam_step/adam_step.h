// One Adam or AdamW update of a flat range, in one pass over memory.
//
// D. P. Kingma, J. Ba: Adam, a method for stochastic optimization, 2015. I. Loshchilov, F. Hutter: Decoupled weight
// decay regularization, 2019.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/dtype.h"
#include "cpu/features.h"

namespace dsx {

// What the user chooses. Doubles: the rounding to float happens once, on the derived factors.
struct AdamSettings {
    std::int64_t step = 1;  // index of this update, from 1
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.0;
    double grad_factor = 1.0;  // multiplies the gradient first: unscaling times clipping
    bool decoupled = true;     // AdamW; otherwise the decay is added to the gradient
    bool bias_correction = true;
};

// The same as factors of the inner loop.
struct AdamFactors {
    explicit AdamFactors(const AdamSettings& settings);

    float grad_factor, decay_grad, keep, beta2, rest2, root_scale, eps, minus_rate;
    // The mean moves by linear interpolation: from the mean with weight 1 - beta1, or, where that weight is large, from
    // the gradient with weight -beta1, which loses fewer digits.
    float lerp_weight;
    bool lerp_from_mean;
};

// Memory of one call, all `n` elements long, none overlapping. `copy_out` may be null: then `copy_dtype` is none.
struct AdamTensors {
    void* shard;
    const void* grad;
    void* exp_avg;
    void* exp_avg_sq;
    void* copy_out;
    Dtype shard_dtype, grad_dtype, exp_avg_dtype, exp_avg_sq_dtype, copy_dtype;
};

// Updates elements [begin, end) on the calling thread. What an element becomes does not depend on the range.
using AdamRange = void (*)(const AdamTensors&, const AdamFactors&, std::size_t begin, std::size_t end);

// The body for this instruction set and these formats; null where a format is not one that the operation takes.
AdamRange adam_range(Isa isa, const AdamTensors& tensors);

// Updates all elements on up to `threads` threads. Throws CallError where a format is not taken.
void adam_step(const AdamTensors& tensors, const AdamSettings& settings, std::size_t n, int threads, Isa isa);

}  // namespace dsx
