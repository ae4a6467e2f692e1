// The kernels as a shared library. KERNELS is their source as the host concatenates it, in quotes.
#include "metal.h"

#include KERNELS

#ifndef CHECK
#include <sys/mman.h>
#include <unistd.h>

namespace {

template <size_t... I>
void call(const fibers::Call& c, fibers::Position group, unsigned lane, unsigned simd_index, std::index_sequence<I...>) {
    // Buffers and parameters are pointers or references, which are passed alike.
    using Function = void (*)(decltype((void)I, (void*)nullptr)..., float*, metal::uint3, unsigned, unsigned);
    metal::uint3 at = {group.x, group.y, group.z};
    reinterpret_cast<Function>(c.function)(c.buffers[I]..., c.shared, at, lane, simd_index);
}

template <size_t N>
void call_with(const fibers::Call& c, fibers::Position group, unsigned lane, unsigned simd_index) {
    call(c, group, lane, simd_index, std::make_index_sequence<N>());
}

using Run = decltype(fibers::Call::run);
constexpr Run RUNS[] = {call_with<0>, call_with<1>, call_with<2>, call_with<3>, call_with<4>, call_with<5>,
                        call_with<6>, call_with<7>, call_with<8>, call_with<9>, call_with<10>};

// Whole pages, the first of them that is not readable, and the start of the buffer.
struct Pages {
    size_t readable, page;
    char* at;
    Pages(size_t bytes) {
        page = size_t(sysconf(_SC_PAGESIZE));
        readable = (bytes + page - 1) / page * page;
    }
};

}  // namespace

// Memory that ends, to 16 bytes, where nothing can be read or written; its content is NaN.
kernel void* shim_allocate(size_t bytes) {
    Pages pages(bytes);
    char* at = static_cast<char*>(mmap(nullptr, pages.readable + pages.page, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (at == MAP_FAILED || mprotect(at + pages.readable, pages.page, PROT_NONE) != 0) return nullptr;
    char* buffer = at + pages.readable - (bytes + 15) / 16 * 16;
    memset(buffer, 0xff, bytes);
    return buffer;
}

kernel void shim_free(void* buffer, size_t bytes) {
    Pages pages(bytes);
    munmap(static_cast<char*>(buffer) + (bytes + 15) / 16 * 16 - pages.readable, pages.readable + pages.page);
}

// Runs `function` for a grid of threadgroups. Writes a message of at most `error_size` bytes if it fails.
kernel int shim_run(void* function, void** buffers, size_t count, const unsigned* grid, unsigned simds,
                    size_t shared_bytes, int order, char* error, size_t error_size) {
    static thread_local fibers::Group group;
    if (count >= sizeof RUNS / sizeof *RUNS) {
        snprintf(error, error_size, "too many arguments");
        return 1;
    }
    // With room for 16-byte vectors at its start.
    std::vector<metal::float4> shared(shared_bytes / 16 + 1);
    fibers::Call call{RUNS[count], function, buffers, count, reinterpret_cast<float*>(shared.data())};
    group.error[0] = 0;
    fibers::run(group, {grid[0], grid[1], grid[2]}, simds, fibers::Order(order), call, shared_bytes);
    snprintf(error, error_size, "%s", group.error);
    return group.error[0] != 0;
}
#endif
