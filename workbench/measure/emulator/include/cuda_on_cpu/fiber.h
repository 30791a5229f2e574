// Fibers: a stack each, and a switch from one to the other. Assembly for x86-64 and aarch64; ucontext elsewhere, or
// with -DCUDACPU_UCONTEXT (ten times slower: it makes system calls). AddressSanitizer is told of every switch.
#pragma once
#pragma GCC system_header

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(CUDACPU_UCONTEXT)
#define CUDACPU_UCONTEXT 1
#endif
#ifdef CUDACPU_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_ON_CPU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_ON_CPU_ASAN 1
#endif
#endif

#ifdef CUDA_ON_CPU_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, size_t* old_size);
void __asan_unpoison_memory_region(const volatile void* start, size_t size);
}
#endif

#ifndef CUDACPU_UCONTEXT
// Pushes what the ABI lets a caller expect unchanged, stores the stack pointer at *save, takes `load` as the stack
// pointer and pops the same from there.
extern "C" void cuda_on_cpu_switch(void** save, void* load);
asm(R"(
    .pushsection .text
    .p2align 4
    .weak cuda_on_cpu_switch
    .hidden cuda_on_cpu_switch
    .type cuda_on_cpu_switch, %function
cuda_on_cpu_switch:
)"
#ifdef __x86_64__
    R"(
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)"
#else
    R"(
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)"
#endif
    R"(
    .size cuda_on_cpu_switch, .-cuda_on_cpu_switch
    .popsection
)");
#endif

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

struct Fiber {
#ifdef CUDACPU_UCONTEXT
  ucontext_t context;
#else
  void* stack_pointer;
#endif
#ifdef CUDA_ON_CPU_ASAN
  const void* bottom;
  size_t size;
  void* fake_stack;
#endif
};

#ifdef CUDA_ON_CPU_ASAN
// Who switched to the fiber that runs now: finish_switch tells the bounds of that one's stack.
inline constinit thread_local Fiber* switched_from = nullptr;
#endif

// Lets `fiber` begin with entry(), which never returns, when it is first switched to.
inline void make_fiber(Fiber& fiber, char* stack, size_t size, void (*entry)()) {
#if defined(CUDACPU_UCONTEXT)
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = size;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
#else
  uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t(15);
#ifdef __x86_64__
  // Six registers, the address `ret` goes to, and no return address: what the stack is like after a call.
  constexpr int words = 8, entry_word = 6;
#else
  constexpr int words = 20, entry_word = 11;  // x30, the link register
#endif
  void** frame = reinterpret_cast<void**>(top) - words;
  memset(frame, 0, words * sizeof(void*));
  frame[entry_word] = reinterpret_cast<void*>(entry);
  fiber.stack_pointer = frame;
#endif
#ifdef CUDA_ON_CPU_ASAN
  fiber.bottom = stack;
  fiber.size = size;
  fiber.fake_stack = nullptr;
#endif
}

// The first act of whoever begins or goes on after a switch.
inline void arrive([[maybe_unused]] Fiber& self) {
#ifdef CUDA_ON_CPU_ASAN
  Fiber* from = switched_from;
  __sanitizer_finish_switch_fiber(self.fake_stack, &from->bottom, &from->size);
#endif
}

inline void switch_fiber(Fiber& from, Fiber& to) {
#ifdef CUDA_ON_CPU_ASAN
  switched_from = &from;
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
#endif
#ifdef CUDACPU_UCONTEXT
  swapcontext(&from.context, &to.context);
#else
  cuda_on_cpu_switch(&from.stack_pointer, to.stack_pointer);
#endif
  arrive(from);
}

}  // namespace cuda_on_cpu
