// Runs CUDA kernels on a CPU, for tests where there is no GPU. Each thread of a block is a fiber; barriers and warp
// collectives are rendezvous, and one that not all threads reach ends the program. Fibers run in an order that a seed
// shuffles anew at each pass, so that a missing barrier changes results. Not modelled: memory ordering between blocks.
#pragma once
#define CUDA_SHIM 1
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SHIM_SWITCH_FROM(fake, low, size) __sanitizer_start_switch_fiber(fake, low, size)
#define SHIM_SWITCH_TO(fake, low, size) __sanitizer_finish_switch_fiber(fake, low, size)
#else
#define SHIM_SWITCH_FROM(fake, low, size) (void)0
#define SHIM_SWITCH_TO(fake, low, size) (void)0
#endif

namespace shim {
constexpr unsigned WARP = 32;
constexpr size_t STACK = 64 << 10;
struct Dim {
    unsigned x, y, z;
};

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
// ucontext makes a system call per switch; this saves what a called function must preserve.
#define SHIM_FAST 1
asm(R"(
.text
.p2align 4
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
.size shim_switch, .-shim_switch
)");
extern "C" void shim_switch(void **from, void **to) __attribute__((visibility("hidden")));
typedef void *Context;
#else
typedef ucontext_t Context;
#endif

// A barrier of a block, or a collective of a warp.
struct Meeting {
    unsigned size = 0, arrived = 0, phase = 0;
    const char *what = nullptr;
    uint64_t values[2][WARP];
};
struct Fiber {
    Context context;
    std::unique_ptr<char[]> stack;
    unsigned index = 0, phase = 0;
    bool done = false;
    Meeting *waits = nullptr;
    void *fake = nullptr;
};
struct Block {
    Context main;
    std::vector<Fiber> fibers;
    std::vector<Meeting> warps;
    Meeting all;
    Fiber *now = nullptr;
    Dim index{}, grid{}, block{};
    void (*body)(const void *) = nullptr;
    const void *args = nullptr;
    const void *main_stack = nullptr;
    size_t main_size = 0;
    void *main_fake = nullptr;
};
inline thread_local Block *block = nullptr;

[[noreturn]] inline void fail(const char *problem) {
    fprintf(stderr, "kernel: %s (block %u, thread %u)\n", problem, block->index.x, block->now ? block->now->index : 0);
    abort();
}
inline void swap(Context &from, Context &to) {
#ifdef SHIM_FAST
    shim_switch(&from, &to);
#else
    swapcontext(&from, &to);
#endif
}
inline void leave(void **fake) {
    Fiber *me = block->now;
    SHIM_SWITCH_FROM(fake, block->main_stack, block->main_size);
    swap(me->context, block->main);
    SHIM_SWITCH_TO(me->fake, &block->main_stack, &block->main_size);
}
inline void wait(Meeting &m) {
    Fiber *me = block->now;
    unsigned phase = m.phase;
    me->waits = &m;
    me->phase = phase;
    while (m.phase == phase) leave(&me->fake);
    me->waits = nullptr;
}
inline void meet(Meeting &m, const char *what) {
    if (m.arrived && strcmp(m.what, what)) fail("threads meet in different places");
    m.what = what;
    if (++m.arrived == m.size) {
        m.arrived = 0;
        m.phase++;
    } else {
        wait(m);
    }
}
// Every lane gives a value, and gets those of all.
template <class T> const T *exchange(T value, const char *what) {
    static_assert(sizeof(T) <= 8);
    Meeting &m = block->warps[block->now->index / WARP];
    unsigned side = m.phase & 1;
    reinterpret_cast<T *>(m.values[side])[block->now->index % WARP] = value;
    meet(m, what);
    // Valid until the collective after the next.
    return reinterpret_cast<const T *>(m.values[side]);
}
inline void enter() {
    SHIM_SWITCH_TO(nullptr, &block->main_stack, &block->main_size);
    block->body(block->args);
    block->now->done = true;
    leave(nullptr);
    abort();
}
inline void run(Dim grid, unsigned threads, unsigned seed, void (*body)(const void *), const void *args) {
    Block b;
    block = &b;
    b.grid = grid;
    b.block = {threads, 1, 1};
    b.body = body;
    b.args = args;
    b.fibers.resize(threads);
    std::vector<unsigned> order(threads);
    for (unsigned i = 0; i < threads; i++) {
        b.fibers[i].stack.reset(new char[STACK]);
        b.fibers[i].index = i;
        order[i] = i;
    }
    for (unsigned at = 0; at < grid.x * grid.y * grid.z; at++) {
        b.index = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
        b.all = Meeting{};
        b.all.size = threads;
        b.warps.assign((threads + WARP - 1) / WARP, Meeting{});
        for (auto &warp : b.warps) warp.size = WARP;
        for (auto &f : b.fibers) {
            f.done = false;
            f.waits = nullptr;
            f.fake = nullptr;
#ifdef SHIM_FAST
            void **top = reinterpret_cast<void **>((reinterpret_cast<uintptr_t>(f.stack.get()) + STACK) & ~uintptr_t(15));
            // As after a call: the stack is 8 off a multiple of 16.
            *--top = nullptr;
            *--top = reinterpret_cast<void *>(enter);
            for (int i = 0; i < 6; i++) *--top = nullptr;
            f.context = top;
#else
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.get();
            f.context.uc_stack.ss_size = STACK;
            f.context.uc_link = nullptr;
            makecontext(&f.context, enter, 0);
#endif
        }
        for (unsigned left = threads; left;) {
            for (unsigned i = threads - 1; seed && i > 0; i--) {
                seed = seed * 1664525 + 1013904223;
                std::swap(order[i], order[(seed >> 8) % (i + 1)]);
            }
            bool moved = false;
            for (unsigned i : order) {
                Fiber &f = b.fibers[i];
                if (f.done || (f.waits && f.waits->phase == f.phase)) continue;
                b.now = &f;
                moved = true;
                SHIM_SWITCH_FROM(&b.main_fake, f.stack.get(), STACK);
                swap(b.main, f.context);
                SHIM_SWITCH_TO(b.main_fake, nullptr, nullptr);
                if (f.done) {
                    left--;
                    // A thread that has returned counts as arrived.
                    if (--b.all.size && b.all.arrived == b.all.size) {
                        b.all.arrived = 0;
                        b.all.phase++;
                    }
                }
            }
            if (!moved && left) fail("not every thread reaches a barrier or a collective");
        }
    }
    block = nullptr;
}
} // namespace shim

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
struct ShimThread {
    unsigned x;
};
#define threadIdx (ShimThread{shim::block->now->index})
#define blockIdx (shim::block->index)
#define blockDim (shim::block->block)
#define gridDim (shim::block->grid)
struct float2 {
    float x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
using std::min;
inline void __syncthreads() { shim::meet(shim::block->all, "__syncthreads"); }
inline void __syncwarp() { shim::exchange(0, "__syncwarp"); }
template <class T> T __shfl_xor_sync(unsigned mask, T value, unsigned by) {
    if (mask != 0xffffffffu) shim::fail("only whole warps are modelled");
    return shim::exchange(value, "__shfl_xor_sync")[shim::block->now->index % 32 ^ by];
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += int(int8_t(a >> i)) * int(int8_t(b >> i));
    return c;
}
inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float half_value(unsigned h) {
    unsigned sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(float(m), -24);
    return __uint_as_float(sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13);
}
inline unsigned half_bits(float x) {
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000;
    float a = std::fabs(x);
    if (x != x) return sign | 0x7e00;
    if (a >= 65520.0f) return sign | 0x7c00;
    if (a < 0x1p-14f) return sign | unsigned(std::rint(a * 0x1p24f));
    unsigned m = bits & 0x7fffffff;
    m += 0xfff + (m >> 13 & 1);
    return sign | ((m >> 13) - (112 << 10));
}
