// The kernels as a shared library. KERNELS is their source as the host concatenates it, in quotes.
#include "metal.h"

#include KERNELS

#ifndef CHECK
#include <sys/mman.h>
#include <unistd.h>

namespace {

// A kernel with the arguments of a dispatch.
struct Dispatch : fibers::Call {
    void* function;
    void** buffers;
    float* shared;
};

template <size_t... I>
void call(const fibers::Call& c, std::index_sequence<I...>) {
    // Buffers and parameters are pointers or references, which are passed alike.
    using Function = void (*)(decltype((void)I, (void*)nullptr)..., float*, metal::uint3, unsigned, unsigned);
    auto& d = static_cast<const Dispatch&>(c);
    auto& [x, y, z] = fibers::block->at;
    unsigned index = fibers::block->current->index;
    reinterpret_cast<Function>(d.function)(d.buffers[I]..., d.shared, metal::uint3{x, y, z}, index % fibers::WARP,
                                           index / fibers::WARP);
}

template <size_t N>
void call_with(const fibers::Call& c) {
    call(c, std::make_index_sequence<N>());
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
    static thread_local fibers::Block block;
    if (count >= sizeof RUNS / sizeof *RUNS) {
        snprintf(error, error_size, "too many arguments");
        return 1;
    }
    // With room for 16-byte vectors at its start.
    std::vector<metal::float4> shared(shared_bytes / 16 + 1);
    Dispatch dispatch;
    dispatch.run = RUNS[count];
    dispatch.function = function;
    dispatch.buffers = buffers;
    dispatch.shared = reinterpret_cast<float*>(shared.data());
    // Threadgroup memory has no content at first: NaN shows in results.
    auto clear = [&] { memset(dispatch.shared, 0xff, shared_bytes); };
    fibers::run(block, {grid[0], grid[1], grid[2]}, simds * fibers::WARP, fibers::Order(order), 12345, dispatch, clear);
    snprintf(error, error_size, "%s", block.error);
    return block.error[0] != 0;
}
#endif
