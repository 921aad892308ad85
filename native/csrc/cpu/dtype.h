// The number formats that cross the boundary, and their conversions in plain C++.
//
// Everything here is `static inline`: this header is read by sources that are compiled for different instruction sets,
// and a shared symbol could bring AVX-512 code to a processor that lacks it.
#pragma once

#include <cstdint>
#include <cstring>

namespace dsx {

enum class Dtype : int { none = 0, fp32 = 1, bf16 = 2, fp16 = 3 };

static inline std::size_t size_of(Dtype dtype) {
    return dtype == Dtype::none ? 0 : dtype == Dtype::fp32 ? 4 : 2;
}

static inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float from_bf16(std::uint16_t value) { return float_of(static_cast<std::uint32_t>(value) << 16); }

// To nearest, ties to even. A NaN stays one: rounding its payload up could carry into the sign, so it is cut, quieted.
static inline std::uint16_t to_bf16(float value) {
    const std::uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float from_fp16(std::uint16_t value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
    const std::uint32_t exponent = (value >> 10) & 0x1fu;
    const std::uint32_t fraction = value & 0x3ffu;
    if (exponent == 0x1fu) return float_of(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x00400000u : 0u));
    if (exponent) return float_of(sign | ((exponent + 112u) << 23) | (fraction << 13));
    const float small = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24 each
    return float_of(sign | bits_of(small));
}

// To nearest, ties to even; beyond 65519.99 infinity, below 2^-14 subnormal, NaN stays NaN.
static inline std::uint16_t to_fp16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t size = bits & 0x7fffffffu;
    std::uint32_t half;
    if (size > 0x7f800000u) {
        half = 0x7e00u | ((size >> 13) & 0x1ffu);
    } else if (size >= 0x477ff000u) {
        half = 0x7c00u;
    } else if (size >= 0x38800000u) {
        half = (size - 0x38000000u + 0x0fffu + ((size >> 13) & 1u)) >> 13;
    } else {
        // Adding 0.5 puts the last bit that fp16 keeps at the float's own last bit, so the addition does the rounding.
        half = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    }
    return static_cast<std::uint16_t>(sign | half);
}

}  // namespace dsx
