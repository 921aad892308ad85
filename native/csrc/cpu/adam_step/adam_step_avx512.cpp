#include "cpu/adam_step/bodies.h"

#include <immintrin.h>
#include <cstring>
#include <type_traits>

namespace dsx {
namespace {

#include "cpu/lanes/avx512.h"

#include "cpu/adam_step/adam_step_inl.h"

}  // namespace

AdamRange adam_range_avx512(const AdamTensors& tensors) { return pick(tensors); }

}  // namespace dsx
