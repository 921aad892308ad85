#include "cpu/features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dsx {
namespace {

#if defined(__x86_64__)

// Extended control register 0: which register states the operating system keeps over a task switch.
unsigned long long saved_states() {
    unsigned low = 0;
    unsigned high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<unsigned long long>(high) << 32) | low;
}

Features detect() {
    constexpr unsigned long long ymm_states = 0x06;
    constexpr unsigned long long zmm_states = 0xe6;
    Features found;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return found;
    const bool fma_f16c = (c & bit_FMA) && (c & bit_F16C) && (c & bit_AVX);
    const unsigned long long saved = saved_states();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    found.avx2 = fma_f16c && (b & bit_AVX2) && (saved & ymm_states) == ymm_states;
    found.avx512 = found.avx2 && (b & bit_AVX512F) && (b & bit_AVX512BW) && (b & bit_AVX512VL) &&
                   (saved & zmm_states) == zmm_states;
    return found;
}

#elif defined(__aarch64__)

Features detect() {
    Features found;
    found.neon = true;
    return found;
}

#else

Features detect() { return {}; }

#endif

}  // namespace

const Features& features() {
    static const Features found = detect();
    return found;
}

}  // namespace dsx
