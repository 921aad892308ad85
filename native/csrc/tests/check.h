// The smallest test harness that says where and why: CHECK counts failures, and a test's main returns `failures`.
#pragma once

#include <cstdio>

static int failures = 0;

#define CHECK(condition, ...)                                                      \
    do {                                                                           \
        if (!(condition)) {                                                        \
            ++failures;                                                            \
            if (failures <= 20) {                                                  \
                std::printf("%s:%d: not so: %s: ", __FILE__, __LINE__, #condition); \
                std::printf(__VA_ARGS__);                                          \
                std::printf("\n");                                                 \
            }                                                                      \
        }                                                                          \
    } while (false)
