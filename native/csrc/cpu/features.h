// What this processor can run, asked once per process.
#pragma once

namespace dsx {

// Instruction sets with a body of their own, from the plainest to the widest.
enum class Isa { scalar = 0, neon = 1, avx2 = 2, avx512 = 3 };

struct Features {
    bool avx2 = false;    // AVX2, FMA and F16C, with the operating system saving ymm registers
    bool avx512 = false;  // AVX-512 F, BW and VL besides, with zmm and mask registers saved
    bool neon = false;    // every 64-bit Arm processor
};

const Features& features();

}  // namespace dsx
