// As much of the CUDA driver as src/cuda.rs and shim/nccl.cpp call, for GPUS GPUs that are this CPU and run shohin.cpp's
// kernels. A stream is a thread, so that what is given to it is done later, in order, beside other streams.
#include "shohin.cpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace driver {

constexpr int GPUS = 4;
constexpr size_t MOST = 1024;
enum Result { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, CAPTURED = 900 };
using Work = std::function<void()>;
using Graph = std::vector<Work>;
struct Context {
    int device;
};

[[noreturn]] void stop(const char *problem) {
    fprintf(stderr, "CUDA shim: %s\n", problem);
    abort();
}

struct Stream {
    Context *context;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> work;
    bool busy = false, ends = false;
    std::shared_ptr<Graph> recording;
    std::thread thread;

    explicit Stream(Context *context) : context(context), thread([this] { run(); }) {}

    ~Stream() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            ends = true;
        }
        changed.notify_all();
        thread.join();
    }

    void run() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            changed.wait(lock, [this] { return ends || !work.empty(); });
            if (work.empty()) return;
            Work next = std::move(work.front());
            work.pop_front();
            busy = true;
            lock.unlock();
            next();
            lock.lock();
            busy = false;
            changed.notify_all();
        }
    }

    // As many launches as CUDA has room for wait; one more waits for them.
    void add(Work next) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return recording || work.size() < MOST; });
        if (recording) recording->push_back(std::move(next));
        else work.push_back(std::move(next));
        changed.notify_all();
    }

    Result wait() {
        std::unique_lock<std::mutex> lock(mutex);
        if (recording) return CAPTURED;
        changed.wait(lock, [this] { return work.empty() && !busy; });
        return SUCCESS;
    }
};

// The last work on a stream when it was recorded.
struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = true, captured = false;
};

Context contexts[GPUS] = {{0}, {1}, {2}, {3}};
thread_local Context *current = nullptr;
std::mutex memory_mutex;
struct Allocation {
    size_t bytes;
    int device;
};
std::map<uint64_t, Allocation> memory;

// The GPU whose memory has all these bytes, or -1.
int owner(uint64_t address, size_t bytes) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto after = memory.upper_bound(address);
    if (after == memory.begin()) return -1;
    auto &[start, allocation] = *--after;
    return address + bytes <= start + allocation.bytes ? allocation.device : -1;
}

Result add(Stream *stream, Work work) {
    if (!stream || stream->context != current) return INVALID_CONTEXT;
    stream->add(std::move(work));
    return SUCCESS;
}

} // namespace driver

using namespace driver;

