// The device's memory, closed to host code as on a GPU; pages around tensors that nobody may touch; and which bytes two
// blocks of a launch change.
#pragma once
#pragma GCC system_header

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "cuda_on_cpu/block.h"

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

constexpr uintptr_t page_bytes = 4096;

struct Range {
  uintptr_t start, bytes;
  bool has(uintptr_t address) const { return address - start < bytes; }
};

// Where host_process.py keeps the device's memory, its seccomp filter refuses to change the protection of pages. It allows calls
// that have this key in two arguments that the system does not use.
inline long protection_key[2] = {};

inline int protect(uintptr_t start, uintptr_t bytes, int rights) {
  return static_cast<int>(syscall(SYS_mprotect, start, bytes, rights, protection_key[0], protection_key[1]));
}

// What is wrong with an access. The judge's apart.py has the same numbers.
enum Fault {
  no_fault = 0,
  outside = 1,
  read_outside = 2,
  wrote_outside = 3,
  two_blocks = 4,
  shared_symbol = 5,
  other_stream = 6,
  two_threads = 7,
};

// Finds bytes that two blocks of a launch change. Blocks then run one after the other. Each begins with pages that are closed
// for writing. At its first write to a page a copy is kept; what differs from the copy when the block ends, the block has
// changed. An element that is changed with atomics may be changed by many. A block that has a memory fence and an atomic may
// tell another one, which asks by an atomic, what it has written; such a pair may change the same bytes.
//
// What a block without a memory fence has written, other blocks need not see before the launch ends. If the block has an
// atomic, which may tell others that it is done, its values are taken back when it ends, and put there at the end of the
// launch: a block that reads them finds what was there before.
struct Watch {
  static constexpr int most_pages = 4096;    // that a block may write to
  static constexpr int most_faults = 50000;  // of a launch: about 0.2 s
  enum Mark : uint8_t { changed = 1, atomic = 2, told = 4, late = 8 };
  bool asked = false, active = false;
  bool fenced = false, asks = false;  // the running block has had a memory fence, an atomic
  Range whole{};
  uint8_t* marks = nullptr;  // one for each byte of `whole`
  uint8_t* later = nullptr;  // the values of the bytes that are marked as late
  uintptr_t first_late = 0, end_late = 0;
  char* copies = nullptr;
  uintptr_t pages[most_pages];
  int count = 0, faults = 0;
  uintptr_t conflict = 0;
  uint3 conflict_block{};

  // For each launch all marks are zero.
  bool begin() {
    if (marks == nullptr) {
      marks = static_cast<uint8_t*>(reserve(whole.bytes));
      later = static_cast<uint8_t*>(reserve(whole.bytes));
      copies = static_cast<char*>(reserve(most_pages * page_bytes));
    } else {
      madvise(marks, whole.bytes, MADV_DONTNEED);
    }
    count = faults = 0;
    conflict = 0;
    fenced = asks = false;
    first_late = whole.bytes, end_late = 0;
    return active = marks != nullptr && later != nullptr && copies != nullptr;
  }

  static void* reserve(size_t bytes) {
    void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? nullptr : found;
  }

  // The first write of a block to a page; false if there are too many.
  bool keep(uintptr_t address) {
    const uintptr_t page = address / page_bytes * page_bytes;
    if (count == most_pages || ++faults > most_faults ||
        protect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) {
      return false;
    }
    memcpy(copies + count * page_bytes, reinterpret_cast<void*>(page), page_bytes);
    pages[count++] = page;
    return true;
  }

  void end_block(uint3 index) {
    for (int i = 0; i < count; ++i) {
      auto* now = reinterpret_cast<uint8_t*>(pages[i]);
      const auto* before = reinterpret_cast<const uint8_t*>(copies + i * page_bytes);
      const uintptr_t start = pages[i] - whole.start;
      for (uintptr_t at = 0; at < page_bytes; at += sizeof(uint64_t)) {
        if (memcmp(now + at, before + at, sizeof(uint64_t)) == 0) {
          continue;
        }
        for (uintptr_t byte = at; byte < at + sizeof(uint64_t); ++byte) {
          if (now[byte] != before[byte] && (marks[start + byte] & atomic) == 0) {
            change(start + byte, now[byte], before[byte], index);
          }
        }
      }
      protect(pages[i], page_bytes, PROT_READ);
    }
    count = 0;
    fenced = asks = false;
  }

