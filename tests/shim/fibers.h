// Blocks of GPU threads on the CPU: every thread of a block is a fiber of one OS thread, so that barriers and operations of
// a warp (a SIMD group) are exact meetings. A meeting that not every thread reaches is reported, not waited for. Fibers run
// in a chosen order between two meetings: a kernel that lacks a barrier gives different results in different orders. Not
// modelled: memory ordering between blocks.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define FIBERS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBERS_SANITIZED 1
#endif
#endif
#ifdef FIBERS_SANITIZED
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) || defined(FIBERS_SANITIZED)
#define FIBERS_UCONTEXT 1
#include <ucontext.h>
#endif

namespace fibers {

#ifdef FIBERS_UCONTEXT
using Context = ucontext_t;

inline void switch_to(Context& from, Context& to) { swapcontext(&from, &to); }

inline void prepare(Context& context, char* stack, size_t size, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#else
// The stack of a fiber that does not run. A switch saves the registers that calls preserve, and no signal mask, which takes
// two system calls.
struct Context {
    void* stack = nullptr;
};

asm(R"(
    .text
    .type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
extern "C" void shim_switch(Context* from, Context* to) __asm__("shim_switch") __attribute__((visibility("hidden")));

inline void switch_to(Context& from, Context& to) { shim_switch(&from, &to); }

inline void prepare(Context& context, char* stack, size_t size, void (*entry)()) {
    auto top = (reinterpret_cast<uintptr_t>(stack) + size) / 16 * 16;
    // Six registers and the address to return to, which leaves the stack as after a call.
    auto* words = reinterpret_cast<uintptr_t*>(top) - 8;
    std::fill(words, words + 8, 0);
    words[6] = reinterpret_cast<uintptr_t>(entry);
    context.stack = words;
}
#endif

constexpr unsigned WARP = 32;
#ifdef FIBERS_SANITIZED
constexpr size_t STACK = 64 << 10;
#else
constexpr size_t STACK = 16 << 10;
#endif
// Stacks that begin at equal offsets in their pages would share a few lines of the caches.
constexpr size_t STAGGER = 320, STAGGERS = 12;

// Between two meetings, threads run by their index, in reverse, or shuffled anew at each pass.
enum Order { FORWARD, REVERSE, SHUFFLED };

struct Position {
    unsigned x, y, z;
};

// Threads that wait for one another.
struct Meeting {
    unsigned size = 0, arrived = 0, phase = 0;
    // What they wait for: two kinds must not meet.
    const char* what = nullptr;
    // Of each lane. They stay until the operation after the next one: a lane may be that far ahead of another.
    alignas(16) char values[2][WARP * 32];
    alignas(16) char result[2][16];
};

struct Fiber {
    Context context;
    std::unique_ptr<char[]> stack;
    bool done = false;
    unsigned index = 0;
    Meeting* waits = nullptr;
    unsigned phase = 0;
    void* fake = nullptr;
};

// A kernel's call for one thread; its position is in `block`.
struct Call {
    void (*run)(const Call&);
};

struct Block {
    Context main;
    std::vector<Fiber> fibers;
    Fiber* current = nullptr;
    Meeting all;
    std::vector<Meeting> warps;
    std::vector<unsigned> turn;
    Position at{}, grid{};
    unsigned threads = 0;
    const Call* call = nullptr;
    // Whether a thread that has returned counts as arrived at every barrier.
    bool leavers_arrive = false;
    char error[160] = {};
    const void* main_stack = nullptr;
    size_t main_size = 0;
    void* main_fake = nullptr;
};

inline thread_local Block* block = nullptr;

// The sanitizer is told which stack is in use.
inline void leaving([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack, [[maybe_unused]] size_t size) {
#ifdef FIBERS_SANITIZED
    __sanitizer_start_switch_fiber(fake, stack, size);
#endif
}
inline void entered([[maybe_unused]] void* fake, [[maybe_unused]] const void** stack, [[maybe_unused]] size_t* size) {
#ifdef FIBERS_SANITIZED
    __sanitizer_finish_switch_fiber(fake, stack, size);
#endif
}

inline void yield() {
    Fiber* me = block->current;
    leaving(me->done ? nullptr : &me->fake, block->main_stack, block->main_size);
    switch_to(me->context, block->main);
    entered(me->fake, &block->main_stack, &block->main_size);
}

// Ends the run; the thread never continues.
[[noreturn]] inline void fail(const char* problem) {
    snprintf(block->error, sizeof block->error, "%s (block %u %u %u, thread %u)", problem, block->at.x, block->at.y,
             block->at.z, block->current->index);
    for (;;) yield();
}

inline void meet(Meeting& m, const char* what) {
    if (m.arrived && m.what != what && strcmp(m.what, what) != 0) fail("threads wait for different operations");
    m.what = what;
    if (++m.arrived == m.size) {
        m.arrived = 0;
        m.phase++;
        return;
    }
    Fiber* me = block->current;
    unsigned phase = m.phase;
    me->waits = &m;
    me->phase = phase;
    while (m.phase == phase) yield();
    me->waits = nullptr;
}

inline Meeting& warp() { return block->warps[block->current->index / WARP]; }

// Every lane gives a value, and gets those of all, until the operation after the next.
template <class T>
inline const T* exchange(T value, const char* what) {
    static_assert(sizeof(T) <= 32);
    Meeting& m = warp();
    T* values = reinterpret_cast<T*>(m.values[m.phase & 1]);
    values[block->current->index % WARP] = value;
    meet(m, what);
    return values;
}

// Every lane gives a value, of which the last one makes the result of all with `reduce`.
template <class T, class F>
inline T combine(T value, const char* what, F reduce) {
    static_assert(sizeof(T) <= 16);
    Meeting& m = warp();
    T* values = reinterpret_cast<T*>(m.values[m.phase & 1]);
    T* result = reinterpret_cast<T*>(m.result[m.phase & 1]);
    values[block->current->index % WARP] = value;
    if (m.arrived + 1 == m.size) *result = reduce(values);
    meet(m, what);
    return *result;
}

inline void enter() {
    entered(nullptr, &block->main_stack, &block->main_size);
    block->call->run(*block->call);
    block->current->done = true;
    for (;;) yield();
}

// Runs `threads` threads for each position of `grid`. `seed` of the shuffled order. `before` is called before each block. The
// error, if any, is in the block.
template <class F>
inline void run(Block& b, Position grid, unsigned threads, Order order, uint32_t seed, const Call& call, F before) {
    block = &b;
    b.call = &call;
    b.grid = grid;
    b.threads = threads;
    b.error[0] = 0;
    if (b.fibers.size() < threads) b.fibers.resize(threads);
    b.turn.resize(threads);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                b.at = {x, y, z};
                b.all = Meeting{};
                b.all.size = threads;
                b.warps.resize(threads / WARP);
                for (Meeting& m : b.warps) {
                    m.size = WARP;
                    m.arrived = m.phase = 0;
                }
                before();
                for (unsigned i = 0; i < threads; i++) {
                    Fiber& f = b.fibers[i];
                    if (!f.stack) f.stack.reset(new char[STACK]);
                    f.done = false;
                    f.waits = nullptr;
                    f.fake = nullptr;
                    f.index = i;
                    prepare(f.context, f.stack.get(), STACK - i % STAGGERS * STAGGER, enter);
                    b.turn[i] = order == REVERSE ? threads - 1 - i : i;
                }
                for (unsigned left = threads; left;) {
                    if (order == SHUFFLED)
                        for (unsigned i = threads - 1; i > 0; i--) {
                            seed = seed * 1664525 + 1013904223;
                            std::swap(b.turn[i], b.turn[(seed >> 8) % (i + 1)]);
                        }
                    bool moved = false;
                    for (unsigned i : b.turn) {
                        Fiber& f = b.fibers[i];
                        if (f.done || (f.waits && f.waits->phase == f.phase)) continue;
                        b.current = &f;
                        moved = true;
                        leaving(&b.main_fake, f.stack.get(), STACK);
                        switch_to(b.main, f.context);
                        entered(b.main_fake, nullptr, nullptr);
                        if (b.error[0]) return;
                        if (!f.done) continue;
                        left--;
                        if (b.leavers_arrive && --b.all.size && b.all.arrived == b.all.size) {
                            b.all.arrived = 0;
                            b.all.phase++;
                        }
                    }
                    if (!moved) {
                        snprintf(b.error, sizeof b.error,
                                 "not every thread reaches a barrier or an operation of its warp (block %u %u %u)", x, y, z);
                        return;
                    }
                }
            }
}

}  // namespace fibers
