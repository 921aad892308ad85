// The 16-bit formats: what is exact stays, what lies between goes to the nearest, and halfway to the even one.
#include <cmath>
#include <initializer_list>
#include <limits>

#include "check.h"
#include "cpu/dtype.h"

namespace {

template <typename From, typename To>
void check_format(const char* name, From from, To to, std::uint16_t infinity) {
    for (unsigned bits = 0; bits <= 0xffff; ++bits) {
        const auto value = static_cast<std::uint16_t>(bits);
        const float wide = from(value);
        if (std::isnan(wide))
            CHECK(std::isnan(from(to(wide))), "%s %04x: a NaN came back as %g", name, bits, from(to(wide)));
        else
            CHECK(to(wide) == value, "%s %04x came back as %04x", name, bits, to(wide));
    }
    for (unsigned sign : {0u, 0x8000u}) {
        // The last step, to infinity, is halfway to what the next number would be.
        for (unsigned size = 0; size < infinity; ++size) {
            const auto low = static_cast<std::uint16_t>(sign | size);
            const auto high = static_cast<std::uint16_t>(sign | (size + 1));
            const float below = from(low);
            const float before = from(static_cast<std::uint16_t>(low - 1));
            const float above = size + 1 == infinity ? below + (below - before) : from(high);
            if (std::isinf(above)) continue;  // bf16's last step lies beyond fp32
            const float middle = below + (above - below) / 2;
            const std::uint16_t even = size % 2 ? high : low;
            CHECK(to(middle) == even, "%s: halfway after %04x went to %04x", name, low, to(middle));
            CHECK(to(std::nextafterf(middle, below)) == low, "%s: just below halfway after %04x", name, low);
            CHECK(to(std::nextafterf(middle, above)) == high, "%s: just above halfway after %04x", name, low);
        }
    }
    const float huge = std::numeric_limits<float>::max();
    CHECK(to(huge) == infinity, "%s: the largest fp32 went to %04x", name, to(huge));
    for (std::uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xffffffffu, 0xff800001u, 0x7fc00000u})
        CHECK(std::isnan(from(to(dsx::float_of(nan)))), "%s: NaN %08x was lost", name, nan);
}

}  // namespace

int main() {
    check_format("bf16", dsx::from_bf16, dsx::to_bf16, 0x7f80);
    check_format("fp16", dsx::from_fp16, dsx::to_fp16, 0x7c00);
    return failures != 0;
}