  // The running block has written to this byte, which had another value.
  void change(uintptr_t place, uint8_t& now, uint8_t before, uint3 index) {
    uint8_t& mark = marks[place];
    const bool same = (mark & late) != 0 && later[place] == now, told_of_it = (mark & told) != 0 && asks;
    if ((mark & changed) != 0 && !same && !told_of_it && conflict == 0) {
      conflict = whole.start + place;
      conflict_block = index;
    }
    const bool unseen = asks && !fenced;
    mark = changed | (fenced && asks ? told : 0) | (unseen ? late : 0);
    if (unseen) {
      later[place] = now;
      now = before;
      first_late = place < first_late ? place : first_late;
      end_late = place >= end_late ? place + 1 : end_late;
    }
  }

  // At the end of the launch; the pages are open.
  void show_late() {
    for (uintptr_t place = first_late; place < end_late; ++place) {
      if ((marks[place] & late) != 0) {
        *reinterpret_cast<uint8_t*>(whole.start + place) = later[place];
      }
    }
    end_late = 0;
  }

  void mark_atomic(const void* address, size_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    asks = true;
    if (active && whole.has(at)) {
      memset(marks + (at - whole.start), atomic, bytes);
    }
  }
};

// What cudaMalloc gave: whole pages, and one more that is never open.
struct Allocation {
  Range range;
  Allocation* next;
};

// Memory that host code cannot touch, as on a GPU: it is open only while a kernel or a copy runs. Of `whole` the rest, around
// the ranges, is never open.
struct DeviceMemory {
  static constexpr int most = 64;
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  Range ranges[most];
  Range whole{};
  int count = 0;
  Allocation* allocations = nullptr;
  Range heap{};                    // for cudaMalloc, the part that is not yet used; empty: mmap finds a place
  int users = 0;                   // kernels and copies at work
  bool beside_torch = false;       // operators of torch may use it at any time
  Range own_code{}, memcpy_code{};  // this library's, and the C library's
  Watch watch;
  Fault fault = no_fault;          // the latest, and where
  uintptr_t fault_at = 0;

  bool has(uintptr_t address) const {
    for (int i = 0; i < count; ++i) {
      if (ranges[i].has(address)) {
        return true;
      }
    }
    return false;
  }

  // Whether the address is in an allocation, or in the `behind` bytes after its end.
  bool allocated(uintptr_t address, uintptr_t behind = 0) const {
    for (const Allocation* one = allocations; one != nullptr; one = one->next) {
      if (address - one->range.start < one->range.bytes + behind) {
        return true;
      }
    }
    return false;
  }

  static void allow(Range range, int rights) {
    if (protect(range.start, range.bytes, rights) != 0) {
      perror("cuda_on_cpu: mprotect of the device's memory");
      abort();
    }
  }

  void allow_ranges(int rights) {
    for (int i = 0; i < count; ++i) {
      allow(ranges[i], rights);
    }
  }

  void allow(int rights) {
    allow_ranges(rights);
    for (const Allocation* one = allocations; one != nullptr; one = one->next) {
      allow(one->range, rights);
    }
  }
};
inline DeviceMemory device_memory;

// The stream that a launcher is given; only its address counts.
inline const char given_stream = 0;

// Work on any other stream is a fault, where the watch over blocks is wanted: what the caller has put on its own stream need not
// be done when that work begins, and the work need not be done when the caller's stream goes on.
inline void note_stream(const void* stream) {
  if (device_memory.watch.asked && device_memory.fault == no_fault && stream != &given_stream) {
    device_memory.fault = other_stream;
    device_memory.fault_at = device_memory.whole.start;
  }
}
constexpr int host_touched_device = 99;  // the process's exit code

struct OpenDeviceMemory {
  OpenDeviceMemory() {
    pthread_mutex_lock(&device_memory.lock);
    if (device_memory.users++ == 0) {
      device_memory.allow(PROT_READ | PROT_WRITE);
    }
    pthread_mutex_unlock(&device_memory.lock);
  }
  ~OpenDeviceMemory() {
    pthread_mutex_lock(&device_memory.lock);
    if (--device_memory.users == 0) {
      device_memory.allow(PROT_NONE);
    }
    pthread_mutex_unlock(&device_memory.lock);
  }
  OpenDeviceMemory(const OpenDeviceMemory&) = delete;
};

