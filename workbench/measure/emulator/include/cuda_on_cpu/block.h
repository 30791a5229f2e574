// One block of CUDA threads: who runs, who waits at a barrier or a warp operation, and what to say when nobody can.
//
// Lazy fibers: a fiber takes up one thread after the other. When no thread waits, one fiber runs the whole block as a
// plain loop. A thread that has to wait keeps its fiber; another fiber goes on with the threads that are ready, or with
// those not yet started. So no analysis of the kernel is needed, and a kernel without barriers pays nothing for them.
#pragma once
#pragma GCC system_header

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_on_cpu/errors.h"
#include "cuda_on_cpu/fiber.h"
#include "cuda_on_cpu/vector_types.h"

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

constexpr int max_threads = 1024;
constexpr int warp_size = 32;

// A place in the kernel's source; as a default argument it is the caller's place.
struct Where {
  const char* file = "";
  int line = 0;
  static constexpr Where here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// What the last lane to arrive does for all: the argument of each lane (null: it does not take part), and who does.
using Collective = void (*)(void* const* arguments, unsigned present);

enum class State : uint8_t { not_started, running, at_barrier, at_warp_operation, exited };

struct Thread {
  uint3 index;
  unsigned short id, fiber;
  State state;
  Where where;            // while it waits
  unsigned mask;          // the rest: while it waits at a warp operation
  void* argument;
  Collective collective;
};

struct Warp {
  unsigned waiting;  // lanes at a warp operation
  unsigned exited;   // lanes that have ended, or never were
};

// What a launch asks for; the same for all its blocks.
struct Grid {
  dim3 blocks, threads;
  size_t dynamic_bytes;
  void (*run_thread)(const void* call);
  const void* call;
  unsigned most_threads = max_threads;  // the kernel's __launch_bounds__
};

// A buffer of shared memory that the running block has met. It ends where a page ends, but for less than `step` bytes; the pages
// before and behind it are closed.
struct SharedRegion {
  static constexpr uintptr_t step = 128, page = 4096;
  char* data;
  size_t bytes;
  static size_t whole(size_t bytes) { return (bytes + step - 1) / step * step; }
  uintptr_t start() const { return reinterpret_cast<uintptr_t>(data); }
  uintptr_t end() const { return start() + whole(bytes); }
  uintptr_t first_page() const { return start() / page * page; }
  // Of the bytes that lie on its pages beside it, how many from `data` on, and how many behind it, are not as they were.
  size_t spare_before() const { return start() - first_page() < step ? start() - first_page() : step; }
  static size_t written(const char* from, size_t bytes, bool last) {
    size_t found = 0;
    for (size_t i = 0; i < bytes; ++i) {
      if (from[i] != '\xFF' && (last || found == 0)) {
        found = last ? i + 1 : bytes - i;
      }
    }
    return found;
  }
};

class Block;

// Finds places of shared memory that two threads of a block change with no barrier or warp operation between: on a GPU one of the
// two values may be lost, while the emulator runs one thread after the other. What differs from a copy when a thread stops, this
// thread has changed. After an atomic, and where hardware copies or threads wait in a loop, it cannot be said who waits for whom.
struct SharedWatch {
  struct Mark {
    uint32_t epoch;
    uint16_t thread, warp_epoch;
  };
  static constexpr size_t most_compared = size_t{256} << 20;  // bytes of a launch: about 0.05 s
  static constexpr size_t most_bytes = size_t{256} << 10;     // more than a block can have
  char* copy = nullptr;
  Mark* marks = nullptr;
  size_t compared = 0;
  uint32_t epoch = 0;  // since the launch began: barriers, blocks, atomics
  uint16_t warp_epochs[max_threads / warp_size] = {};

  bool begin();
  void end();
  void block_begins(const Block& block);
  void note(Block& block);  // the running thread stops, or meets others
};

class Block {
 public:
  Block(const Grid& grid, const char* order);
  ~Block();
  Block(const Block&) = delete;

  // Runs one block to its end; false if it failed (the error is then recorded).
  bool run(uint3 index);

  // For the running CUDA thread.
  int barrier(int vote, Where where);
  void collective(unsigned mask, void* argument, Collective function, Where where);
  void let_others_run();
  unsigned lanes_alive() const { return ~warps[thread->id / warp_size].exited; }
  [[noreturn]] void stop(cudaError_t code, const char* format, ...) __attribute__((format(printf, 3, 4)));

