// As much of NCCL as src/nccl.rs calls, among the GPUs of shim/driver.cpp: exchanges are host functions on the ranks' streams,
// which wait for one another and copy. A send waits for its receiver, as NCCL's may. What NCCL would do by mistake is an error
// here: memory of another GPU, another stream, counts that differ.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace {

enum Result { SUCCESS, UNHANDLED_CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR };
enum { FLOAT32 = 7, SUM = 0 };

template <class... Arguments> int cuda(const char *name, Arguments... arguments) {
    // The one that is loaded.
    static void *library = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
    auto call = library ? (int (*)(Arguments...))dlsym(library, name) : nullptr;
    return call ? call(arguments...) : 1;
}

int current_device() {
    int device = -1;
    cuda("cuCtxGetDevice", &device);
    return device;
}

bool on_device(const void *memory, size_t bytes, int device) {
    int first = -1, last = -1;
    constexpr int DEVICE_ORDINAL = 9;
    cuda("cuPointerGetAttribute", (void *)&first, DEVICE_ORDINAL, uint64_t(memory));
    cuda("cuPointerGetAttribute", (void *)&last, DEVICE_ORDINAL, uint64_t(memory) + bytes - 1);
    return first == device && last == device;
}

enum Kind { ALL_GATHER, ALL_REDUCE, SEND, RECEIVE };

struct Operation {
    Kind kind;
    const float *from;
    float *to;
    size_t count;
    int peer;
};

// What the ranks of a collective have given, and how many have read it.
struct Round {
    std::map<int, Operation> given;
    size_t done = 0;
};

struct Clique {
    int ranks;
    std::mutex mutex;
    std::condition_variable changed;
    std::map<size_t, Round> rounds;
    // By sender and receiver: what was sent and not received.
    std::map<std::pair<int, int>, std::deque<Operation *>> sent;
};

struct Comm {
    std::shared_ptr<Clique> clique;
    int rank, device;
    void *stream = nullptr;
    size_t collectives = 0;
    Result error = SUCCESS;
    bool aborted = false;
    // Groups of operations that were given to the stream: graphs run them again.
    std::deque<std::pair<Comm *, std::vector<Operation>>> given;

    template <class Ready> bool wait(std::unique_lock<std::mutex> &lock, Ready ready) {
        if (!clique->changed.wait_for(lock, std::chrono::seconds(60), [&] { return aborted || ready(); })) {
            fprintf(stderr, "NCCL shim: rank %d of %d hangs\n", rank, clique->ranks);
            abort();
        }
        return !aborted;
    }

    void run(Operation &operation, std::unique_lock<std::mutex> &lock) {
        size_t number = collectives++;
        Round &round = clique->rounds[number];
        round.given[rank] = operation;
        clique->changed.notify_all();
        if (!wait(lock, [&] { return round.given.size() == size_t(clique->ranks); })) return;
        for (auto &[rank, other] : round.given)
            if (other.kind != operation.kind || other.count != operation.count) error = INVALID_USAGE;
        size_t count = operation.count;
        std::vector<float> sums(count);
        // In an order of its own, and into other memory: that of an input may be that of an output.
        for (auto other = round.given.rbegin(); other != round.given.rend() && error == SUCCESS; ++other) {
            if (operation.kind == ALL_GATHER)
                memmove(operation.to + other->first * count, other->second.from, count * sizeof(float));
            else
                for (size_t i = 0; i < count; i++) sums[i] += other->second.from[i];
        }
        round.done++;
        clique->changed.notify_all();
        if (!wait(lock, [&] { return round.done >= size_t(clique->ranks); })) return;
        if (operation.kind == ALL_REDUCE && error == SUCCESS) memcpy(operation.to, sums.data(), count * sizeof(float));
        // The last one to leave: none looks at it any more.
        if (++round.done == 2 * size_t(clique->ranks)) clique->rounds.erase(number);
        clique->changed.notify_all();
    }

    void run(std::vector<Operation> &group) {
        std::unique_lock<std::mutex> lock(clique->mutex);
        if (group.size() == 1 && group[0].kind <= ALL_REDUCE) return run(group[0], lock);
        for (Operation &one : group)
            if (one.kind == SEND) clique->sent[{rank, one.peer}].push_back(&one);
        clique->changed.notify_all();
        for (Operation &one : group) {
            if (one.kind != RECEIVE) continue;
            auto &queue = clique->sent[{one.peer, rank}];
            if (!wait(lock, [&] { return !queue.empty(); })) return;
            if (queue.front()->count != one.count) error = INVALID_USAGE;
            else memcpy(one.to, queue.front()->from, one.count * sizeof(float));
            queue.pop_front();
            clique->changed.notify_all();
        }
        for (Operation &one : group) {
            auto &queue = clique->sent[{rank, one.peer}];
            auto waits = [&] {
                for (Operation *sent : queue)
                    if (sent == &one) return true;
                return false;
            };
            if (one.kind == SEND && !wait(lock, [&] { return !waits(); })) return;
        }
    }
};