// Watches the blocks of one launch, if whoever loads the library has asked for it.
struct WatchedBlocks {
  WatchedBlocks() {
    if (device_memory.watch.asked && device_memory.watch.begin()) {
      device_memory.allow_ranges(PROT_READ);
    }
  }
  ~WatchedBlocks() {
    Watch& watch = device_memory.watch;
    if (watch.active) {
      device_memory.allow_ranges(PROT_READ | PROT_WRITE);
      watch.show_late();
    }
    if (watch.active && watch.conflict != 0 && device_memory.fault == no_fault) {
      device_memory.fault = two_blocks;
      device_memory.fault_at = watch.conflict;
      record_error(cudaErrorLaunchFailure, "block (%u, %u, %u) changes a value that another block has written",
                   watch.conflict_block.x, watch.conflict_block.y, watch.conflict_block.z);
    }
    watch.active = false;
  }
  WatchedBlocks(const WatchedBlocks&) = delete;
};

// The loaded file that an address belongs to.
inline Range code_around(const void* address) {
  struct Search {
    uintptr_t address;
    Range found{};
  } search{reinterpret_cast<uintptr_t>(address)};
  dl_iterate_phdr(
      [](dl_phdr_info* file, size_t, void* searched) {
        auto& search = *static_cast<Search*>(searched);
        for (int i = 0; i < file->dlpi_phnum; ++i) {
          const Range range{file->dlpi_addr + file->dlpi_phdr[i].p_vaddr, file->dlpi_phdr[i].p_memsz};
          if (file->dlpi_phdr[i].p_type == PT_LOAD && range.has(search.address)) {
            search.found = range;
          }
        }
        return 0;
      },
      &search);
  return search.found;
}

// Whether the host code of this library made the access, itself or by a call of memcpy and the like.
inline bool made_by_own_code(void* context) {
#if defined(__x86_64__)
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const uintptr_t at = registers[REG_RIP], caller = *reinterpret_cast<uintptr_t*>(registers[REG_RSP]);
#elif defined(__aarch64__)
  const auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
  const uintptr_t at = machine.pc, caller = machine.regs[30];
#else
  const uintptr_t at = 0, caller = 0;
  static_cast<void>(context);
#endif
  return device_memory.own_code.has(at) || (device_memory.memcpy_code.has(at) && device_memory.own_code.has(caller));
}

inline Fault kind_of_access(void* context) {
#if defined(__x86_64__)
  constexpr int by_a_write = 2;
  return (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & by_a_write) != 0 ? wrote_outside : read_outside;
#else
  static_cast<void>(context);
  return outside;
#endif
}

// The buffer of shared memory of the running block beside which an address lies, on a closed page; null: there is none.
inline const SharedRegion* shared_beside(uintptr_t address) {
  const Block& block = *current;
  for (int i = -1; i < block.static_count; ++i) {
    const SharedRegion& region = i < 0 ? block.dynamic : block.statics[i];
    if (region.data != nullptr && (address - region.end() < page_bytes ||
                                   address - (region.first_page() - page_bytes) < page_bytes)) {
      return &region;
    }
  }
  return nullptr;
}

inline struct sigaction handler_before = {};

