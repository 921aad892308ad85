#include "cpu/adam_step/bodies.h"

#include <arm_neon.h>
#include <cstring>
#include <type_traits>

namespace dsx {
namespace {

#include "cpu/lanes/neon.h"

#include "cpu/adam_step/adam_step_inl.h"

}  // namespace

AdamRange adam_range_neon(const AdamTensors& tensors) { return pick(tensors); }

}  // namespace dsx
