// Sixteen floats in AVX-512 F, BW and VL. Not AVX512_BF16: its conversion turns subnormal numbers into zero.

struct Lanes {
    using Vec = __m512;
    static constexpr std::size_t width = 16;

    // Elements that follow each other in memory: as many as fill a register in a 16-bit format.
    struct Pair {
        Vec low, high;
    };

    static Vec all(float x) { return _mm512_set1_ps(x); }
    static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
    static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
    static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
    static Vec root(Vec a) { return _mm512_sqrt_ps(a); }
    static Vec mul_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

    static Pair load_fp32(const float* from) { return {_mm512_loadu_ps(from), _mm512_loadu_ps(from + width)}; }
    static Pair load_bf16(const std::uint16_t* from) {
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(from)), 16)),
                _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(from + width)), 16))};
    }
    static Pair load_fp16(const std::uint16_t* from) {
        return {_mm512_cvtph_ps(load_half(from)), _mm512_cvtph_ps(load_half(from + width))};
    }
    static void store_fp32(float* to, Pair a) {
        _mm512_storeu_ps(to, a.low);
        _mm512_storeu_ps(to + width, a.high);
    }
    static void store_bf16(std::uint16_t* to, Pair a) {
        // The upper half of each element, of both registers in order.
        const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,  //
                                               31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(nearest_bf16(a.low), upper, nearest_bf16(a.high)));
    }
    static void store_fp16(std::uint16_t* to, Pair a) {
        store_half(to, _mm512_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
        store_half(to + width, _mm512_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
    }

  private:
    static __m256i load_half(const std::uint16_t* from) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }
    static void store_half(std::uint16_t* to, __m256i a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a); }

    // The nearest bf16 in the upper half of each element; to_bf16 of dtype.h in lanes.
    static __m512i nearest_bf16(Vec a) {
        const __m512i bits = _mm512_castps_si512(a);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
        return _mm512_mask_or_epi32(nearest, nan, bits, _mm512_set1_epi32(0x400000));
    }
};