inline void on_fault(int number, siginfo_t* information, void* context) {
  DeviceMemory& memory = device_memory;
  const auto address = reinterpret_cast<uintptr_t>(information->si_addr);
  const bool in_range = memory.has(address), inside = in_range || memory.allocated(address);
  const SharedRegion* shared = inside || current == nullptr ? nullptr : shared_beside(address);
  if (shared != nullptr) {
    const bool behind = address >= shared->end();
    current->stop(cudaErrorIllegalAddress, "an access to byte %zu %s of %zu bytes of shared memory",
                  behind ? address - shared->start() - shared->bytes + 1 : shared->start() - address,
                  behind ? "behind the end" : "before the start", shared->bytes);
  }
  if (in_range && memory.watch.active) {
    if (!memory.watch.keep(address)) {
      memory.watch.active = false;
      memory.allow(PROT_READ | PROT_WRITE);
      memory.watch.show_late();
    }
  } else if (!inside && memory.whole.has(address) && memory.users > 0 && current != nullptr) {
    memory.fault = kind_of_access(context);
    memory.fault_at = address;
    current->stop(cudaErrorIllegalAddress, "an access outside a tensor");
  } else if (!inside && memory.allocated(address, page_bytes) && memory.users > 0 && current != nullptr) {
    current->stop(cudaErrorIllegalAddress, "an access behind the end of memory from cudaMalloc");
  } else if (!inside && !memory.whole.has(address)) {
    sigaction(number, &handler_before, nullptr);  // the fault comes again, and goes there
  } else if (!memory.beside_torch || made_by_own_code(context)) {
    static const char words[] = "cuda_on_cpu: host code read or wrote memory of the device\n";
    [[maybe_unused]] const auto written = write(2, words, sizeof words - 1);
    _exit(host_touched_device);
  } else {
    memory.allow(PROT_READ | PROT_WRITE);  // until the next kernel or copy has ended
  }
}

inline void find_touches() {
  device_memory.own_code = code_around(reinterpret_cast<const void*>(&code_around));
  device_memory.memcpy_code = code_around(dlsym(RTLD_DEFAULT, "memcpy"));
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO | SA_NODEFER;  // a kernel that is stopped does not return from it
  action.sa_sigaction = on_fault;
  struct sigaction before;
  sigaction(SIGSEGV, &action, &before);
  if (before.sa_sigaction != on_fault) {
    handler_before = before;
  }
}

// For a library whose device's memory nobody closes.
inline void watch_faults() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_touches);
}

}  // namespace cuda_on_cpu

// From now on these whole pages (start and bytes of each range) are the device's memory, and no others. A host that touches
// them ends the process.
CUDA_ON_CPU_EXPORT void cuda_on_cpu_set_device_memory(const uintptr_t* ranges, int count, int beside_torch) {
  using namespace cuda_on_cpu;
  device_memory.allow(PROT_READ | PROT_WRITE);
  device_memory.count = count < DeviceMemory::most ? count : DeviceMemory::most;
  memcpy(device_memory.ranges, ranges, device_memory.count * sizeof device_memory.ranges[0]);
  device_memory.beside_torch = beside_torch != 0;
  find_touches();
  device_memory.allow(PROT_NONE);
}

// Memory from cudaMalloc comes from these closed pages. `key`: see `protection_key`.
CUDA_ON_CPU_EXPORT void cuda_on_cpu_set_heap(uintptr_t start, uintptr_t bytes, const long* key) {
  using namespace cuda_on_cpu;
  device_memory.heap = {start, bytes};
  memcpy(protection_key, key, sizeof protection_key);
}

// The device's memory lies within these whole pages, of which the others are closed to kernels, too. `watched`: find bytes
// that two blocks of a launch change.
CUDA_ON_CPU_EXPORT void cuda_on_cpu_set_surroundings(uintptr_t start, uintptr_t bytes, int watched) {
  using namespace cuda_on_cpu;
  device_memory.whole = device_memory.watch.whole = {start, bytes};
  device_memory.watch.asked = watched != 0;
  if (protect(start, bytes, PROT_NONE) != 0) {
    perror("cuda_on_cpu: mprotect of the surroundings");
    abort();
  }
}

CUDA_ON_CPU_EXPORT const void* cuda_on_cpu_stream() {
  return &cuda_on_cpu::given_stream;
}

// How many pieces of memory from cudaMalloc have not been freed.
CUDA_ON_CPU_EXPORT int cuda_on_cpu_allocated() {
  using namespace cuda_on_cpu;
  int found = 0;
  pthread_mutex_lock(&device_memory.lock);
  for (const Allocation* one = device_memory.allocations; one != nullptr; one = one->next) {
    ++found;
  }
  pthread_mutex_unlock(&device_memory.lock);
  return found;
}

// What kind of fault was found since the last call, and how many bytes behind the start of the surroundings.
CUDA_ON_CPU_EXPORT int cuda_on_cpu_fault(uintptr_t* place) {
  using namespace cuda_on_cpu;
  const Fault found = device_memory.fault;
  *place = found == no_fault ? 0 : device_memory.fault_at - device_memory.whole.start;
  device_memory.fault = no_fault;
  return found;
}
