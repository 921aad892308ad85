// Which of the built bodies is used: the widest that this processor runs, unless the user asks for a plainer one.
#pragma once

#include <string>
#include <vector>

#include "cpu/features.h"

namespace dsx {

const char* name_of(Isa isa);

// Bodies that this library was built with, from the plainest to the widest.
std::vector<Isa> built();

// Those of them that this processor can run. Never empty: scalar is always there.
std::vector<Isa> available();

// The widest available one. A name, or else the environment variable DSX_NATIVE_ISA, asks for a certain one; it is a
// CallError when that one is unknown, was not built, or cannot run here.
Isa choose(const std::string& name = "");

}  // namespace dsx