  const Grid& grid;
  uint3 index;
  Thread* thread = nullptr;  // the one that runs
  unsigned long serial = 0;  // counts the blocks this object has run
  SharedRegion dynamic{};
  SharedRegion statics[64];
  int static_count = 0;
  int thread_count;
  SharedWatch* shared_watch = nullptr;

  void note_shared() {
    if (shared_watch != nullptr) {
      shared_watch->note(*this);
    }
  }

 private:
  static void fiber_main();
  void run_next_thread(int fiber);
  void thread_exited();
  void release_barrier();
  bool complete(int first, unsigned mask, int skip);
  void make_ready(Thread& thread);
  void suspend(bool prefer_new = false);
  int next_fiber(bool prefer_new);
  int fresh_fiber();
  void report_deadlock();
  void abandon_fibers();
  char* stack(int fiber) { return slab + slab_bytes - (fiber + 1) * stack_bytes; }
  uint64_t& canary(int fiber) { return *reinterpret_cast<uint64_t*>(stack(fiber)); }
  static constexpr uint64_t untouched = 0xC0DAC0DAC0DAC0DAull;

  int next_start, alive, at_barrier, votes, vote_result;
  bool failed = false;
  unsigned lane_order = 0;  // lanes of a warp are woken in the order i ^ lane_order
  unsigned short order[max_threads];
  unsigned short ready[max_threads];  // a ring: each thread is in it once at most
  int ready_first = 0, ready_count = 0;
  unsigned short idle[max_threads];
  int idle_count = 0, fiber_count = 0;
  Fiber scheduler;
  Fiber fibers[max_threads];
  Thread threads[max_threads];
  Warp warps[max_threads / warp_size];
  size_t stack_bytes, slab_bytes;
  char* slab;
  bool shared_is_whole(const SharedRegion& region);
};

// constinit: no wrapper function is called to reach it.
inline constinit thread_local Block* current = nullptr;

inline Block::Block(const Grid& grid, const char* wanted_order) : grid(grid) {
  thread_count = grid.threads.x * grid.threads.y * grid.threads.z;
  const char order_kind = wanted_order == nullptr ? 'f' : wanted_order[0];
  uint64_t random = order_kind >= '0' && order_kind <= '9' ? strtoull(wanted_order, nullptr, 10) * 2 + 1 : 0;
  for (int i = 0; i < thread_count; ++i) {
    order[i] = static_cast<unsigned short>(order_kind == 'r' ? thread_count - 1 - i : i);
    threads[i].id = static_cast<unsigned short>(i);
    threads[i].index = {i % grid.threads.x, i / grid.threads.x % grid.threads.y, i / (grid.threads.x * grid.threads.y)};
  }
  for (int i = thread_count - 1; random != 0 && i > 0; --i) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    const int other = static_cast<int>((random >> 33) % (i + 1));
    const unsigned short swapped = order[i];
    order[i] = order[other];
    order[other] = swapped;
  }
  lane_order = order_kind == 'r' ? warp_size - 1 : random >> 59;

