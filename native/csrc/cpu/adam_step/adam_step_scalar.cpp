#include "cpu/adam_step/bodies.h"

#include <cstring>
#include <type_traits>

namespace dsx {
namespace {

#include "cpu/lanes/plain.h"

#include "cpu/adam_step/adam_step_inl.h"

}  // namespace

AdamRange adam_range_scalar(const AdamTensors& tensors) { return pick(tensors); }

}  // namespace dsx
