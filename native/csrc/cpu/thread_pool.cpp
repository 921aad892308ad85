#include "cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

namespace dsx {
namespace {

constexpr std::size_t alignment = 64;  // of ranges, in elements: whole blocks, and no cache line for two threads
constexpr std::size_t least_per_thread = 1 << 14;  // below this, waking a helper costs more than it gains
constexpr std::size_t elements_at_a_time = 1 << 16;

// The work of one call: a contiguous part for each thread, taken in pieces, so that memory keeps its home while a
// thread that is held up by others on the machine leaves the rest of its part to the one that is not.
class Job {
  public:
    Job(std::size_t n, std::size_t parts, const std::function<void(std::size_t, std::size_t)>& work)
        : work_(work), parts_(parts) {
        std::fegetenv(&environment_);
        const std::size_t stride = ((n + parts - 1) / parts + alignment - 1) / alignment * alignment;
        for (std::size_t k = 0; k < parts; ++k) {
            parts_[k].next = std::min(n, k * stride);
            parts_[k].end = std::min(n, (k + 1) * stride);
        }
    }

    // Called by each thread that takes part, with a number of its own below the count of parts.
    void take_part(std::size_t own) {
        for (std::size_t k = 0; k < parts_.size(); ++k) {
            Part& part = parts_[(own + k) % parts_.size()];
            while (true) {
                const std::size_t begin = part.next.fetch_add(elements_at_a_time);
                if (begin >= part.end) break;
                work_(begin, std::min(part.end, begin + elements_at_a_time));
            }
        }
    }

    void take_part_as_helper(std::size_t own) {
        std::fenv_t before;
        std::fegetenv(&before);
        std::fesetenv(&environment_);
        take_part(own);
        std::fesetenv(&before);
    }

  private:
    struct alignas(64) Part {
        std::atomic<std::size_t> next{0};
        std::size_t end = 0;
    };

    const std::function<void(std::size_t, std::size_t)>& work_;
    std::vector<Part> parts_;
    std::fenv_t environment_;
};

class Pool {
  public:
    explicit Pool(pid_t process) : process(process) {}

    const pid_t process;

    // Runs the job with up to `helpers` helpers. False, with nothing done, when they have another caller.
    bool run(Job& job, std::size_t helpers) {
        std::unique_lock<std::mutex> one_caller(callers_, std::try_to_lock);
        if (!one_caller) return false;
        grow(helpers);
        std::unique_lock<std::mutex> lock(state_);
        job_ = &job;
        invited_ = std::min(helpers, workers_);
        joined_ = 0;
        for (std::size_t k = 0; k < invited_; ++k) wake_.notify_one();
        lock.unlock();
        job.take_part(0);
        lock.lock();
        job_ = nullptr;  // nobody joins from here on
        done_.wait(lock, [&] { return running_ == 0; });
        return true;
    }

  private:
    void grow(std::size_t helpers) {
        // Signals belong to the program's own threads.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            for (; workers_ < helpers; ++workers_) std::thread([this] { live(); }).detach();
        } catch (const std::system_error&) {
            // No more threads to be had: those that exist do the work.
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void live() {
        std::unique_lock<std::mutex> lock(state_);
        while (true) {
            wake_.wait(lock, [&] { return job_ && joined_ < invited_; });
            Job& job = *job_;
            const std::size_t own = ++joined_;
            ++running_;
            lock.unlock();
            job.take_part_as_helper(own);
            lock.lock();
            if (--running_ == 0) done_.notify_one();
        }
    }

    std::mutex callers_;
    std::mutex state_;
    std::condition_variable wake_, done_;
    std::size_t workers_ = 0;
    Job* job_ = nullptr;
    std::size_t invited_ = 0, joined_ = 0, running_ = 0;
};

// The pool of this process. Never destroyed: its threads may outlive everything that runs at exit. A child of fork()
// finds its parent's, whose threads it does not have and whose locks may be held for ever, and leaves it alone.
Pool& pool() {
    static std::atomic<Pool*> current{nullptr};
    const pid_t here = getpid();
    Pool* found = current.load();
    while (!found || found->process != here) {
        auto made = std::make_unique<Pool>(here);
        if (current.compare_exchange_strong(found, made.get())) return *made.release();
    }
    return *found;
}

}  // namespace

void for_each_range(std::size_t n, int threads, const std::function<void(std::size_t, std::size_t)>& work) {
    const std::size_t wanted = threads > 1 ? static_cast<std::size_t>(threads) : 1;
    const std::size_t parts = std::min(wanted, (n + least_per_thread - 1) / least_per_thread);
    if (parts > 1) {
        Job job(n, parts, work);
        if (pool().run(job, parts - 1)) return;
    }
    if (n) work(0, n);
}

}  // namespace dsx