  const char* wanted_stack = getenv("CUDACPU_STACK");
#ifdef CUDA_ON_CPU_ASAN
  constexpr size_t default_stack = 256 << 10;
#else
  constexpr size_t default_stack = 64 << 10;
#endif
  stack_bytes = wanted_stack == nullptr ? default_stack : strtoull(wanted_stack, nullptr, 10);
  stack_bytes = stack_bytes < 16384 ? 16384 : (stack_bytes + 15) / 16 * 16;
  // One mapping, of which only the pages that are used become memory. The first stack is its upper end, so that one
  // that is too small grows into a stack not yet in use, or into the spare bytes, and its canary tells. Guard pages
  // instead would use up the kernel's limit of mappings.
  constexpr size_t spare_bytes = 256 << 10;
  slab_bytes = spare_bytes + stack_bytes * thread_count;
  slab = static_cast<char*>(mmap(nullptr, slab_bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (slab == MAP_FAILED) {
    fprintf(stderr, "cuda_on_cpu: no address space for %d stacks of %zu bytes; lower CUDACPU_STACK\n", thread_count,
            stack_bytes);
    abort();
  }
}

inline Block::~Block() {
  abandon_fibers();
  munmap(slab, slab_bytes);
}

inline bool Block::run(uint3 block_index) {
  index = block_index;
  ++serial;
  static_count = 0;
  next_start = at_barrier = votes = 0;
  alive = thread_count;
  for (int i = 0; i < thread_count; ++i) {
    threads[i].state = State::not_started;
  }
  if (shared_watch != nullptr) {
    shared_watch->block_begins(*this);
  }
  for (int first = 0; first < thread_count; first += warp_size) {
    const int lanes = thread_count - first;
    warps[first / warp_size] = {0, lanes >= warp_size ? 0 : ~0u << lanes};
  }
  int fiber;
  while (!failed && (fiber = next_fiber(false)) >= 0) {
    switch_fiber(scheduler, fibers[fiber]);
  }
  if (!failed && alive > 0) {
    report_deadlock();
  }
  for (int i = -1; !failed && i < static_count; ++i) {
    failed = !shared_is_whole(i < 0 ? dynamic : statics[i]);
  }
  if (failed) {
    abandon_fibers();
  }
  return !failed;
}

// ---- fibers -------------------------------------------------------------------------------------------------------

inline void Block::fiber_main() {
  Block& block = *current;
  const int self = block.fiber_count - 1;
  arrive(block.fibers[self]);
  for (;;) {
    // It was chosen to begin a thread, even if others are ready.
    do {
      block.run_next_thread(self);
    } while (block.next_start < block.thread_count && block.ready_count == 0);
    block.idle[block.idle_count++] = static_cast<unsigned short>(self);
    const int next = block.next_fiber(false);
    switch_fiber(block.fibers[self], next < 0 ? block.scheduler : block.fibers[next]);
  }
}

inline void Block::run_next_thread(int fiber) {
  Thread& mine = threads[order[next_start++]];
  mine.fiber = static_cast<unsigned short>(fiber);
  mine.state = State::running;
  thread = &mine;
  grid.run_thread(grid.call);
  thread_exited();
}

// The fiber to go on with, and in `thread` the thread that it goes on with; -1: nothing is left to do.
inline int Block::next_fiber(bool prefer_new) {
  if (ready_count > 0 && !(prefer_new && next_start < thread_count)) {
    thread = &threads[ready[ready_first]];
    ready_first = (ready_first + 1) % max_threads;
    --ready_count;
    thread->state = State::running;
    return thread->fiber;
  }
  return next_start < thread_count ? fresh_fiber() : -1;
}

inline int Block::fresh_fiber() {
  if (idle_count > 0) {
    return idle[--idle_count];
  }
  const int fiber = fiber_count++;
  canary(fiber) = untouched;
  make_fiber(fibers[fiber], stack(fiber), stack_bytes, &Block::fiber_main);
  return fiber;
}

// Leaves the running thread until somebody makes it ready.
inline void Block::suspend(bool prefer_new) {
  const int self = thread->fiber;
  if (canary(self) != untouched) {
    stop(cudaErrorLaunchFailure, "a thread needs more than %zu bytes of stack: raise CUDACPU_STACK", stack_bytes);
  }
  const int next = next_fiber(prefer_new);
  if (next != self) {
    switch_fiber(fibers[self], next < 0 ? scheduler : fibers[next]);
  }
}

inline void Block::make_ready(Thread& other) {
  ready[(ready_first + ready_count++) % max_threads] = other.id;
}

inline void Block::let_others_run() {
  shared_watch = nullptr;
  make_ready(*thread);
  suspend(true);
}

inline void Block::thread_exited() {
  note_shared();
  if (canary(thread->fiber) != untouched) {
    stop(cudaErrorLaunchFailure, "a thread needs more than %zu bytes of stack: raise CUDACPU_STACK", stack_bytes);
  }
  thread->state = State::exited;
  --alive;
  const int first = thread->id / warp_size * warp_size;
  Warp& warp = warps[first / warp_size];
  warp.exited |= 1u << (thread->id % warp_size);
  // Others may have waited for this one alone.
  for (unsigned lanes = warp.waiting; lanes != 0;) {
    const unsigned mask = threads[first + __builtin_ctz(lanes)].mask;
    complete(first, mask, -1);
    lanes &= ~mask;
  }
  if (at_barrier > 0) {
    release_barrier();
  }
}

inline void Block::abandon_fibers() {
#ifdef CUDA_ON_CPU_ASAN
  // The red zones of frames that never returned would be found by whoever gets this memory next.
  __asan_unpoison_memory_region(stack(fiber_count - 1), stack_bytes * fiber_count);
#endif
  fiber_count = idle_count = ready_count = 0;
}

// ---- barriers and warp operations ---------------------------------------------------------------------------------

// __syncthreads() and its relatives: waits for all threads that have not exited; how many of them voted.
inline int Block::barrier(int vote, Where where) {
  note_shared();
  thread->state = State::at_barrier;
  thread->where = where;
  ++at_barrier;
  votes += vote;
  release_barrier();
  suspend();
  return vote_result;
}

inline void Block::release_barrier() {
  if (at_barrier != alive) {
    return;
  }
  if (shared_watch != nullptr) {
    ++shared_watch->epoch;
  }
  vote_result = votes;
  votes = at_barrier = 0;
  Where first;
  for (int i = 0; i < thread_count; ++i) {
    Thread& other = threads[order[i]];
    if (other.state != State::at_barrier) {
      continue;
    }
    if (first.line != 0 && first.line != other.where.line) {
      stop(cudaErrorLaunchFailure,
           "divergent __syncthreads(): threads of one block wait at %s:%d and at %s:%d; all must reach the same one",
           first.file, first.line, other.where.file, other.where.line);
    }
    first = other.where;
    make_ready(other);
  }
}

inline void Block::collective(unsigned mask, void* argument, Collective function, Where where) {
  const int lane = thread->id % warp_size, first = thread->id - lane;
  if ((mask >> lane & 1) == 0) {
    stop(cudaErrorLaunchFailure, "warp operation at %s:%d: lane %d calls it with mask 0x%08x, which leaves it out",
         where.file, where.line, lane, mask);
  }
  note_shared();
  thread->state = State::at_warp_operation;
  thread->where = where;
  thread->mask = mask;
  thread->argument = argument;
  thread->collective = function;
  warps[first / warp_size].waiting |= 1u << lane;
  if (complete(first, mask, lane)) {
    thread->state = State::running;
  } else {
    suspend();
  }
}

// Does the warp operation of `mask` if all its lanes are there, or have exited. Lane `skip` goes on by itself.
inline bool Block::complete(int first, unsigned mask, int skip) {
  Warp& warp = warps[first / warp_size];
  const unsigned present = warp.waiting & mask;
  if ((present | (warp.exited & mask)) != mask) {
    return false;
  }
  void* arguments[warp_size] = {};
  const Thread& one = threads[first + __builtin_ctz(present)];
  for (unsigned lanes = present; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    const Thread& other = threads[first + lane];
    if (other.mask != mask) {
      return false;
    }
    if (other.collective != one.collective) {
      stop(cudaErrorLaunchFailure, "lanes of one warp meet in different warp operations, at %s:%d and at %s:%d",
           one.where.file, one.where.line, other.where.file, other.where.line);
    }
    arguments[lane] = other.argument;
  }
  if (shared_watch != nullptr) {
    ++shared_watch->warp_epochs[first / warp_size];
  }
  one.collective(arguments, present);
  warp.waiting &= ~present;
  for (int i = 0; i < warp_size; ++i) {
    const int lane = i ^ static_cast<int>(lane_order);
    if (lane != skip && (present >> lane & 1) != 0) {
      make_ready(threads[first + lane]);
    }
  }
  return true;
}

// ---- failures -----------------------------------------------------------------------------------------------------

// Ends the block, and with it the launch. The thread that calls is never heard of again.
inline void Block::stop(cudaError_t code, const char* format, ...) {
  char text[768];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  record_error(code, "%s [block (%u, %u, %u), thread (%u, %u, %u)]", text, index.x, index.y, index.z, thread->index.x,
               thread->index.y, thread->index.z);
  failed = true;
  switch_fiber(fibers[thread->fiber], scheduler);
  __builtin_unreachable();
}

inline void Block::report_deadlock() {
  int barrier_count = 0, warp_count = 0;
  Where barrier_where, warp_where;
  for (int i = 0; i < thread_count; ++i) {
    if (threads[i].state == State::at_barrier) {
      ++barrier_count;
      barrier_where = threads[i].where;
    } else if (threads[i].state == State::at_warp_operation) {
      ++warp_count;
      warp_where = threads[i].where;
    }
  }
  char at_barrier_text[256] = "", at_warp_text[256] = "";
  if (barrier_count > 0) {
    snprintf(at_barrier_text, sizeof at_barrier_text, " at __syncthreads() (%s:%d)", barrier_where.file,
             barrier_where.line);
  }
  if (warp_count > 0) {
    snprintf(at_warp_text, sizeof at_warp_text, " (%s:%d)", warp_where.file, warp_where.line);
  }
  record_error(cudaErrorLaunchFailure,
               "deadlock in block (%u, %u, %u): %d threads wait%s, %d wait at a warp operation%s, %d have exited",
               index.x, index.y, index.z, barrier_count, at_barrier_text, warp_count, at_warp_text,
               thread_count - alive);
  failed = true;
}

}  // namespace cuda_on_cpu
