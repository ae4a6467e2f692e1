// The kernels as a library for a CPU. Compiled by tests with a C++ compiler.
#include "cuda.h"
#include "../kernels/shohin.cu"

struct Entry {
    const char *name;
    size_t args;
    void (*body)(const void *);
};
#define ENTRY(NAME, ARGS) {#NAME, sizeof(ARGS), [](const void *args) { NAME(*static_cast<const ARGS *>(args)); }}
#define PRODUCTS(NAME) ENTRY(NAME, ProductArgs), ENTRY(NAME##_many, ProductArgs)
#define TILES_ENTRIES(BITS)                                                                                             \
    ENTRY(tiles_one_##BITS, TilesArgs), ENTRY(tiles_norm_##BITS, TilesArgs), \
        ENTRY(tiles_few_##BITS, TilesArgs), ENTRY(tiles_many_##BITS, TilesArgs)
static const Entry ENTRIES[] = {
    ENTRY(embed, EmbedArgs),
    ENTRY(rmsnorm, NormArgs),
    ENTRY(quantize, QuantizeArgs),
    ENTRY(rope_store, RopeArgs),
    ENTRY(attention, AttentionArgs),
    ENTRY(route, RouteArgs),
    ENTRY(route_tiles, RouteArgs),
    ENTRY(experts_add, ExpertsAddArgs),
    ENTRY(gate, GateArgs),
    ENTRY(change, ChangeArgs),
    ENTRY(argmax, ArgmaxArgs),
    ENTRY(gather, GatherArgs),
    PRODUCTS(product_int8_0), PRODUCTS(product_int8_1), PRODUCTS(product_int8_2),
    PRODUCTS(product_int8_3), PRODUCTS(product_int8_4), PRODUCTS(product_int8_5),
    PRODUCTS(product_f32_0), PRODUCTS(product_f32_1), PRODUCTS(product_f32_2),
    PRODUCTS(product_f32_3), PRODUCTS(product_f32_4), PRODUCTS(product_f32_5),
    PRODUCTS(product_f32_6), PRODUCTS(product_f32_7), PRODUCTS(product_f32_8),
    ENTRY(product_int8_1_mma, ProductArgs), ENTRY(product_int8_2_mma, ProductArgs),
    ENTRY(product_int8_3_mma, ProductArgs), ENTRY(product_int8_4_mma, ProductArgs), ENTRY(product_int8_5_mma, ProductArgs),
    ENTRY(retile, RetileArgs),
    TILES_ENTRIES(1), TILES_ENTRIES(2), TILES_ENTRIES(4), TILES_ENTRIES(8),
    ENTRY(product_int8_mixed, ProductArgs),
    ENTRY(product_f32_mixed, ProductArgs),
};

// The number of a kernel, or -1; `args` is set to the size of its arguments.
extern "C" int shim_kernel(const char *name, size_t *args) {
    int i = 0;
    for (const Entry &entry : ENTRIES) {
        if (!strcmp(entry.name, name)) {
            *args = entry.args;
            return i;
        }
        i++;
    }
    return -1;
}
struct Launch : fibers::Call {
    void (*body)(const void *);
    const void *args;
};
// In order with a seed of 0, otherwise shuffled. Returns an error, or null.
extern "C" const char *shim_launch(int kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared,
                                   unsigned seed, const void *args) {
    static thread_local fibers::Block block;
    Launch launch;
    launch.run = [](const fibers::Call &call) {
        auto &launch = static_cast<const Launch &>(call);
        launch.body(launch.args);
    };
    launch.body = ENTRIES[kernel].body;
    launch.args = args;
    block.leavers_arrive = true;
    std::unique_ptr<uint4[]> memory(new uint4[(shared + 15) / 16]);
    shim_shared = memory.get();
    // NaN: it has no content at first.
    auto clear = [&] { memset(static_cast<void *>(memory.get()), 0xff, shared); };
    fibers::run(block, {x, y, z}, threads, seed ? fibers::SHUFFLED : fibers::FORWARD, seed, launch, clear);
    return block.error[0] ? block.error : nullptr;
}
// Of the sanitizer's allocator, if there is one.
extern "C" void *shim_alloc(size_t bytes) { return calloc(1, bytes); }
extern "C" void shim_free(void *memory) { free(memory); }
