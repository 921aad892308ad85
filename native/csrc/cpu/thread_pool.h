// Splits a range of elements over threads of our own.
//
// Not OpenMP: a second OpenMP runtime beside PyTorch's oversubscribes the processor, and none of them survives fork(),
// by which ranks are made from a preloaded server.
#pragma once

#include <cstddef>
#include <functional>

namespace dsx {

// Runs `work(begin, end)` over disjoint ranges that cover [0, n), on this thread and up to threads - 1 helpers, and
// returns when all is done. Ranges start at multiples of 64 elements. `work` must not throw.
//
// Helpers are made when first needed, once per process: a child of fork() makes its own. They take on the caller's
// floating-point environment (rounding, flush-to-zero). A caller that finds the helpers busy with another one's work
// does its own alone, and late helpers are not waited for, so no call can hang on another.
void for_each_range(std::size_t n, int threads, const std::function<void(std::size_t, std::size_t)>& work);

}  // namespace dsx