thread_local int depth = 0;
thread_local std::vector<Operation> grouped;
thread_local Comm *grouped_comm = nullptr;

// The call of a rank, counted from 0, that fails when it is made, or later.
std::mutex fault_mutex;
int fault_rank = -1, fault_call = 0, fault_result = 0;
bool fault_later = false;

Result launch(Comm *comm, std::vector<Operation> operations) {
    comm->given.emplace_back(comm, std::move(operations));
    auto run = [](void *given) {
        auto *group = (std::pair<Comm *, std::vector<Operation>> *)given;
        group->first->run(group->second);
    };
    int failed = cuda("cuLaunchHostFunc", comm->stream, (void (*)(void *))run, (void *)&comm->given.back());
    return failed ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

Result add(Comm *comm, void *stream, int type, Operation operation) {
    {
        std::lock_guard<std::mutex> lock(fault_mutex);
        if (comm->rank == fault_rank && fault_call-- == 0) {
            fault_rank = -1;
            if (!fault_later) return Result(fault_result);
            std::lock_guard<std::mutex> other(comm->clique->mutex);
            comm->error = Result(fault_result);
            return SUCCESS; // It is not done.
        }
    }
    size_t bytes = operation.count * sizeof(float), all = operation.kind == ALL_GATHER ? bytes * comm->clique->ranks : bytes;
    bool placed = (!operation.from || on_device(operation.from, bytes, comm->device)) &&
                  (!operation.to || on_device(operation.to, all, comm->device));
    bool to_other = operation.peer < comm->clique->ranks && operation.peer != comm->rank;
    if (type != FLOAT32 || operation.count == 0 || !placed || !to_other) return INVALID_ARGUMENT;
    if (comm->stream && comm->stream != stream) return INVALID_USAGE;
    if (!stream || current_device() != comm->device) return INVALID_USAGE;
    comm->stream = stream;
    if (!depth) return launch(comm, {operation});
    grouped_comm = comm;
    grouped.push_back(operation);
    return SUCCESS;
}

} // namespace

extern "C" {

// Makes call number `call` of `rank` from now on fail with `result`: when it is made, or later.
void shim_nccl_fault(int rank, int call, int result, int later) {
    std::lock_guard<std::mutex> lock(fault_mutex);
    fault_rank = rank, fault_call = call, fault_result = result, fault_later = later;
}

Result ncclGetVersion(int *version) { return *version = 22304, SUCCESS; }

Result ncclCommInitAll(Comm **comms, int ranks, const int *devices) {
    std::set<int> different(devices, devices + ranks);
    if (ranks < 1 || different.size() != size_t(ranks)) return INVALID_USAGE;
    auto clique = std::make_shared<Clique>();
    clique->ranks = ranks;
    for (int rank = 0; rank < ranks; rank++) {
        comms[rank] = new Comm;
        comms[rank]->clique = clique;
        comms[rank]->rank = rank;
        comms[rank]->device = devices[rank];
    }
    return SUCCESS;
}

Result ncclCommDestroy(Comm *comm) {
    if (comm->stream) cuda("cuStreamSynchronize", comm->stream);
    return delete comm, SUCCESS;
}

// What is on the stream ends. The handle stays: graphs may still have it.
Result ncclCommAbort(Comm *comm) {
    std::lock_guard<std::mutex> lock(comm->clique->mutex);
    comm->aborted = true;
    comm->clique->changed.notify_all();
    return SUCCESS;
}

Result ncclCommGetAsyncError(Comm *comm, Result *result) {
    std::lock_guard<std::mutex> lock(comm->clique->mutex);
    return *result = comm->error, SUCCESS;
}

Result ncclAllGather(const float *from, float *to, size_t count, int type, Comm *comm, void *stream) {
    return add(comm, stream, type, {ALL_GATHER, from, to, count, -1});
}

Result ncclAllReduce(const float *from, float *to, size_t count, int type, int operation, Comm *comm, void *stream) {
    return operation == SUM ? add(comm, stream, type, {ALL_REDUCE, from, to, count, -1}) : INVALID_ARGUMENT;
}

Result ncclSend(const float *from, size_t count, int type, int peer, Comm *comm, void *stream) {
    return peer < 0 ? INVALID_ARGUMENT : add(comm, stream, type, {SEND, from, nullptr, count, peer});
}

Result ncclRecv(float *to, size_t count, int type, int peer, Comm *comm, void *stream) {
    return peer < 0 ? INVALID_ARGUMENT : add(comm, stream, type, {RECEIVE, nullptr, to, count, peer});
}

Result ncclGroupStart() { return depth++, SUCCESS; }

Result ncclGroupEnd() {
    if (depth == 0) return INVALID_USAGE;
    if (--depth > 0 || grouped.empty()) return SUCCESS;
    return launch(grouped_comm, std::exchange(grouped, {}));
}

} // extern "C"
