// The bodies of adam_step, one per instruction set. Only those that dispatch calls built exist in the library.
#pragma once

#include "cpu/adam_step/adam_step.h"

namespace dsx {

AdamRange adam_range_scalar(const AdamTensors& tensors);
AdamRange adam_range_neon(const AdamTensors& tensors);
AdamRange adam_range_avx2(const AdamTensors& tensors);
AdamRange adam_range_avx512(const AdamTensors& tensors);

}  // namespace dsx