extern "C" {

Result cuInit(unsigned) { return SUCCESS; }
Result cuDeviceGetCount(int *count) { return *count = GPUS, SUCCESS; }
Result cuDeviceGet(int *device, int ordinal) {
    return ordinal >= 0 && ordinal < GPUS ? (*device = ordinal, SUCCESS) : INVALID_VALUE;
}
Result cuDeviceGetName(char *name, int bytes, int device) {
    return snprintf(name, bytes, "CPU as GPU %d", device), SUCCESS;
}
// Multiprocessors, and bytes of the memory of blocks that one has, and of that a block at most; of compute capability 9.0.
Result cuDeviceGetAttribute(int *value, int attribute, int) {
    return *value = attribute == 16 ? 3 : attribute == 81 ? 228 << 10 : attribute == 97 ? 227 << 10 : attribute == 75 ? 9 : 0, SUCCESS;
}
Result cuDevicePrimaryCtxRetain(Context **context, int device) { return *context = &contexts[device], SUCCESS; }
Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
Result cuCtxGetCurrent(Context **context) { return *context = current, SUCCESS; }
Result cuCtxSetCurrent(Context *context) { return current = context, SUCCESS; }
Result cuCtxGetDevice(int *device) { return current ? (*device = current->device, SUCCESS) : INVALID_CONTEXT; }
Result cuCtxSynchronize() { return SUCCESS; }
Result cuGetErrorString(Result result, const char **text) {
    return *text = result == CAPTURED ? "operation not permitted when stream is capturing" : "a call was refused", SUCCESS;
}
// As long as SHOHIN_SHIM_COMPILES, in milliseconds, as if the kernels were compiled.
Result cuModuleLoadData(void **module, const void *) {
    const char *compiles = getenv("SHOHIN_SHIM_COMPILES");
    std::this_thread::sleep_for(std::chrono::milliseconds(compiles ? atoi(compiles) : 0));
    return *module = contexts, SUCCESS;
}
Result cuModuleGetFunction(const Entry **function, void *, const char *name) {
    size_t bytes;
    int kernel = shim_kernel(name, &bytes);
    return kernel < 0 ? NOT_FOUND : (*function = &ENTRIES[kernel], SUCCESS);
}
// Bytes of a kernel's variables in shared memory.
Result cuFuncGetAttribute(int *value, int attribute, const Entry *function) {
    return function && attribute == 1 ? (*value = 1 << 10, SUCCESS) : INVALID_VALUE;
}
Result cuFuncSetAttribute(const Entry *function, int, int) { return function ? SUCCESS : INVALID_VALUE; }
Result cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    if (!current || bytes == 0) return INVALID_VALUE;
    // What is read before it is written stands out.
    *address = uint64_t(memset(malloc(bytes), 0xff, bytes));
    std::lock_guard<std::mutex> lock(memory_mutex);
    memory[*address] = {bytes, current->device};
    return SUCCESS;
}
Result cuMemFree_v2(uint64_t address) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    if (!memory.erase(address)) return INVALID_VALUE;
    free((void *)address);
    return SUCCESS;
}
Result cuMemHostAlloc(void **address, size_t bytes, unsigned) {
    if (!current || bytes == 0) return INVALID_VALUE;
    return *address = memset(malloc(bytes), 0xff, bytes), SUCCESS;
}
Result cuMemFreeHost(void *address) { return free(address), SUCCESS; }
Result cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    constexpr int DEVICE_ORDINAL = 9;
    int device = attribute == DEVICE_ORDINAL ? owner(address, 1) : -1;
    return device < 0 ? INVALID_VALUE : (memcpy(value, &device, sizeof device), SUCCESS);
}
Result cuMemsetD8Async(uint64_t address, unsigned char byte, size_t bytes, Stream *stream) {
    return add(stream, [=] { memset((void *)address, byte, bytes); });
}
Result cuMemcpyHtoDAsync_v2(uint64_t address, const void *from, size_t bytes, Stream *stream) {
    if (owner(address, bytes) != (current ? current->device : -1)) return INVALID_VALUE;
    // Pageable memory is copied when the call returns.
    auto copy = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    return add(stream, [=] { memcpy((void *)address, copy->data(), copy->size()); });
}
Result cuMemcpyDtoHAsync_v2(void *to, uint64_t address, size_t bytes, Stream *stream) {
    if (owner(address, bytes) != (current ? current->device : -1)) return INVALID_VALUE;
    return add(stream, [=] { memcpy(to, (const void *)address, bytes); });
}
Result cuStreamCreate(Stream **stream, unsigned) { return *stream = new Stream(current), SUCCESS; }
Result cuStreamDestroy_v2(Stream *stream) { return delete stream, SUCCESS; }
Result cuStreamSynchronize(Stream *stream) { return stream->wait(); }
Result cuStreamQuery(Stream *stream) {
    std::lock_guard<std::mutex> lock(stream->mutex);
    if (stream->recording) return CAPTURED;
    return stream->work.empty() && !stream->busy ? SUCCESS : NOT_READY;
}
Result cuEventCreate(std::shared_ptr<Event> **event, unsigned) { return *event = new auto(std::make_shared<Event>()), SUCCESS; }
Result cuEventDestroy_v2(std::shared_ptr<Event> *event) { return delete event, SUCCESS; }
Result cuEventRecord(std::shared_ptr<Event> *event, Stream *stream) {
    std::shared_ptr<Event> now = *event = std::make_shared<Event>();
    {
        std::lock_guard<std::mutex> lock(stream->mutex);
        now->captured = stream->recording != nullptr;
    }
    now->done = false;
    return add(stream, [now] {
        std::lock_guard<std::mutex> lock(now->mutex);
        now->done = true;
        now->changed.notify_all();
    });
}
Result cuEventSynchronize(std::shared_ptr<Event> *event) {
    std::unique_lock<std::mutex> lock((*event)->mutex);
    if ((*event)->captured) return CAPTURED;
    (*event)->changed.wait(lock, [event] { return (*event)->done; });
    return SUCCESS;
}
Result cuStreamIsCapturing(Stream *stream, int *status) {
    std::lock_guard<std::mutex> lock(stream->mutex);
    return *status = stream->recording != nullptr, SUCCESS;
}
Result cuLaunchHostFunc(Stream *stream, void (*function)(void *), void *argument) {
    return add(stream, [=] { function(argument); });
}
struct Attribute {
    int id, unused;
    unsigned value[3], rest[13];
};
struct Launched {
    unsigned grid[3], block[3], shared;
    Stream *stream;
    const Attribute *attributes;
    unsigned count;
};
Result cuLaunchKernelEx(const Launched *launched, const Entry *function, void **parameters, void **) {
    auto [x, y, z] = launched->grid;
    unsigned threads = launched->block[0], shared = launched->shared;
    Stream *stream = launched->stream;
    // That it may begin before the launch before has ended, and the size of clusters.
    const Attribute *attributes = launched->attributes;
    if (launched->count < 1 || launched->count > 2 || attributes[0].id != 6) return INVALID_VALUE;
    if (launched->count == 2) {
        auto [id, none, cluster, rest] = attributes[1];
        if (id != 4 || cluster[0] != 1 || cluster[1] != 1 || cluster[2] > 8 || z % cluster[2] != 0) return INVALID_VALUE;
    }
    std::vector<uint64_t> args((function->args + 7) / 8);
    memcpy(args.data(), parameters[0], function->args);
    int kernel = int(function - ENTRIES);
    return add(stream, [=, x = x, y = y, z = z] {
        if (const char *problem = shim_launch(kernel, x, y, z, threads, shared, 0, args.data())) stop(problem);
    });
}
Result cuStreamBeginCapture_v2(Stream *stream, int) {
    std::lock_guard<std::mutex> lock(stream->mutex);
    if (stream->recording) return CAPTURED;
    return stream->recording = std::make_shared<Graph>(), SUCCESS;
}
Result cuStreamEndCapture(Stream *stream, std::shared_ptr<Graph> **graph) {
    std::lock_guard<std::mutex> lock(stream->mutex);
    if (!stream->recording) return INVALID_VALUE;
    *graph = new std::shared_ptr<Graph>(std::move(stream->recording));
    return stream->recording = nullptr, SUCCESS;
}
Result cuGraphInstantiateWithFlags(std::shared_ptr<Graph> **exec, std::shared_ptr<Graph> *graph, uint64_t) {
    return *exec = new std::shared_ptr<Graph>(*graph), SUCCESS;
}
Result cuGraphLaunch(std::shared_ptr<Graph> *exec, Stream *stream) {
    return add(stream, [graph = *exec] {
        for (const Work &work : *graph) work();
    });
}
Result cuGraphExecDestroy(std::shared_ptr<Graph> *exec) { return delete exec, SUCCESS; }
Result cuGraphDestroy(std::shared_ptr<Graph> *graph) { return delete graph, SUCCESS; }

} // extern "C"
