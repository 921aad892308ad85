// Each element exactly once, whoever calls, also in a child of fork(), and in the caller's floating-point environment.
#include <atomic>
#include <cfenv>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.h"
#include "cpu/thread_pool.h"

namespace {

bool each_once(std::size_t n, int threads) {
    std::vector<unsigned char> visits(n, 0);
    std::atomic<bool> in_bounds{true};
    dsx::for_each_range(n, threads, [&](std::size_t begin, std::size_t end) {
        if (begin >= end || end > n) in_bounds = false;
        for (std::size_t i = begin; i < end && i < n; ++i) ++visits[i];
    });
    for (unsigned char count : visits)
        if (count != 1) return false;
    return in_bounds;
}

void check_sizes() {
    for (std::size_t n : {0, 1, 63, 64, 65, 16384, 16385, 100000, 262145, 1000003})
        for (int threads : {-1, 0, 1, 2, 3, 8}) CHECK(each_once(n, threads), "%zu elements, %d threads", n, threads);
}

void check_callers_at_once() {
    std::atomic<int> bad{0};
    std::vector<std::thread> callers;
    for (int k = 0; k < 4; ++k)
        callers.emplace_back([&] {
            for (int round = 0; round < 50; ++round) bad += !each_once(200000, 3);
        });
    for (std::thread& caller : callers) caller.join();
    CHECK(bad == 0, "%d of 200 calls went wrong", bad.load());
}

// Whether another thread than the caller ever takes part; it gets every chance to wake up in time.
bool helpers_take_part() {
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<bool> helped{false};
    for (int round = 0; round < 200 && !helped; ++round)
        dsx::for_each_range(1000000, 4, [&](std::size_t, std::size_t) {
            if (std::this_thread::get_id() != caller) helped = true;
            usleep(1000);
        });
    return helped;
}

void check_fork() {
    CHECK(helpers_take_part(), "the caller did all the work");
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);  // a hang ends the child instead of the test
        _exit(!each_once(500000, 4) ? 1 : !helpers_take_part() ? 2 : 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %d", status);
}

void check_environment() {
    std::fesetround(FE_UPWARD);
    std::atomic<int> other{0};
    for (int round = 0; round < 20; ++round)
        dsx::for_each_range(1000000, 4, [&](std::size_t, std::size_t) { other += std::fegetround() != FE_UPWARD; });
    std::fesetround(FE_TONEAREST);
    CHECK(other == 0, "%d ranges ran with another rounding than the caller's", other.load());
}

}  // namespace

int main() {
    check_sizes();
    check_callers_at_once();
    check_fork();
    check_environment();
    return failures != 0;
}
