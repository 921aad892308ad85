// Eight floats in AVX2, FMA and F16C.

struct Lanes {
    using Vec = __m256;
    static constexpr std::size_t width = 8;

    // Elements that follow each other in memory: as many as fill a register in a 16-bit format.
    struct Pair {
        Vec low, high;
    };

    static Vec all(float x) { return _mm256_set1_ps(x); }
    static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
    static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
    static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
    static Vec root(Vec a) { return _mm256_sqrt_ps(a); }
    static Vec mul_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

    static Pair load_fp32(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + width)}; }
    static Pair load_bf16(const std::uint16_t* from) {
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(from)), 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(from + width)), 16))};
    }
    static Pair load_fp16(const std::uint16_t* from) {
        return {_mm256_cvtph_ps(load_half(from)), _mm256_cvtph_ps(load_half(from + width))};
    }
    static void store_fp32(float* to, Pair a) {
        _mm256_storeu_ps(to, a.low);
        _mm256_storeu_ps(to + width, a.high);
    }
    static void store_bf16(std::uint16_t* to, Pair a) {
        // Packing works within each half of a register, so the quarters come out as 0 2 1 3.
        const __m256i packed = _mm256_packus_epi32(nearest_bf16(a.low), nearest_bf16(a.high));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    static void store_fp16(std::uint16_t* to, Pair a) {
        store_half(to, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
        store_half(to + width, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
    }

  private:
    static __m128i load_half(const std::uint16_t* from) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
    static void store_half(std::uint16_t* to, __m128i a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), a); }

    // The nearest bf16 in the low half of each element; to_bf16 of dtype.h in lanes.
    static __m256i nearest_bf16(Vec a) {
        const __m256i bits = _mm256_castps_si256(a);
        const __m256i high = _mm256_srli_epi32(bits, 16);
        const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        const __m256i nearest = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
        const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        return _mm256_blendv_epi8(nearest, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    }
};
