// Threadgroups on the CPU: every thread of a group is a fiber of one OS thread, so that barriers and SIMD operations are
// exact meetings. A meeting that not every thread reaches is reported, not waited for. Fibers run in a chosen order
// between two meetings, and a kernel that lacks a barrier gives different results in different orders.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace fibers {

#ifdef __x86_64__
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
extern "C" void shim_switch(Context* from, Context* to) __asm__("shim_switch");

inline void switch_to(Context& from, Context& to) { shim_switch(&from, &to); }

inline void prepare(Context& context, char* stack, size_t size, void (*entry)()) {
    auto top = (reinterpret_cast<uintptr_t>(stack) + size) / 16 * 16;
    // Six registers and the address to return to, which leaves the stack as after a call.
    auto* words = reinterpret_cast<uintptr_t*>(top) - 8;
    std::fill(words, words + 8, 0);
    words[6] = reinterpret_cast<uintptr_t>(entry);
    context.stack = words;
}
#else
using Context = ucontext_t;

inline void switch_to(Context& from, Context& to) { swapcontext(&from, &to); }

inline void prepare(Context& context, char* stack, size_t size, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#endif

constexpr unsigned SIMD = 32;
constexpr size_t STACK = 64 << 10;

enum Order { FORWARD, REVERSE, SHUFFLED };

struct Position {
    unsigned x, y, z;
};

// Threads that wait for one another.
struct Meeting {
    unsigned size = 0, arrived = 0, phase = 0;
    // What they wait for: two kinds must not meet.
    const char* what = nullptr;
    alignas(16) char values[SIMD * 16];
    alignas(16) char result[2][16];
};

struct Fiber {
    Context context;
    std::unique_ptr<char[]> stack;
    bool done = false;
    unsigned index = 0;
    Meeting* waits = nullptr;
    unsigned phase = 0;
};

// A kernel's call for one thread: position of its group, lane, SIMD group.
struct Call {
    void (*run)(const Call&, Position group, unsigned lane, unsigned simd_index);
    void* function;
    void** buffers;
    size_t count;
    float* shared;
};

struct Group {
    Context main;
    std::vector<Fiber> fibers;
    Fiber* current = nullptr;
    Meeting all;
    std::vector<Meeting> simds;
    Position at{};
    const Call* call = nullptr;
    char error[160] = {};
};

inline thread_local Group* group = nullptr;

inline void yield() { switch_to(group->current->context, group->main); }

// Ends the run; the thread never continues.
[[noreturn]] inline void fail(const char* problem) {
    snprintf(group->error, sizeof group->error, "%s (threadgroup %u %u %u, thread %u)", problem, group->at.x, group->at.y,
             group->at.z, group->current->index);
    for (;;) yield();
}

inline void meet(Meeting& m, const char* what) {
    if (m.arrived && strcmp(m.what, what) != 0) fail("threads wait for different operations");
    m.what = what;
    if (++m.arrived == m.size) {
        m.arrived = 0;
        m.phase++;
        return;
    }
    Fiber* me = group->current;
    unsigned phase = m.phase;
    me->waits = &m;
    me->phase = phase;
    while (m.phase == phase) yield();
    me->waits = nullptr;
}

inline Meeting& simd() { return group->simds[group->current->index / SIMD]; }

// Every lane gives a value, of which the last one makes the result of all with `reduce`.
template <class T, class F>
inline T combine(T value, const char* what, F reduce) {
    static_assert(sizeof(T) <= 16);
    Meeting& m = simd();
    T* values = reinterpret_cast<T*>(m.values);
    values[group->current->index % SIMD] = value;
    // The result stays until the operation after the next one: a lane may be that far ahead of another.
    T* result = reinterpret_cast<T*>(m.result[m.phase & 1]);
    if (m.arrived + 1 == m.size) *result = reduce(values);
    meet(m, what);
    return *result;
}

inline void enter() {
    unsigned i = group->current->index;
    group->call->run(*group->call, group->at, i % SIMD, i / SIMD);
    group->current->done = true;
    for (;;) yield();
}

// Runs `simds` SIMD groups for each position of `grid`. The error, if any, is in the group.
inline void run(Group& g, Position grid, unsigned simds, Order order, const Call& call, size_t shared_bytes) {
    group = &g;
    g.call = &call;
    unsigned n = simds * SIMD;
    if (g.fibers.size() < n) g.fibers.resize(n);
    std::vector<unsigned> turn(n);
    uint32_t random = 12345;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                g.at = {x, y, z};
                g.all = Meeting{};
                g.all.size = n;
                g.simds.assign(simds, Meeting{});
                // Threadgroup memory has no content at first: NaN shows in results.
                memset(call.shared, 0xff, shared_bytes);
                for (Meeting& m : g.simds) m.size = SIMD;
                for (unsigned i = 0; i < n; i++) {
                    Fiber& f = g.fibers[i];
                    if (!f.stack) f.stack.reset(new char[STACK]);
                    f.done = false;
                    f.waits = nullptr;
                    f.index = i;
                    prepare(f.context, f.stack.get(), STACK, enter);
                    turn[i] = order == REVERSE ? n - 1 - i : i;
                }
                for (unsigned left = n; left;) {
                    if (order == SHUFFLED)
                        for (unsigned i = n - 1; i > 0; i--) {
                            random = random * 1664525 + 1013904223;
                            std::swap(turn[i], turn[(random >> 8) % (i + 1)]);
                        }
                    bool moved = false;
                    for (unsigned i : turn) {
                        Fiber& f = g.fibers[i];
                        if (f.done || (f.waits && f.waits->phase == f.phase)) continue;
                        g.current = &f;
                        moved = true;
                        switch_to(g.main, f.context);
                        if (g.error[0]) return;
                        left -= f.done;
                    }
                    if (!moved) {
                        snprintf(g.error, sizeof g.error,
                                 "not every thread reaches a barrier or SIMD operation (threadgroup %u %u %u)", x, y, z);
                        return;
                    }
                }
            }
}

}  // namespace fibers
