#include "cpu/dispatch.h"

#include <cstdlib>

#include "cpu/error.h"

namespace dsx {
namespace {

bool runs_here(Isa isa) {
    switch (isa) {
        case Isa::avx512: return features().avx512;
        case Isa::avx2: return features().avx2;
        case Isa::neon: return features().neon;
        case Isa::scalar: return true;
    }
    return false;
}

std::string listed(const std::vector<Isa>& isas) {
    std::string text;
    for (Isa isa : isas) text += (text.empty() ? "" : ", ") + std::string(name_of(isa));
    return text;
}

}  // namespace

const char* name_of(Isa isa) {
    switch (isa) {
        case Isa::avx512: return "avx512";
        case Isa::avx2: return "avx2";
        case Isa::neon: return "neon";
        case Isa::scalar: return "scalar";
    }
    return "unknown";
}

std::vector<Isa> built() {
    return {
        Isa::scalar,
#ifdef DSX_BUILT_NEON
        Isa::neon,
#endif
#ifdef DSX_BUILT_AVX2
        Isa::avx2,
#endif
#ifdef DSX_BUILT_AVX512
        Isa::avx512,
#endif
    };
}

std::vector<Isa> available() {
    std::vector<Isa> here;
    for (Isa isa : built())
        if (runs_here(isa)) here.push_back(isa);
    return here;
}

Isa choose(const std::string& name) {
    std::string wanted = name;
    if (wanted.empty()) {
        const char* variable = std::getenv("DSX_NATIVE_ISA");
        wanted = variable ? variable : "";
    }
    const std::vector<Isa> here = available();
    if (wanted.empty()) return here.back();
    for (Isa isa : here)
        if (wanted == name_of(isa)) return isa;
    throw CallError("instruction set '" + wanted + "' was asked for" + (name.empty() ? " by DSX_NATIVE_ISA" : "") +
                    ", but this build and processor offer: " + listed(here) +
                    ". Ask for one of these, or for none to get the widest");
}

}  // namespace dsx
