// Four floats in plain C++: what the compiler makes of them on the architecture's baseline.
//
// Included inside a nameless namespace by one source per instruction set, as are the other lanes: each body then has
// symbols of its own, and none can be linked into another's place.

struct Lanes {
    typedef float Vec __attribute__((vector_size(16)));
    static constexpr std::size_t width = 4;

    // Elements that follow each other in memory: as many as fill a register in a 16-bit format.
    struct Pair {
        Vec low, high;
    };

    static Vec all(float x) { return Vec{x, x, x, x}; }
    static Vec mul(Vec a, Vec b) { return a * b; }
    static Vec add(Vec a, Vec b) { return a + b; }
    static Vec sub(Vec a, Vec b) { return a - b; }
    static Vec div(Vec a, Vec b) { return a / b; }
    static Vec root(Vec a) {
        for (std::size_t k = 0; k < width; ++k) a[k] = __builtin_sqrtf(a[k]);
        return a;
    }
    // a * b + c; rounded once where the baseline has the instruction, which is not so on x86-64.
    static Vec mul_add(Vec a, Vec b, Vec c) {
#if defined(__FMA__) || defined(__aarch64__)
        for (std::size_t k = 0; k < width; ++k) a[k] = __builtin_fmaf(a[k], b[k], c[k]);
        return a;
#else
        return a * b + c;
#endif
    }

    static Pair load_fp32(const float* from) {
        Pair a;
        std::memcpy(&a, from, sizeof a);
        return a;
    }
    static Pair load_bf16(const std::uint16_t* from) {
        float a[2 * width];
        for (std::size_t k = 0; k < 2 * width; ++k) a[k] = from_bf16(from[k]);
        return load_fp32(a);
    }
    static Pair load_fp16(const std::uint16_t* from) {
        float a[2 * width];
        for (std::size_t k = 0; k < 2 * width; ++k) a[k] = from_fp16(from[k]);
        return load_fp32(a);
    }
    static void store_fp32(float* to, Pair a) { std::memcpy(to, &a, sizeof a); }
    static void store_bf16(std::uint16_t* to, Pair a) {
        float wide[2 * width];
        store_fp32(wide, a);
        for (std::size_t k = 0; k < 2 * width; ++k) to[k] = to_bf16(wide[k]);
    }
    static void store_fp16(std::uint16_t* to, Pair a) {
        float wide[2 * width];
        store_fp32(wide, a);
        for (std::size_t k = 0; k < 2 * width; ++k) to[k] = to_fp16(wide[k]);
    }
};
