// Four floats in NEON, as every 64-bit Arm processor has it.

struct Lanes {
    using Vec = float32x4_t;
    static constexpr std::size_t width = 4;

    // Elements that follow each other in memory: as many as fill a register in a 16-bit format.
    struct Pair {
        Vec low, high;
    };

    static Vec all(float x) { return vdupq_n_f32(x); }
    static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
    static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
    static Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
    static Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
    static Vec root(Vec a) { return vsqrtq_f32(a); }
    static Vec mul_add(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }

    static Pair load_fp32(const float* from) { return {vld1q_f32(from), vld1q_f32(from + width)}; }
    static Pair load_bf16(const std::uint16_t* from) {
        const uint16x8_t both = vld1q_u16(from);
        return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(both), 16)),
                vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(both), 16))};
    }
    static Pair load_fp16(const std::uint16_t* from) {
        const float16x8_t both = vreinterpretq_f16_u16(vld1q_u16(from));
        return {vcvt_f32_f16(vget_low_f16(both)), vcvt_f32_f16(vget_high_f16(both))};
    }
    static void store_fp32(float* to, Pair a) {
        vst1q_f32(to, a.low);
        vst1q_f32(to + width, a.high);
    }
    static void store_bf16(std::uint16_t* to, Pair a) {
        vst1q_u16(to, vcombine_u16(nearest_bf16(a.low), nearest_bf16(a.high)));
    }
    static void store_fp16(std::uint16_t* to, Pair a) {
        vst1q_u16(to, vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(a.low), vcvt_f16_f32(a.high))));
    }

  private:
    // to_bf16 of dtype.h in lanes.
    static uint16x4_t nearest_bf16(Vec a) {
        const uint32x4_t bits = vreinterpretq_u32_f32(a);
        const uint32x4_t high = vshrq_n_u32(bits, 16);
        const uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
        const uint32x4_t nearest = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
        const uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
        return vmovn_u32(vbslq_u32(vceqq_f32(a, a), nearest, quiet));
    }
};
