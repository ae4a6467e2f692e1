// Threadgroups on the CPU: every thread of a group is a fiber of one OS thread, so that barriers and SIMD operations are
// exact meetings. A meeting that not every thread reaches is reported, not waited for. Fibers run in a chosen order
// between two meetings, and a kernel that lacks a barrier gives different results in different orders.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace fibers {

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
    alignas(16) char in[2][SIMD * 16];
    alignas(16) char out[2][SIMD * 16];
};

struct Fiber {
    ucontext_t context;
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
    ucontext_t main;
    std::vector<Fiber> fibers;
    Fiber* current = nullptr;
    Meeting all;
    std::vector<Meeting> simds;
    Position at{};
    const Call* call = nullptr;
    char error[160] = {};
};

inline thread_local Group* group = nullptr;

inline void yield() { swapcontext(&group->current->context, &group->main); }

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

// Every lane gives a value, and gets those of all lanes, until the operation after the next one.
template <class T>
inline const T* exchange(T value, const char* what) {
    static_assert(sizeof(T) <= 16);
    Meeting& m = simd();
    unsigned side = m.phase & 1;
    reinterpret_cast<T*>(m.in[side])[group->current->index % SIMD] = value;
    if (m.arrived + 1 == m.size) memcpy(m.out[side], m.in[side], sizeof m.in[side]);
    meet(m, what);
    return reinterpret_cast<const T*>(m.out[side]);
}

inline void enter() {
    unsigned i = group->current->index;
    group->call->run(*group->call, group->at, i % SIMD, i / SIMD);
    group->current->done = true;
    swapcontext(&group->current->context, &group->main);
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
                    getcontext(&f.context);
                    f.context.uc_stack.ss_sp = f.stack.get();
                    f.context.uc_stack.ss_size = STACK;
                    f.context.uc_link = &g.main;
                    makecontext(&f.context, enter, 0);
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
                        swapcontext(&g.main, &f.context);
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
