// The blocks of a kernel, one after the other, on one thread of the host.
//
// Every thread of a block has a stack of its own; they take turns at barriers and where lanes of a
// warp meet, warp after warp. What waits for what can never come is an error, as is a lane that
// leaves before the others of its mask have met it.
//
// g++ has every read and write of a kernel call the hooks of its address sanitizer, which are
// defined here: they look for garbage.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "cuda.h"  // the last one: what it defines may be a word of theirs

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

constexpr std::size_t STACK = 128 * 1024, DYNAMIC = 256 * 1024;
alignas(128) char dynamic_shared[DYNAMIC];

// What buffers and shared memory are made of at first.
constexpr unsigned char GARBAGE = 0xa5;

namespace {

struct Thread {
    jmp_buf place;  // where it goes on, once started
    std::unique_ptr<char[]> stack;
    bool done;
};

// Lanes of a warp that have named the same mask and exchange a value.
struct Meeting {
    unsigned arrived = 0, left = 0;
    std::uint64_t value[32] = {};
};

std::vector<Thread> threads;
jmp_buf scheduler;
std::vector<std::map<unsigned, Meeting>> meetings;  // of each warp, by mask
unsigned current, alive, waiting, finished;  // waiting at a barrier; barriers that all have reached
bool progress;
const char* fault;
void (*body)(void*);
void* body_argument;
char *static_shared, *static_shared_end;

void yield() {
    if (!_setjmp(threads[current].place)) _longjmp(scheduler, 1);
}

template <class Condition>
void wait_until(Condition condition) {
    while (!condition()) yield();
    progress = true;
}

void finish_barrier_if_all_wait() {
    if (waiting == 0 || waiting < alive) return;
    waiting = 0;
    finished++;
}

// Waits until all lanes of a mask have come with a value, and returns what `read` makes of the
// meeting and of the lanes that take part: a mask may name lanes beyond the block.
template <class Read>
auto meet(unsigned mask, std::uint64_t value, Read read) {
    const unsigned bit = 1u << current % 32, first = current / 32 * 32;
    if (blockDim.x - first < 32) mask &= (1u << (blockDim.x - first)) - 1;
    if (!(mask & bit)) fault = "a lane is not in its own mask";
    Meeting& meeting = meetings[current / 32][mask];
    wait_until([&] { return !(meeting.arrived & bit); });  // of the time before
    meeting.value[current % 32] = value;
    meeting.arrived |= bit;
    wait_until([&] { return meeting.arrived == mask; });
    const auto result = read(meeting, mask);
    meeting.left |= bit;
    if (meeting.left == mask) meeting.left = meeting.arrived = 0;
    return result;
}

// The life of a thread: one block after the other.
void live() {
    for (;; yield()) {
        body(body_argument);
        threads[current].done = progress = true;
        alive--;
        finish_barrier_if_all_wait();
    }
}

// Lets a thread run until it waits. Only its start, once in its life,
// takes a call of the operating system.
void resume(Thread& thread) {
    if (_setjmp(scheduler)) return;
    if (thread.stack) _longjmp(thread.place, 1);
    // zeros, as freed memory may hold garbage, and kernels copy local values that they never use
    thread.stack.reset(new char[STACK]());
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = thread.stack.get();
    context.uc_stack.ss_size = STACK;
    makecontext(&context, live, 0);
    setcontext(&context);
}

// Lets the lanes of a warp run as far as they can without other warps; whether that was anywhere.
bool resume_warp(unsigned first) {
    bool any = false;
    do {
        progress = false;
        for (current = first; current < std::min(first + 32, blockDim.x); current++) {
            threadIdx = {current, 0, 0};
            if (!threads[current].done) resume(threads[current]);
        }
        any |= progress;
    } while (progress);
    return any;
}

void run_block() {
    std::memset(dynamic_shared, GARBAGE, DYNAMIC);
    std::memset(static_shared, GARBAGE, static_shared_end - static_shared);
    meetings.assign((blockDim.x + 31) / 32, {});
    for (unsigned k = 0; k < blockDim.x; k++) threads[k].done = false;
    alive = blockDim.x;
    waiting = finished = 0;
    while (alive > 0 && !fault) {
        bool any = false;
        for (unsigned first = 0; first < blockDim.x; first += 32) any |= resume_warp(first);
        if (!any && !fault) fault = "threads wait for each other for ever";
    }
}

void before_read(const void* at, std::size_t bytes) {
    for (std::size_t k = 0; k + 4 <= bytes; k += 4) {
        unsigned word;
        std::memcpy(&word, static_cast<const char*>(at) + k, 4);
        if (word == GARBAGE * 0x1010101u) fault = "a thread reads what was never written";
    }
}

}  // namespace

int lane() {
    return current % 32;
}

void barrier() {
    const unsigned before = finished;
    progress = true;
    waiting++;
    finish_barrier_if_all_wait();
    wait_until([&] { return finished != before; });
}

std::uint64_t exchange(unsigned mask, std::uint64_t value, int from) {
    return meet(mask, value, [&](const Meeting& meeting, unsigned) { return meeting.value[from]; });
}

unsigned lanes_with(unsigned mask, std::uint64_t value, std::uint64_t wanted) {
    return meet(mask, value, [&](const Meeting& meeting, unsigned lanes) {
        unsigned found = 0;
        for (int k = 0; k < 32; k++)
            found |= unsigned((lanes >> k & 1) && meeting.value[k] == wanted) << k;
        return found;
    });
}

const char* run(uint3 grid, unsigned block, void (*of)(void*), void* argument, char* shared,
                char* shared_end) {
    body = of;
    body_argument = argument;
    static_shared = shared;
    static_shared_end = shared_end;
    gridDim = grid;
    blockDim = {block, 1, 1};
    fault = nullptr;
    if (threads.size() < block) threads.resize(block);
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
                run_block();
                if (fault) {
                    threads.clear();  // they would go on within this block
                    return fault;
                }
            }
    return nullptr;
}

}  // namespace emulator

#define HOOKS(bytes)                                    \
    void __asan_load##bytes##_noabort(const void* at) { \
        emulator::before_read(at, bytes);               \
    }                                                   \
    void __asan_store##bytes##_noabort(const void*) {}

#pragma GCC visibility push(default)
extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __asan_loadN_noabort(const void* at, std::size_t bytes) {
    emulator::before_read(at, bytes);
}
void __asan_storeN_noabort(const void*, std::size_t) {}
void __asan_handle_no_return() {}
void __asan_before_dynamic_init(const void*) {}
void __asan_after_dynamic_init() {}
}
#pragma GCC visibility pop
