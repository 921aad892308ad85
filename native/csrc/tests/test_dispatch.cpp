// The choice of an instruction set.
#include <cstdlib>
#include <string>

#include "check.h"
#include "cpu/dispatch.h"
#include "cpu/error.h"

namespace {

bool refused(const std::string& name) {
    try {
        dsx::choose(name);
    } catch (const dsx::CallError& error) {
        return std::string(error.what()).find("scalar") != std::string::npos;
    }
    return false;
}

}  // namespace

int main() {
    unsetenv("DSX_NATIVE_ISA");
    const auto here = dsx::available();
    CHECK(!here.empty() && here.front() == dsx::Isa::scalar, "scalar must always be there");
    CHECK(dsx::choose() == here.back(), "the widest one is the default");
    for (dsx::Isa isa : here) {
        CHECK(dsx::choose(dsx::name_of(isa)) == isa, "%s by name", dsx::name_of(isa));
        setenv("DSX_NATIVE_ISA", dsx::name_of(isa), 1);
        CHECK(dsx::choose() == isa, "%s by environment", dsx::name_of(isa));
    }
    CHECK(refused("avx1024"), "an unknown name must be refused, and the known ones named");
    setenv("DSX_NATIVE_ISA", "avx1024", 1);
    CHECK(refused(""), "the same from the environment");
    return failures != 0;
}
